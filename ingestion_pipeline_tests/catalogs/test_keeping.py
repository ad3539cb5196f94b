"""What stays of the last good dataset when pages fail: nobody has seen that it is gone."""

from __future__ import annotations

import pytest

from ingestion_pipeline.catalogs.operations import control
from ingestion_pipeline.catalogs.operations.rerun import rerun
from ingestion_pipeline.store.tables import crawl_steps, datasets, extractions, outbox, pages
from ingestion_pipeline_tests.extracting import Extracting, some

__all__ = ["some"]
DONE = {"/c/1": "SUCCESS", "/c/2": "SUCCESS", "/c/3": "SUCCESS"}
LAST_FAILED = {**DONE, "/c/3": "ERROR"}
FIRST = ("published", ["a", "b", "c"])


def published(some: Extracting) -> tuple[int, int]:
    """A first extraction with an item on each of three pages, and its dataset."""
    id_ = some.begin(DONE)
    dataset_id = some.read(id_, {"/c/1": ["a"], "/c/2": ["b"], "/c/3": ["c"]})
    some.end(id_)
    some.clock.advance(minutes=10)
    return id_, dataset_id


def test_the_items_of_a_failed_page_stay_and_are_counted_apart(some: Extracting) -> None:
    first, base = published(some)
    second = some.begin(DONE, base_dataset_id=base)
    some.carry(second, first, "/c/1")
    some.read(second, {"/c/2": ["b", "d"]})
    some.fail(second, "/c/3")

    [ended] = some.end(second)

    assert some.versions() == {1: FIRST, 2: ("published", ["a", "b", "c", "d"])}
    assert ended.dataset is not None
    assert (ended.dataset.kept_items, ended.dataset.findings) == (1, [])
    [row] = some.rows(extractions, id=second)
    assert (row.summary["kept"], row.summary["carried"], row.summary["items"]) == (1, 1, 4)
    page = some.page_of(second, "/c/3")
    assert (page.status, page.carried_from) == ("ERROR", some.page_of(first, "/c/3").id)
    assert "1 items are kept from the version before" in some.rows(outbox)[-1].payload["text"]


@pytest.mark.parametrize("code", ["http_404", "http_410"])
def test_a_page_that_answers_that_it_is_gone_takes_its_items_with_it(some: Extracting, code: str) -> None:
    first, base = published(some)
    second = some.begin(DONE, base_dataset_id=base)
    some.carry(second, first, "/c/1", "/c/2")
    some.fail(second, "/c/3", code)

    some.end(second)

    assert some.versions() == {1: FIRST, 2: ("published", ["a", "b"])}


def test_a_page_that_fails_twice_keeps_its_items_twice(some: Extracting) -> None:
    _, base = published(some)
    for number in (2, 3):
        id_ = some.begin(DONE, base_dataset_id=base)
        base = some.read(id_, {"/c/1": ["a"], "/c/2": [f"b{number}"]})
        some.fail(id_, "/c/3")
        some.end(id_)
        some.clock.advance(minutes=10)

    assert some.versions()[3] == ("published", ["a", "b3", "c"])


def test_a_failure_among_unchanged_pages_makes_no_new_version(some: Extracting) -> None:
    first, base = published(some)
    second = some.begin(DONE, base_dataset_id=base)
    some.carry(second, first, "/c/1", "/c/2")
    some.fail(second, "/c/3")

    [ended] = some.end(second)

    assert ended.dataset is not None
    assert (ended.dataset.is_confirmed, ended.dataset.kept_items) == (True, 1)
    assert some.versions() == {1: FIRST}


