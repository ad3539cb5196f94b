"""Several catalogues in one transaction: tasks, polls, recipes and sources, each in its order."""

from __future__ import annotations

from random import Random

import pytest
from sqlalchemy import Connection, insert, select, text

from ingestion_pipeline.catalogs.crawling.system import CatalogSystem
from ingestion_pipeline.catalogs.datasets.finishing import FinishReason, finish_extractions
from ingestion_pipeline.catalogs.detection.detected import FoundRecipe
from ingestion_pipeline.catalogs.detection.runs import RecipeDetected, write_results
from ingestion_pipeline.catalogs.extractions import start_extractions
from ingestion_pipeline.catalogs.operations.retention import old_extractions
from ingestion_pipeline.catalogs.recipes.registry import DETECT
from ingestion_pipeline.catalogs.states import ExtractionStatus
from ingestion_pipeline.engine.crawling.protocol import FETCH_PAGE, KnownPageCache, PageFailed, PageOutcomes, PageWork
from ingestion_pipeline.pages.content.archive import SnapshotArchive
from ingestion_pipeline.registry import declared
from ingestion_pipeline.settings import Work
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store.tables import extractions, recipes, sources, tasks
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.errors import BOT_CHECK, Permanent
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline_tests.crawlers import a_catalog
from ingestion_pipeline_tests.extracting import FAILURE, Extracting, some
from ingestion_pipeline_tests.lock_orders import (
    ON_POSTGRES,
    as_of_large_tables,
    is_taken_meanwhile,
    locked_meanwhile,
    moved_behind,
)
from ingestion_pipeline_tests.pollers import given_sources

__all__ = ["some"]
pytestmark = ON_POSTGRES
A, B = "catalog:a", "catalog:b"
POLLS = select(tasks.c.source_id).where(tasks.c.kind == "poll").order_by(tasks.c.id)
WALL = FinishReason(status=ExtractionStatus.CANCELLED, failure=FAILURE)


@pytest.fixture
def two(some: Extracting) -> Extracting:
    """With two catalogues more; the poll of the first has the lower id."""
    for one in (A, B):
        some.source(one)
    return some


def opened(some: Extracting, *ids: int) -> list[PageWork]:
    """The roots of these extractions, claimed and opened."""
    found = claimed(some, *ids)
    with some.ctx.store.begin() as connection:
        archive = SnapshotArchive(some.ctx.store, some.ctx.content)
        works = CatalogSystem().open_pages(connection, found, archive=archive)
    return [one for one in works if isinstance(one, PageWork)]


def claimed(some: Extracting, *ids: int) -> list[Task]:
    for id_ in ids:
        some.task(id_, "/")
    return Worker(some.ctx.store, lease_seconds=60).claim(ClaimFilter(kind=FETCH_PAGE), limit=9)


def test_extractions_that_end_together_lock_tasks_and_sources_in_one_order(two: Extracting) -> None:
    first, second = (two.begin({"/c/1": "WAITING"}, source_id=one) for one in (B, A))
    low, high = two.task(second, "/c/1"), two.task(first, "/c/1")

    def end(connection: Connection) -> None:
        endings = {first: WALL, second: WALL}
        finish_extractions(connection, endings, now=two.clock.at, settings=two.ctx.settings, random=Random(7))
        connection.rollback()

    waiting = select(tasks.c.id).where(tasks.c.kind != "poll")
    held = waiting.where(tasks.c.id == high)
    assert locked_meanwhile(two.ctx.store, end, held=held, among=waiting) == [low]
    every = select(sources.c.id)
    held = every.where(sources.c.id == B)
    assert locked_meanwhile(two.ctx.store, end, held=held, among=every) == [A]


