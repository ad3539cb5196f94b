"""Who locks what first: an extraction before its tasks, so that no two wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import Connection, Select, select

from ingestion_pipeline.catalogs.crawling.system import CatalogSystem
from ingestion_pipeline.catalogs.datasets.finishing import FinishReason
from ingestion_pipeline.catalogs.extraction.results import write_readings
from ingestion_pipeline.catalogs.operations import control
from ingestion_pipeline.catalogs.states import ExtractionStatus
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import FETCH_PAGE, KnownPageCache, PageFailed, PageWork
from ingestion_pipeline.engine.crawling.results import write_pages
from ingestion_pipeline.pages.content.archive import SnapshotArchive
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import extractions, outbox, tasks
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.errors import Transient
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline_tests.catalogs.courses import claimed_works, downloaded, read_by_rules
from ingestion_pipeline_tests.crawlers import SHOP, a_catalog, a_page, begin
from ingestion_pipeline_tests.extracting import FAILURE, Extracting, some
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import given_sources, rows
from ingestion_pipeline_tests.postgres import wait_until_blocked

__all__ = ["some"]
ROUNDS = 10
WALL = FinishReason(status=ExtractionStatus.CANCELLED, failure=FAILURE)

pytestmark = pytest.mark.parametrize(
    "database", [pytest.param("postgres", marks=pytest.mark.postgres)], ids=["postgres"]
)


def free(connection: Connection, query: Select[Any]) -> list[Any]:
    """Of these rows those that nobody else has locked."""
    return list(connection.execute(query.with_for_update(skip_locked=True)).scalars())


def waits_without_tasks(store: Store, act: Callable[[], object]) -> bool:
    """Whether it holds no task while it waits for the extraction; then it is let go on."""
    of_pages = select(tasks.c.id).where(tasks.c.kind != "poll")
    with ThreadPoolExecutor(1) as pool:
        with store.begin() as connection:
            connection.execute(select(extractions.c.id).with_for_update())
            waiting = pool.submit(act)
            wait_until_blocked(store)
            every = list(connection.execute(of_pages).scalars())
            found = free(connection, of_pages)
        waiting.result(30)
    return bool(every) and sorted(found) == sorted(every)


def test_a_cancel_waits_for_an_extraction_without_holding_its_tasks(some: Extracting) -> None:
    id_ = some.begin({"/c/1": "WAITING"})
    some.task(id_, "/c/1")

    assert waits_without_tasks(some.ctx.store, lambda: some.cancel(id_))


def test_readings_that_are_written_wait_for_an_extraction_without_holding_tasks(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    downloaded(ctx, web, 1, 2)
    works = claimed_works(ctx, Worker(store, lease_seconds=60))
    read = [read_by_rules(ctx, work) for work in works]

    assert waits_without_tasks(store, lambda: write_readings(ctx, read))
    assert {row.status for row in rows(store, tasks) if row.kind == "extract_page"} == {"SUCCESS"}


def test_visits_that_are_written_wait_for_an_extraction_without_holding_tasks(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes["/"] = a_page()
    given_sources(store, a_catalog())
    begin(ctx, web)
    archive = SnapshotArchive(store, ctx.content)
    found = Worker(store, lease_seconds=60).claim(ClaimFilter(kind=FETCH_PAGE, frontier_of=SHOP), limit=1)
    with store.begin() as connection:
        [work] = CatalogSystem().open_pages(connection, found, archive=archive)
    assert isinstance(work, PageWork)

    def write() -> None:
        with store.begin() as connection:
            write_pages(
                connection,
                ctx,
                CatalogSystem(),
                [PageFailed(work=work, error=Transient("later", code="http_503"))],
                {},
                archive=archive,
                page_cache=KnownPageCache(),
                now=store.clock.now(connection),
            )

    assert waits_without_tasks(store, write)


def test_a_completion_has_the_extraction_before_it_asks_for_its_tasks(some: Extracting) -> None:
    id_ = some.begin({"/c/1": "WAITING"})
    some.task(id_, "/c/1")
    some.look()

    with ThreadPoolExecutor(1) as pool:
        with some.ctx.store.begin() as connection:
            connection.execute(select(tasks.c.id).where(tasks.c.kind != "poll").with_for_update())
            looking = pool.submit(lambda: some.look(hours=4))
            wait_until_blocked(some.ctx.store)
            is_locked = free(connection, select(extractions.c.id)) == []
        [ended] = looking.result(30)

    assert (is_locked, ended.status.value) == (True, "STALE")


def test_ends_at_the_same_moment_never_deadlock_and_each_is_told_once(some: Extracting) -> None:
    for _ in range(ROUNDS):
        some.clock.advance(minutes=1)
        id_ = some.begin({f"/c/{number}": "WAITING" for number in range(4)})
        for number in range(4):
            some.task(id_, f"/c/{number}")
        some.look()
        some.clock.advance(hours=4)
        start = Barrier(3)

        with ThreadPoolExecutor(3) as pool:
            ends = (some.look, partial(some.cancel, id_), partial(some.end, id_, WALL))
            each = [pool.submit(at_once, start, one) for one in ends]
            for one in each:
                one.result(30)

        assert some.status(id_) in {"STALE", "CANCELLED"}
        assert some.live("fetch_page") == []
    assert len(some.rows(outbox)) == ROUNDS


def at_once(start: Barrier, act: Callable[[], object]) -> None:
    """Act when the others do; that another was first is no fault."""
    start.wait(20)
    with suppress(control.InvalidState):
        act()
