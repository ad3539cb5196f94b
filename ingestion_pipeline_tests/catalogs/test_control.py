"""What an operator does to an extraction: audited, repeatable, refused with the cure."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, event

from ingestion_pipeline.catalogs.operations import control
from ingestion_pipeline.catalogs.operations.rerun import predict_rerun, rerun
from ingestion_pipeline.store.tables import (
    audit_log,
    crawl_steps,
    data_items,
    datasets,
    extractions,
    outbox,
    pages,
    tasks,
)
from ingestion_pipeline_tests.extracting import Extracting, some

__all__ = ["some"]
SOME = {"/c/1": "SUCCESS", "/c/2": "WAITING", "/c/3": "IN_PROGRESS", "/c/4": "DOWNLOADED"}


def test_a_cancelled_extraction_ends_at_once_and_its_workers_lose_their_claims(some: Extracting) -> None:
    id_ = some.begin(SOME)
    some.task(id_, "/c/2")
    lease = {"lease_owner": "w", "lease_until": some.clock.at, "fence": 3}
    busy = some.task(id_, "/c/3", status="PROCESSING", **lease)

    ended = some.cancel(id_)

    assert (ended.status.value, some.live("fetch_page")) == ("CANCELLED", [])
    assert [row.fence for row in some.rows(tasks, id=busy)] == [4]
    [line] = some.rows(audit_log, action="extraction.cancelled")
    assert (line.actor, len(some.rows(outbox))) == ("ann", 1)
    with pytest.raises(control.InvalidState, match=f"extraction {id_} is CANCELLED already"):
        some.cancel(id_)


def test_a_resumed_extraction_goes_on_where_it_was_however_often_it_is_resumed(some: Extracting) -> None:
    id_ = some.begin(SOME)
    some.task(id_, "/c/2", spawn_depth=4, parent_id=1)
    some.cancel(id_)

    done = some.act(control.resume, id_)
    again = some.act(control.resume, id_)

    assert (done.fetched, done.read) == (2, 1)
    assert (again.fetched, again.read) == (0, 0)
    assert some.live("fetch_page") == ["/c/2", "/c/3"]
    assert some.live("extract_page") == ["/c/4"]
    assert some.page_of(id_, "/c/3").status == "WAITING"
    depths = {row.url[-1]: row.spawn_depth for row in some.rows(tasks, kind="fetch_page")}
    assert depths == {"2": 4, "3": 1}
    assert len({row.tracking_id for row in some.rows(tasks, source_id="catalog:shop")}) == 2
    assert (some.status(id_), len(some.rows(audit_log, action="extraction.resume"))) == ("IN_PROGRESS", 1)


def test_an_extraction_that_ends_again_is_told_again(some: Extracting) -> None:
    id_ = some.begin(SOME)
    some.cancel(id_)
    some.act(control.resume, id_)
    some.cancel(id_)

    assert [row.subject_id for row in some.rows(outbox)] == [str(id_), f"{id_}:2"]


def test_a_retry_opens_a_complete_extraction_for_what_failed_or_gave_nothing(some: Extracting) -> None:
    paths = {"/c/1": "SUCCESS", "/c/2": "ERROR", "/c/3": "EXTRACTED_NO_DATA", "/c/4": "SUCCESS"}
    id_ = some.begin(paths)
    some.read(id_, {"/c/1": ["a"], "/c/4": ["d"]})
    some.end(id_)

    done = some.act(control.retry, id_)

    assert (done.fetched, done.read, some.status(id_)) == (1, 1, "IN_PROGRESS")
    assert (some.live("fetch_page"), some.live("extract_page")) == (["/c/2"], ["/c/3"])
    assert [row.status for row in some.rows(datasets)] == ["published"]
    with pytest.raises(control.InvalidState, match="no page that failed or gave no data"):
        some.act(control.retry, id_)


def test_a_failed_root_is_got_again_by_a_resume(some: Extracting) -> None:
    id_ = some.begin({}, root="ERROR")
    some.look()

    assert some.act(control.resume, id_).fetched == 1
    assert some.live("fetch_page") == ["/"]


def test_a_rerun_reads_what_is_stored_into_a_new_version_and_asks_nobody(some: Extracting) -> None:
    paths = {"/c/1": "SUCCESS", "/c/2": "EXTRACTED_NO_DATA", "/c/3": "ERROR", "/c/4": "SUCCESS"}
    old = some.begin(paths)
    some.read(old, {"/c/1": ["a"], "/c/4": ["d"]})
    some.end(old)

    made = some.act(rerun, old)
    some.read(made.extraction_id, {"/c/1": ["a", "b"], "/c/2": [], "/c/4": ["d"]})
    some.end(made.extraction_id)

    assert made.pages == 3
    assert some.live("fetch_page") == []
    assert some.live("extract_page") == ["/c/1", "/c/2", "/c/4"]
    [new] = some.rows(extractions, id=made.extraction_id)
    assert (new.kind, new.rerun_of, new.page_count) == ("rerun", old, 5)
    before, after = (
        {row.url: row.snapshot_id for row in some.rows(pages, extraction_id=id_)} for id_ in (old, made.extraction_id)
    )
    assert before == after
    steps = some.rows(crawl_steps, extraction_id=made.extraction_id)
    assert [(row.key, row.parent_id) for row in steps] == [("root", None), ("root/links", steps[0].id)]
    found = [(row.version, row.status, row.item_count) for row in some.rows(datasets)]
    assert found == [(1, "published", 2), (2, "published", 3)]


def test_a_source_has_one_extraction_at_a_time(some: Extracting) -> None:
    old = some.begin({"/c/1": "SUCCESS"})
    some.read(old, {"/c/1": ["a"]})
    some.end(old)
    some.clock.advance(seconds=1)
    running = some.begin({"/c/1": "WAITING"})

    with pytest.raises(control.InvalidState, match=f"`ingest extractions cancel {running}`"):
        some.act(rerun, old)
    with pytest.raises(control.UnknownExtraction, match="there is no extraction 99"):
        some.act(control.resume, 99)


@pytest.mark.parametrize(
    ("rung", "has_model", "calls"), [("layout", True, 0), ("cheap_model", True, 2), ("cheap_model", False, 0)]
)
def test_a_rerun_is_predicted_by_the_pages_that_rules_were_not_enough_for(
    some: Extracting, rung: str, has_model: bool, calls: int
) -> None:
    id_ = some.begin({"/c/1": "SUCCESS", "/c/2": "SUCCESS"})
    some.read(id_, {"/c/1": ["a"], "/c/2": ["b"]})
    some.set(pages, some.page_of(id_, "/c/1").id, rung=rung)
    key = {"openai_base_url": "http://127.0.0.1:1"} if has_model else {}
    settings = some.ctx.settings.model_copy(update=key)

    with some.ctx.store.read() as connection:
        found = predict_rerun(connection, id_, settings=settings, content=some.ctx.content)

    assert (found.pages, found.calls) == (2, calls)
    assert (found.cost_usd is not None and found.cost_usd > 0) == bool(calls)


def test_pages_whose_items_are_no_longer_kept_are_read_again_by_whoever_resumes(some: Extracting) -> None:
    done = {"/c/1": "SUCCESS", "/c/2": "SUCCESS"}
    first = some.begin(done)
    base = some.read(first, {"/c/1": ["a"], "/c/2": ["b"]})
    some.end(first)
    some.clock.advance(minutes=1)
    second = some.begin({**done, "/c/3": "WAITING"}, base_dataset_id=base)
    some.carry(second, first, "/c/1", "/c/2")
    some.cancel(second)
    with some.ctx.store.begin() as connection:  # as retention does
        connection.execute(delete(data_items).where(data_items.c.dataset_id == base))
        connection.execute(delete(datasets).where(datasets.c.id == base))

    some.act(control.resume, second)

    assert some.live("extract_page") == ["/c/1", "/c/2"]
    assert some.live("fetch_page") == ["/c/3"]
    [row] = some.rows(extractions, id=second)
    assert row.base_dataset_id is None


def test_items_that_are_kept_are_not_read_again(some: Extracting) -> None:
    id_ = some.begin({"/c/1": "SUCCESS", "/c/2": "ERROR"})
    some.read(id_, {"/c/1": ["a"]})
    some.end(id_)

    some.act(control.retry, id_)

    assert (some.live("extract_page"), some.live("fetch_page")) == ([], ["/c/2"])


@pytest.mark.parametrize(("kind", "fetched"), [("crawl", ["/c/1"]), ("rerun", [])])
def test_a_page_whose_content_is_lost_is_fetched_again_but_for_a_rerun(
    some: Extracting, kind: str, fetched: list[str]
) -> None:
    id_ = some.begin({"/c/1": "DOWNLOADED", "/c/2": "SUCCESS"}, kind=kind)
    lost = {"class": "permanent", "code": "content_missing", "message": "it is gone"}
    page = some.page_of(id_, "/c/1").id
    some.set(pages, page, status="ERROR", failure=lost, reading_at=some.clock.at)

    some.act(control.retry, id_)

    assert some.live("fetch_page") == fetched


def test_a_cancelled_task_finds_its_page_by_id_however_many_there_are(some: Extracting) -> None:
    """By its key each task was compared with each page; 100,000 of them took over five minutes."""
    id_ = some.begin(SOME)
    some.task(id_, "/c/2")
    some.cancel(id_)
    asked: list[tuple[str, Any]] = []
    engine = some.ctx.store.engine

    @event.listens_for(engine, "before_cursor_execute")
    def listen(_: Any, __: Any, statement: str, given: Any, *___: Any) -> None:
        asked.append((statement, given))

    some.act(control.resume, id_)
    event.remove(engine, "before_cursor_execute", listen)

    reviving = [one for one in asked if one[0].startswith("UPDATE tasks") and "max(" in one[0]]
    assert len(reviving) == 2
    if engine.dialect.name == "sqlite":
        with some.ctx.store.read() as connection:
            for statement, given in reviving:
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", given)
                found = [str(row) for row in plan if "SEARCH pages" in str(row)]
                assert [one for one in found if "rowid=?" not in one] == []
