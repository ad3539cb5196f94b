"""What is due: which shards a tick, a retry or a new source wants a run for."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, event, select, text, update

from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.sources import registry
from ingestion_pipeline.sources.scheduling import due
from ingestion_pipeline.sources.source import Tier, shard_of
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import sources, tasks
from ingestion_pipeline.store.types import UtcDateTime
from ingestion_pipeline_tests.builders import NOON, a_definition

HOUR = timedelta(hours=1)
SHARDS = 4


def given_source(store: Store, name: str, *, tier: Tier = Tier.WARM, **poll: Any) -> int:
    """A source on a host of its own, with what its poll shall say; the host's shard."""
    source_id = f"series:{name}"
    definition = a_definition(id=source_id, url=f"https://{name}.test/feed", tier=tier)
    with store.begin() as connection:
        registry.register(connection, [definition], now=NOON)
        if poll:
            mine = tasks.c.source_id == source_id
            connection.execute(update(tasks).where(mine).values(**poll))
    return shard_of(f"{name}.test") % SHARDS


def due_shards(store: Store, tier: Tier, now: datetime = NOON) -> list[int]:
    with store.read() as connection:
        return due.due_shards(connection, tier, now=now, shards=SHARDS)


def test_a_tick_wants_the_shards_of_its_tier_that_have_a_source_due(store: Store) -> None:
    shards = {given_source(store, name, tier=Tier.HOT) for name in ("a", "b", "c", "d")}
    warm = given_source(store, "w")
    given_source(store, "later", tier=Tier.COLD, not_before=NOON + HOUR)

    assert due_shards(store, Tier.HOT) == sorted(shards)
    assert due_shards(store, Tier.WARM) == [warm]
    assert due_shards(store, Tier.COLD) == []
    assert len(due_shards(store, Tier.COLD, NOON + HOUR)) == 1


def test_a_running_poll_is_due_only_once_its_lease_is_over(store: Store) -> None:
    shard = given_source(store, "a", status="PROCESSING", lease_until=NOON, lease_owner="w")

    assert due_shards(store, Tier.WARM, NOON) == []
    assert due_shards(store, Tier.WARM, NOON + timedelta(seconds=1)) == [shard]


def test_what_is_disabled_is_never_due(store: Store) -> None:
    given_source(store, "a")
    with store.begin() as connection:
        registry.disable(connection, "series:a", actor="ann", reason="slow", now=NOON)

    assert due_shards(store, Tier.WARM) == []


def test_retries_and_dead_workers_polls_are_remembered_between_ticks(store: Store) -> None:
    retry = given_source(store, "retry", tier=Tier.HOT, attempts=1)
    dead = given_source(
        store, "dead", tier=Tier.COLD, attempts=1, status="PROCESSING", lease_until=NOON - HOUR, lease_owner="w"
    )
    given_source(store, "fresh")
    given_source(store, "later", attempts=1, not_before=NOON + HOUR)
    given_source(store, "runs", attempts=1, status="PROCESSING", lease_until=NOON, lease_owner="w")

    with store.read() as connection:
        shards = due.unscheduled_shards(connection, now=NOON, shards=SHARDS)

    assert sorted(shards) == sorted([(Tier.HOT, retry), (Tier.COLD, dead)])


def test_what_was_given_back_or_asked_for_does_not_wait_for_a_tick(store: Store) -> None:
    """A COLD source whose host was busy would otherwise wait an hour, and meet it busy again."""
    busy = given_source(store, "busy", tier=Tier.COLD, error_class="resource")
    given_source(store, "pausing", error_class="resource", not_before=NOON + HOUR)
    given_source(store, "quiet")
    requested = given_source(store, "asked", tier=Tier.HOT)
    with store.begin() as connection:
        registry.disable(connection, "series:asked", actor="ann", reason="x", now=NOON)
        registry.enable(connection, "series:asked", actor="ann", now=NOON)

    with store.read() as connection:
        shards = due.unscheduled_shards(connection, now=NOON, shards=SHARDS)

    assert shards == [(Tier.HOT, requested), (Tier.COLD, busy)]