def test_too_many_failures_are_held_back_though_nothing_is_missing(some: Extracting) -> None:
    first = some.begin({"/c/1": "SUCCESS", "/c/2": "SUCCESS"})
    base = some.read(first, {"/c/1": [f"a{n}" for n in range(9)], "/c/2": ["b"]})
    some.end(first)
    some.clock.advance(minutes=10)
    second = some.begin({"/c/1": "ERROR", "/c/2": "SUCCESS"}, base_dataset_id=base)
    some.carry(second, first, "/c/2")
    some.fail(second, "/c/1")

    [ended] = some.end(second)

    assert ended.dataset is not None
    assert [one["code"] for one in ended.dataset.findings] == ["failed_pages"]
    assert [row.status for row in some.rows(datasets)] == ["published", "quarantined"]


def test_what_a_failed_list_hides_is_not_believed_to_be_gone(some: Extracting) -> None:
    _, base = published(some)
    second = some.begin({"/c/1": "SUCCESS"}, root="ERROR", base_dataset_id=base)
    some.read(second, {"/c/1": ["a", "d"]})
    some.fail(second, "/")

    [ended] = some.end(second)

    assert some.versions()[2] == ("published", ["a", "b", "c", "d"])
    assert ended.dataset is not None
    assert (ended.dataset.kept_items, ended.dataset.unlisted, ended.page_count) == (2, 2, 4)
    hidden = some.page_of(second, "/c/2")
    assert (hidden.status, hidden.failure["code"]) == ("ERROR", "unlisted")


def test_what_a_whole_list_no_longer_names_is_gone_though_another_page_failed(some: Extracting) -> None:
    _, base = published(some)
    second = some.begin({"/c/1": "SUCCESS", "/c/2": "ERROR"}, base_dataset_id=base)
    some.read(second, {"/c/1": ["a"]})
    some.fail(second, "/c/2")

    some.end(second)

    assert some.versions()[2] == ("published", ["a", "b"])


def test_what_a_failed_page_of_an_exploration_may_lead_to_is_not_believed_to_be_gone(some: Extracting) -> None:
    _, base = published(some)
    second = some.begin({"/c/1": "SUCCESS", "/c/2": "ERROR"}, base_dataset_id=base)
    [_, links] = some.rows(crawl_steps, extraction_id=second)
    some.set(crawl_steps, links.id, page_type="EXPLORATORY")
    some.read(second, {"/c/1": ["a"]})
    some.fail(second, "/c/2")

    some.end(second)

    assert some.versions()[2] == ("published", ["a", "b", "c"])


def test_a_list_that_was_cut_off_by_the_budget_hides_what_it_did_not_come_to(some: Extracting) -> None:
    _, base = published(some)
    second = some.begin({"/c/1": "SUCCESS"}, base_dataset_id=base, over_budget=2)
    some.read(second, {"/c/1": ["a"]})

    some.end(second)

    assert some.versions()[2] == ("published", ["a", "b", "c"])


def test_a_rerun_keeps_the_items_of_pages_that_its_crawl_had_not_got(some: Extracting) -> None:
    first, base = published(some)
    second = some.begin(LAST_FAILED, base_dataset_id=base)
    some.carry(second, first, "/c/1")
    some.read(second, {"/c/2": ["b2"]})
    some.fail(second, "/c/3")
    some.end(second)
    made = some.act(rerun, second)
    some.read(made.extraction_id, {"/c/1": ["a"], "/c/2": ["b3"]})

    some.end(made.extraction_id)

    assert some.versions()[3] == ("published", ["a", "b3", "c"])


def test_a_retry_visits_kept_pages_again_and_what_they_say_then_counts(some: Extracting) -> None:
    first, base = published(some)
    second = some.begin(LAST_FAILED, base_dataset_id=base)
    some.carry(second, first, "/c/1")
    some.read(second, {"/c/2": ["b2"]})
    some.fail(second, "/c/3")
    some.end(second)

    assert some.act(control.retry, second).fetched == 1
    some.read(second, {"/c/3": ["c2"]})
    some.end(second)

    assert some.versions()[2] == ("published", ["a", "b2", "c"])
    assert some.versions()[3] == ("published", ["a", "b2", "c2"])
    assert some.rows(pages, extraction_id=second, status="ERROR") == []
