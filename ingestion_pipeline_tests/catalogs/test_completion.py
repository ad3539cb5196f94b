"""When an extraction is complete, stale or stays open: traps 6, 7, 10 and 13."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import insert

from ingestion_pipeline.catalogs import extraction_control
from ingestion_pipeline.catalogs.datasets.finishing import ExtractionProgress, budget_finish, decide
from ingestion_pipeline.catalogs.states import ExtractionKind, ExtractionStatus
from ingestion_pipeline.settings.groups import Extraction
from ingestion_pipeline.store.tables import audit_log, extractions, model_calls, outbox, pages, sources, tasks
from ingestion_pipeline_tests.catalog_extractions import CATALOG_ID, FAILURE, CatalogHarness
from ingestion_pipeline_tests.catalogs.course_pages import expected_cases

pytestmark = pytest.mark.both_databases

MINUTES, HOURS = timedelta(minutes=1), timedelta(hours=1)


def a_progress(kind: str, unfinished: int, pending: bool, quiet: timedelta, **more: Any) -> ExtractionProgress:
    return ExtractionProgress(
        kind=ExtractionKind(kind), unfinished=unfinished, total=3, has_pending=pending, quiet_for=quiet, **more
    )


@pytest.mark.parametrize(
    ("kind", "unfinished", "pending", "quiet_minutes", "failed", "expected"), expected_cases("completion")
)
def test_open_pages_pending_tasks_and_quiet_time_decide_the_status(
    kind: str, unfinished: int, pending: bool, quiet_minutes: float, failed: bool, expected: str | None
) -> None:
    failure = FAILURE if failed else None
    progress = a_progress(kind, unfinished, pending, quiet_minutes * MINUTES, failure=failure)

    reason = decide(progress, limits=Extraction(quiet_seconds=300))

    assert (reason.status.value if reason else None) == expected


def test_an_extraction_without_waiting_tasks_is_complete_at_once_by_default() -> None:
    progress = ExtractionProgress(
        kind=ExtractionKind.CRAWL, unfinished=0, total=3, has_pending=False, quiet_for=timedelta()
    )

    reason = decide(progress, limits=Extraction())

    assert reason is not None
    assert reason.status is ExtractionStatus.COMPLETE


@pytest.mark.parametrize(
    ("quiet", "since_retry", "expected"),
    [
        (4 * HOURS, -4 * HOURS, None),
        (9 * HOURS, 3.9 * HOURS, None),
        (9 * HOURS, 4 * HOURS, "STALE"),
        (3 * HOURS, 4 * HOURS, None),
    ],
)
def test_open_pages_are_stale_only_after_the_last_retry_was_due(
    quiet: timedelta, since_retry: timedelta, expected: str | None
) -> None:
    progress = a_progress("crawl", 1, True, quiet, since_retry=since_retry)

    reason = decide(progress, limits=Extraction())

    assert (reason.status.value if reason else None) == expected


def test_a_page_that_waits_for_a_model_does_not_keep_an_extraction_open(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({"/c/1": "DOWNLOADED"})
    catalog.add_task(id_, "/c/1", "extract_page", not_before=catalog.clock.at + 9 * HOURS)
    catalog.check_completion()

    [ended] = catalog.check_completion(hours=4)

    assert ended.status.value == "STALE"


def test_a_quiet_extraction_is_complete_after_five_minutes_and_notified_once(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({"/c/1": "SUCCESS", "/c/2": "EXTRACTED_NO_DATA", "/c/3": "ERROR"})

    assert catalog.check_completion() == []
    assert catalog.check_completion(minutes=4) == []
    [ended] = catalog.check_completion(minutes=1)
    assert catalog.check_completion(minutes=9) == []

    assert (ended.id, ended.status.value, catalog.status(id_)) == (id_, "COMPLETE", "COMPLETE")
    [row] = catalog.rows(outbox)
    assert (row.subject_kind, row.subject_id) == ("extraction", str(id_))
    assert row.payload["title"] == f"{CATALOG_ID}: extraction {id_} is complete"
    [source] = catalog.rows(sources)
    assert source.last_outcome == f"extraction {id_}: 4 pages, 0 new, 1 failed; version 1 is quarantined"


def test_a_change_restarts_the_quiet_time_and_updates_the_summary(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({"/c/1": "SUCCESS", "/c/2": "DOWNLOADED"})
    catalog.check_completion()
    first = catalog.rows(extractions, id=id_)[0]
    catalog.check_completion(minutes=9)
    unchanged = catalog.rows(extractions, id=id_)[0]

    catalog.add_items(id_, {"/c/2": ["b", "c"]})
    catalog.check_completion(minutes=9)

    after = catalog.rows(extractions, id=id_)[0]
    assert unchanged.changed_at == first.changed_at
    assert after.changed_at == catalog.clock.at
    assert after.summary["items"] == 2
    assert after.summary["steps"]["root/links"] == {"pages": {"SUCCESS": 2}, "total": 2, "finished": 2}
    assert catalog.status(id_) == "IN_PROGRESS"


def test_repeated_attempts_at_a_page_are_no_change(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({"/c/1": "WAITING"})
    catalog.check_completion()
    catalog.update_row(pages, catalog.page_row(id_, "/c/1").id, status="IN_PROGRESS")
    [ended] = catalog.check_completion(hours=4)

    assert ended.status.value == "STALE"


def test_the_summary_has_the_cost_by_call_site_and_model(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({"/c/1": "DOWNLOADED"})
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
        "created_at": catalog.clock.at,
    }
    with catalog.ctx.store.begin() as connection:
        connection.execute(insert(model_calls), [call, call, {**call, "status": "cached"}])

    catalog.check_completion()

    cost = catalog.rows(extractions, id=id_)[0].summary["cost"]
    assert (cost["usd"], cost["calls"], cost["saved_calls"]) == ("0.5", 2, 1)
    [line] = cost["by_call_site"]
    assert (line["call_site"], line["model"], line["input_tokens"]) == ("course", "cheap", 200)


@pytest.mark.parametrize(("kind", "expected"), [("crawl", "STALE"), ("api", "CANCELLED")])
def test_a_failed_root_is_never_complete(catalog: CatalogHarness, kind: str, expected: str) -> None:
    id_ = catalog.start_extraction({}, root="ERROR", kind=kind)

    [ended] = catalog.check_completion()

    assert (catalog.status(id_), ended.failure) == (expected, FAILURE)
    assert len(catalog.rows(outbox)) == 1


def test_an_api_with_attempts_left_is_not_cancelled(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({}, root="WAITING", kind="api")
    catalog.add_task(id_, "/", attempts=2)

    assert catalog.check_completion() == []
    catalog.update_row(pages, catalog.page_row(id_, "/").id, status="SUCCESS")
    assert catalog.check_completion() == []  # its task has not ended
    [task] = catalog.rows(tasks, kind="fetch_page")
    catalog.update_row(tasks, task.id, status="SUCCESS")
    [ended] = catalog.check_completion()

    assert (ended.status.value, len(catalog.rows(outbox))) == ("COMPLETE", 1)


def test_a_waiting_task_delays_completion_but_not_staleness(catalog: CatalogHarness) -> None:
    finished = catalog.start_extraction({"/c/1": "SUCCESS"})
    catalog.add_task(finished, "/c/1")
    catalog.add_source("catalog:other")
    unfinished = catalog.start_extraction({"/c/9": "WAITING"}, source_id="catalog:other")
    catalog.add_task(unfinished, "/c/9")
    catalog.check_completion()

    [ended] = catalog.check_completion(hours=4)

    assert (ended.id, ended.status.value) == (unfinished, "STALE")
    assert catalog.status(finished) == "IN_PROGRESS"
    assert [row.status for row in catalog.rows(tasks, source_id="catalog:other", kind="fetch_page")] == ["CANCELLED"]


def test_an_extraction_finished_by_several_threads_is_notified_once(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({"/c/1": "SUCCESS"})
    catalog.add_items(id_, {"/c/1": ["a"]})

    with ThreadPoolExecutor(4) as pool:
        ended = [extraction for batch in pool.map(catalog.finish, [id_] * 4) for extraction in batch]

    assert [extraction.id for extraction in ended] == [id_]
    assert len(catalog.rows(outbox)) == 1
    assert len(catalog.rows(audit_log, action="extraction.complete")) == 1


def test_a_used_up_budget_cancels_the_extraction_and_its_tasks(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({"/c/1": "DOWNLOADED", "/c/2": "DOWNLOADED"})
    catalog.add_task(id_, "/c/1", "extract_page")

    catalog.finish(id_, budget_finish("50 of 50 dollars are spent"))

    assert catalog.status(id_) == "CANCELLED"
    [line] = catalog.rows(audit_log, action="extraction.cancelled")
    assert (line.actor, line.detail["reason"]) == ("system", "50 of 50 dollars are spent")
    assert catalog.live_task_paths("extract_page") == []
    [source] = catalog.rows(sources)
    assert source.failure_count == 0


def test_an_api_with_a_failed_page_is_cancelled_notified_once_and_can_be_resumed(catalog: CatalogHarness) -> None:
    """Trap 10: a list that lacks its middle looks like a shorter list."""
    id_ = catalog.start_extraction({"/c/1": "SUCCESS", "/c/2": "ERROR", "/c/3": "WAITING"}, kind="api")
    catalog.add_task(id_, "/c/3")

    [ended] = catalog.check_completion()
    assert catalog.check_completion(minutes=9) == []

    assert (catalog.status(id_), ended.failure) == ("CANCELLED", FAILURE)
    assert (len(catalog.rows(outbox)), catalog.live_task_paths("fetch_page")) == (1, [])
    assert catalog.apply_action(extraction_control.resume, id_).fetched == 2
    assert catalog.check_completion() == []


def test_an_unreadable_root_does_not_discard_the_pages_beside_it(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({"/c/1": "DOWNLOADED"}, root="ERROR")
    catalog.add_task(id_, "/c/1", "extract_page")

    assert catalog.check_completion() == []
    catalog.add_items(id_, {"/c/1": ["a"]})
    [task] = catalog.rows(tasks, kind="extract_page")
    catalog.update_row(tasks, task.id, status="SUCCESS")
    catalog.check_completion()

    assert [ended.status.value for ended in catalog.check_completion(minutes=5)] == ["COMPLETE"]


def test_the_summary_of_a_cancelled_extraction_counts_its_items(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({"/c/1": "SUCCESS", "/c/2": "DOWNLOADED"})
    catalog.check_completion()
    catalog.add_items(id_, {"/c/2": ["a", "b"]})

    catalog.cancel(id_)

    assert catalog.rows(extractions, id=id_)[0].summary["items"] == 2
