"""State changes are told once, however many look and however often."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from multiprocessing.synchronize import Barrier

import pytest
from sqlalchemy import func, select, update

from ingestion_pipeline.operations.alerts import change_of, record_health_changes, write_changes
from ingestion_pipeline.operations.health import source_statuses, sources_to_review
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.sources.registry import enable
from ingestion_pipeline.store import FixedClock, Store, open_store
from ingestion_pipeline.store.tables import outbox, source_health, sources
from ingestion_pipeline_tests.operations.failing import broken, given, mended
from ingestion_pipeline_tests.processes import CLEAN, PATIENCE_SECONDS, Child


def look(store: Store, settings: Settings, *, now: datetime) -> int:
    with store.begin() as connection:
        return record_health_changes(connection, settings, now)


def told(store: Store) -> Counter[str]:
    with store.read() as connection:
        return Counter(connection.execute(select(outbox.c.subject_kind)).scalars())


def test_fifty_failures_among_a_thousand_are_told_once_each_and_so_is_their_end(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    now = clock.at
    with store.begin() as connection:
        ids = given(connection, 1_000, now=now)
        assert record_health_changes(connection, settings, now) == 0
        ways = broken(connection, ids, each=10, now=now)

    looks = [look(store, settings, now=clock.advance(minutes=5)) for _ in range(4)]

    assert looks == [50, 0, 0, 0]
    bad = {"source_degraded": 30, "breaker_opened": 10, "source_disabled": 10}
    assert told(store) == bad
    later = clock.advance(minutes=5)
    with store.begin() as connection:
        mended(connection, [one for some in ways.values() for one in some], now=later)
    assert [look(store, settings, now=clock.advance(minutes=5)) for _ in range(2)] == [50, 0]
    assert told(store) == bad | {"source_recovered": 50}


def test_a_listing_that_is_not_believed_is_told_once_and_so_is_the_next_good_one(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    def polled(outcome: str) -> int:
        now = clock.advance(minutes=5)
        with store.begin() as connection:
            seen = {"last_outcome": outcome, "last_success_at": now}
            connection.execute(update(sources).where(sources.c.id == source_id).values(**seen))
            return record_health_changes(connection, settings, now)

    with store.begin() as connection:
        [source_id] = given(connection, 1, now=clock.at)

    held_back = "quarantined: lists nothing; the last good data stays"
    assert [polled(held_back), polled(held_back), polled("unchanged")] == [1, 0, 1]
    assert told(store) == {"source_degraded": 1, "source_recovered": 1}


def look_together(url: str, barrier: Barrier, at: datetime) -> int:
    store = open_store(url, clock=FixedClock(at))
    settings = load_settings({"INGESTION_DATABASE_URL": url})
    try:
        barrier.wait(PATIENCE_SECONDS)
        return look(store, settings, now=at)
    finally:
        store.close()


def test_two_processes_that_see_the_same_changes_tell_of_each_once(
    store: Store, settings: Settings, database_url: str, now: datetime
) -> None:
    with store.begin() as connection:
        ids = given(connection, 100, now=now)
        broken(connection, ids, each=20, now=now)

    barrier = CLEAN.Barrier(2)
    both = [Child(look_together, database_url, barrier, now) for _ in range(2)]

    assert sum(one.result() for one in both) == 100
    assert told(store).total() == 100
    with store.read() as connection:
        query = select(func.count()).where(source_health.c.changes == 1)
        assert connection.execute(query).scalar_one() == 100


def test_the_second_of_two_transactions_at_once_writes_nothing(store: Store, settings: Settings, now: datetime) -> None:
    """What two runs of maintenance have both read, only one of them changes."""
    with store.begin() as connection:
        broken(connection, given(connection, 10, now=now), each=1, now=now)

    with store.read() as connection:
        seen = [change_of(one) for one in sources_to_review(connection, settings, now=now)]
    changes = [one for one in seen if one is not None]

    with store.begin() as connection:
        first = write_changes(connection, changes, now=now)
    with store.begin() as connection:
        second = write_changes(connection, changes, now=now)

    assert (len(first), len(second)) == (5, 0)


def test_a_source_that_is_enabled_and_fails_again_is_told_of_again_and_recovers_once(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    with store.begin() as connection:
        [walled, *_] = given(connection, 1, now=clock.at)
    wall = {"status": "disabled", "status_reason": "disabled, behind a bot wall; ..."}

    for _ in range(2):
        with store.begin() as connection:
            connection.execute(update(sources).values(wall))
        look(store, settings, now=clock.advance(minutes=5))
        with store.begin() as connection:
            enable(connection, walled, actor="cli:ann", now=clock.at)
        look(store, settings, now=clock.advance(minutes=5))
    assert told(store) == {"source_disabled": 2}
    with store.begin() as connection:
        mended(connection, [walled], now=clock.advance(minutes=5))
    look(store, settings, now=clock.at)

    assert told(store) == {"source_disabled": 2, "source_recovered": 1}


def test_what_an_operator_switches_off_is_no_news(store: Store, settings: Settings, now: datetime) -> None:
    with store.begin() as connection:
        given(connection, 1, now=now)
        off = {"status": "disabled", "status_reason": "cli:ann: noisy", "failure_count": 3}
        connection.execute(update(sources).values(off))

    assert look(store, settings, now=now) == 0


def test_the_worst_come_first(store: Store, settings: Settings, now: datetime) -> None:
    with store.begin() as connection:
        ids = given(connection, 20, now=now)
        ways = broken(connection, ids, each=1, now=now)
        connection.execute(update(sources).where(sources.c.id == ids[9]).values(failure_count=1))
        found = source_statuses(connection, settings, now=now)

    words = [one.health.value for one in found]
    assert words[:6] == ["open", "disabled", *["degraded"] * 3, "unsteady"]
    assert set(words[6:]) == {"healthy"}
    by_failures = [one.facts.id for one in found[2:5]]
    assert by_failures == [ways["shape"][0], ways["gone"][0], ways["limited"][0]]


@pytest.mark.parametrize("hours", [1, 30])
def test_the_told_reason_says_since_when_and_why(store: Store, settings: Settings, now: datetime, hours: int) -> None:
    with store.begin() as connection:
        given(connection, 1, now=now - timedelta(hours=hours))
        failing = {"failure_count": 4, "last_outcome": "failed: a.test answered 503"}
        connection.execute(update(sources).values(failing))
    look(store, settings, now=now)

    with store.read() as connection:
        payload = connection.execute(select(outbox.c.payload)).scalar_one()
    since = f"{now - timedelta(hours=hours):%Y-%m-%d %H:%M} UTC"
    assert payload["title"] == "job_board:n00000 is degraded"
    assert payload["text"] == (f"4 failed polls in a row, last success {since}; failed: a.test answered 503")
    assert (payload["failures"], payload["health"], payload["before"]) == (4, "degraded", "well")
