"""Websites through Dagster: polled, analysed by the job or by hand, told, and checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import dagster as dg
import pytest
from sqlalchemy import update

from ingestion_pipeline.demo.model_server import Fail, ScriptedModel
from ingestion_pipeline.store.tables import website_rankings
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.orchestration.house import (
    PARTITION,
    House,
    a_file,
    checked,
    run_job,
    tick_sensor,
    told,
    why_it_failed,
)
from ingestion_pipeline_tests.websites.asking import PRICES, always, says
from ingestion_pipeline_tests.websites.sites import ACME as SITE

ACME = "website:acme"
ASSETS = ("website_info", "website_prompts", "website_analysis")


def led_to(monkeypatch: pytest.MonkeyPatch, **providers: ScriptedModel) -> None:
    listed = [{"name": name, "base_url": one.base_url, "model": f"m-{name}"} for name, one in providers.items()]
    monkeypatch.setenv("INGESTION_WEBSITE__PROVIDERS", json.dumps(listed))


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedModel]:
    with ScriptedModel(says("Acme Tools, then Globex.")) as model:
        led_to(monkeypatch, one=model)
        yield model


@pytest.fixture
def web(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWeb]:
    """A website, declared in a file."""
    with FakeWeb(dict(SITE)) as web:
        monkeypatch.setenv("INGESTION_ALLOW_HOSTS", web.host_port)
        monkeypatch.setenv("INGESTION_MODELS__PRICES", PRICES)
        monkeypatch.setenv("INGESTION_WEBSITE__BACKOFF_BASE_SECONDS", "0.05")
        monkeypatch.setenv("INGESTION_MODELS__BACKOFF_BASE_SECONDS", "0.02")
        entry = {"id": ACME, "kind": "website", "url": web.url("/")}
        (house.sources / "mine.yaml").write_text(a_file([entry]))
        yield web


def test_a_website_in_a_file_is_analysed_by_the_job_that_the_sensor_asks_for(
    house: House, web: FakeWeb, provider: ScriptedModel, instance: dg.DagsterInstance
) -> None:
    [request] = tick_sensor("new_sources", instance).run_requests
    [again] = tick_sensor("pending_work", instance).run_requests
    done = run_job(request.job_name, instance, tags=request.tags)

    assert {request.job_name, again.job_name} == {"analyze_websites"}
    assert house.source(ACME).last_checked_at is not None
    assert done.success
    assert instance.get_dynamic_partitions("websites") == [ACME]
    info, prompts, seen = (told(done, name)[ACME] for name in ASSETS)
    assert (info["name"], info["business_confidence"]) == ("Acme Tools", 90)
    assert info["checked_when"] == "at the interval of HOT, as every source of its kind"
    assert (prompts["prompts"], prompts["by_templates"]) == (7, 7)
    assert (seen["visibility"], seen["visibility_one"], seen["progress"]) == (1.0, 1.0, 100)
    assert seen["cost_usd"] > 0
    assert seen["visibility_over_time"].startswith("![screenshot](data:image/png;base64,")
    assert "Globex" in seen["visibility_table"]
    assert checked(done) == {
        "information_sure": True,
        "asked_without_the_name": True,
        "providers_answer": True,
        "no_visibility_drop": True,
        "contract": True,
    }
    assert not tick_sensor("pending_work", instance).run_requests
    assert not tick_sensor("new_sources", instance).run_requests


def test_one_website_is_analysed_by_hand_as_often_as_it_is_asked_for(
    house: House, web: FakeWeb, provider: ScriptedModel, instance: dg.DagsterInstance
) -> None:
    tick_sensor("new_sources", instance)

    runs = [run_job("ingest_website", instance, tags={PARTITION: ACME}) for _ in range(2)]

    assert [set(told(one, "website_analysis")) for one in runs] == [{ACME}] * 2
    assert [row["status"] for row in house.rows("website_analyses")] == ["completed"] * 2
    assert len(house.rows("website_rankings")) == 1


def test_a_website_that_cannot_be_reached_fails_the_run_of_one(
    house: House, web: FakeWeb, provider: ScriptedModel, instance: dg.DagsterInstance
) -> None:
    web.routes["/"] = 404
    tick_sensor("new_sources", instance)

    failed = run_job("ingest_website", instance, tags={PARTITION: ACME})

    assert "404" in why_it_failed(failed)


def test_a_job_without_a_partition_says_what_it_needs(instance: dg.DagsterInstance) -> None:
    assert "dagster/partition" in why_it_failed(run_job("ingest_website", instance))


def test_a_provider_that_never_answers_and_lost_visibility_turn_checks_red(
    house: House, web: FakeWeb, provider: ScriptedModel, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick_sensor("new_sources", instance)
    run_job("ingest_website", instance, tags={PARTITION: ACME})
    with house.open() as ctx, ctx.store.begin() as connection:  # it was yesterday
        day = ctx.store.now().date() - timedelta(days=1)
        connection.execute(update(website_rankings).values(day=day))
    with ScriptedModel(says("Globex.")) as one, ScriptedModel(always(Fail(status=401))) as two:
        led_to(monkeypatch, one=one, two=two)
        done = run_job("ingest_website", instance, tags={PARTITION: ACME})

    red = {name for name, is_passed in checked(done).items() if not is_passed}
    assert red == {"providers_answer", "no_visibility_drop"}


def test_a_name_that_is_only_the_domain_turns_a_check_red(
    house: House, web: FakeWeb, provider: ScriptedModel, instance: dg.DagsterInstance
) -> None:
    web.routes.clear()
    web.routes["/"] = "<html><body><p>" + "Parcels. " * 40 + "</p></body></html>"
    tick_sensor("new_sources", instance)

    done = run_job("ingest_website", instance, tags={PARTITION: ACME})

    assert checked(done)["information_sure"] is False
