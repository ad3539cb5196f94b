"""Due polls: the shards for which a tick, a retry or a new source requests a run; how many runs share them."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import bindparam, select, text, update

from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.sources import poll_tasks, registry
from ingestion_pipeline.sources.poll_tasks import (
    claim_size,
    known_pace,
    measured_pace,
    run_size,
    shard_count,
    shards_of,
)
from ingestion_pipeline.sources.source import Tier, shard_of
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import sources, tasks
from ingestion_pipeline.store.types import UtcDateTime
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.statements import query_plans

pytestmark = pytest.mark.both_databases

HOUR = timedelta(hours=1)
SHARDS = 4


def add_source(store: Store, name: str, *, tier: Tier = Tier.WARM, **poll: Any) -> int:
    """Add a source on its own host, with these values of its poll; return the host's shard."""
    source_id = f"series:{name}"
    definition = a_definition(id=source_id, url=f"https://{name}.test/feed", tier=tier)
    with store.begin() as connection:
        registry.register(connection, [definition], now=NOON)
        if poll:
            is_poll = tasks.c.source_id == source_id
            connection.execute(update(tasks).where(is_poll).values(**poll))
    return shard_of(f"{name}.test") % SHARDS


def due_shards(store: Store, tier: Tier, now: datetime = NOON) -> list[int]:
    with store.read() as connection:
        return shards_of(poll_tasks.due_counts(connection, tier, now=now), SHARDS)


def test_a_tick_requests_the_shards_of_its_tier_that_have_a_due_source(store: Store) -> None:
    shards = {add_source(store, name, tier=Tier.HOT) for name in ("a", "b", "c", "d")}
    warm = add_source(store, "w")
    add_source(store, "later", tier=Tier.COLD, not_before=NOON + HOUR)

    assert due_shards(store, Tier.HOT) == sorted(shards)
    assert due_shards(store, Tier.WARM) == [warm]
    assert due_shards(store, Tier.COLD) == []
    assert len(due_shards(store, Tier.COLD, NOON + HOUR)) == 1


def test_a_running_poll_is_due_only_after_its_lease(store: Store) -> None:
    shard = add_source(store, "a", status="PROCESSING", lease_until=NOON, lease_owner="w")

    assert due_shards(store, Tier.WARM, NOON) == []
    assert due_shards(store, Tier.WARM, NOON + timedelta(seconds=1)) == [shard]


def test_a_disabled_source_is_never_due(store: Store) -> None:
    add_source(store, "a")
    with store.begin() as connection:
        registry.disable(connection, "series:a", actor="ann", reason="slow", now=NOON)

    assert due_shards(store, Tier.WARM) == []


def test_retries_and_polls_of_lost_workers_are_due_between_ticks(store: Store) -> None:
    retry = add_source(store, "retry", tier=Tier.HOT, attempts=1)
    lost = add_source(
        store, "lost", tier=Tier.COLD, attempts=1, status="PROCESSING", lease_until=NOON - HOUR, lease_owner="w"
    )
    add_source(store, "fresh")
    add_source(store, "later", attempts=1, not_before=NOON + HOUR)
    add_source(store, "runs", attempts=1, status="PROCESSING", lease_until=NOON, lease_owner="w")

    with store.read() as connection:
        shards = poll_tasks.unscheduled_shards(connection, now=NOON, shards=SHARDS)

    assert sorted(shards) == sorted([(Tier.HOT, retry), (Tier.COLD, lost)])


def test_released_and_requested_polls_do_not_wait_for_a_tick(store: Store) -> None:
    """A COLD source whose host was busy would otherwise wait an hour, and find it busy again."""
    busy = add_source(store, "busy", tier=Tier.COLD, error_class="resource")
    add_source(store, "pausing", error_class="resource", not_before=NOON + HOUR)
    add_source(store, "quiet")
    requested = add_source(store, "requested", tier=Tier.HOT)
    with store.begin() as connection:
        registry.disable(connection, "series:requested", actor="ann", reason="x", now=NOON)
        registry.enable(connection, "series:requested", actor="ann", now=NOON)

    with store.read() as connection:
        shards = poll_tasks.unscheduled_shards(connection, now=NOON, shards=SHARDS)

    assert shards == [(Tier.HOT, requested), (Tier.COLD, busy)]


def test_an_overdue_poll_gains_priority_once_per_interval(store: Store) -> None:
    settings = load_settings({"INGESTION_POLLING__AGED_SECONDS": "3600"})
    for name, waited in (("fresh", 0.9), ("long", 1.1), ("longest", 2.1)):
        add_source(store, name, tier=Tier.COLD, not_before=NOON - waited * HOUR)

    for _ in range(3):
        with store.begin() as connection:
            poll_tasks.age_polls(connection, settings, NOON)

    with store.read() as connection:
        rows = connection.execute(select(tasks.c.source_id, tasks.c.priority)).all()
    assert {row.source_id: row.priority for row in rows} == {"series:fresh": 3, "series:long": 2, "series:longest": 1}


