"""Datasets: their gates, confirmed, published or quarantined, items carried over, and retention of old versions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingestion_pipeline.catalogs import extraction_control
from ingestion_pipeline.catalogs.datasets import publishing
from ingestion_pipeline.catalogs.datasets.finishing import FinishReason
from ingestion_pipeline.catalogs.datasets.publishing import DatasetNumbers, RecordPages, evaluate_gates
from ingestion_pipeline.catalogs.reruns import rerun
from ingestion_pipeline.catalogs.states import ExtractionStatus
from ingestion_pipeline.operations.source_health import source_statuses
from ingestion_pipeline.store.tables import (
    audit_log,
    crawl_steps,
    data_items,
    datasets,
    extractions,
    outbox,
    pages,
    sources,
)
from ingestion_pipeline_tests.catalog_extractions import FAILURE, CatalogHarness
from ingestion_pipeline_tests.catalogs.course_pages import expected_cases


def dataset_numbers(items: int, *, named: int | None = None, flagged: int = 0) -> DatasetNumbers:
    stated = items if named is None else named
    return DatasetNumbers(items=items, flagged=flagged, fields={"course_id": stated})


@pytest.mark.parametrize(("new", "before", "codes"), expected_cases("gates"))
def test_a_dataset_is_compared_with_the_last_good_one(
    new: dict[str, int], before: dict[str, int] | None, codes: list[str]
) -> None:
    last = None if before is None else dataset_numbers(**before)

    findings = evaluate_gates(dataset_numbers(**new), last, required=["course_id"])

    assert [finding.code for finding in findings] == codes
    assert all(finding.message for finding in findings)


@pytest.mark.parametrize(("items", "before", "total", "without", "codes"), expected_cases("first_dataset_gates"))
def test_a_first_dataset_is_evaluated_by_its_own_pages(
    items: int, before: dict[str, int] | None, total: int, without: int, codes: list[str]
) -> None:
    pages, last = RecordPages(total=total, without=without), None if before is None else dataset_numbers(**before)

    findings = evaluate_gates(dataset_numbers(items), last, required=[], pages=pages)

    assert [finding.code for finding in findings] == codes
    assert all(finding.message for finding in findings)


@pytest.mark.parametrize(("failed", "codes"), [(2, []), (3, ["failed_lists"])])
def test_a_first_dataset_whose_lists_mostly_failed_is_quarantined(failed: int, codes: list[str]) -> None:
    pages = RecordPages(total=4, without=0, lists=4, failed_lists=failed)

    findings = evaluate_gates(dataset_numbers(4), None, required=[], pages=pages)

    assert [finding.code for finding in findings] == codes
    assert all(f"{failed} of 4 lists" in finding.message for finding in findings)


@pytest.mark.parametrize(("count_before", "codes"), [(95, ["lost_field"]), (60, [])])
def test_the_loss_of_an_optional_field_is_found_if_nearly_all_items_had_it(count_before: int, codes: list[str]) -> None:
    before = DatasetNumbers(items=100, fields={"course_credits_max": count_before})
    new = DatasetNumbers(items=100, fields={"course_credits_max": 0})

    assert [finding.code for finding in evaluate_gates(new, before, required=[])] == codes


pytestmark = pytest.mark.both_databases

DONE = {"/c/1": "SUCCESS", "/c/2": "SUCCESS", "/c/3": "SUCCESS"}


def publish_first_version(catalog: CatalogHarness, items: int = 3) -> int:
    """Publish a first dataset; return the id of its extraction."""
    return catalog.crawl({"/c/1": ["a", *(f"a{n}" for n in range(1, items - 2))], "/c/2": ["b"], "/c/3": ["c"]})


def crawl_again(
    catalog: CatalogHarness,
    paths: Mapping[str, str] = DONE,
    *,
    carried: Sequence[str] = (),
    items: Mapping[str, Sequence[str]] | None = None,
    failed: Sequence[str] = (),
    **more: Any,
) -> int:
    """Crawl after the last version: pages that are unchanged, read with these items, and failed; return the id."""
    first, base = catalog.rows(extractions)[-1].id, catalog.rows(datasets)[-1].id
    id_ = catalog.start_extraction(paths, base_dataset_id=base, **more)
    catalog.carry_over(id_, first, *carried)
    if items:
        catalog.add_items(id_, items)
    for path in failed:
        catalog.fail_page(id_, path)
    return id_


def test_an_unchanged_catalog_confirms_its_dataset_and_adds_no_row(catalog: CatalogHarness) -> None:
    publish_first_version(catalog)
    [base] = catalog.rows(datasets)
    second = crawl_again(catalog, carried=["/c/1", "/c/2", "/c/3"])

    dataset = catalog.finished_dataset(second)

    assert (dataset.is_confirmed, dataset.items) == (True, 3)
    [after] = catalog.rows(datasets)
    assert (after.status, after.confirmed_at) == ("published", catalog.clock.at)
    assert len(catalog.rows(data_items)) == 3
    assert catalog.rows(extractions, id=second)[0].dataset_id == base.id


def test_a_changed_page_makes_a_new_version_with_the_unchanged_items_copied(catalog: CatalogHarness) -> None:
    publish_first_version(catalog)
    second = crawl_again(catalog, carried=["/c/1", "/c/2"])
    new = catalog.add_items(second, {"/c/3": ["c", "d"]})

    dataset = catalog.finished_dataset(second)

    assert (dataset.version, dataset.items) == (2, 4)
    keys = [row.item_key for row in catalog.rows(data_items, dataset_id=new)]
    assert sorted(keys) == ["a", "b", "c", "d"]
    own = {row.id for row in catalog.rows(pages, extraction_id=second)}
    assert {row.page_id for row in catalog.rows(data_items, dataset_id=new)} <= own
    assert [row.status for row in catalog.rows(datasets)] == ["published", "published"]


def test_a_page_that_is_gone_makes_a_new_version_without_a_read(catalog: CatalogHarness) -> None:
    publish_first_version(catalog)
    second = crawl_again(catalog, {"/c/1": "SUCCESS", "/c/2": "SUCCESS"}, carried=["/c/1", "/c/2"])

    dataset = catalog.finished_dataset(second)

    assert (dataset.version, dataset.items) == (2, 2)


def test_an_empty_dataset_after_a_full_one_is_quarantined(catalog: CatalogHarness) -> None:
    publish_first_version(catalog)
    second = crawl_again(catalog, {})

    dataset = catalog.finished_dataset(second)

    assert [finding["code"] for finding in dataset.findings] == ["empty_after_full"]
    assert [row.status for row in catalog.rows(datasets)] == ["published", "quarantined"]


def test_a_quarantined_dataset_and_its_number_of_records_can_be_published_by_an_operator(
    catalog: CatalogHarness,
) -> None:
    publish_first_version(catalog, items=10)
    second = catalog.crawl({"/c/1": ["a"]})
    [held_back] = catalog.rows(sources)

    assert catalog.apply_action(extraction_control.publish, second) == 2
    with pytest.raises(extraction_control.InvalidState, match=f"extraction {second} has a dataset that is published"):
        catalog.apply_action(extraction_control.publish, second)

    assert held_back.last_outcome.endswith("; version 2 is quarantined")
    assert [row.record_count for row in (held_back, *catalog.rows(sources))] == [10, 1]
    assert [row.status for row in catalog.rows(datasets)] == ["published", "published"]
    [line] = catalog.rows(audit_log, action="dataset.publish")
    assert (line.actor, line.detail["findings"][0]["code"]) == ("ann", "dropped")


def test_of_equal_keys_the_first_page_counts_and_proved_items_come_first(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction(DONE)
    dataset_id = catalog.add_items(id_, {"/c/1": ["x", "flagged"]}, is_flagged=True)
    catalog.add_items(id_, {"/c/3": ["y", "x"], "/c/2": ["y", "z1", "z2", "z3", "z4"]})

    dataset = catalog.finished_dataset(id_)

    repeats = [
        (row.item_key, row.page_id == catalog.page_row(id_, "/c/3").id, row.is_flagged)
        for row in catalog.rows(data_items, dataset_id=dataset_id)
        if row.is_repeat
    ]
    assert sorted(repeats) == [("x", False, True), ("y", True, False)]
    assert (dataset.items, dataset.flagged) == (7, 1)


STALE = FinishReason(
    status=ExtractionStatus.STALE, failure={"class": "resource", "code": "stale", "message": "1 of 4 pages was left"}
)


def test_a_stale_extraction_publishes_its_complete_pages_and_names_the_missing_ones(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({**DONE, "/c/4": "WAITING"})
    catalog.add_items(id_, {"/c/1": ["a"], "/c/2": ["b"], "/c/3": ["c"]})

    catalog.finish(id_, STALE)

    assert catalog.versions() == {1: ("published", ["a", "b", "c"])}
    assert catalog.status(id_) == "STALE"
    [notice] = catalog.rows(outbox)
    assert notice.payload["missing"] == ["http://a.test/c/4: still waiting"]
    assert "missing: http://a.test/c/4" in notice.payload["text"]
    assert catalog.rows(extractions, id=id_)[0].summary["missing"] == 1
    [source] = catalog.rows(sources)
    assert source.last_outcome == f"extraction {id_}: 5 pages, 0 new, 0 failed, 1 left"
    assert (source.record_count, source.failure_count) == (3, 0)


@pytest.mark.slow
def test_a_stale_extraction_carries_over_its_missing_pages_until_it_is_resumed(catalog: CatalogHarness) -> None:
    publish_first_version(catalog)
    second = crawl_again(catalog, {**DONE, "/c/3": "WAITING"}, carried=["/c/1"], items={"/c/2": ["b2"]})

    catalog.finish(second, STALE)
    assert catalog.versions()[2] == ("published", ["a", "b2", "c"])
    assert catalog.rows(extractions, id=second)[0].summary["kept"] == 1

    assert catalog.apply_action(extraction_control.resume, second).fetched == 1
    catalog.add_items(second, {"/c/3": ["c2"]})
    catalog.finish(second)
    assert catalog.versions()[3] == ("published", ["a", "b2", "c2"])


def test_items_behind_a_list_that_was_never_fetched_are_kept_and_fetched_by_a_resume(catalog: CatalogHarness) -> None:
    publish_first_version(catalog)
    second = crawl_again(catalog, {"/c/1": "SUCCESS"}, items={"/c/1": ["a1"]}, root="WAITING")

    catalog.finish(second, STALE)
    catalog.apply_action(extraction_control.resume, second)

    assert catalog.versions()[2] == ("published", ["a1", "b", "c"])
    assert catalog.live_task_paths("fetch_page") == ["/", "/c/2", "/c/3"]


def test_a_stale_first_dataset_that_is_mostly_missing_is_quarantined(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({"/c/1": "SUCCESS", "/c/2": "WAITING", "/c/3": "DOWNLOADED"})
    catalog.add_items(id_, {"/c/1": ["a"]})

    dataset = catalog.finished_dataset(id_, STALE)

    assert [finding["code"] for finding in dataset.findings] == ["mostly_failed"]
    assert catalog.apply_action(extraction_control.publish, id_) == 1


@pytest.mark.parametrize("status", ["EXTRACTED_NO_DATA", "ERROR"])
def test_a_first_dataset_without_items_is_quarantined_until_it_is_published(
    catalog: CatalogHarness, status: str
) -> None:
    paths = dict.fromkeys((f"/c/{number}" for number in range(24)), status)
    id_ = catalog.start_extraction(paths)
    if status == "EXTRACTED_NO_DATA":
        catalog.add_items(id_, {path: [] for path in paths})

    dataset = catalog.finished_dataset(id_)

    [finding] = dataset.findings
    assert (finding["code"], "24 pages" in finding["message"]) == ("empty_first", True)
    assert [row.status for row in catalog.rows(datasets)] == ["quarantined"]
    with catalog.ctx.store.read() as connection:
        [status_row] = source_statuses(connection, catalog.ctx.settings, now=catalog.clock.at)
    assert status_row.health == "degraded"
    assert catalog.apply_action(extraction_control.publish, id_) == 1
    assert [row.status for row in catalog.rows(datasets)] == ["published"]


def test_explored_pages_do_not_count_against_a_first_dataset(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({"/c/1": "SUCCESS"})
    catalog.add_items(id_, {"/c/1": ["a"]})
    step = {"kind": "FETCH_LINKS", "key": "root/links/explored", "page_type": "DETAIL"}
    explored = catalog.insert_row(crawl_steps, {**step, "extraction_id": id_, "created_at": catalog.clock.at})
    for number in range(9):
        catalog.add_page(id_, explored, f"/x/{number}", "EXTRACTED_NO_DATA")

    dataset = catalog.finished_dataset(id_)

    assert dataset.findings == []


def test_a_cancelled_extraction_can_be_published_with_the_items_carried_over(catalog: CatalogHarness) -> None:
    publish_first_version(catalog)
    second = crawl_again(catalog, {**DONE, "/c/3": "WAITING"}, carried=["/c/1"], items={"/c/2": ["b2"]})
    catalog.cancel(second)
    assert catalog.versions()[2][0] == "incomplete"

    assert catalog.apply_action(extraction_control.publish, second) == 2

    assert catalog.versions()[2] == ("published", ["a", "b2", "c"])
    assert catalog.rows(datasets)[-1].item_count == 3


def test_a_failed_stale_extraction_counts_its_items_and_publishes_nothing(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({**DONE, "/c/4": "WAITING"})
    catalog.add_items(id_, {"/c/1": ["a"]})

    catalog.finish(id_, FinishReason(status=ExtractionStatus.STALE, failure=FAILURE))

    [row] = catalog.rows(datasets)
    assert (row.status, row.item_count) == ("incomplete", 1)


@pytest.mark.slow
def test_old_versions_are_deleted_with_their_items_and_the_published_one_stays(catalog: CatalogHarness) -> None:
    first = publish_first_version(catalog, items=10)
    for _ in range(11):
        catalog.crawl({"/c/1": ["a"]})

    with catalog.ctx.store.begin() as connection:
        deleted_datasets = publishing.old_datasets(connection, catalog.ctx.settings, catalog.clock.at)
        deleted_extractions = publishing.old_extractions(connection, catalog.ctx.settings, catalog.clock.at)

    assert (deleted_datasets, deleted_extractions) == (1, 1)
    remaining = catalog.rows(datasets)
    assert [row.version for row in remaining] == [1, *range(3, 13)]
    assert [row.status for row in remaining] == ["published", *["quarantined"] * 10]
    assert {row.dataset_id for row in catalog.rows(data_items)} == {row.id for row in remaining}
    assert first in {row.id for row in catalog.rows(extractions)}
    remaining_ids = {row.id for row in catalog.rows(extractions)}
    assert {row.extraction_id for row in catalog.rows(pages)} == remaining_ids
    assert {row.extraction_id for row in catalog.rows(crawl_steps)} == remaining_ids


def test_the_loss_of_a_required_field_of_a_custom_type_is_found(catalog: CatalogHarness, tmp_path: Path) -> None:
    (tmp_path / "entities").mkdir()
    field = "{name: ring, kind: text, required: true}"
    (tmp_path / "entities" / "bird.yaml").write_text(f"name: bird\nfields: [{field}]")
    settings = catalog.ctx.settings.model_copy(update={"sources": tmp_path})
    catalog.ctx = replace(catalog.ctx, settings=settings)
    for ring in ("R-1", None):
        id_ = catalog.start_extraction({"/c/1": "SUCCESS"}, entity_type="bird")
        catalog.add_items(id_, {"/c/1": ["a", "b"]}, data={"ring": ring})
        dataset = catalog.finished_dataset(id_)
        catalog.clock.advance(minutes=10)

    assert [finding["code"] for finding in dataset.findings] == ["lost_field"]


def test_a_published_dataset_of_another_type_does_not_affect_the_gates(catalog: CatalogHarness) -> None:
    publish_first_version(catalog, items=30)
    id_ = catalog.start_extraction({"/c/1": "SUCCESS"}, entity_type="credential")
    catalog.add_items(id_, {"/c/1": ["a"]})

    dataset = catalog.finished_dataset(id_)

    assert dataset.findings == []


def test_items_lost_with_failed_pages_are_found_though_as_many_are_new(catalog: CatalogHarness) -> None:
    publish_first_version(catalog, items=10)
    paths = {"/c/1": "ERROR", "/c/2": "SUCCESS", "/c/3": "SUCCESS"}
    second = crawl_again(catalog, paths, items={"/c/2": [f"b{n}" for n in range(8)], "/c/3": ["c"]})

    dataset = catalog.finished_dataset(second)

    assert [finding["code"] for finding in dataset.findings] == ["failed_pages"]


LAST_FAILED = {**DONE, "/c/3": "ERROR"}
FIRST = ("published", ["a", "b", "c"])


def test_the_items_of_a_failed_page_are_carried_over_and_counted(catalog: CatalogHarness) -> None:
    first = publish_first_version(catalog)
    second = crawl_again(catalog, carried=["/c/1"], items={"/c/2": ["b", "d"]}, failed=["/c/3"])

    dataset = catalog.finished_dataset(second)

    assert catalog.versions() == {1: FIRST, 2: ("published", ["a", "b", "c", "d"])}
    assert (dataset.kept_items, dataset.findings) == (1, [])
    [row] = catalog.rows(extractions, id=second)
    assert (row.summary["kept"], row.summary["carried"], row.summary["items"]) == (1, 1, 4)
    page = catalog.page_row(second, "/c/3")
    assert (page.status, page.carried_from) == ("ERROR", catalog.page_row(first, "/c/3").id)
    assert "1 items are kept from the version before" in catalog.rows(outbox)[-1].payload["text"]


@pytest.mark.parametrize("code", ["http_404", "http_410"])
def test_a_page_that_is_gone_loses_its_items(catalog: CatalogHarness, code: str) -> None:
    publish_first_version(catalog)
    second = crawl_again(catalog, carried=["/c/1", "/c/2"])
    catalog.fail_page(second, "/c/3", code)

    catalog.finish(second)

    assert catalog.versions() == {1: FIRST, 2: ("published", ["a", "b"])}


def test_a_page_that_fails_twice_keeps_its_items(catalog: CatalogHarness) -> None:
    publish_first_version(catalog)
    for number in (2, 3):
        id_ = crawl_again(catalog, items={"/c/1": ["a"], "/c/2": [f"b{number}"]}, failed=["/c/3"])
        catalog.finish(id_)
        catalog.clock.advance(minutes=10)

    assert catalog.versions()[3] == ("published", ["a", "b3", "c"])


def test_a_failure_among_unchanged_pages_adds_no_version(catalog: CatalogHarness) -> None:
    publish_first_version(catalog)
    second = crawl_again(catalog, carried=["/c/1", "/c/2"], failed=["/c/3"])

    dataset = catalog.finished_dataset(second)

    assert (dataset.is_confirmed, dataset.kept_items) == (True, 1)
    assert catalog.versions() == {1: FIRST}


def test_too_many_failures_quarantine_the_dataset_though_no_item_is_missing(catalog: CatalogHarness) -> None:
    catalog.crawl({"/c/1": [f"a{n}" for n in range(9)], "/c/2": ["b"]})
    second = crawl_again(catalog, {"/c/1": "ERROR", "/c/2": "SUCCESS"}, carried=["/c/2"], failed=["/c/1"])

    dataset = catalog.finished_dataset(second)

    assert [finding["code"] for finding in dataset.findings] == ["failed_pages"]
    assert [row.status for row in catalog.rows(datasets)] == ["published", "quarantined"]


def test_items_behind_a_failed_list_are_kept(catalog: CatalogHarness) -> None:
    publish_first_version(catalog)
    second = crawl_again(catalog, {"/c/1": "SUCCESS"}, items={"/c/1": ["a", "d"]}, failed=["/"], root="ERROR")

    [ended] = catalog.finish(second)

    assert catalog.versions()[2] == ("published", ["a", "b", "c", "d"])
    assert ended.dataset is not None
    assert (ended.dataset.kept_items, ended.dataset.unlisted, ended.page_count) == (2, 2, 4)
    hidden = catalog.page_row(second, "/c/2")
    assert (hidden.status, hidden.failure["code"]) == ("ERROR", "unlisted")


def test_items_that_a_complete_list_no_longer_links_to_are_dropped_though_another_page_failed(
    catalog: CatalogHarness,
) -> None:
    publish_first_version(catalog)
    second = crawl_again(catalog, {"/c/1": "SUCCESS", "/c/2": "ERROR"}, items={"/c/1": ["a"]}, failed=["/c/2"])

    catalog.finish(second)

    assert catalog.versions()[2] == ("published", ["a", "b"])


@pytest.mark.parametrize(
    ("failed", "page_type", "over_budget"),
    [(["/c/2"], "EXPLORATORY", 0), ([], "DETAIL", 2)],
    ids=["a failed exploratory page", "a list cut off by the budget"],
)
def test_items_behind_a_page_that_was_not_read_in_full_are_kept(
    catalog: CatalogHarness, failed: list[str], page_type: str, over_budget: int
) -> None:
    publish_first_version(catalog)
    paths = {"/c/1": "SUCCESS", **dict.fromkeys(failed, "ERROR")}
    second = crawl_again(catalog, paths, items={"/c/1": ["a"]}, failed=failed, over_budget=over_budget)
    [_, links] = catalog.rows(crawl_steps, extraction_id=second)
    catalog.update_row(crawl_steps, links.id, page_type=page_type)

    catalog.finish(second)

    assert catalog.versions()[2] == ("published", ["a", "b", "c"])


def test_a_rerun_keeps_the_items_of_pages_that_its_crawl_failed_to_fetch(catalog: CatalogHarness) -> None:
    publish_first_version(catalog)
    second = crawl_again(catalog, LAST_FAILED, carried=["/c/1"], items={"/c/2": ["b2"]}, failed=["/c/3"])
    catalog.finish(second)
    new_run = catalog.apply_action(rerun, second)
    catalog.add_items(new_run.extraction_id, {"/c/1": ["a"], "/c/2": ["b3"]})

    catalog.finish(new_run.extraction_id)

    assert catalog.versions()[3] == ("published", ["a", "b3", "c"])


def test_a_retry_fetches_carried_pages_again_and_replaces_their_items(catalog: CatalogHarness) -> None:
    publish_first_version(catalog)
    second = crawl_again(catalog, LAST_FAILED, carried=["/c/1"], items={"/c/2": ["b2"]}, failed=["/c/3"])
    catalog.finish(second)

    assert catalog.apply_action(extraction_control.retry, second).fetched == 1
    catalog.add_items(second, {"/c/3": ["c2"]})
    catalog.finish(second)

    assert catalog.versions()[2] == ("published", ["a", "b2", "c"])
    assert catalog.versions()[3] == ("published", ["a", "b2", "c2"])
    assert catalog.rows(pages, extraction_id=second, status="ERROR") == []
