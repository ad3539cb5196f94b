"""Lock order: an extraction before its tasks, and several catalogs in one transaction in one order."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from operator import attrgetter
from random import Random
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import Connection, Select, insert, select, text

from ingestion_pipeline.catalogs import extraction_control
from ingestion_pipeline.catalogs.crawl_handler import CrawlHandler
from ingestion_pipeline.catalogs.datasets.finishing import FinishReason, finish_extractions
from ingestion_pipeline.catalogs.datasets.publishing import old_extractions
from ingestion_pipeline.catalogs.detection.detection_tasks import DetectionItem, persist_detections
from ingestion_pipeline.catalogs.detection.detector import FoundRecipe
from ingestion_pipeline.catalogs.extraction_states import start_extractions
from ingestion_pipeline.catalogs.frontier import PageWork, open_pages
from ingestion_pipeline.catalogs.recipes.detected_recipes import DETECT
from ingestion_pipeline.catalogs.states import FETCH_PAGE, ExtractionStatus
from ingestion_pipeline.engine.handler import Completed, Failed, end_tasks
from ingestion_pipeline.engine.worker_loop import OutcomeWriter
from ingestion_pipeline.pages.content.snapshots import SnapshotArchive
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.registry import declared
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import extractions, outbox, recipes, sources, tasks
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.ended_tasks import DeadLetterTask
from ingestion_pipeline.tasks.errors import BOT_CHECK, Permanent, Transient
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline_tests.catalog_extractions import (
    CATALOG_ID,
    EVERYTHING,
    FAILURE,
    CatalogHarness,
    LiveCatalog,
    a_catalog,
    link_page,
)
from ingestion_pipeline_tests.catalogs.course_pages import (
    claim_page_reads,
    download_courses,
    read_by_rules,
    write_readings,
)
from ingestion_pipeline_tests.lock_orders import (
    ON_POSTGRES,
    disable_index_scans,
    is_locked_while_waiting,
    move_to_end,
    rows_locked_while_waiting,
)
from ingestion_pipeline_tests.polling_runs import add_sources
from ingestion_pipeline_tests.postgres import wait_until_blocked

pytestmark = ON_POSTGRES
A, B = "catalog:a", "catalog:b"
POLLS = select(tasks.c.source_id).where(tasks.c.kind == "poll").order_by(tasks.c.id)
BLOCKED = FinishReason(status=ExtractionStatus.CANCELLED, failure=FAILURE)


@pytest.fixture
def two_catalogs(catalog: CatalogHarness) -> CatalogHarness:
    """Add two catalogs; the poll of the first has the lower id."""
    for source_id in (A, B):
        catalog.add_source(source_id)
    return catalog


def open_root_pages(catalog: CatalogHarness, *ids: int) -> list[PageWork]:
    """Claim and open the root pages of these extractions."""
    claimed_tasks = claim_root_pages(catalog, *ids)
    with catalog.ctx.store.begin() as connection:
        archive = SnapshotArchive(catalog.ctx.store, catalog.ctx.content)
        works = open_pages(connection, claimed_tasks, archive=archive)
    return [work for work in works if isinstance(work, PageWork)]


def claim_root_pages(catalog: CatalogHarness, *ids: int) -> list[Task]:
    for id_ in ids:
        catalog.add_task(id_, "/")
    return Worker(catalog.ctx.store, lease_seconds=60).claim(ClaimFilter(kind=FETCH_PAGE), limit=9)


def test_extractions_that_finish_together_lock_tasks_and_sources_in_one_order(two_catalogs: CatalogHarness) -> None:
    first, second = (two_catalogs.start_extraction({"/c/1": "WAITING"}, source_id=source_id) for source_id in (B, A))
    low, high = two_catalogs.add_task(second, "/c/1"), two_catalogs.add_task(first, "/c/1")

    def finish(connection: Connection) -> None:
        reasons = {first: BLOCKED, second: BLOCKED}
        finish_extractions(
            connection, reasons, now=two_catalogs.clock.at, settings=two_catalogs.ctx.settings, random=Random(7)
        )
        connection.rollback()

    waiting = select(tasks.c.id).where(tasks.c.kind != "poll")
    held = waiting.where(tasks.c.id == high)
    assert rows_locked_while_waiting(two_catalogs.ctx.store, finish, held=held, among=waiting) == [low]
    all_sources = select(sources.c.id)
    held = all_sources.where(sources.c.id == B)
    assert rows_locked_while_waiting(two_catalogs.ctx.store, finish, held=held, among=all_sources) == [A]


def test_a_blocked_page_and_a_lost_root_of_one_flush_lock_their_polls_in_one_order(
    two_catalogs: CatalogHarness,
) -> None:
    blocked = two_catalogs.start_extraction({}, root="WAITING", source_id=B)
    lost = two_catalogs.start_extraction({}, root="WAITING", source_id=A)
    errors = {B: Permanent("a challenge", code=BOT_CHECK), A: Permanent("it answered 404", code="http_404")}
    works = open_root_pages(two_catalogs, blocked, lost)
    failed_pages = [
        Failed(task=work.task, item=work, error=errors[work.source.id], decision=DeadLetterTask()) for work in works
    ]
    clock = SteadyClock(two_catalogs.clock.at)
    visitor = PoliteVisitor(None, None, clock, two_catalogs.ctx.settings)  # pyright: ignore[reportArgumentType]  unused
    handler = CrawlHandler(two_catalogs.ctx, EVERYTHING, visitor=visitor, clock=clock)

    def write(connection: Connection) -> None:
        handler.persist(connection, failed_pages, now=two_catalogs.clock.at)

    held = POLLS.where(tasks.c.source_id == B)
    assert rows_locked_while_waiting(two_catalogs.ctx.store, write, held=held, among=POLLS) == [A]
    assert [two_catalogs.status(id_) for id_ in (blocked, lost)] == ["CANCELLED", "STALE"]


def test_extractions_whose_first_pages_are_opened_are_locked_in_one_order(two_catalogs: CatalogHarness) -> None:
    first, second = (
        two_catalogs.start_extraction({}, root="WAITING", source_id=source_id, status="WAITING") for source_id in (A, B)
    )
    move_to_end(two_catalogs.ctx.store, extractions, first)
    claimed_tasks = claim_root_pages(two_catalogs, first, second)
    archive = SnapshotArchive(two_catalogs.ctx.store, two_catalogs.ctx.content)

    def open_both(connection: Connection) -> None:
        disable_index_scans(connection)
        open_pages(connection, claimed_tasks, archive=archive)

    all_extractions = select(extractions.c.id)
    held = all_extractions.where(extractions.c.id == second)
    assert rows_locked_while_waiting(two_catalogs.ctx.store, open_both, held=held, among=all_extractions) == [first]


def test_extractions_start_in_one_order_whatever_the_request_order(two_catalogs: CatalogHarness) -> None:
    with two_catalogs.ctx.store.read() as connection:
        by_id = sources_by_id(connection, [A, B])
    now = two_catalogs.clock.at
    row = {"status": "WAITING", "recipe": {}, "tracking_id": "t", "page_count": 1, "kind": "crawl"}
    row |= {"created_at": now, "updated_at": now}
    inserts = [insert(extractions).values(row | {"source_id": source_id}) for source_id in (A, B)]

    def start(connection: Connection) -> None:
        start_extractions(connection, [by_id[B], by_id[A]], now=now)

    assert is_locked_while_waiting(two_catalogs.ctx.store, start, held=inserts[1], statement=inserts[0])


def test_detections_lock_polls_then_recipes_each_in_one_order(catalog: CatalogHarness) -> None:
    store, now = catalog.ctx.store, catalog.clock.at
    for name in ("a", "b"):
        add_sources(store, a_catalog(name=name, url=f"http://{name}.test/", config={}))
    with store.begin() as connection:
        declared(connection, [A, B], now=now)
        by_id = sources_by_id(connection, [A, B])
    claimed = Worker(store, lease_seconds=60).claim(ClaimFilter(kind=DETECT), limit=2)
    recipe = FoundRecipe(recipe={"page_type": "DETAIL"}, message="a list")
    detected = [
        Completed(task=task, item=DetectionItem(task=task, source=by_id[task.source_id or ""]), value=recipe)
        for task in sorted(claimed, key=attrgetter("id"), reverse=True)
    ]

    def write(connection: Connection) -> None:
        end_tasks(connection, persist_detections(connection, detected, now=now), now=now)
        connection.rollback()

    all_recipes = select(recipes.c.source_id)
    held = all_recipes.where(recipes.c.source_id == B)
    of_two = POLLS.where(tasks.c.source_id.in_([A, B]))
    assert rows_locked_while_waiting(store, write, held=held, among=of_two) == [A, B]
    assert rows_locked_while_waiting(store, write, held=held, among=all_recipes) == [A]


def test_retention_skips_an_old_extraction_that_is_locked_and_does_not_wait(catalog: CatalogHarness) -> None:
    old, _ = (catalog.start_extraction({"/c/1": "ERROR"}, status="STALE") for _ in range(2))
    settings, now = catalog.ctx.settings, catalog.clock.at
    few = settings.retention.model_copy(update={"extractions_per_source": 1})
    settings = settings.model_copy(update={"retention": few})
    with catalog.ctx.store.begin() as operator, catalog.ctx.store.begin() as sweep:
        operator.execute(select(extractions.c.id).where(extractions.c.id == old).with_for_update())
        sweep.execute(text("SET LOCAL lock_timeout = '2s'"))
        assert old_extractions(sweep, settings, now) == 0
    with catalog.ctx.store.begin() as sweep:
        assert old_extractions(sweep, settings, now) == 1


ROUNDS = 10


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
