"""Websites through Dagster: polled, analysed by the job or manually, materialized, and checked."""

import json
from collections.abc import Iterator
from datetime import timedelta

import dagster as dg
import pytest
from sqlalchemy import update

from ingestion_pipeline.demo.model_server import Fail, ScriptedModel
from ingestion_pipeline.store.tables import website_rankings
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.orchestration.installation import (
    PARTITION,
    Installation,
    check_results,
    failure_message,
    materialized,
    run_job,
    source_file,
    tick_sensor,
)
from ingestion_pipeline_tests.websites.provider_answers import PRICES, always, always_text
from ingestion_pipeline_tests.websites.website_runs import ACME_PAGES as SITE

ACME = "website:acme"
ASSETS = ("website_info", "website_prompts", "website_analysis")


def configure_providers(monkeypatch: pytest.MonkeyPatch, **providers: ScriptedModel) -> None:
    entries = [{"name": name, "base_url": server.base_url, "model": f"m-{name}"} for name, server in providers.items()]
    monkeypatch.setenv("INGESTION_WEBSITE__PROVIDERS", json.dumps(entries))


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedModel]:
    with ScriptedModel(always_text("Acme Tools, then Globex.")) as model:
        configure_providers(monkeypatch, one=model)
        yield model


@pytest.fixture
def web(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWeb]:
    """A website, declared in a file."""
    with FakeWeb(dict(SITE)) as web:
        monkeypatch.setenv("INGESTION_ALLOW_HOSTS", web.host_port)
        monkeypatch.setenv("INGESTION_MODELS__PRICES", PRICES)
        monkeypatch.setenv("INGESTION_WEBSITE__BACKOFF_BASE_SECONDS", "0.05")
        monkeypatch.setenv("INGESTION_MODELS__BACKOFF_BASE_SECONDS", "0.02")
        entry = {"id": ACME, "kind": "website", "url": web.url("/")}
        (installation.sources / "mine.yaml").write_text(source_file([entry]))
        yield web


@pytest.mark.slow
def test_a_website_in_a_file_is_analysed_by_the_requested_job(
    installation: Installation, web: FakeWeb, provider: ScriptedModel, instance: dg.DagsterInstance
) -> None:
    [request] = tick_sensor("new_sources", instance).run_requests
    [again] = tick_sensor("pending_work", instance).run_requests
    result = run_job(request.job_name, instance, tags=request.tags)

    assert {request.job_name, again.job_name} == {"analyze_websites"}
    assert installation.source(ACME).last_checked_at is not None
    assert result.success
    assert instance.get_dynamic_partitions("websites") == [ACME]
    business, prompts, visibility = (materialized(result, name)[ACME] for name in ASSETS)
    assert (business["name"], business["business_confidence"]) == ("Acme Tools", 90)
    assert business["checked_when"] == "at the interval of HOT, as every source of its kind"
    assert (prompts["prompts"], prompts["by_templates"]) == (7, 7)
    assert (visibility["visibility"], visibility["visibility_one"], visibility["progress"]) == (1.0, 1.0, 100)
    assert visibility["cost_usd"] > 0
    assert visibility["visibility_over_time"].startswith("![screenshot](data:image/png;base64,")
    assert "Globex" in visibility["visibility_table"]
    assert check_results(result) == {
        "information_sure": True,
        "asked_without_the_name": True,
        "providers_answer": True,
        "no_visibility_drop": True,
        "contract": True,
    }
    assert not tick_sensor("pending_work", instance).run_requests
    assert not tick_sensor("new_sources", instance).run_requests


@pytest.mark.slow
def test_a_single_website_is_analysed_manually_on_every_request(
    installation: Installation, web: FakeWeb, provider: ScriptedModel, instance: dg.DagsterInstance
) -> None:
    tick_sensor("new_sources", instance)

    runs = [run_job("ingest_website", instance, tags={PARTITION: ACME}) for _ in range(2)]

    assert [set(materialized(run, "website_analysis")) for run in runs] == [{ACME}] * 2
    assert [row["status"] for row in installation.rows("website_analyses")] == ["completed"] * 2
    assert len(installation.rows("website_rankings")) == 1


@pytest.mark.slow
def test_an_unreachable_website_fails_its_single_run(
    installation: Installation, web: FakeWeb, provider: ScriptedModel, instance: dg.DagsterInstance
) -> None:
    web.routes["/"] = 404
    tick_sensor("new_sources", instance)

    failed = run_job("ingest_website", instance, tags={PARTITION: ACME})

    assert "404" in failure_message(failed)


def test_a_job_without_a_partition_says_what_it_needs(instance: dg.DagsterInstance) -> None:
    assert "dagster/partition" in failure_message(run_job("ingest_website", instance))


@pytest.mark.slow
def test_a_provider_without_answers_and_lost_visibility_fail_their_checks(
    installation: Installation,
    web: FakeWeb,
    provider: ScriptedModel,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tick_sensor("new_sources", instance)
    run_job("ingest_website", instance, tags={PARTITION: ACME})
    with installation.open() as ctx, ctx.store.begin() as connection:  # it was yesterday
        day = ctx.store.now().date() - timedelta(days=1)
        connection.execute(update(website_rankings).values(day=day))
    with ScriptedModel(always_text("Globex.")) as answering, ScriptedModel(always(Fail(status=401))) as failing:
        configure_providers(monkeypatch, one=answering, two=failing)
        result = run_job("ingest_website", instance, tags={PARTITION: ACME})

    red = {name for name, is_passed in check_results(result).items() if not is_passed}
    assert red == {"providers_answer", "no_visibility_drop"}


@pytest.mark.slow
def test_a_name_equal_to_the_domain_fails_a_check(
    installation: Installation, web: FakeWeb, provider: ScriptedModel, instance: dg.DagsterInstance
) -> None:
    web.routes.clear()
    web.routes["/"] = "<html><body><p>" + "Parcels. " * 40 + "</p></body></html>"
    tick_sensor("new_sources", instance)

    result = run_job("ingest_website", instance, tags={PARTITION: ACME})

    assert check_results(result)["information_sure"] is False
