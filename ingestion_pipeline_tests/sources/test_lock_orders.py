"""Polls are locked before sources, and each of them by id: by polls, reports, registration and requests."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, insert, select, text, update

from ingestion_pipeline.engine.context import UnchangedFeed
from ingestion_pipeline.engine.handler import Completed, Failed
from ingestion_pipeline.engine.poll_handler import ClaimedPoll, PollHandler, PollOutcome
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_tasks import age_polls, lock_polls, make_due
from ingestion_pipeline.sources.registry import REGISTER_BATCH, register
from ingestion_pipeline.sources.source import Kind, Tier
from ingestion_pipeline.sources.status import lock_sources, unreported
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import chapter_sources, chapters, series, sources, tasks
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline.tasks.ended_tasks import DeadLetterTask
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.lock_orders import (
    ON_POSTGRES,
    is_locked_while_waiting,
    rows_locked_while_waiting,
    would_wait,
)
from ingestion_pipeline_tests.polling_runs import a_run_context, add_sources, rows, task_row
from ingestion_pipeline_tests.processes import POLLS

pytestmark = ON_POSTGRES
A, B = "series:a", "series:b"


def add_two_sources(store: Store, *, first: str = A, second: str = B) -> None:
    """Add two sources; the poll of the first has the lower id."""
    add_sources(store, a_definition(id=first, series=None))
    add_sources(store, a_definition(id=second, series=None))


def test_successful_and_failed_polls_lock_their_sources_in_one_order(store: Store, settings: Settings) -> None:
    add_two_sources(store)
    ctx = a_run_context(store, settings)
    claimed = {task.source_id: task for task in Worker(store, lease_seconds=60).claim(POLLS, limit=2)}
    with store.read() as connection:
        existing = sources_by_id(connection, [A, B])
    polls = {id_: ClaimedPoll(task=claimed[id_], source=existing[id_]) for id_ in (A, B)}
    good: PollOutcome = Completed(task=claimed[B], item=polls[B], value=UnchangedFeed(etag=None, last_modified=None))
    gone = Permanent("gone", code="http_404")
    bad = Failed(task=claimed[A], item=polls[A], error=gone, decision=DeadLetterTask())

    def write(connection: Connection) -> None:
        now = store.clock.now(connection)
        PollHandler(ctx, POLLS, capacity=2).persist(connection, [good, bad], now=now)

    held = select(sources.c.id).where(sources.c.id == B)
    assert rows_locked_while_waiting(store, write, held=held, among=select(sources.c.id)) == [A]


def test_making_sources_due_locks_polls_before_sources_in_one_order(store: Store, now: datetime) -> None:
    add_two_sources(store, first=B, second=A)
    with store.begin() as connection:
        connection.execute(update(sources).values(next_check_at=now + timedelta(days=1)))
    first = task_row(store, B).id

    def request_polls(connection: Connection) -> None:
        make_due(connection, [A, B], now=now)

    held = select(tasks.c.id).where(tasks.c.source_id == A)
    assert rows_locked_while_waiting(store, request_polls, held=held, among=select(tasks.c.id)) == [first]
    with store.begin() as connection:
        connection.execute(update(sources).values(next_check_at=now + timedelta(days=1)))
    behind = select(sources.c.id).where(sources.c.id == B)
    assert rows_locked_while_waiting(store, request_polls, held=behind, among=select(sources.c.id)) == [A]


def test_new_sources_are_inserted_in_one_order_whatever_the_order_of_their_files(store: Store, now: datetime) -> None:
    add_two_sources(store)
    row = dict(rows(store, sources)[0]._mapping)
    new = ["series:m", "series:n"]

    def add(connection: Connection) -> None:
        register(connection, [a_definition(id=id_, series=None) for id_ in new[::-1]], now=now)

    inserting = [insert(sources).values(row | {"id": id_}) for id_ in new]
    assert is_locked_while_waiting(store, add, held=inserting[1], statement=inserting[0])


@pytest.mark.soak  # 5,001 definitions
def test_registering_several_batches_locks_every_poll_before_the_first_source(store: Store, now: datetime) -> None:
    add_two_sources(store, first=B, second=A)
    between = (a_definition(id=f"series:ab{number}") for number in range(REGISTER_BATCH - 1))
    definitions = [a_definition(id=A), *between, a_definition(id=B)]

    def declare(connection: Connection) -> None:
        register(connection, definitions, now=now)
        connection.rollback()

    held = select(tasks.c.id).where(tasks.c.source_id == B)
    locked = rows_locked_while_waiting(store, declare, held=held, among=select(tasks.c.source_id))
    assert locked == []


def test_a_locked_poll_is_skipped_by_ageing_without_waiting(store: Store, settings: Settings, now: datetime) -> None:
    add_two_sources(store)
    with store.begin() as connection:
        long_ago = now - timedelta(days=30)
        connection.execute(update(tasks).values(priority=Tier.COLD.priority, not_before=long_ago))
    with store.begin() as connection, store.begin() as another:
        lock_polls(connection, [A])
        another.execute(text("SET LOCAL lock_timeout = '2s'"))
        assert age_polls(another, settings, now) == 1


def test_reporting_a_source_does_not_block_inserts_that_reference_it(store: Store, now: datetime) -> None:
    add_two_sources(store)
    with store.begin() as connection:
        connection.execute(update(sources).values(last_changed_at=now))
        connection.execute(insert(series).values(id="solo", title="Solo", created_at=now))
        chapter = {"series_id": "solo", "key": "1", "first_detected_at": now}
        id_ = connection.execute(insert(chapters).values(chapter).returning(chapters.c.id)).scalar()
    link = {"chapter_id": id_, "url": "", "releases": [], "fingerprint": "", "detected_at": now}
    with store.begin() as connection:
        lock_sources(connection, [A])
        assert unreported(connection, [Kind.SERIES], limit=9) == [A, B]
        for source_id in (A, B):
            adding = insert(chapter_sources).values(link | {"source_id": source_id})
            assert not would_wait(store, adding)
