"""Providers are data: a list that is checked as a whole when the settings are read."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from ingestion_pipeline.settings import BadSetting, load_settings, provider_list, providers_of, secret_variable

ONE = {"name": "one", "base_url": "https://one.test/v1", "key_env": "ONE_KEY", "model": "m-1"}


def test_a_provider_has_sane_defaults() -> None:
    (found,) = provider_list(json.dumps([ONE]))

    assert (found.name, found.model, found.concurrency) == ("one", "m-1", 4)
    assert found.budget_usd is None


def test_a_budget_is_exact() -> None:
    (found,) = provider_list('[{"name":"a","base_url":"http://a.test","model":"m","budget_usd":0.1}]')

    assert found.budget_usd == Decimal("0.1")


def test_everything_wrong_with_a_list_is_said_at_once() -> None:
    bad = [
        ONE,
        {"name": "two words", "base_url": "ftp://x", "model": "m"},
        {"name": "three", "base_url": "https://three.test", "key": "sk-secret"},
        "four",
        ONE,
    ]

    with pytest.raises(ValueError) as failure:  # noqa: PT011 - the words are the test
        providers_of(bad)

    said = str(failure.value)
    for part in (
        "provider 2 (two words): name:",
        "provider 2 (two words): base_url:",
        "provider 3 (three): model:",
        "provider 3 (three): key:",
        "provider 4:",
        "provider one is there 2 times",
    ):
        assert part in said
    assert "sk-secret" not in said


@pytest.mark.parametrize("text", ["[", "[1]", '[{"name":"a"}]'])
def test_a_bad_list_is_a_bad_setting_that_names_its_variable(text: str) -> None:
    with pytest.raises(BadSetting, match="INGESTION_WEBSITE__PROVIDERS"):
        load_settings({"INGESTION_WEBSITE__PROVIDERS": text})


def test_a_key_that_stands_in_the_list_by_mistake_is_not_shown() -> None:
    text = json.dumps([ONE | {"key": "sk-secret"}])

    with pytest.raises(BadSetting) as failure:
        load_settings({"INGESTION_WEBSITE__PROVIDERS": text})

    assert "provider 1 (one): key:" in str(failure.value)
    assert "sk-secret" not in str(failure.value)


def test_a_document_that_is_no_list_is_refused() -> None:
    with pytest.raises(ValueError, match="not a list of providers"):
        providers_of({"name": "one"})


def test_a_key_is_found_by_the_name_of_its_variable_and_stays_secret() -> None:
    found = secret_variable("ONE_KEY", {"ONE_KEY": "sk-1"})

    assert found.get_secret_value() == "sk-1"
    assert "sk-1" not in repr(found)
    assert secret_variable("", {"": "x"}).get_secret_value() == ""