def test_a_wall_and_a_lost_root_of_one_flush_lock_their_polls_in_one_order(two: Extracting) -> None:
    walled = two.begin({}, root="WAITING", source_id=B)
    lost = two.begin({}, root="WAITING", source_id=A)
    errors = {B: Permanent("a challenge", code=BOT_CHECK), A: Permanent("it answered 404", code="http_404")}
    works = opened(two, walled, lost)
    bad = [PageFailed(work=work, error=errors[work.source.id]) for work in works]

    def write(connection: Connection) -> None:
        CatalogSystem().write(
            connection,
            PageOutcomes(done=[], waiting=[], failed=bad),
            page_cache=KnownPageCache(),
            now=two.clock.at,
            settings=two.ctx.settings,
            random=Random(7),
        )

    held = POLLS.where(tasks.c.source_id == B)
    assert locked_meanwhile(two.ctx.store, write, held=held, among=POLLS) == [A]
    assert [two.status(id_) for id_ in (walled, lost)] == ["CANCELLED", "STALE"]


def test_extractions_whose_first_pages_are_opened_are_locked_in_one_order(two: Extracting) -> None:
    first, second = (two.begin({}, root="WAITING", source_id=one, status="WAITING") for one in (A, B))
    moved_behind(two.ctx.store, extractions, first)
    found = claimed(two, first, second)
    archive = SnapshotArchive(two.ctx.store, two.ctx.content)

    def open_both(connection: Connection) -> None:
        as_of_large_tables(connection)
        CatalogSystem().open_pages(connection, found, archive=archive)

    every = select(extractions.c.id)
    held = every.where(extractions.c.id == second)
    assert locked_meanwhile(two.ctx.store, open_both, held=held, among=every) == [first]


def test_extractions_begin_in_one_order_whoever_asks_for_them(two: Extracting) -> None:
    with two.ctx.store.read() as connection:
        known = sources_by_id(connection, [A, B])
    now = two.clock.at
    row = {"status": "WAITING", "recipe": {}, "tracking_id": "t", "page_count": 1, "kind": "crawl"}
    row |= {"created_at": now, "updated_at": now}
    beginning = [insert(extractions).values(row | {"source_id": one}) for one in (A, B)]

    def start(connection: Connection) -> None:
        start_extractions(connection, [known[B], known[A]], now=now)

    assert is_taken_meanwhile(two.ctx.store, start, held=beginning[1], statement=beginning[0])


def test_detections_lock_polls_then_recipes_each_in_one_order(some: Extracting) -> None:
    store, now = some.ctx.store, some.clock.at
    for name in ("a", "b"):
        given_sources(store, a_catalog(name=name, url=f"http://{name}.test/", config={}))
    with store.begin() as connection:
        declared(connection, [A, B], now=now)
        known = sources_by_id(connection, [A, B])
    claimed = Worker(store, lease_seconds=60).claim(ClaimFilter(kind=DETECT), limit=2)
    recipe = FoundRecipe(recipe={"page_type": "DETAIL"}, message="a list")
    found = [
        RecipeDetected(task=task, source=known[task.source_id or ""], recipe=recipe)
        for task in sorted(claimed, key=lambda one: one.id, reverse=True)
    ]

    def write(connection: Connection) -> None:
        write_results(connection, found, now=now, policy=Work(), random=Random(7))
        connection.rollback()

    every = select(recipes.c.source_id)
    held = every.where(recipes.c.source_id == B)
    of_two = POLLS.where(tasks.c.source_id.in_([A, B]))
    assert locked_meanwhile(store, write, held=held, among=of_two) == [A, B]
    assert locked_meanwhile(store, write, held=held, among=every) == [A]


def test_an_old_extraction_that_somebody_opens_again_is_not_swept_and_not_waited_for(some: Extracting) -> None:
    old, _ = (some.begin({"/c/1": "ERROR"}, status="STALE") for _ in range(2))
    settings, now = some.ctx.settings, some.clock.at
    few = settings.retention.model_copy(update={"extractions_per_source": 1})
    settings = settings.model_copy(update={"retention": few})
    with some.ctx.store.begin() as operator, some.ctx.store.begin() as sweep:
        operator.execute(select(extractions.c.id).where(extractions.c.id == old).with_for_update())
        sweep.execute(text("SET LOCAL lock_timeout = '2s'"))
        assert old_extractions(sweep, settings, now) == 0
    with some.ctx.store.begin() as sweep:
        assert old_extractions(sweep, settings, now) == 1
