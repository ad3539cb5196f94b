"""Configured providers: from the setting, a file, or the configured model."""

import json
from decimal import Decimal
from pathlib import Path

import pytest

from ingestion_pipeline.settings import (
    BadSetting,
    Provider,
    load_settings,
    provider_list,
    providers_of,
    secret_variable,
)
from ingestion_pipeline.websites.provider_pool import configured_providers, provider_key, providers_for

PROVIDER_YAML = "- {name: one, base_url: 'http://one.test/v1', model: m, key_env: ONE_KEY}\n"


def test_without_a_model_there_is_no_provider() -> None:
    assert configured_providers(load_settings({})) == ()


def test_the_configured_model_is_the_default_provider() -> None:
    settings = load_settings({"OPENAI_API_KEY": "sk-1", "INGESTION_MODEL_CHEAP": "mini"})

    (provider,) = configured_providers(settings)

    assert (provider.name, provider.model) == ("default", "mini")
    assert provider.base_url == "https://api.openai.com/v1"
    assert provider_key(provider, settings) == "sk-1"


def test_a_provider_list_replaces_the_default_provider() -> None:
    text = '[{"name": "one", "base_url": "http://one.test/v1", "model": "m"}]'
    settings = load_settings({"OPENAI_API_KEY": "sk-1", "INGESTION_WEBSITE__PROVIDERS": text})

    (provider,) = configured_providers(settings)

    assert provider.name == "one"
    assert provider_key(provider, settings, {"OPENAI_API_KEY": "sk-1"}) == ""


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://demo.test/", ["all", "theirs"]),
        ("https://Saltmarsh.demo.test/about", ["all", "theirs"]),
        ("https://notdemo.test/", ["all"]),
        ("https://acme.example/", ["all"]),
    ],
)
def test_a_provider_of_a_host_is_used_only_for_its_websites(url: str, expected: list[str]) -> None:
    providers = [
        Provider(name="all", base_url="http://one.test/v1", model="m"),
        Provider(name="theirs", base_url="http://two.test/v1", model="m", host="demo.test"),
    ]

    assert [provider.name for provider in providers_for(providers, url)] == expected


def test_the_provider_list_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "providers.yaml"
    file.write_text(PROVIDER_YAML)

    (provider,) = configured_providers(load_settings({"INGESTION_WEBSITE__PROVIDERS": str(file)}))

    assert provider == Provider(name="one", base_url="http://one.test/v1", model="m", key_env="ONE_KEY")
    assert provider_key(provider, load_settings({}), {"ONE_KEY": "sk-one"}) == "sk-one"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("{", "neither YAML nor JSON"),
        ("name: one", "not a list"),
        (PROVIDER_YAML + PROVIDER_YAML, "provider one is there 2 times"),
    ],
)
def test_an_invalid_provider_file_is_named_with_the_reason(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "providers.yaml"
    if text is not None:
        file.write_text(text)

    with pytest.raises(BadSetting, match=message) as failure:
        configured_providers(load_settings({"INGESTION_WEBSITE__PROVIDERS": str(file)}))

    assert "providers.yaml" in str(failure.value)


ONE = {"name": "one", "base_url": "https://one.test/v1", "key_env": "ONE_KEY", "model": "m-1"}


def test_a_provider_has_defaults() -> None:
    (provider,) = provider_list(json.dumps([ONE]))

    assert (provider.name, provider.model, provider.concurrency) == ("one", "m-1", 4)
    assert provider.budget_usd is None


def test_a_budget_is_an_exact_decimal() -> None:
    (provider,) = provider_list('[{"name":"a","base_url":"http://a.test","model":"m","budget_usd":0.1}]')

    assert provider.budget_usd == Decimal("0.1")


def test_every_mistake_in_a_provider_list_is_reported_at_once() -> None:
    bad = [
        ONE,
        {"name": "two words", "base_url": "ftp://x", "model": "m"},
        {"name": "three", "base_url": "https://three.test", "key": "sk-secret"},
        "four",
        ONE,
    ]

    with pytest.raises(ValueError) as failure:  # noqa: PT011 - the message is asserted below
        providers_of(bad)

    message = str(failure.value)
    for part in (
        "provider 2 (two words): name:",
        "provider 2 (two words): base_url:",
        "provider 3 (three): model:",
        "provider 3 (three): key:",
        "provider 4:",
        "provider one is there 2 times",
    ):
        assert part in message
    assert "sk-secret" not in message


@pytest.mark.parametrize("text", ["[", "[1]", '[{"name":"a"}]'])
def test_an_invalid_provider_list_names_its_variable(text: str) -> None:
    with pytest.raises(BadSetting, match="INGESTION_WEBSITE__PROVIDERS"):
        load_settings({"INGESTION_WEBSITE__PROVIDERS": text})


def test_a_key_in_the_provider_list_is_not_shown() -> None:
    text = json.dumps([ONE | {"key": "sk-secret"}])

    with pytest.raises(BadSetting) as failure:
        load_settings({"INGESTION_WEBSITE__PROVIDERS": text})

    assert "provider 1 (one): key:" in str(failure.value)
    assert "sk-secret" not in str(failure.value)


def test_a_provider_document_that_is_not_a_list_is_refused() -> None:
    with pytest.raises(ValueError, match="not a list of providers"):
        providers_of({"name": "one"})


def test_a_key_is_looked_up_by_its_variable_and_stays_secret() -> None:
    secret = secret_variable("ONE_KEY", {"ONE_KEY": "sk-1"})

    assert secret.get_secret_value() == "sk-1"
    assert "sk-1" not in repr(secret)
    assert secret_variable("", {"": "x"}).get_secret_value() == ""
