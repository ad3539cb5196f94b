"""Catalogues through Dagster: detection, crawls, datasets, completion and control."""

import asyncio
import os
import signal
from collections.abc import Iterator

import dagster as dg
import pytest
import time_machine

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.orchestration.jobs import TICK_SECONDS
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.tables import pages, tasks
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.catalog_extractions import (
    LINKS,
    CatalogHarness,
    a_catalog,
    complete_extractions,
    fetch_pages,
    link_page,
)
from ingestion_pipeline_tests.catalogs.course_pages import serve_courses
from ingestion_pipeline_tests.catalogs.detection import sites
from ingestion_pipeline_tests.catalogs.test_rendered_pages import SHELL
from ingestion_pipeline_tests.fakes import FakeWeb, Reply, redirect
from ingestion_pipeline_tests.orchestration.installation import (
    PARTITION,
    SALT,
    Installation,
    check_results,
    details,
    failure_message,
    materialized,
    observed,
    source_file,
)
from ingestion_pipeline_tests.orchestration.test_single_sources import materialize, unevaluated_checks
from ingestion_pipeline_tests.pages.browser_sessions import browser_path

pytestmark = pytest.mark.slow  # a Dagster run takes 0.2 seconds and more

SHOP = "catalog:shop"


@pytest.fixture
def web(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWeb]:
    """A catalogue of a root and two courses, one of which is gone."""
    with FakeWeb({"/": link_page("/c/1", "/c/2"), "/c/1": link_page()}) as web:
        monkeypatch.setenv("INGESTION_ALLOW_HOSTS", web.host_port)
        monkeypatch.setenv("INGESTION_CRAWL__DELAY_SECONDS", "0")
        entry = {
            "id": SHOP,
            "kind": "catalog",
            "platform": "catalog",
            "url": web.url("/"),
            "config": {"recipe": dict(LINKS)},
        }
        (installation.sources / "mine.yaml").write_text(source_file([entry]))
        yield web


def crawl_and_finish(installation: Installation) -> dg.ExecuteInProcessResult:
    """Crawl the catalogue manually, extract its pages and finish the extraction."""
    result = installation.run_job("ingest_catalog", tags={PARTITION: SHOP})
    with installation.open() as ctx:
        complete_extractions(ctx)
    return result


def test_a_catalogue_in_a_file_is_polled_then_crawled_by_the_requested_job(
    installation: Installation, web: FakeWeb
) -> None:
    arrived = installation.tick_sensor("new_sources")
    poll_result = installation.run_job("poll_warm")
    tick = installation.tick_sensor("pending_work")
    [request] = [request for request in tick.run_requests if request.job_name == "crawl_catalogs"]
    crawl_result = installation.run_job("crawl_catalogs", tags=request.tags)

    assert [request.job_name for request in arrived.run_requests] == ["poll_warm"]
    assert poll_result.success
    assert installation.instance.get_dynamic_partitions("catalogs") == [SHOP]
    assert request.tags["ingestion/shard"].startswith("crawl_catalogs:")
    catalog = materialized(crawl_result, "pages")[SHOP]
    assert {name: catalog[name] for name in ("fetched", "new", "failed", "waiting", "pages")} == {
        "fetched": 2,
        "new": 2,
        "failed": 1,
        "waiting": 0,
        "pages": 3,
    }
    assert {"screenshot", "screenshot_of"}.isdisjoint(catalog)
    assert details(catalog)["failed: permanent"] == 1
    assert catalog["bytes"] > 0
    assert catalog["slowest_host"] == web.host_port
    [host] = catalog["hosts"].records
    assert (host.data["host"], host.data["pages"]) == (web.host_port, 2)
    assert catalog["p95_ms"] >= catalog["p50_ms"] >= 0
    assert check_results(crawl_result) == {
        "share_of_failures": True,
        "no_empty_shells": True,
        "no_drop_against_history": True,
        "contract": True,
        # its dataset was materialized as well, and a check older than its asset counts as not evaluated
        "extractions_complete": True,
        "no_records_missing": True,
        "not_quarantined": True,
        "values_proved": True,
        "golden_sets_read": True,
    }
    evaluated = crawl_result.get_asset_check_evaluations()
    contract_assets = {
        evaluation.asset_key.to_user_string() for evaluation in evaluated if evaluation.check_name == "contract"
    }
    assert contract_assets == {"pages", "datasets"}
    assert not installation.tick_sensor("pending_work").run_requests


