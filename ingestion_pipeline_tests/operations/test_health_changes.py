"""Changes of source health send one alert each, and the SQL view shows the evaluated health."""

from collections import Counter
from datetime import datetime, timedelta
from multiprocessing.synchronize import Barrier
from typing import Any

import pytest
from sqlalchemy import func, select, text, update

from ingestion_pipeline.operations.alerts import change_of, record_health_changes, write_changes
from ingestion_pipeline.operations.source_health import changed_states, source_statuses, sources_to_review, store_states
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.sources.registry import enable
from ingestion_pipeline.store import FixedClock, Store, open_store
from ingestion_pipeline.store.tables import outbox, source_health, sources, tasks
from ingestion_pipeline_tests.operations.failing_sources import add_healthy_sources, break_sources, repair_sources
from ingestion_pipeline_tests.processes import FORKSERVER, PATIENCE_SECONDS, Child

pytestmark = pytest.mark.both_databases


def record_changes(store: Store, settings: Settings, *, now: datetime) -> int:
    with store.begin() as connection:
        return record_health_changes(connection, settings, now)


def alert_counts(store: Store) -> Counter[str]:
    with store.read() as connection:
        return Counter(connection.execute(select(outbox.c.subject_kind)).scalars())


@pytest.mark.slow
def test_fifty_failures_among_a_thousand_sources_alert_once_each_and_recover_once(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    now = clock.at
    with store.begin() as connection:
        ids = add_healthy_sources(connection, 1_000, now=now)
        assert record_health_changes(connection, settings, now) == 0
        ids_by_failure = break_sources(connection, ids, per_failure=10, now=now)

    counts = [record_changes(store, settings, now=clock.advance(minutes=5)) for _ in range(4)]

    assert counts == [50, 0, 0, 0]
    alerts = {"source_degraded": 30, "breaker_opened": 10, "source_disabled": 10}
    assert alert_counts(store) == alerts
    later = clock.advance(minutes=5)
    with store.begin() as connection:
        repair_sources(
            connection, [source_id for source_ids in ids_by_failure.values() for source_id in source_ids], now=later
        )
    assert [record_changes(store, settings, now=clock.advance(minutes=5)) for _ in range(2)] == [50, 0]
    assert alert_counts(store) == alerts | {"source_recovered": 50}


def test_a_quarantined_feed_alerts_once_and_so_does_its_recovery(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    def record_poll(outcome: str) -> int:
        now = clock.advance(minutes=5)
        with store.begin() as connection:
            values = {"last_outcome": outcome, "last_success_at": now}
            connection.execute(update(sources).where(sources.c.id == source_id).values(**values))
            return record_health_changes(connection, settings, now)

    with store.begin() as connection:
        [source_id] = add_healthy_sources(connection, 1, now=clock.at)

    held_back = "quarantined: lists nothing; the last good data stays"
    assert [record_poll(held_back), record_poll(held_back), record_poll("unchanged")] == [1, 0, 1]
    assert alert_counts(store) == {"source_degraded": 1, "source_recovered": 1}


def record_changes_at_once(url: str, barrier: Barrier, at: datetime) -> int:
    store = open_store(url, clock=FixedClock(at))
    settings = load_settings({"INGESTION_DATABASE_URL": url})
    try:
        barrier.wait(PATIENCE_SECONDS)
        return record_changes(store, settings, now=at)
    finally:
        store.close()


@pytest.mark.slow
def test_two_processes_that_find_the_same_changes_alert_once_each(
    store: Store, settings: Settings, database_url: str, now: datetime
) -> None:
    with store.begin() as connection:
        ids = add_healthy_sources(connection, 100, now=now)
        break_sources(connection, ids, per_failure=20, now=now)

    barrier = FORKSERVER.Barrier(2)
    children = [Child(record_changes_at_once, database_url, barrier, now) for _ in range(2)]

    assert sum(child.result() for child in children) == 100
    assert alert_counts(store).total() == 100
    with store.read() as connection:
        query = select(func.count()).where(source_health.c.changes == 1)
        assert connection.execute(query).scalar_one() == 100


def test_the_second_of_two_concurrent_transactions_writes_nothing(
    store: Store, settings: Settings, now: datetime
) -> None:
    """Of two maintenance runs that read the same state, only one writes the change."""
    with store.begin() as connection:
        break_sources(connection, add_healthy_sources(connection, 10, now=now), per_failure=1, now=now)

    with store.read() as connection:
        reviewed = [change_of(status) for status in sources_to_review(connection, settings, now=now)]
    changes = [change for change in reviewed if change is not None]

    with store.begin() as connection:
        first = write_changes(connection, changes, now=now)
    with store.begin() as connection:
        second = write_changes(connection, changes, now=now)

    assert (len(first), len(second)) == (5, 0)


def test_a_source_that_fails_again_after_it_was_enabled_alerts_again_and_recovers_once(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    with store.begin() as connection:
        [blocked, *_] = add_healthy_sources(connection, 1, now=clock.at)
    is_blocked = {"status": "disabled", "status_reason": "disabled, behind a bot wall; ..."}

    for _ in range(2):
        with store.begin() as connection:
            connection.execute(update(sources).values(is_blocked))
        record_changes(store, settings, now=clock.advance(minutes=5))
        with store.begin() as connection:
            enable(connection, blocked, actor="cli:ann", now=clock.at)
        record_changes(store, settings, now=clock.advance(minutes=5))
    assert alert_counts(store) == {"source_disabled": 2}
    with store.begin() as connection:
        repair_sources(connection, [blocked], now=clock.advance(minutes=5))
    record_changes(store, settings, now=clock.at)

    assert alert_counts(store) == {"source_disabled": 2, "source_recovered": 1}


def test_a_source_disabled_by_an_operator_sends_no_alert(store: Store, settings: Settings, now: datetime) -> None:
    with store.begin() as connection:
        add_healthy_sources(connection, 1, now=now)
        off = {"status": "disabled", "status_reason": "cli:ann: noisy", "failure_count": 3}
        connection.execute(update(sources).values(off))

    assert record_changes(store, settings, now=now) == 0


def test_the_worst_sources_come_first(store: Store, settings: Settings, now: datetime) -> None:
    with store.begin() as connection:
        ids = add_healthy_sources(connection, 20, now=now)
        ids_by_failure = break_sources(connection, ids, per_failure=1, now=now)
        connection.execute(update(sources).where(sources.c.id == ids[9]).values(failure_count=1))
        statuses = source_statuses(connection, settings, now=now)

    healths = [status.health.value for status in statuses]
    assert healths[:6] == ["open", "disabled", *["degraded"] * 3, "unsteady"]
    assert set(healths[6:]) == {"healthy"}
    by_failures = [status.facts.id for status in statuses[2:5]]
    assert by_failures == [ids_by_failure["shape"][0], ids_by_failure["gone"][0], ids_by_failure["limited"][0]]


@pytest.mark.parametrize("hours", [1, 30])
def test_the_alert_says_since_when_and_why(store: Store, settings: Settings, now: datetime, hours: int) -> None:
    with store.begin() as connection:
        add_healthy_sources(connection, 1, now=now - timedelta(hours=hours))
        failing = {"failure_count": 4, "last_outcome": "failed: a.test answered 503"}
        connection.execute(update(sources).values(failing))
    record_changes(store, settings, now=now)

    with store.read() as connection:
        payload = connection.execute(select(outbox.c.payload)).scalar_one()
    since = f"{now - timedelta(hours=hours):%Y-%m-%d %H:%M} UTC"
    assert payload["title"] == "job_board:n00000 is degraded"
    assert payload["text"] == (f"4 failed polls in a row, last success {since}; failed: a.test answered 503")
    assert (payload["failures"], payload["health"], payload["before"]) == (4, "degraded", "well")


def store_statuses(store: Store, settings: Settings, now: datetime) -> dict[str, str]:
    """Evaluate and store the health of every source, as `maintain` does; return it by id."""
    with store.begin() as connection:
        record_health_changes(connection, settings, now)
        statuses = source_statuses(connection, settings, now=now)
        store_states(connection, changed_states(connection, statuses, now=now))
    return {status.facts.id: status.health.value for status in statuses}


def health_view(store: Store) -> dict[str, tuple[str | None, Any]]:
    with store.read() as connection:
        rows = connection.execute(text("SELECT source_id, health, health_since FROM v_source_health"))
        return {id_: (health, since) for id_, health, since in rows}


def test_the_view_shows_the_evaluated_health_for_every_kind_of_failure(
    store: Store, settings: Settings, now: datetime
) -> None:
    with store.begin() as connection:
        ids = add_healthy_sources(connection, 30, now=now)
        break_sources(connection, ids, per_failure=2, now=now)
        late = {"not_before": now - timedelta(days=9)}
        connection.execute(update(tasks).where(tasks.c.source_id == ids[-1]).values(late))
        off = {"status": "disabled", "status_reason": "by an operator"}
        connection.execute(update(sources).where(sources.c.id == ids[-2]).values(off))
        new = {"last_success_at": None}
        connection.execute(update(sources).where(sources.c.id == ids[-3]).values(new))

    assert set(health_view(store).values()) == {(None, None)}  # not evaluated yet
    healths = store_statuses(store, settings, now)

    assert {id_: health for id_, (health, _) in health_view(store).items()} == healths
    assert {"open", "degraded", "late", "waiting", "healthy", "off"} <= set(healths.values())


def test_a_status_has_the_time_of_its_last_change(store: Store, settings: Settings, now: datetime) -> None:
    with store.begin() as connection:
        (first, second) = add_healthy_sources(connection, 2, now=now)
    store_statuses(store, settings, now)
    before = health_view(store)
    with store.begin() as connection:
        failing = {"failure_count": 1, "last_error_class": "transient"}
        connection.execute(update(sources).where(sources.c.id == first).values(failing))

    store_statuses(store, settings, now + timedelta(minutes=5))

    after = health_view(store)
    assert (before[first][0], after[first][0]) == ("healthy", "unsteady")
    assert before[first][1] != after[first][1]
    assert before[second] == after[second]
