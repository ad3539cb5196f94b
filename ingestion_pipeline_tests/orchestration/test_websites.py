"""Websites and notices through Dagster."""

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta

import dagster as dg
import pytest
from sqlalchemy import update

from ingestion_pipeline.definitions import defs
from ingestion_pipeline.demo.model_server import Fail, ScriptedModel
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.tables import dead_letters, website_rankings
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.notices.notice_harness import NoticeHarness
from ingestion_pipeline_tests.orchestration.installation import (
    PARTITION,
    Installation,
    check_results,
    details,
    failure_message,
    materialized,
    run_job,
    source_file,
    tick_sensor,
)
from ingestion_pipeline_tests.polling_runs import rows
from ingestion_pipeline_tests.websites.provider_answers import PRICES, always, always_text
from ingestion_pipeline_tests.websites.website_runs import ACME_PAGES as SITE

pytestmark = pytest.mark.slow  # a Dagster run takes 0.2 seconds and more

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


def test_a_website_in_a_file_is_analysed_by_the_requested_job(
    installation: Installation, web: FakeWeb, provider: ScriptedModel
) -> None:
    [request] = installation.tick_sensor("new_sources").run_requests
    [again] = installation.tick_sensor("pending_work").run_requests
    result = run_job(request.job_name, installation.instance, tags=request.tags)

    assert {request.job_name, again.job_name} == {"analyze_websites"}
    assert installation.source(ACME).last_checked_at is not None
    assert result.success
    assert installation.instance.get_dynamic_partitions("websites") == [ACME]
    business, prompts, visibility = (materialized(result, name)[ACME] for name in ASSETS)
    assert (details(business, "business")["name"], business["business_confidence"]) == ("Acme Tools", 90)
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
    assert not installation.tick_sensor("pending_work").run_requests
    assert not installation.tick_sensor("new_sources").run_requests


def test_a_single_website_is_analysed_manually_on_every_request(
    installation: Installation, web: FakeWeb, provider: ScriptedModel
) -> None:
    installation.tick_sensor("new_sources")

    runs = [installation.run_job("ingest_website", tags={PARTITION: ACME}) for _ in range(2)]

    assert [set(materialized(run, "website_analysis")) for run in runs] == [{ACME}] * 2
    assert [row["status"] for row in installation.rows("website_analyses")] == ["completed"] * 2
    assert len(installation.rows("website_rankings")) == 1


def test_an_unreachable_website_fails_its_single_run(
    installation: Installation, web: FakeWeb, provider: ScriptedModel
) -> None:
    web.routes["/"] = 404
    installation.tick_sensor("new_sources")

    failed = installation.run_job("ingest_website", tags={PARTITION: ACME})

    assert "404" in failure_message(failed)
    assert [materialized(failed, asset) for asset in ASSETS] == [{}, {}, {}]


def test_a_provider_without_answers_and_lost_visibility_fail_their_checks(
    installation: Installation, web: FakeWeb, provider: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.tick_sensor("new_sources")
    installation.run_job("ingest_website", tags={PARTITION: ACME})
    with installation.open() as ctx, ctx.store.begin() as connection:  # it was yesterday
        day = ctx.store.now().date() - timedelta(days=1)
        connection.execute(update(website_rankings).values(day=day))
    with ScriptedModel(always_text("Globex.")) as answering, ScriptedModel(always(Fail(status=401))) as failing:
        configure_providers(monkeypatch, one=answering, two=failing)
        result = installation.run_job("ingest_website", tags={PARTITION: ACME})

    red = {name for name, is_passed in check_results(result).items() if not is_passed}
    assert red == {"providers_answer", "no_visibility_drop"}


def test_a_name_equal_to_the_domain_fails_a_check(
    installation: Installation, web: FakeWeb, provider: ScriptedModel
) -> None:
    web.routes.clear()
    web.routes["/"] = "<html><body><p>" + "Parcels. " * 40 + "</p></body></html>"
    installation.tick_sensor("new_sources")

    result = installation.run_job("ingest_website", tags={PARTITION: ACME})

    assert check_results(result)["information_sure"] is False


def notice_harness(ctx: RunContext, web: FakeWeb, *, ago: timedelta = timedelta(minutes=1)) -> NoticeHarness:
    moment: datetime = ctx.store.now() - ago
    return NoticeHarness(ctx.store, FixedClock(moment), ctx.settings, web)


def requested_jobs(instance: dg.DagsterInstance) -> list[str]:
    data = tick_sensor("pending_work", instance)
    return [request.job_name or "" for request in data.run_requests or []]


def test_pending_notices_request_one_delivery_run_which_sends_and_reports(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeWeb() as web, installation.open() as ctx:
        monkeypatch.setenv("INGESTION_ALLOW_HOSTS", web.host_port)
        harness = notice_harness(ctx, web)
        harness.add_follower("ann", address=web.url("/ann"))
        harness.add_follower("dead", address=web.url("/gone"))
        assert requested_jobs(installation.instance) == []
        harness.publish(7)
        assert requested_jobs(installation.instance) == ["deliver_notices"]

        result = installation.run_job("deliver_notices")

        assert result.success
        [event] = result.get_asset_materialization_events()
        numbers = {name: value.value for name, value in event.materialization.metadata.items()}
        delay = numbers.pop("median_delay_seconds")
        newest = numbers.pop("newest")
        assert str(numbers.pop("dagster/uri")).endswith("ingestion.db#notices")
        assert isinstance(newest, dg.TableMetadataValue)
        assert [record.data["recipient"] for record in newest.records] == ["dead", "ann"]
        assert 60 <= float(str(delay)) < 120
        assert numbers == {
            "expanded": 2,
            "muted": 0,
            "messages": 1,
            "sent": 1,
            "retried": 0,
            "failed": 1,
            "pending": 0,
            "failed_in_all": 1,
            "dagster/row_count": 1,
        }
        checks = {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}
        check = checks.pop("all_delivered")
        assert [(name, check.passed) for name, check in checks.items()] == [("contract", True)]
        assert not check.passed
        assert "dead: 1 failed" in str(check.metadata["details"].value)
        assert requested_jobs(installation.instance) == []
        assert [row["ended_at"] is None for row in installation.rows("runs")] == [False]
        assert [row.error_code for row in rows(ctx.store, dead_letters)] == ["http_404"]


def test_no_second_delivery_run_is_requested_while_one_works(installation: Installation) -> None:
    with FakeWeb() as web, installation.open() as ctx:
        harness = notice_harness(ctx, web)
        harness.add_follower()
        harness.publish(7)
    run = installation.instance.create_run_for_job(
        defs.resolve_job_def("deliver_notices"), tags={"ingestion/shard": "notices"}
    )

    assert requested_jobs(installation.instance) == []
    installation.instance.report_run_failed(run)
    [request] = installation.tick_sensor("pending_work").run_requests or []
    assert request.job_name == "deliver_notices"
    assert re.fullmatch(r"notices:\d{8}T\d{4}", str(request.run_key))  # by the minute: one failed


def test_chapters_without_followers_start_no_run_and_maintenance_handles_them(installation: Installation) -> None:
    with FakeWeb() as web, installation.open() as ctx:
        notice_harness(ctx, web).publish(7)

    assert requested_jobs(installation.instance) == []
    assert installation.run_job("maintain").success
    assert [row["handled_at"] is None for row in installation.rows("outbox")] == [False]