def test_a_catalogue_without_a_recipe_is_detected_by_the_requested_job(
    installation: Installation, web: FakeWeb
) -> None:
    web.routes |= sites.single()
    entry = {"id": SHOP, "kind": "catalog", "platform": "catalog", "url": web.url("/all")}
    (installation.sources / "mine.yaml").write_text(source_file([entry]))
    installation.tick_sensor("new_sources")

    tick = installation.tick_sensor("pending_work").run_requests
    detected = installation.run_job("detect_recipes")
    installation.run_job("poll_warm")
    crawl_result = installation.run_job("crawl_catalogs")

    assert "detect_recipes" in [request.job_name for request in tick]
    assert detected.success
    assert materialized(crawl_result, "pages")[SHOP]["pages"] == 1


def test_a_single_catalogue_is_crawled_now_and_again_when_unchanged(installation: Installation, web: FakeWeb) -> None:
    installation.tick_sensor("new_sources")

    first = crawl_and_finish(installation)
    second = crawl_and_finish(installation)

    assert (materialized(first, "pages")[SHOP]["new"], materialized(second, "pages")[SHOP]["new"]) == (2, 0)
    assert materialized(second, "pages")[SHOP]["unchanged"] == 2
    assert len(installation.rows("snapshots")) == 2
    assert [row["status"] for row in installation.rows("extractions")] == ["COMPLETE", "COMPLETE"]


def test_a_catalogue_without_a_partition_is_crawled_on_an_instance_with_others(
    installation: Installation, web: FakeWeb
) -> None:
    """Dagster looked up the key of the input once `sources` had an event, and failed."""
    installation.tick_sensor("new_sources")
    for name in ("sources", "catalogs"):
        installation.instance.delete_dynamic_partition(name, SHOP)
    installation.instance.add_dynamic_partitions("sources", ["catalog:other"])
    event = dg.AssetMaterialization("sources", partition="catalog:other")
    installation.instance.report_runless_asset_event(event)

    first = crawl_and_finish(installation)

    assert materialized(first, "pages")[SHOP]["new"] == 2


def test_a_crawl_reports_the_items_and_the_saved_model_calls(installation: Installation, web: FakeWeb) -> None:
    serve_courses(web, 101, 102)
    web.routes["/c/102"] = "<html><body><p>Nothing is taught here.</p></body></html>"
    installation.tick_sensor("new_sources")

    crawl_result = installation.run_job("ingest_catalog", tags={PARTITION: SHOP})

    dataset = observed(crawl_result, "datasets")[SHOP]  # nothing is published yet
    numbers = ("items", "new_items", "flagged", "version")
    assert {name: dataset[name] for name in numbers} == {
        "items": 1,
        "new_items": 1,
        "flagged": 0,
        "version": 1,
    }
    assert details(dataset)["pages extracted_no_data"] == 1
    assert (dataset["grounding_rate"], dataset["cost_usd"]) == (1.0, 0.0)
    assert (dataset["saved_by_rules"], dataset["saved_by_unchanged"]) == (1, 0)
    assert (dataset["status"], details(dataset)["input tokens"]) == ("building", 0)
    for event in (dataset, materialized(crawl_result, "pages")[SHOP]):
        assert event["expected_changes_per_day"] == pytest.approx(1 / 30, rel=0.01)
        assert event["change_confidence"] == 0
        assert "a change is expected about every 30" in event["checked_when"]
    [row] = dataset["preview"].records
    assert row.data["course_id"] == "MATH 101"
    assert not installation.tick_sensor("pending_work").run_requests


def test_downloaded_pages_trigger_the_sensor_and_are_extracted_without_a_request(
    installation: Installation, web: FakeWeb
) -> None:
    serve_courses(web, 101)
    installation.tick_sensor("new_sources")
    installation.run_job("poll_warm")
    with open_run_context() as ctx:
        fetch_pages(ctx, web)
    web.requests.clear()

    [request] = installation.tick_sensor("pending_work").run_requests
    result = materialize("datasets", installation.instance, tags={PARTITION: SHOP})

    assert request.job_name == "crawl_catalogs"
    assert observed(result, "datasets")[SHOP]["items"] == 1  # not published yet
    assert web.requests == []


