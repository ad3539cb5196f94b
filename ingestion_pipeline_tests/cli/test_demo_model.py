"""The demo's model, as a run is told of it."""

from __future__ import annotations

import os

import pytest

from ingestion_pipeline.cli.demo import bundled_model, demo_prices, demo_settings, model_settings
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.settings.models import price_table


def test_a_run_with_the_bundled_model_has_one_with_a_price_and_without_a_key() -> None:
    with bundled_model() as model:
        settings = load_settings(model_settings(model) | demo_prices())

    prices = price_table(settings.models.prices)
    assert settings.openai_base_url == f"http://127.0.0.1:{model.port}/v1"
    assert settings.openai_api_key.get_secret_value() == "demo"
    assert {settings.model_cheap, settings.model_strong} < set(prices)


def test_the_environment_is_as_before_after_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    monkeypatch.setenv("INGESTION_CRAWL__DELAY_SECONDS", "7")
    before = dict(os.environ)

    with demo_settings({"OPENAI_API_KEY": "demo", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}):
        during = dict(os.environ)

    assert (during["OPENAI_API_KEY"], during["INGESTION_CRAWL__DELAY_SECONDS"]) == ("demo", "7")
    assert during["INGESTION_HOSTS__DELAY_SECONDS"] == "0"
    assert dict(os.environ) == before
