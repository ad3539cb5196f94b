"""Lock order: an extraction before its tasks, so that no two transactions deadlock."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import Connection, Select, select

from ingestion_pipeline.catalogs import extraction_control
from ingestion_pipeline.catalogs.crawl_handler import CrawlHandler
from ingestion_pipeline.catalogs.datasets.finishing import FinishReason
from ingestion_pipeline.catalogs.frontier import PageWork, open_pages
from ingestion_pipeline.catalogs.states import FETCH_PAGE, ExtractionStatus
from ingestion_pipeline.engine.handler import Failed
from ingestion_pipeline.engine.worker_loop import OutcomeWriter
from ingestion_pipeline.pages.content.snapshots import SnapshotArchive
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import extractions, outbox, tasks
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.errors import Transient
from ingestion_pipeline_tests.catalog_extractions import (
    CATALOG_ID,
    EVERYTHING,
    FAILURE,
    CatalogHarness,
    LiveCatalog,
    link_page,
)
from ingestion_pipeline_tests.catalogs.course_pages import (
    claim_page_reads,
    download_courses,
    read_by_rules,
    write_readings,
)
from ingestion_pipeline_tests.postgres import wait_until_blocked

ROUNDS = 10
BLOCKED = FinishReason(status=ExtractionStatus.CANCELLED, failure=FAILURE)

pytestmark = pytest.mark.parametrize(
    "database", [pytest.param("postgres", marks=pytest.mark.postgres)], ids=["postgres"]
)


def unlocked_rows(connection: Connection, query: Select[Any]) -> list[Any]:
    """Return the rows that no other transaction has locked."""
    return list(connection.execute(query.with_for_update(skip_locked=True)).scalars())


def waits_without_tasks(store: Store, action: Callable[[], object]) -> bool:
    """Return whether the action holds no task lock while it waits for the extraction."""
    of_pages = select(tasks.c.id).where(tasks.c.kind != "poll")
    with ThreadPoolExecutor(1) as pool:
        with store.begin() as connection:
            connection.execute(select(extractions.c.id).with_for_update())
            waiting = pool.submit(action)
            wait_until_blocked(store)
            task_ids = list(connection.execute(of_pages).scalars())
            free_ids = unlocked_rows(connection, of_pages)
        waiting.result(30)
    return bool(task_ids) and sorted(free_ids) == sorted(task_ids)


def test_a_cancel_waits_for_an_extraction_without_holding_its_tasks(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({"/c/1": "WAITING"})
    catalog.add_task(id_, "/c/1")

    assert waits_without_tasks(catalog.ctx.store, lambda: catalog.cancel(id_))


def test_writing_read_results_waits_for_an_extraction_without_holding_tasks(live: LiveCatalog) -> None:
    download_courses(live.ctx, live.web, 1, 2)
    works = claim_page_reads(live.ctx, Worker(live.store, lease_seconds=60))
    results = [read_by_rules(live.ctx, work) for work in works]

    assert waits_without_tasks(live.store, lambda: write_readings(live.ctx, results))
    assert {row.status for row in live.rows(tasks) if row.kind == "extract_page"} == {"SUCCESS"}


def test_writing_fetch_results_waits_for_an_extraction_without_holding_tasks(live: LiveCatalog) -> None:
    live.web.routes["/"] = link_page()
    live.register()
    live.poll()
    archive = SnapshotArchive(live.store, live.ctx.content)
    claimed_tasks = Worker(live.store, lease_seconds=60).claim(
        ClaimFilter(kind=FETCH_PAGE, frontier_of=CATALOG_ID), limit=1
    )
    with live.store.begin() as connection:
        [work] = open_pages(connection, claimed_tasks, archive=archive)
    assert isinstance(work, PageWork)

    def write() -> None:
        clock = SteadyClock(live.store.now())
        visitor = PoliteVisitor(None, None, clock, live.ctx.settings)  # pyright: ignore[reportArgumentType]  unused
        handler = CrawlHandler(live.ctx, EVERYTHING, visitor=visitor, clock=clock)
        failure = Failed(task=work.task, item=work, error=Transient("later", code="http_503"))
        OutcomeWriter(live.ctx, handler).write([failure])

    assert waits_without_tasks(live.store, write)


def test_completion_locks_the_extraction_before_its_tasks(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({"/c/1": "WAITING"})
    catalog.add_task(id_, "/c/1")
    catalog.check_completion()

    with ThreadPoolExecutor(1) as pool:
        with catalog.ctx.store.begin() as connection:
            connection.execute(select(tasks.c.id).where(tasks.c.kind != "poll").with_for_update())
            completion = pool.submit(lambda: catalog.check_completion(hours=4))
            wait_until_blocked(catalog.ctx.store)
            is_locked = unlocked_rows(connection, select(extractions.c.id)) == []
        [ended] = completion.result(30)

    assert (is_locked, ended.status.value) == (True, "STALE")


def test_extractions_finished_at_the_same_moment_never_deadlock_and_notify_once(catalog: CatalogHarness) -> None:
    for _ in range(ROUNDS):
        catalog.clock.advance(minutes=1)
        id_ = catalog.start_extraction({f"/c/{number}": "WAITING" for number in range(4)})
        for number in range(4):
            catalog.add_task(id_, f"/c/{number}")
        catalog.check_completion()
        catalog.clock.advance(hours=4)
        start = Barrier(3)

        with ThreadPoolExecutor(3) as pool:
            actions = (catalog.check_completion, partial(catalog.cancel, id_), partial(catalog.finish, id_, BLOCKED))
            futures = [pool.submit(act_together, start, action) for action in actions]
            for future in futures:
                future.result(30)

        assert catalog.status(id_) in {"STALE", "CANCELLED"}
        assert catalog.live_task_paths("fetch_page") == []
    assert len(catalog.rows(outbox)) == ROUNDS


def act_together(start: Barrier, action: Callable[[], object]) -> None:
    """Act together with the other threads; an extraction that another finished first is no error."""
    start.wait(20)
    with suppress(extraction_control.InvalidState):
        action()
