"""Every index of `tasks` serves a statement, and none is written by a claim."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, bindparam, inspect, text

from ingestion_pipeline.notices import queries as delivering
from ingestion_pipeline.operations.retention import SWEEPS
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.poll_tasks import interrupt_polls
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.types import UtcDateTime
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.queue import spawn
from ingestion_pipeline.tasks.task import finished
from ingestion_pipeline_tests.builders import NOON, a_new_task
from ingestion_pipeline_tests.statements import query_plans

pytestmark = pytest.mark.both_databases

LEASE = timedelta(minutes=5)
POLLS = ClaimFilter(kind="poll")
FRONTIER = ClaimFilter(kind="fetch_page", frontier_of="catalog:1")
READINGS = ClaimFilter(kind="extract_page", frontier_of="catalog:1")
ON_POSTGRES = pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)])


# Polls, half of them due; every tenth row is a page that waits to be fetched, every tenth one that
# waits to be read, of one of three catalogues, every tenth a delivery, and every fiftieth a page
# that was spawned, and read.
MANY = text(
    """
    INSERT INTO tasks (kind, dedupe_key, source_id, url, payload, status, priority, shard,
                       not_before, tracking_id, parent_id, ancestry, created_at, updated_at)
    WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 6000)
    SELECT CASE WHEN n % 50 = 0 THEN 'page' WHEN n % 10 = 1 THEN 'fetch_page'
                WHEN n % 10 = 3 THEN 'extract_page' WHEN n % 10 = 2 THEN 'deliver'
                ELSE 'poll' END, n,
           CASE WHEN n % 10 IN (1, 3) THEN 'catalog:' || n % 3 ELSE 'series:' || n END, n, '{}',
           CASE WHEN n % 50 = 0 THEN 'SUCCESS' ELSE 'PENDING' END, n % 3, n,
           CASE WHEN n % 2 = 0 THEN :now ELSE :later END, n,
           CASE WHEN n % 50 = 0 THEN 1 END, '[]', :now, :now
    FROM numbers
    """
).bindparams(bindparam("now", type_=UtcDateTime()), bindparam("later", type_=UtcDateTime()))


@pytest.fixture
def store(store: Store) -> Store:
    with store.begin() as connection:
        connection.execute(MANY, {"now": NOON, "later": NOON + LEASE})
    if store.engine.dialect.name == "postgresql":  # as its autovacuum does; SQLite has none
        with store.begin() as connection:
            connection.execute(text("ANALYZE"))
    return store


def claim(connection: Connection, claim_filter: ClaimFilter = POLLS) -> list[Any]:
    return claims.claim(connection, claim_filter, owner="me", now=NOON, lease=LEASE, limit=100)


def spawn_one(connection: Connection) -> None:
    [parent] = claims.tasks_by_id(connection, [50]).values()
    child = a_new_task(kind="page", url="https://a.test/new", dedupe_key="new")
    spawn(connection, parent, child, now=NOON, policy=Settings().work)


def finish(connection: Connection) -> None:
    claims.apply(connection, [finished(task) for task in claim(connection)], now=NOON)


USED_BY: dict[str, Callable[[Connection], object]] = {
    "ix_tasks_due": claim,
    "uq_tasks_active": lambda c: delivering.cancel(c, "ann", now=NOON),
    "ix_tasks_frontier": lambda c: claim(c, FRONTIER),
    "ix_tasks_source": lambda c: interrupt_polls(c, ["series:7"], now=NOON),
    "ix_tasks_spawned": spawn_one,
    "ix_tasks_ended": lambda c: SWEEPS["finished_tasks"](c, Settings(), NOON),
}


def generic_query_plans(store: Store, ask: Callable[[Connection], object]) -> str:
    """Return the query plans, independent of the values."""
    with store.begin() as connection:
        if store.engine.dialect.name != "sqlite":
            connection.execute(text("SET LOCAL plan_cache_mode = force_generic_plan"))
        return query_plans(connection, ask)


def test_every_index_is_used_by_a_statement_that_is_named_here(store: Store) -> None:
    with store.read() as connection:
        result = {index["name"] for index in inspect(connection).get_indexes("tasks")}

    assert result == USED_BY.keys()


@pytest.mark.parametrize("index", USED_BY)
def test_a_statement_uses_its_index(store: Store, index: str) -> None:
    assert index in generic_query_plans(store, USED_BY[index])


@pytest.mark.parametrize(
    ("claim_filter", "index"),
    [(POLLS, "ix_tasks_due"), (FRONTIER, "ix_tasks_frontier"), (READINGS, "ix_tasks_frontier")],
    ids=["polls", "a frontier", "pages to be read"],
)
def test_due_tasks_are_taken_in_the_order_of_their_index(store: Store, claim_filter: ClaimFilter, index: str) -> None:
    """A frontier of 100,000 pages must not be sorted for each claim."""
    plan = generic_query_plans(store, lambda connection: claim(connection, claim_filter))

    assert index in plan
    assert "Sort" not in plan
    assert "FOR ORDER BY" not in plan


def test_due_tasks_of_a_tier_and_a_shard_are_found_by_the_same_index(store: Store) -> None:
    claim_filter = ClaimFilter(kind="poll", priority=1, shard=0, shards=2)

    assert "ix_tasks_due" in generic_query_plans(store, lambda connection: claim(connection, claim_filter))


@ON_POSTGRES
@pytest.mark.parametrize("ask", [claim, finish], ids=["claim", "claim and finish"])
def test_no_claim_reads_the_whole_table(store: Store, ask: Callable[[Connection], object]) -> None:
    plan = generic_query_plans(store, ask)

    assert "pk_tasks" in plan
    assert "Seq Scan" not in plan


@ON_POSTGRES
def test_claiming_and_renewing_write_to_no_index(store: Store) -> None:
    """PostgreSQL calls it a heap-only update; one index on the owner or the status ends it."""
    with store.begin() as connection:
        pairs = [(task.id, task.fence) for task in claim(connection)]
        assert heap_only_updates(connection) == len(pairs) == 100

        claims.heartbeat(connection, pairs, now=NOON, lease=LEASE)
        assert heap_only_updates(connection) == 200


def heap_only_updates(connection: Connection) -> int:
    """Of this transaction."""
    query = text("SELECT pg_stat_get_xact_tuples_hot_updated('tasks'::regclass)")
    return connection.execute(query).scalar_one()
