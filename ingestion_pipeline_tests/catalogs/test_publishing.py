"""What becomes of datasets: confirmed, published, held back; and which of them are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ingestion_pipeline.catalogs.datasets.finishing import FinishReason
from ingestion_pipeline.catalogs.operations import control, retention
from ingestion_pipeline.catalogs.states import ExtractionStatus
from ingestion_pipeline.operations.health import source_statuses
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
from ingestion_pipeline_tests.extracting import FAILURE, Extracting, some

__all__ = ["some"]
DONE = {"/c/1": "SUCCESS", "/c/2": "SUCCESS", "/c/3": "SUCCESS"}


def first_version(some: Extracting, items: int = 3) -> int:
    """An extraction whose dataset is published; its id."""
    id_ = some.begin(DONE)
    some.read(id_, {"/c/1": [f"a{n}" for n in range(items - 2)], "/c/2": ["b"], "/c/3": ["c"]})
    some.end(id_)
    some.clock.advance(minutes=10)
    return id_


def test_an_unchanged_catalogue_confirms_its_dataset_and_adds_no_row(some: Extracting) -> None:
    first = first_version(some)
    [base] = some.rows(datasets)
    second = some.begin(DONE, base_dataset_id=base.id)
    some.carry(second, first, "/c/1", "/c/2", "/c/3")

    [ended] = some.end(second)

    assert ended.dataset is not None
    assert (ended.dataset.is_confirmed, ended.dataset.items) == (True, 3)
    [after] = some.rows(datasets)
    assert (after.status, after.confirmed_at) == ("published", some.clock.at)
    assert len(some.rows(data_items)) == 3
    assert some.rows(extractions, id=second)[0].dataset_id == base.id


def test_a_changed_page_makes_a_new_version_with_the_unchanged_ones_copied(some: Extracting) -> None:
    first = first_version(some)
    [base] = some.rows(datasets)
    second = some.begin(DONE, base_dataset_id=base.id)
    some.carry(second, first, "/c/1", "/c/2")
    new = some.read(second, {"/c/3": ["c", "d"]})

    [ended] = some.end(second)

    assert ended.dataset is not None
    assert (ended.dataset.version, ended.dataset.items) == (2, 4)
    keys = [row.item_key for row in some.rows(data_items, dataset_id=new)]
    assert sorted(keys) == ["a0", "b", "c", "d"]
    own = {row.id for row in some.rows(pages, extraction_id=second)}
    assert {row.page_id for row in some.rows(data_items, dataset_id=new)} <= own
    assert [row.status for row in some.rows(datasets)] == ["published", "published"]


def test_a_page_that_is_gone_makes_a_new_version_without_reading_anything(some: Extracting) -> None:
    first = first_version(some)
    [base] = some.rows(datasets)
    second = some.begin({"/c/1": "SUCCESS", "/c/2": "SUCCESS"}, base_dataset_id=base.id)
    some.carry(second, first, "/c/1", "/c/2")

    [ended] = some.end(second)

    assert ended.dataset is not None
    assert (ended.dataset.version, ended.dataset.items) == (2, 2)


def test_nothing_where_there_was_something_is_held_back_and_the_last_good_one_stays(some: Extracting) -> None:
    first_version(some)
    [base] = some.rows(datasets)
    second = some.begin({}, base_dataset_id=base.id)

    [ended] = some.end(second)

    assert ended.dataset is not None
    assert [one["code"] for one in ended.dataset.findings] == ["empty_after_full"]
    assert [row.status for row in some.rows(datasets)] == ["published", "quarantined"]


def test_a_dataset_that_was_held_back_can_be_accepted_by_name(some: Extracting) -> None:
    first_version(some, items=10)
    second = some.begin({"/c/1": "SUCCESS"})
    some.read(second, {"/c/1": ["a0"]})
    some.end(second)

    assert some.act(control.publish, second) == 2
    with pytest.raises(control.InvalidState, match=f"extraction {second} has a dataset that is published"):
        some.act(control.publish, second)

    assert [row.status for row in some.rows(datasets)] == ["published", "published"]
    [line] = some.rows(audit_log, action="dataset.publish")
    assert (line.actor, line.detail["findings"][0]["code"]) == ("ann", "dropped")


def test_of_equal_keys_the_first_page_counts_and_a_proved_item_before_an_unproved(some: Extracting) -> None:
    id_ = some.begin(DONE)
    dataset_id = some.read(id_, {"/c/1": ["x", "flagged"]}, is_flagged=True)
    some.read(id_, {"/c/3": ["y", "x"], "/c/2": ["y", "z1", "z2", "z3", "z4"]})

    [ended] = some.end(id_)

    repeats = [
        (row.item_key, row.page_id == some.page_of(id_, "/c/3").id, row.is_flagged)
        for row in some.rows(data_items, dataset_id=dataset_id)
        if row.is_repeat
    ]
    assert sorted(repeats) == [("x", False, True), ("y", True, False)]
    assert ended.dataset is not None
    assert (ended.dataset.items, ended.dataset.flagged) == (7, 1)


STALE = FinishReason(
    status=ExtractionStatus.STALE, failure={"class": "resource", "code": "stale", "message": "1 of 4 pages was left"}
)


def test_what_is_complete_of_a_stale_extraction_is_published_with_the_missing_pages_named(some: Extracting) -> None:
    id_ = some.begin({**DONE, "/c/4": "WAITING"})
    some.read(id_, {"/c/1": ["a"], "/c/2": ["b"], "/c/3": ["c"]})

    some.end(id_, STALE)

    assert some.versions() == {1: ("published", ["a", "b", "c"])}
    assert some.status(id_) == "STALE"
    [told] = some.rows(outbox)
    assert told.payload["missing"] == ["http://a.test/c/4: still waiting"]
    assert "missing: http://a.test/c/4" in told.payload["text"]
    assert some.rows(extractions, id=id_)[0].summary["missing"] == 1
    [source] = some.rows(sources)
    assert source.last_outcome == f"extraction {id_}: 5 pages, 0 new, 0 failed, 1 left"
    assert (source.record_count, source.failure_count) == (3, 0)


def test_a_stale_extraction_keeps_what_was_known_of_its_missing_pages_until_it_is_resumed(some: Extracting) -> None:
    first = first_version(some)
    [base] = some.rows(datasets)
    second = some.begin({**DONE, "/c/3": "WAITING"}, base_dataset_id=base.id)
    some.carry(second, first, "/c/1")
    some.read(second, {"/c/2": ["b2"]})

    some.end(second, STALE)
    assert some.versions()[2] == ("published", ["a0", "b2", "c"])
    assert some.rows(extractions, id=second)[0].summary["kept"] == 1

    assert some.act(control.resume, second).fetched == 1
    some.read(second, {"/c/3": ["c2"]})
    some.end(second)
    assert some.versions()[3] == ("published", ["a0", "b2", "c2"])


def test_what_a_list_that_was_never_got_hides_stays_and_is_looked_for_by_a_resume(some: Extracting) -> None:
    first_version(some)
    [base] = some.rows(datasets)
    second = some.begin({"/c/1": "SUCCESS"}, root="WAITING", base_dataset_id=base.id)
    some.read(second, {"/c/1": ["a1"]})

    some.end(second, STALE)
    some.act(control.resume, second)

    assert some.versions()[2] == ("published", ["a1", "b", "c"])
    assert some.live("fetch_page") == ["/", "/c/2", "/c/3"]


def test_a_stale_first_dataset_that_is_mostly_missing_is_held_back(some: Extracting) -> None:
    id_ = some.begin({"/c/1": "SUCCESS", "/c/2": "WAITING", "/c/3": "DOWNLOADED"})
    some.read(id_, {"/c/1": ["a"]})

    [ended] = some.end(id_, STALE)

    assert ended.dataset is not None
    assert [one["code"] for one in ended.dataset.findings] == ["mostly_failed"]
    assert some.act(control.publish, id_) == 1


@pytest.mark.parametrize("status", ["EXTRACTED_NO_DATA", "ERROR"])
def test_a_first_dataset_without_an_item_is_held_back_until_somebody_accepts_it(some: Extracting, status: str) -> None:
    paths = dict.fromkeys((f"/c/{number}" for number in range(24)), status)
    id_ = some.begin(paths)
    if status == "EXTRACTED_NO_DATA":
        some.read(id_, {path: [] for path in paths})

    [ended] = some.end(id_)

    assert ended.dataset is not None
    [finding] = ended.dataset.findings
    assert (finding["code"], "24 pages" in finding["message"]) == ("empty_first", True)
    assert [row.status for row in some.rows(datasets)] == ["quarantined"]
    with some.ctx.store.read() as connection:
        [found] = source_statuses(connection, some.ctx.settings, now=some.clock.at)
    assert found.health == "degraded"
    assert some.act(control.publish, id_) == 1
    assert [row.status for row in some.rows(datasets)] == ["published"]


def test_pages_that_exploring_found_do_not_count_against_a_first_dataset(some: Extracting) -> None:
    id_ = some.begin({"/c/1": "SUCCESS"})
    some.read(id_, {"/c/1": ["a"]})
    step = {"kind": "FETCH_LINKS", "key": "root/links/explored", "page_type": "DETAIL"}
    explored = some.insert(crawl_steps, {**step, "extraction_id": id_, "created_at": some.clock.at})
    for number in range(9):
        some.page(id_, explored, f"/x/{number}", "EXTRACTED_NO_DATA")

    [ended] = some.end(id_)

    assert ended.dataset is not None
    assert ended.dataset.findings == []


def test_what_a_cancelled_extraction_has_can_be_published_with_what_was_known_before(some: Extracting) -> None:
    first = first_version(some)
    [base] = some.rows(datasets)
    second = some.begin({**DONE, "/c/3": "WAITING"}, base_dataset_id=base.id)
    some.carry(second, first, "/c/1")
    some.read(second, {"/c/2": ["b2"]})
    some.cancel(second)
    assert some.versions()[2][0] == "incomplete"

    assert some.act(control.publish, second) == 2

    assert some.versions()[2] == ("published", ["a0", "b2", "c"])
    assert some.rows(datasets)[-1].item_count == 3


def test_what_a_stale_extraction_read_is_counted_and_shown_to_nobody(some: Extracting) -> None:
    id_ = some.begin({**DONE, "/c/4": "WAITING"})
    some.read(id_, {"/c/1": ["a"]})

    some.end(id_, FinishReason(status=ExtractionStatus.STALE, failure=FAILURE))

    [row] = some.rows(datasets)
    assert (row.status, row.item_count) == ("incomplete", 1)


def test_old_versions_go_with_their_items_and_the_shown_one_stays(some: Extracting) -> None:
    first = first_version(some, items=10)
    for _ in range(11):
        id_ = some.begin({"/c/1": "SUCCESS"})
        some.read(id_, {"/c/1": ["a0"]})
        some.end(id_)
        some.clock.advance(minutes=10)

    with some.ctx.store.begin() as connection:
        gone = retention.old_datasets(connection, some.ctx.settings, some.clock.at)
        lost = retention.old_extractions(connection, some.ctx.settings, some.clock.at)

    assert (gone, lost) == (1, 1)
    left = some.rows(datasets)
    assert [row.version for row in left] == [1, *range(3, 13)]
    assert [row.status for row in left] == ["published", *["quarantined"] * 10]
    assert {row.dataset_id for row in some.rows(data_items)} == {row.id for row in left}
    assert first in {row.id for row in some.rows(extractions)}
    kept = {row.id for row in some.rows(extractions)}
    assert {row.extraction_id for row in some.rows(pages)} == kept
    assert {row.extraction_id for row in some.rows(crawl_steps)} == kept


def test_a_field_that_a_type_of_ones_own_requires_is_missed_when_it_is_lost(some: Extracting, tmp_path: Path) -> None:
    (tmp_path / "entities").mkdir()
    field = "{name: ring, kind: text, required: true}"
    (tmp_path / "entities" / "bird.yaml").write_text(f"name: bird\nfields: [{field}]")
    settings = some.ctx.settings.model_copy(update={"sources": tmp_path})
    some.ctx = replace(some.ctx, settings=settings)
    for ring in ("R-1", None):
        id_ = some.begin({"/c/1": "SUCCESS"}, entity_type="bird")
        some.read(id_, {"/c/1": ["a", "b"]}, data={"ring": ring})
        [ended] = some.end(id_)
        some.clock.advance(minutes=10)

    assert ended.dataset is not None
    assert [one["code"] for one in ended.dataset.findings] == ["lost_field"]


def test_what_was_shown_of_another_entity_says_nothing_against_a_dataset(some: Extracting) -> None:
    first_version(some, items=30)
    id_ = some.begin({"/c/1": "SUCCESS"}, entity_type="credential")
    some.read(id_, {"/c/1": ["a"]})

    [ended] = some.end(id_)

    assert ended.dataset is not None
    assert ended.dataset.findings == []


def test_items_lost_with_failed_pages_are_missed_though_as_many_are_new(some: Extracting) -> None:
    first_version(some, items=10)
    [base] = some.rows(datasets)
    paths = {"/c/1": "ERROR", "/c/2": "SUCCESS", "/c/3": "SUCCESS"}
    second = some.begin(paths, base_dataset_id=base.id)
    some.read(second, {"/c/2": [f"b{n}" for n in range(8)], "/c/3": ["c"]})

    [ended] = some.end(second)

    assert ended.dataset is not None
    assert [one["code"] for one in ended.dataset.findings] == ["failed_pages"]
