"""Items of the last good dataset are carried over when their pages fail: a failure proves no loss."""

import pytest

from ingestion_pipeline.catalogs import extraction_control
from ingestion_pipeline.catalogs.reruns import rerun
from ingestion_pipeline.store.tables import crawl_steps, datasets, extractions, outbox, pages
from ingestion_pipeline_tests.catalog_extractions import CatalogHarness

pytestmark = pytest.mark.both_databases

DONE = {"/c/1": "SUCCESS", "/c/2": "SUCCESS", "/c/3": "SUCCESS"}
LAST_FAILED = {**DONE, "/c/3": "ERROR"}
FIRST = ("published", ["a", "b", "c"])


def publish_first_version(catalog: CatalogHarness) -> tuple[int, int]:
    """Publish an item on each of three pages; return the ids of extraction and dataset."""
    id_ = catalog.start_extraction(DONE)
    dataset_id = catalog.add_items(id_, {"/c/1": ["a"], "/c/2": ["b"], "/c/3": ["c"]})
    catalog.finish(id_)
    catalog.clock.advance(minutes=10)
    return id_, dataset_id


def test_the_items_of_a_failed_page_are_carried_over_and_counted(catalog: CatalogHarness) -> None:
    first, base = publish_first_version(catalog)
    second = catalog.start_extraction(DONE, base_dataset_id=base)
    catalog.carry_over(second, first, "/c/1")
    catalog.add_items(second, {"/c/2": ["b", "d"]})
    catalog.fail_page(second, "/c/3")

    [ended] = catalog.finish(second)

    assert catalog.versions() == {1: FIRST, 2: ("published", ["a", "b", "c", "d"])}
    assert ended.dataset is not None
    assert (ended.dataset.kept_items, ended.dataset.findings) == (1, [])
    [row] = catalog.rows(extractions, id=second)
    assert (row.summary["kept"], row.summary["carried"], row.summary["items"]) == (1, 1, 4)
    page = catalog.page_row(second, "/c/3")
    assert (page.status, page.carried_from) == ("ERROR", catalog.page_row(first, "/c/3").id)
    assert "1 items are kept from the version before" in catalog.rows(outbox)[-1].payload["text"]


@pytest.mark.parametrize("code", ["http_404", "http_410"])
def test_a_page_that_is_gone_loses_its_items(catalog: CatalogHarness, code: str) -> None:
    first, base = publish_first_version(catalog)
    second = catalog.start_extraction(DONE, base_dataset_id=base)
    catalog.carry_over(second, first, "/c/1", "/c/2")
    catalog.fail_page(second, "/c/3", code)

    catalog.finish(second)

    assert catalog.versions() == {1: FIRST, 2: ("published", ["a", "b"])}


def test_a_page_that_fails_twice_keeps_its_items(catalog: CatalogHarness) -> None:
    _, base = publish_first_version(catalog)
    for number in (2, 3):
        id_ = catalog.start_extraction(DONE, base_dataset_id=base)
        base = catalog.add_items(id_, {"/c/1": ["a"], "/c/2": [f"b{number}"]})
        catalog.fail_page(id_, "/c/3")
        catalog.finish(id_)
        catalog.clock.advance(minutes=10)

    assert catalog.versions()[3] == ("published", ["a", "b3", "c"])


def test_a_failure_among_unchanged_pages_adds_no_version(catalog: CatalogHarness) -> None:
    first, base = publish_first_version(catalog)
    second = catalog.start_extraction(DONE, base_dataset_id=base)
    catalog.carry_over(second, first, "/c/1", "/c/2")
    catalog.fail_page(second, "/c/3")

    [ended] = catalog.finish(second)

    assert ended.dataset is not None
    assert (ended.dataset.is_confirmed, ended.dataset.kept_items) == (True, 1)
    assert catalog.versions() == {1: FIRST}


def test_too_many_failures_quarantine_the_dataset_though_no_item_is_missing(catalog: CatalogHarness) -> None:
    first = catalog.start_extraction({"/c/1": "SUCCESS", "/c/2": "SUCCESS"})
    base = catalog.add_items(first, {"/c/1": [f"a{n}" for n in range(9)], "/c/2": ["b"]})
    catalog.finish(first)
    catalog.clock.advance(minutes=10)
    second = catalog.start_extraction({"/c/1": "ERROR", "/c/2": "SUCCESS"}, base_dataset_id=base)
    catalog.carry_over(second, first, "/c/2")
    catalog.fail_page(second, "/c/1")

    [ended] = catalog.finish(second)

    assert ended.dataset is not None
    assert [finding["code"] for finding in ended.dataset.findings] == ["failed_pages"]
    assert [row.status for row in catalog.rows(datasets)] == ["published", "quarantined"]