def test_a_poll_that_is_due_for_long_moves_up_once_for_each_such_time(store: Store) -> None:
    settings = load_settings({"INGESTION_POLLING__AGED_SECONDS": "3600"})
    for name, waited in (("fresh", 0.9), ("long", 1.1), ("longest", 2.1)):
        given_source(store, name, tier=Tier.COLD, not_before=NOON - waited * HOUR)

    for _ in range(3):
        with store.begin() as connection:
            due.age_polls(connection, settings, NOON)

    with store.read() as connection:
        rows = connection.execute(select(tasks.c.source_id, tasks.c.priority)).all()
    assert {row.source_id: row.priority for row in rows} == {"series:fresh": 3, "series:long": 2, "series:longest": 1}


def test_new_sources_are_those_that_were_never_checked(store: Store) -> None:
    old = given_source(store, "old")
    given_source(store, "checked")
    new = given_source(store, "new", tier=Tier.HOT)
    given_source(store, "off")
    with store.begin() as connection:
        for name, values in {"old": {"created_at": NOON - HOUR}, "checked": {"last_checked_at": NOON}}.items():
            row = update(sources).where(sources.c.id == f"series:{name}")
            connection.execute(row.values(**values))
        registry.disable(connection, "series:off", actor="ann", reason="x", now=NOON)

    with store.read() as connection:
        shards = due.new_shards(connection, now=NOON, shards=SHARDS)

    assert sorted(shards) == sorted([(Tier.HOT, new), (Tier.WARM, old)])


def test_the_census_counts_all_and_disabled_and_knows_the_newest(store: Store) -> None:
    with store.read() as connection:
        assert due.source_counts(connection) == (0, 0, None)

    given_source(store, "a")
    given_source(store, "b")
    with store.begin() as connection:
        registry.disable(connection, "series:a", actor="ann", reason="slow", now=NOON)

    with store.read() as connection:
        assert due.source_counts(connection) == (2, 1, NOON)


def plan_of(store: Store, *, tier: Tier) -> str:
    """How the database finds the due shards: the very statement, explained."""
    statements: list[tuple[str, Any]] = []

    def remember(*args: Any) -> None:
        statements.append((args[2], args[3]))

    event.listen(store.engine, "before_cursor_execute", remember)
    with store.read() as connection:
        due.due_shards(connection, tier, now=NOON, shards=SHARDS)
    event.remove(store.engine, "before_cursor_execute", remember)
    statement, parameters = statements[-1]  # on SQLite BEGIN comes first
    explain = "EXPLAIN QUERY PLAN" if store.engine.dialect.name == "sqlite" else "EXPLAIN"
    with store.read() as connection:
        rows = connection.exec_driver_sql(f"{explain} {statement}", parameters)
        return "\n".join(str(row) for row in rows)


MANY = text(
    """
    INSERT INTO tasks (kind, dedupe_key, source_id, payload, status, priority, shard, not_before,
                       tracking_id, ancestry, created_at, updated_at)
    WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < 19999)
    SELECT 'poll', 'series:' || n, 'series:' || n, '{}', 'PENDING', n % 3 + 1, n,
           CASE WHEN n % 1000 = 0 THEN :now ELSE :later END, 't', '[]', :now, :now
    FROM numbers
    """
).bindparams(bindparam("now", type_=UtcDateTime()), bindparam("later", type_=UtcDateTime()))


def test_a_tick_among_twenty_thousand_sources_reads_the_index_of_what_is_due(store: Store) -> None:
    with store.begin() as connection:
        connection.execute(MANY, {"now": NOON, "later": NOON + HOUR})
        connection.execute(text("ANALYZE"))

    assert "ix_tasks_due" in plan_of(store, tier=Tier.HOT)
    assert due_shards(store, Tier.HOT) == [0]