def test_new_sources_are_those_that_were_never_checked(store: Store) -> None:
    old = add_source(store, "old")
    add_source(store, "checked")
    new = add_source(store, "new", tier=Tier.HOT)
    add_source(store, "off")
    with store.begin() as connection:
        for name, values in {"old": {"created_at": NOON - HOUR}, "checked": {"last_checked_at": NOON}}.items():
            row = update(sources).where(sources.c.id == f"series:{name}")
            connection.execute(row.values(**values))
        registry.disable(connection, "series:off", actor="ann", reason="x", now=NOON)

    with store.read() as connection:
        shards = poll_tasks.new_shards(connection, now=NOON, shards=SHARDS)

    assert sorted(shards) == sorted([(Tier.HOT, new), (Tier.WARM, old)])


def test_source_counts_are_total_disabled_and_newest(store: Store) -> None:
    with store.read() as connection:
        assert poll_tasks.source_counts(connection) == (0, 0, None)

    add_source(store, "a")
    add_source(store, "b")
    with store.begin() as connection:
        registry.disable(connection, "series:a", actor="ann", reason="slow", now=NOON)

    with store.read() as connection:
        assert poll_tasks.source_counts(connection) == (2, 1, NOON)


def query_plan(store: Store, *, tier: Tier) -> str:
    """Return the database's plan of the statement that finds the due shards."""
    with store.read() as connection:
        return query_plans(connection, lambda c: poll_tasks.due_counts(c, tier, now=NOON))


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


@pytest.mark.slow
def test_a_tick_among_twenty_thousand_sources_reads_the_index_of_what_is_due(store: Store) -> None:
    with store.begin() as connection:
        connection.execute(MANY, {"now": NOON, "later": NOON + HOUR})
        connection.execute(text("ANALYZE"))

    assert "ix_tasks_due" in query_plan(store, tier=Tier.HOT)
    assert due_shards(store, Tier.HOT) == [0]


DOZEN = 12
LIMITS = load_settings({}).polling


@pytest.mark.parametrize(
    ("due", "pace", "shards"),
    [
        pytest.param(0, None, 2, id="nothing"),
        pytest.param(2_000, None, 2, id="as many as the settings say"),
        pytest.param(12_000, 40.0, 5, id="a minute each"),
        pytest.param(80_000, 100.0, 14, id="many"),
        pytest.param(100_000, 1.0, 16, id="never more than the maximum"),
        pytest.param(500, 0.01, 10, id="no run is too small"),
    ],
)
def test_a_run_gets_about_a_minute_of_work(due: int, pace: float | None, shards: int) -> None:
    assert shard_count(due, pace=pace, limits=LIMITS) == shards


@pytest.mark.parametrize("pace", [None, 0.1, 10.0, 40.0, 200.0])
def test_a_hundred_thousand_due_sources_need_at_most_48_runs_at_any_pace(pace: float | None) -> None:
    by_tier = (10_000, 60_000, 30_000)

    assert sum(shard_count(due, pace=pace, limits=LIMITS) for due in by_tier) <= 4 * DOZEN


def test_a_slow_run_claims_no_more_than_it_can_process() -> None:
    assert [claim_size(pace, LIMITS) for pace in (0.1, 2.0, 500.0)] == [50, 120, 500]
    assert run_size(500.0, LIMITS) == 30_000


def test_a_tier_uses_its_own_pace_and_before_it_has_one_the_best() -> None:
    measurements = {"pace:hot": 40.0, "pace:cold": 2.0, "request_cost:series": 900.0}

    assert known_pace(measurements, "cold") == 2.0
    assert known_pace(measurements, "warm") == known_pace(measurements, None) == 40.0
    assert known_pace({"request_cost:series": 900.0}, "hot") is None


def test_the_pace_follows_recent_runs_and_ignores_tiny_ones() -> None:
    assert measured_pace(None, polls=600, seconds=60) == 10
    assert measured_pace(10.0, polls=1_200, seconds=60) == pytest.approx(13)
    assert measured_pace(10.0, polls=3, seconds=60) == 10
    assert measured_pace(None, polls=600, seconds=0) is None


def test_a_host_is_in_one_shard_however_many_there_are() -> None:
    due = {7: 100, 12: 1, 19: 5}

    assert shards_of(due, 1) == [0]
    assert shards_of(due, 4) == [0, 3]
    assert shards_of({}, 4) == []
