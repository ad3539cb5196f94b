"""Catalogues through Dagster: polled, crawled by the job or manually, and materialized."""

from collections.abc import Iterator

import dagster as dg
import pytest

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline_tests.catalog_extractions import LINKS, a_catalog, complete_extractions, fetch_pages, link_page
from ingestion_pipeline_tests.catalogs.course_pages import serve_courses
from ingestion_pipeline_tests.catalogs.detection import sites
from ingestion_pipeline_tests.catalogs.test_rendered_pages import SHELL
from ingestion_pipeline_tests.fakes import FakeWeb, redirect
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
from ingestion_pipeline_tests.orchestration.test_single_sources import materialize
from ingestion_pipeline_tests.pages.browser_sessions import browser_path

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


def crawl_and_finish(installation: Installation, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """Crawl the catalogue manually, extract its pages and finish the extraction."""
    result = run_job("ingest_catalog", instance, tags={PARTITION: SHOP})
    with installation.open() as ctx:
        complete_extractions(ctx)
    return result


@pytest.mark.slow
def test_a_catalogue_in_a_file_is_polled_then_crawled_by_the_requested_job(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    arrived = tick_sensor("new_sources", instance)
    poll_result = run_job("poll_warm", instance)
    tick = tick_sensor("pending_work", instance)
    [request] = [request for request in tick.run_requests if request.job_name == "crawl_catalogs"]
    crawl_result = run_job("crawl_catalogs", instance, tags=request.tags)

    assert [request.job_name for request in arrived.run_requests] == ["poll_warm"]
    assert poll_result.success
    assert instance.get_dynamic_partitions("catalogs") == [SHOP]
    assert request.tags["ingestion/shard"].startswith("crawl_catalogs:")
    catalog = materialized(crawl_result, "pages")[SHOP]
    assert {name: catalog[name] for name in ("fetched", "new", "failed", "waiting", "pages")} == {
        "fetched": 2,
        "new": 2,
        "failed": 1,
        "waiting": 0,
        "pages": 3,
    }
    assert catalog["failed_permanent"] == 1
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
    }
    evaluated = crawl_result.get_asset_check_evaluations()
    contract_assets = {
        evaluation.asset_key.to_user_string() for evaluation in evaluated if evaluation.check_name == "contract"
    }
    assert contract_assets == {"pages", "datasets"}
    assert not tick_sensor("pending_work", instance).run_requests


@pytest.mark.slow
def test_a_catalogue_without_a_recipe_is_detected_by_the_requested_job(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    web.routes |= sites.single()
    entry = {"id": SHOP, "kind": "catalog", "platform": "catalog", "url": web.url("/all")}
    (installation.sources / "mine.yaml").write_text(source_file([entry]))
    tick_sensor("new_sources", instance)

    tick = tick_sensor("pending_work", instance).run_requests
    detected = run_job("detect_recipes", instance)
    run_job("poll_warm", instance)
    crawl_result = run_job("crawl_catalogs", instance)

    assert "detect_recipes" in [request.job_name for request in tick]
    assert detected.success
    assert materialized(crawl_result, "pages")[SHOP]["pages"] == 1


@pytest.mark.slow
def test_a_single_catalogue_is_crawled_now_and_again_when_unchanged(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    tick_sensor("new_sources", instance)

    first = crawl_and_finish(installation, instance)
    second = crawl_and_finish(installation, instance)

    assert (materialized(first, "pages")[SHOP]["new"], materialized(second, "pages")[SHOP]["new"]) == (2, 0)
    assert materialized(second, "pages")[SHOP]["unchanged"] == 2
    assert len(installation.rows("snapshots")) == 2
    assert [row["status"] for row in installation.rows("extractions")] == ["COMPLETE", "COMPLETE"]


@pytest.mark.slow
def test_a_catalogue_without_a_partition_is_crawled_on_an_instance_with_others(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    """Dagster looked up the key of the input once `sources` had an event, and failed."""
    tick_sensor("new_sources", instance)
    for name in ("sources", "catalogs"):
        instance.delete_dynamic_partition(name, SHOP)
    instance.add_dynamic_partitions("sources", ["catalog:other"])
    event = dg.AssetMaterialization("sources", partition="catalog:other")
    instance.report_runless_asset_event(event)

    first = crawl_and_finish(installation, instance)

    assert materialized(first, "pages")[SHOP]["new"] == 2


@pytest.mark.slow
def test_a_crawl_reports_the_items_and_the_saved_model_calls(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    serve_courses(web, 101, 102)
    web.routes["/c/102"] = "<html><body><p>Nothing is taught here.</p></body></html>"
    tick_sensor("new_sources", instance)

    crawl_result = run_job("ingest_catalog", instance, tags={PARTITION: SHOP})

    dataset = materialized(crawl_result, "datasets")[SHOP]
    numbers = ("items", "new_items", "flagged", "version", "pages_extracted_no_data")
    assert {name: dataset[name] for name in numbers} == {
        "items": 1,
        "new_items": 1,
        "flagged": 0,
        "version": 1,
        "pages_extracted_no_data": 1,
    }
    assert (dataset["grounding_rate"], dataset["cost_usd"]) == (1.0, 0.0)
    assert (dataset["saved_by_rules"], dataset["saved_by_unchanged"]) == (1, 0)
    assert (dataset["status"], dataset["input_tokens"]) == ("building", 0)
    for event in (dataset, materialized(crawl_result, "pages")[SHOP]):
        assert event["expected_changes_per_day"] == pytest.approx(1 / 30, rel=0.01)
        assert event["change_confidence"] == 0
        assert "a change is expected about every 30" in event["checked_when"]
    [row] = dataset["preview"].records
    assert row.data["course_id"] == "MATH 101"
    assert not tick_sensor("pending_work", instance).run_requests


@pytest.mark.slow
def test_downloaded_pages_trigger_the_sensor_and_are_extracted_without_a_request(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    serve_courses(web, 101)
    tick_sensor("new_sources", instance)
    run_job("poll_warm", instance)
    with open_run_context() as ctx:
        fetch_pages(ctx, web)
    web.requests.clear()

    [request] = tick_sensor("pending_work", instance).run_requests
    result = materialize("datasets", instance, tags={PARTITION: SHOP})

    assert request.job_name == "crawl_catalogs"
    assert materialized(result, "datasets")[SHOP]["items"] == 1
    assert web.requests == []


@pytest.mark.slow
def test_a_dataset_without_pages_names_the_cure(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    tick_sensor("new_sources", instance)

    failure = failure_message(materialize("datasets", instance, tags={PARTITION: SHOP}))

    assert "materialize `pages` first" in failure


@pytest.mark.slow
def test_a_crawl_with_far_fewer_pages_fails_its_check(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    tick_sensor("new_sources", instance)
    crawl_and_finish(installation, instance)
    web.routes["/"] = link_page("/c/1")

    crawl_and_finish(installation, instance)
    again = crawl_and_finish(installation, instance)

    assert check_results(again)["no_drop_against_history"] is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tags", "cure"),
    [
        ({}, """--tags '{"dagster/partition": "catalog:..."}'"""),
        ({PARTITION: "catalog:nobody"}, "`ingest sources list` shows all"),
    ],
    ids=["without a partition", "with an unknown key"],
)
def test_a_single_catalogue_that_cannot_be_crawled_names_the_cure(
    installation: Installation, instance: dg.DagsterInstance, tags: dict[str, str], cure: str
) -> None:
    assert cure in failure_message(run_job("ingest_catalog", instance, tags=tags))
    assert instance.get_dynamic_partitions("catalogs") == []


@pytest.mark.slow
def test_a_catalogue_without_a_fetched_page_fails_its_run(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    web.routes["/"] = 404
    tick_sensor("new_sources", instance)

    failure = failure_message(run_job("ingest_catalog", instance, tags={PARTITION: SHOP}))

    assert f"no page of {SHOP} was fetched" in failure


@pytest.mark.slow
def test_a_crawl_run_without_work_succeeds(installation: Installation, instance: dg.DagsterInstance) -> None:
    assert run_job("crawl_catalogs", instance).success


@pytest.mark.browser
def test_a_rendered_page_has_a_screenshot_and_its_text_is_not_in_the_event(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTION_BROWSER", str(browser_path()))
    web.routes |= {"/c/2": SHELL}
    tick_sensor("new_sources", instance)

    runs = [crawl_and_finish(installation, instance) for _ in range(2)]

    first, second = (materialized(run, "pages")[SHOP] for run in runs)
    assert (first["new"], second["unchanged"]) == (3, 3)
    assert first["screenshot"].startswith("![screenshot](data:image/jpeg;base64,")
    assert first["screenshot_of"] == web.url("/c/2")
    assert second["screenshot"] == first["screenshot"]
    assert "Ships" not in repr(first)


@pytest.mark.slow
def test_a_crawl_without_a_screenshot_is_reported_without_one(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    tick_sensor("new_sources", instance)

    catalog = materialized(run_job("ingest_catalog", instance, tags={PARTITION: SHOP}), "pages")[SHOP]

    assert {"screenshot", "screenshot_of"}.isdisjoint(catalog)


@pytest.mark.slow
def test_a_page_leads_to_no_private_host_that_is_exempt_for_another_source(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a link or by a redirect: an exemption is for the sources whose own URL is there."""
    with FakeWeb({"/c/secret": link_page(), "/c/other": link_page()}) as private:
        monkeypatch.setenv("INGESTION_ALLOW_HOSTS", f"{web.host_port},{private.host_port}")
        web.routes["/"] = link_page("/c/1", "/c/led", private.url("/c/secret"))
        web.routes["/c/led"] = redirect(private.url("/c/other"))
        installation.add(a_catalog(url=web.url("/")))

        run_job("ingest_catalog", instance, tags={PARTITION: SHOP})

    assert "/c/1" in web.paths
    assert private.requests == []


@pytest.mark.slow
def test_a_scheduled_crawl_fails_when_every_page_failed(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    web.routes["/"] = 404
    installation.add(a_catalog(url=web.url("/")))
    assert run_job("poll_warm", instance).success

    failure = failure_message(run_job("crawl_catalogs", instance))

    assert f"every page of {SHOP} failed" in failure
