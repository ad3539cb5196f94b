"""Which providers are asked: of the setting, of a file, or the one model that is configured."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestion_pipeline.settings import BadSetting, Provider, load_settings
from ingestion_pipeline.websites.provider_pool import configured_providers, provider_key, providers_for

LISTED = "- {name: one, base_url: 'http://one.test/v1', model: m, key_env: ONE_KEY}\n"


def test_without_a_model_there_is_none() -> None:
    assert configured_providers(load_settings({})) == ()


def test_the_configured_model_is_one() -> None:
    settings = load_settings({"OPENAI_API_KEY": "sk-1", "INGESTION_MODEL_CHEAP": "mini"})

    (found,) = configured_providers(settings)

    assert (found.name, found.model) == ("default", "mini")
    assert found.base_url == "https://api.openai.com/v1"
    assert provider_key(found, settings) == "sk-1"


def test_a_list_of_ones_own_replaces_it() -> None:
    text = '[{"name": "one", "base_url": "http://one.test/v1", "model": "m"}]'
    settings = load_settings({"OPENAI_API_KEY": "sk-1", "INGESTION_WEBSITE__PROVIDERS": text})

    (found,) = configured_providers(settings)

    assert found.name == "one"
    assert provider_key(found, settings, {"OPENAI_API_KEY": "sk-1"}) == ""


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://demo.test/", ["all", "theirs"]),
        ("https://Saltmarsh.demo.test/about", ["all", "theirs"]),
        ("https://notdemo.test/", ["all"]),
        ("https://acme.example/", ["all"]),
    ],
)
def test_who_answers_for_a_host_is_asked_about_its_websites_alone(url: str, expected: list[str]) -> None:
    providers = [
        Provider(name="all", base_url="http://one.test/v1", model="m"),
        Provider(name="theirs", base_url="http://two.test/v1", model="m", host="demo.test"),
    ]

    assert [one.name for one in providers_for(providers, url)] == expected


def test_a_file_may_hold_the_list(tmp_path: Path) -> None:
    file = tmp_path / "providers.yaml"
    file.write_text(LISTED)

    (found,) = configured_providers(load_settings({"INGESTION_WEBSITE__PROVIDERS": str(file)}))

    assert found == Provider(name="one", base_url="http://one.test/v1", model="m", key_env="ONE_KEY")
    assert provider_key(found, load_settings({}), {"ONE_KEY": "sk-one"}) == "sk-one"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("{", "neither YAML nor JSON"),
        ("name: one", "not a list"),
        (LISTED + LISTED, "provider one is there 2 times"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "providers.yaml"
    if text is not None:
        file.write_text(text)

    with pytest.raises(BadSetting, match=said) as failure:
        configured_providers(load_settings({"INGESTION_WEBSITE__PROVIDERS": str(file)}))

    assert "providers.yaml" in str(failure.value)