def test_items_behind_a_failed_list_are_kept(catalog: CatalogHarness) -> None:
    _, base = publish_first_version(catalog)
    second = catalog.start_extraction({"/c/1": "SUCCESS"}, root="ERROR", base_dataset_id=base)
    catalog.add_items(second, {"/c/1": ["a", "d"]})
    catalog.fail_page(second, "/")

    [ended] = catalog.finish(second)

    assert catalog.versions()[2] == ("published", ["a", "b", "c", "d"])
    assert ended.dataset is not None
    assert (ended.dataset.kept_items, ended.dataset.unlisted, ended.page_count) == (2, 2, 4)
    hidden = catalog.page_row(second, "/c/2")
    assert (hidden.status, hidden.failure["code"]) == ("ERROR", "unlisted")


def test_items_that_a_complete_list_no_longer_links_to_are_dropped_though_another_page_failed(
    catalog: CatalogHarness,
) -> None:
    _, base = publish_first_version(catalog)
    second = catalog.start_extraction({"/c/1": "SUCCESS", "/c/2": "ERROR"}, base_dataset_id=base)
    catalog.add_items(second, {"/c/1": ["a"]})
    catalog.fail_page(second, "/c/2")

    catalog.finish(second)

    assert catalog.versions()[2] == ("published", ["a", "b"])


def test_items_behind_a_failed_exploratory_page_are_kept(catalog: CatalogHarness) -> None:
    _, base = publish_first_version(catalog)
    second = catalog.start_extraction({"/c/1": "SUCCESS", "/c/2": "ERROR"}, base_dataset_id=base)
    [_, links] = catalog.rows(crawl_steps, extraction_id=second)
    catalog.update_row(crawl_steps, links.id, page_type="EXPLORATORY")
    catalog.add_items(second, {"/c/1": ["a"]})
    catalog.fail_page(second, "/c/2")

    catalog.finish(second)

    assert catalog.versions()[2] == ("published", ["a", "b", "c"])


def test_items_behind_a_list_cut_off_by_the_budget_are_kept(catalog: CatalogHarness) -> None:
    _, base = publish_first_version(catalog)
    second = catalog.start_extraction({"/c/1": "SUCCESS"}, base_dataset_id=base, over_budget=2)
    catalog.add_items(second, {"/c/1": ["a"]})

    catalog.finish(second)

    assert catalog.versions()[2] == ("published", ["a", "b", "c"])


def test_a_rerun_keeps_the_items_of_pages_that_its_crawl_failed_to_fetch(catalog: CatalogHarness) -> None:
    first, base = publish_first_version(catalog)
    second = catalog.start_extraction(LAST_FAILED, base_dataset_id=base)
    catalog.carry_over(second, first, "/c/1")
    catalog.add_items(second, {"/c/2": ["b2"]})
    catalog.fail_page(second, "/c/3")
    catalog.finish(second)
    new_run = catalog.apply_action(rerun, second)
    catalog.add_items(new_run.extraction_id, {"/c/1": ["a"], "/c/2": ["b3"]})

    catalog.finish(new_run.extraction_id)

    assert catalog.versions()[3] == ("published", ["a", "b3", "c"])


def test_a_retry_fetches_carried_pages_again_and_replaces_their_items(catalog: CatalogHarness) -> None:
    first, base = publish_first_version(catalog)
    second = catalog.start_extraction(LAST_FAILED, base_dataset_id=base)
    catalog.carry_over(second, first, "/c/1")
    catalog.add_items(second, {"/c/2": ["b2"]})
    catalog.fail_page(second, "/c/3")
    catalog.finish(second)

    assert catalog.apply_action(extraction_control.retry, second).fetched == 1
    catalog.add_items(second, {"/c/3": ["c2"]})
    catalog.finish(second)

    assert catalog.versions()[2] == ("published", ["a", "b2", "c"])
    assert catalog.versions()[3] == ("published", ["a", "b2", "c2"])
    assert catalog.rows(pages, extraction_id=second, status="ERROR") == []
