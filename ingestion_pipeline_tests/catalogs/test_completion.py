"""When an extraction is complete, stale or goes on: traps 6, 7, 10 and 13, on both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy import insert

from ingestion_pipeline.catalogs.datasets.completion import ExtractionProgress, decide
from ingestion_pipeline.catalogs.datasets.finishing import budget_finish
from ingestion_pipeline.catalogs.operations import control
from ingestion_pipeline.catalogs.states import ExtractionKind
from ingestion_pipeline.settings.systems import Extraction
from ingestion_pipeline.store.tables import audit_log, extractions, model_calls, outbox, pages, sources, tasks
from ingestion_pipeline_tests.crawlers import SHOP
from ingestion_pipeline_tests.extracting import FAILURE, Extracting, some

__all__ = ["some"]
MINUTES, HOURS = timedelta(minutes=1), timedelta(hours=1)


@pytest.mark.parametrize(
    ("kind", "unfinished", "pending", "quiet", "failed", "comes_to"),
    [
        ("crawl", 0, False, 5 * MINUTES, False, "COMPLETE"),
        ("crawl", 0, False, 4.9 * MINUTES, False, None),
        ("crawl", 0, True, 5 * MINUTES, False, None),
        ("crawl", 0, True, 9 * HOURS, False, None),
        ("rerun", 0, False, 5 * MINUTES, False, "COMPLETE"),
        ("api", 0, False, 0 * MINUTES, False, "COMPLETE"),
        ("api", 0, True, 9 * MINUTES, False, None),
        ("crawl", 1, False, 3.9 * HOURS, False, None),
        ("crawl", 1, False, 4 * HOURS, False, "STALE"),
        ("crawl", 1, True, 4 * HOURS, False, "STALE"),
        ("api", 1, False, 1 * HOURS, False, None),
        ("crawl", 0, False, 0 * MINUTES, True, "STALE"),
        ("api", 0, False, 0 * MINUTES, True, "CANCELLED"),
    ],
)
def test_what_is_left_what_waits_and_how_long_it_was_quiet_decide(
    kind: str, unfinished: int, pending: bool, quiet: timedelta, failed: bool, comes_to: str | None
) -> None:
    standing = ExtractionProgress(
        kind=ExtractionKind(kind),
        unfinished=unfinished,
        total=3,
        has_pending=pending,
        quiet_for=quiet,
        failure=FAILURE if failed else None,
    )

    ending = decide(standing, limits=Extraction())

    assert (ending.status.value if ending else None) == comes_to


@pytest.mark.parametrize(
    ("quiet", "since_retry", "comes_to"),
    [
        (4 * HOURS, -4 * HOURS, None),
        (9 * HOURS, 3.9 * HOURS, None),
        (9 * HOURS, 4 * HOURS, "STALE"),
        (3 * HOURS, 4 * HOURS, None),
    ],
)
def test_what_is_left_is_stale_only_after_the_last_retry_was_due(
    quiet: timedelta, since_retry: timedelta, comes_to: str | None
) -> None:
    standing = ExtractionProgress(
        kind=ExtractionKind.CRAWL, unfinished=1, total=3, has_pending=True, quiet_for=quiet, since_retry=since_retry
    )

    ending = decide(standing, limits=Extraction())

    assert (ending.status.value if ending else None) == comes_to


def test_a_reading_that_waits_for_a_model_does_not_keep_an_extraction_open(some: Extracting) -> None:
    id_ = some.begin({"/c/1": "DOWNLOADED"})
    some.task(id_, "/c/1", "extract_page", not_before=some.clock.at + 9 * HOURS)
    some.look()

    [ended] = some.look(hours=4)

    assert ended.status.value == "STALE"


def test_a_quiet_extraction_is_complete_after_five_minutes_and_told_once(some: Extracting) -> None:
    id_ = some.begin({"/c/1": "SUCCESS", "/c/2": "EXTRACTED_NO_DATA", "/c/3": "ERROR"})

    assert some.look() == []
    assert some.look(minutes=4) == []
    [ended] = some.look(minutes=1)
    assert some.look(minutes=9) == []

    assert (ended.id, ended.status.value, some.status(id_)) == (id_, "COMPLETE", "COMPLETE")
    [row] = some.rows(outbox)
    assert (row.subject_kind, row.subject_id) == ("extraction", str(id_))
    assert row.payload["title"] == f"{SHOP}: extraction {id_} is complete"
    [source] = some.rows(sources)
    assert source.last_outcome == f"extraction {id_}: 4 pages, 0 new, 1 failed"


def test_what_changed_begins_the_quiet_time_anew_and_the_summary_says_it(some: Extracting) -> None:
    id_ = some.begin({"/c/1": "SUCCESS", "/c/2": "DOWNLOADED"})
    some.look()
    first = some.rows(extractions, id=id_)[0]
    some.look(minutes=9)
    unchanged = some.rows(extractions, id=id_)[0]

    some.read(id_, {"/c/2": ["b", "c"]})
    some.look(minutes=9)

    after = some.rows(extractions, id=id_)[0]
    assert unchanged.changed_at == first.changed_at
    assert after.changed_at == some.clock.at
    assert after.summary["items"] == 2
    assert after.summary["steps"]["root/links"] == {"pages": {"SUCCESS": 2}, "total": 2, "finished": 2}
    assert some.status(id_) == "IN_PROGRESS"


def test_a_page_that_is_tried_again_and_again_is_no_change(some: Extracting) -> None:
    id_ = some.begin({"/c/1": "WAITING"})
    some.look()
    some.set(pages, some.page_of(id_, "/c/1").id, status="IN_PROGRESS")
    [ended] = some.look(hours=4)

    assert ended.status.value == "STALE"


def test_the_summary_has_the_cost_by_call_site_and_model(some: Extracting) -> None:
    id_ = some.begin({"/c/1": "DOWNLOADED"})
    call = {
        "extraction_id": id_,
        "call_site": "course",
        "provider": "p",
        "model": "cheap",
        "format": "f",
        "status": "settled",
        "input_tokens": 100,
        "output_tokens": 10,
        "cost_usd": Decimal("0.25"),
        "cache_key": "k",
        "prompt_version": "1",
        "created_at": some.clock.at,
    }
    with some.ctx.store.begin() as connection:
        connection.execute(insert(model_calls), [call, call, {**call, "status": "cached"}])

    some.look()

    cost = some.rows(extractions, id=id_)[0].summary["cost"]
    assert (cost["usd"], cost["calls"], cost["saved_calls"]) == ("0.5", 2, 1)
    [line] = cost["by_call_site"]
    assert (line["call_site"], line["model"], line["input_tokens"]) == ("course", "cheap", 200)


@pytest.mark.parametrize(("kind", "comes_to"), [("crawl", "STALE"), ("api", "CANCELLED")])
def test_a_failed_root_is_never_complete(some: Extracting, kind: str, comes_to: str) -> None:
    id_ = some.begin({}, root="ERROR", kind=kind)

    [ended] = some.look()

    assert (some.status(id_), ended.failure) == (comes_to, FAILURE)
    assert len(some.rows(outbox)) == 1


def test_an_api_that_will_be_tried_again_is_not_cancelled(some: Extracting) -> None:
    id_ = some.begin({}, root="WAITING", kind="api")
    some.task(id_, "/", attempts=2)

    assert some.look() == []
    some.set(pages, some.page_of(id_, "/").id, status="SUCCESS")
    assert some.look() == []  # its task has not ended
    [task] = some.rows(tasks, kind="fetch_page")
    some.set(tasks, task.id, status="SUCCESS")
    [ended] = some.look()

    assert (ended.status.value, len(some.rows(outbox))) == ("COMPLETE", 1)


def test_a_waiting_task_keeps_a_complete_one_open_and_a_stale_one_not(some: Extracting) -> None:
    done = some.begin({"/c/1": "SUCCESS"})
    some.task(done, "/c/1")
    some.source("catalog:other")
    left = some.begin({"/c/9": "WAITING"}, source_id="catalog:other")
    some.task(left, "/c/9")
    some.look()

    [ended] = some.look(hours=4)

    assert (ended.id, ended.status.value) == (left, "STALE")
    assert some.status(done) == "IN_PROGRESS"
    assert [row.status for row in some.rows(tasks, source_id="catalog:other", kind="fetch_page")] == ["CANCELLED"]


def test_two_who_end_an_extraction_at_once_tell_of_it_once(some: Extracting) -> None:
    id_ = some.begin({"/c/1": "SUCCESS"})
    some.read(id_, {"/c/1": ["a"]})

    with ThreadPoolExecutor(4) as pool:
        ended = [one for found in pool.map(some.end, [id_] * 4) for one in found]

    assert [one.id for one in ended] == [id_]
    assert len(some.rows(outbox)) == 1
    assert len(some.rows(audit_log, action="extraction.complete")) == 1


def test_a_budget_that_is_used_up_cancels_and_whoever_works_on_it_sees_so(some: Extracting) -> None:
    id_ = some.begin({"/c/1": "DOWNLOADED", "/c/2": "DOWNLOADED"})
    some.task(id_, "/c/1", "extract_page")

    some.end(id_, budget_finish("50 of 50 dollars are spent"))

    assert some.status(id_) == "CANCELLED"
    [line] = some.rows(audit_log, action="extraction.cancelled")
    assert (line.actor, line.detail["reason"]) == ("system", "50 of 50 dollars are spent")
    assert some.live("extract_page") == []
    [source] = some.rows(sources)
    assert source.failure_count == 0


def test_an_api_without_one_of_its_pages_is_cancelled_told_once_and_can_be_resumed(some: Extracting) -> None:
    """Trap 10: a list that lacks its middle looks like a shorter list."""
    id_ = some.begin({"/c/1": "SUCCESS", "/c/2": "ERROR", "/c/3": "WAITING"}, kind="api")
    some.task(id_, "/c/3")

    [ended] = some.look()
    assert some.look(minutes=9) == []

    assert (some.status(id_), ended.failure) == ("CANCELLED", FAILURE)
    assert (len(some.rows(outbox)), some.live("fetch_page")) == (1, [])
    assert some.act(control.resume, id_).fetched == 2
    assert some.look() == []


def test_a_root_that_could_not_be_read_does_not_undo_the_pages_beside_it(some: Extracting) -> None:
    id_ = some.begin({"/c/1": "DOWNLOADED"}, root="ERROR")
    some.task(id_, "/c/1", "extract_page")

    assert some.look() == []
    some.read(id_, {"/c/1": ["a"]})
    [task] = some.rows(tasks, kind="extract_page")
    some.set(tasks, task.id, status="SUCCESS")
    some.look()

    assert [one.status.value for one in some.look(minutes=5)] == ["COMPLETE"]


def test_the_summary_of_whoever_was_ended_says_how_far_it_came(some: Extracting) -> None:
    id_ = some.begin({"/c/1": "SUCCESS", "/c/2": "DOWNLOADED"})
    some.look()
    some.read(id_, {"/c/2": ["a", "b"]})

    some.cancel(id_)

    assert some.rows(extractions, id=id_)[0].summary["items"] == 2
