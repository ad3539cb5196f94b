from datetime import datetime, timedelta

import pytest

from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.claims import LostRun, beat_run, begin_run, end_run, lost_runs

pytestmark = pytest.mark.both_databases

LEASE = timedelta(seconds=90)


def start_run(store: Store, now: datetime, run_id: str = "run", owner: str = "first") -> None:
    with store.begin() as connection:
        begin_run(connection, run_id=run_id, owner=owner, job="poll_hot", now=now, lease=LEASE)


def lost_at(store: Store, now: datetime) -> list[LostRun]:
    with store.read() as connection:
        return lost_runs(connection, now=now)


def test_a_run_is_lost_only_after_its_lease(store: Store, now: datetime) -> None:
    start_run(store, now)

    assert lost_at(store, now + LEASE) == []
    assert lost_at(store, now + LEASE + timedelta(seconds=1)) == [
        LostRun(run_id="run", owner="first", job="poll_hot", lease_until=now + LEASE)
    ]


def test_a_heartbeat_renews_its_own_run_only(store: Store, now: datetime) -> None:
    start_run(store, now, run_id="alive")
    start_run(store, now, run_id="dead")

    with store.begin() as connection:
        beat_run(connection, run_id="alive", now=now + LEASE, lease=LEASE)

    assert [run.run_id for run in lost_at(store, now + LEASE * 2)] == ["dead"]


def test_an_ended_run_is_never_lost(store: Store, now: datetime) -> None:
    start_run(store, now)

    with store.begin() as connection:
        assert end_run(connection, run_id="run", now=now) == "first"

    assert lost_at(store, now + LEASE * 100) == []


def test_a_run_ends_once_and_an_unknown_run_never(store: Store, now: datetime) -> None:
    start_run(store, now)
    with store.begin() as connection:
        end_run(connection, run_id="run", now=now)

        assert end_run(connection, run_id="run", now=now) is None
        assert end_run(connection, run_id="unknown", now=now) is None


def test_a_restarted_run_is_alive_under_its_new_owner(store: Store, now: datetime) -> None:
    start_run(store, now)
    with store.begin() as connection:
        end_run(connection, run_id="run", now=now)

    start_run(store, now + LEASE * 2, owner="second")

    assert lost_at(store, now + LEASE * 3) == []
    assert [run.owner for run in lost_at(store, now + LEASE * 4)] == ["second"]


def test_lost_runs_are_listed_longest_lost_first(store: Store, now: datetime) -> None:
    start_run(store, now + timedelta(seconds=5), run_id="later")
    start_run(store, now, run_id="earlier")

    assert [run.run_id for run in lost_at(store, now + LEASE * 2)] == ["earlier", "later"]