def test_a_dataset_without_pages_names_the_cure(installation: Installation, web: FakeWeb) -> None:
    installation.tick_sensor("new_sources")

    failure = failure_message(materialize("datasets", installation.instance, tags={PARTITION: SHOP}))

    assert "materialize `pages` first" in failure


def test_a_crawl_with_far_fewer_pages_fails_its_check(installation: Installation, web: FakeWeb) -> None:
    installation.tick_sensor("new_sources")
    crawl_and_finish(installation)
    web.routes["/"] = link_page("/c/1")

    crawl_and_finish(installation)
    again = crawl_and_finish(installation)

    assert check_results(again)["no_drop_against_history"] is False


def test_a_catalogue_without_a_fetched_page_fails_its_run(installation: Installation, web: FakeWeb) -> None:
    web.routes["/"] = 404
    installation.tick_sensor("new_sources")

    failure = failure_message(installation.run_job("ingest_catalog", tags={PARTITION: SHOP}))

    assert f"no page of {SHOP} was fetched" in failure


@pytest.mark.browser
def test_a_rendered_page_has_a_screenshot_and_its_text_is_not_in_the_event(
    installation: Installation, web: FakeWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTION_BROWSER", str(browser_path()))
    web.routes |= {"/c/2": SHELL}
    installation.tick_sensor("new_sources")

    runs = [crawl_and_finish(installation) for _ in range(2)]

    first, second = (materialized(run, "pages")[SHOP] for run in runs)
    assert (first["new"], second["unchanged"]) == (3, 3)
    assert first["screenshot"].startswith("![screenshot](data:image/jpeg;base64,")
    assert first["screenshot_of"] == web.url("/c/2")
    assert second["screenshot"] == first["screenshot"]
    assert "Ships" not in repr(first)


def test_a_page_leads_to_no_private_host_that_is_exempt_for_another_source(
    installation: Installation, web: FakeWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a link or by a redirect: an exemption is for the sources whose own URL is there."""
    with FakeWeb({"/c/secret": link_page(), "/c/other": link_page()}) as private:
        monkeypatch.setenv("INGESTION_ALLOW_HOSTS", f"{web.host_port},{private.host_port}")
        web.routes["/"] = link_page("/c/1", "/c/led", private.url("/c/secret"))
        web.routes["/c/led"] = redirect(private.url("/c/other"))
        installation.add(a_catalog(url=web.url("/")))

        installation.run_job("ingest_catalog", tags={PARTITION: SHOP})

    assert "/c/1" in web.paths
    assert private.requests == []


def test_a_scheduled_crawl_fails_when_every_page_failed(installation: Installation, web: FakeWeb) -> None:
    web.routes["/"] = 404
    installation.add(a_catalog(url=web.url("/")))
    assert installation.run_job("poll_warm").success

    failure = failure_message(installation.run_job("crawl_catalogs"))

    assert f"every page of {SHOP} failed" in failure


def an_extraction(installation: Installation, items: int, *, status: str = "SUCCESS") -> int:
    """An extraction of so many items that has only to be ended; its id."""
    with installation.open() as ctx:
        catalog = CatalogHarness(ctx=ctx, clock=FixedClock(ctx.store.now()))
        catalog.add_source()
        id_ = catalog.start_extraction({"/c/1": status})
        if items:
            catalog.add_items(id_, {"/c/1": [f"c{n}" for n in range(items)]})
        return id_


def control(installation: Installation, **config: object) -> dg.ExecuteInProcessResult:
    run_config = {"ops": {"control": {"config": {"actor": "ann", **config}}}}
    return installation.run_job("control_extraction", config=run_config)


def test_without_active_extractions_nothing_is_requested(installation: Installation) -> None:
    tick = installation.tick_sensor("extraction_completion")

    assert (tick.run_requests, tick.skip_message) == ([], "no extraction is running")


@pytest.mark.slow
def test_a_check_is_requested_when_no_page_waits_and_seldom_while_some_do(installation: Installation) -> None:
    with installation.open() as ctx:
        catalog = CatalogHarness(ctx=ctx, clock=FixedClock(ctx.store.now()))
        catalog.add_source()
        id_ = catalog.start_extraction({"/c/1": "WAITING"})
        catalog.add_task(id_, "/c/1", "fetch_page")
        first = installation.tick_sensor("extraction_completion")
        installation.run_job("complete_extractions")
        waiting = installation.tick_sensor("extraction_completion", cursor=first.cursor)
        [task] = catalog.rows(tasks, kind="fetch_page")
        catalog.update_row(tasks, task.id, status="SUCCESS")

        finishable = installation.tick_sensor("extraction_completion", cursor=waiting.cursor)

    assert len(first.run_requests) == 1
    assert not waiting.run_requests
    assert "checked again within ten minutes" in waiting.skip_message
    assert len(finishable.run_requests) == 1


@pytest.mark.parametrize("quiet_seconds", ["0", "300"])
def test_an_extraction_that_cannot_finish_requests_a_few_runs_an_hour(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, quiet_seconds: str
) -> None:
    monkeypatch.setenv("INGESTION_EXTRACTION__QUIET_SECONDS", quiet_seconds)
    an_extraction(installation, 0, status="WAITING")  # without a task
    requests: list[dg.RunRequest] = []
    cursor: str | None = None

    with time_machine.travel(NOON, tick=False) as clock:
        for _ in range(0, 3_600, TICK_SECONDS):
            tick = installation.tick_sensor("extraction_completion", cursor=cursor)
            requests += tick.run_requests
            cursor = tick.cursor
            clock.shift(TICK_SECONDS)

    assert 6 <= len(requests) <= 8


def test_the_requested_job_finishes_an_extraction_and_materializes_its_dataset(installation: Installation) -> None:
    an_extraction(installation, 8)
    [request] = installation.tick_sensor("extraction_completion").run_requests
    first = installation.run_job("complete_extractions")
    an_extraction(installation, 1)
    second = installation.run_job("complete_extractions")

    assert request.job_name in {None, "complete_extractions"}
    published = materialized(first)[SHOP]
    assert (published["items"], published["version"], published["status"]) == (8, 1, "published")
    assert published["extraction"] == "1, COMPLETE"
    numbers = {"cost_usd", "saved_by_rules", "saved_by_unchanged", "details"}
    assert {*numbers, "preview", "change_confidence", "checked_when"} <= set(published)
    assert published["export"] == f"ingest export course --source {SHOP} --version 1 --to csv"
    quarantined = materialized(second)[SHOP]
    assert (quarantined["status"], quarantined["findings"]) == ("quarantined", "1 items, previously 8")
    assert check_results(first)["not_quarantined"] is True
    assert check_results(second)["not_quarantined"] is False
    assert installation.tick_sensor("extraction_completion").run_requests == []


def test_records_missing_from_their_pages_are_a_warning_of_their_check(installation: Installation) -> None:
    an_extraction(installation, 8)
    first = installation.run_job("complete_extractions")
    second_id = an_extraction(installation, 0, status="ERROR")
    with installation.open() as ctx:
        catalog = CatalogHarness(ctx=ctx, clock=FixedClock(ctx.store.now()))
        catalog.fail_page(second_id, "/c/1", "records_missing")
        catalog.update_row(pages, catalog.page_row(second_id, "/").id, status="SUCCESS")
    second = installation.run_job("complete_extractions")

    assert check_results(first)["no_records_missing"] is True
    [check] = [
        evaluation
        for evaluation in second.get_asset_check_evaluations()
        if evaluation.check_name == "no_records_missing"
    ]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)


def test_an_extraction_is_cancelled_resumed_and_rerun_from_the_launchpad(installation: Installation) -> None:
    id_ = an_extraction(installation, 0, status="DOWNLOADED")

    assert control(installation, action="cancel", extraction=id_).success
    assert control(installation, action="resume", extraction=id_).success
    [row] = installation.rows("extractions")
    assert row["status"] == "IN_PROGRESS"
    assert control(installation, action="rerun", extraction=id_, dry_run=True).success
    actions = [(row["action"], row["actor"]) for row in installation.rows("audit_log")]
    assert ("extraction.cancelled", "ann") in actions
    assert ("extraction.resume", "ann") in actions


def test_an_extraction_is_started_from_the_launchpad(installation: Installation) -> None:
    id_ = an_extraction(installation, 8)
    installation.run_job("complete_extractions")

    assert control(installation, action="start", source=SHOP).success

    assert [(row["id"], row["status"]) for row in installation.rows("extractions")] == [
        (id_, "COMPLETE"),
        (id_ + 1, "WAITING"),
    ]
    [task] = [row for row in installation.rows("tasks") if row["kind"] == "fetch_page"]
    assert task["payload"]["extraction"] == id_ + 1


@pytest.mark.parametrize(
    ("config", "cure"),
    [
        ({"action": "cancel", "extraction": 99}, "`ingest extractions list` shows all"),
        ({"action": "resume"}, "needs `extraction`"),
        ({"action": "start", "source": "catalog:nobody"}, "catalog:nobody"),
        ({"action": "start", "source": SALT}, "only catalogues are extracted"),
        ({"action": "burn", "extraction": 1}, "there are: start, cancel"),
    ],
)
def test_an_impossible_action_is_refused_with_the_cure(
    installation: Installation, config: dict[str, object], cure: str
) -> None:
    installation.add_demo(SALT)

    assert cure in failure_message(control(installation, **config))


def test_a_source_behind_a_login_is_not_shown_as_materialized(installation: Installation, web: FakeWeb) -> None:
    login = b"<html><title>Sign in</title><form><input type='password' name='p'></form></html>"
    web.routes["/"] = Reply(login, status=401)
    installation.add(a_catalog(url=web.url("/")))
    installation.run_job("poll_warm")

    crawl_result = installation.run_job("crawl_catalogs")
    completed = installation.run_job("complete_extractions")

    assert (materialized(crawl_result), materialized(completed)) == ({}, {})
    events = [event.event_type for event in crawl_result.all_events]
    assert dg.DagsterEventType.ASSET_OBSERVATION in events


def test_a_finished_catalogue_is_materialized_again_and_says_that_nothing_waits(
    installation: Installation, web: FakeWeb
) -> None:
    serve_courses(web, 101)
    installation.tick_sensor("new_sources")
    assert installation.run_job("ingest_catalog", tags={PARTITION: SHOP}).success

    pages_again = installation.run_job("ingest_catalog", tags={PARTITION: SHOP})
    installation.run_job("complete_extractions")
    datasets_again = materialize("datasets", installation.instance, tags={PARTITION: SHOP})

    for result, asset in ((pages_again, "pages"), (datasets_again, "datasets")):
        assert SHOP in materialized(result, asset)
        lines = [entry.user_message for entry in installation.instance.all_logs(result.run_id)]
        assert [line for line in lines if line.startswith("nothing waits: ")]


async def press_ctrl_c(_: asyncio.StreamWriter) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_cancelled_run_leaves_every_check_with_a_result(installation: Installation, web: FakeWeb) -> None:
    web.routes["/"] = press_ctrl_c
    installation.tick_sensor("new_sources")

    cancelled = materialize("pages", installation.instance, tags={PARTITION: SHOP})

    assert not cancelled.success
    assert unevaluated_checks("pages", installation.instance) == set()


@pytest.mark.parametrize(("job", "tags"), [("ingest_catalog", {PARTITION: SHOP}), ("crawl_catalogs", {})])
def test_a_cancelled_run_says_how_to_cancel_its_extraction(
    installation: Installation, web: FakeWeb, job: str, tags: dict[str, str]
) -> None:
    web.routes["/"] = press_ctrl_c
    installation.tick_sensor("new_sources")
    installation.run_job("poll_warm")  # starts the extraction

    result = installation.run_job(job, tags=tags)

    [row] = installation.rows("extractions")
    lines = [entry.user_message for entry in installation.instance.all_logs(result.run_id)]
    assert [line for line in lines if f"`ingest extractions cancel {row['id']}`" in line]
