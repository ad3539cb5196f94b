import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from ingestion_pipeline.pages.politeness.hosts import (
    LONGEST_PAUSE_SECONDS,
    SHORTEST_BREAK_SECONDS,
    HostBusy,
    HostHealth,
    Leased,
    Pace,
    RateLimiter,
    lease_hosts,
    lost_hosts,
    release_hosts,
    release_owner,
    renew_hosts,
    store_health,
)
from ingestion_pipeline.sources.status import waiting_hosts
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import hosts
from ingestion_pipeline_tests.builders import NOON

pytestmark = pytest.mark.both_databases

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
ON_POSTGRES = pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)])


def lease(store: Store, *names: str, owner: str = "one", now: datetime = NOON) -> dict[str, Leased | HostBusy]:
    with store.begin() as connection:
        return lease_hosts(connection, names, owner=owner, now=now, lease=MINUTE)


def renew(
    store: Store, next_allowed: dict[str, datetime], *, owner: str = "one", now: datetime = NOON
) -> dict[str, datetime]:
    with store.begin() as connection:
        return renew_hosts(connection, owner=owner, now=now, lease=MINUTE, next_allowed=next_allowed)


def release(store: Store, next_allowed: dict[str, datetime], *, owner: str = "one") -> None:
    with store.begin() as connection:
        release_hosts(connection, next_allowed, owner=owner)


def release_all_of(store: Store, owner: str, *, now: datetime = NOON) -> int:
    with store.begin() as connection:
        return release_owner(connection, owner=owner, now=now)


def row(store: Store, host: str = "a.test") -> Any:
    with store.read() as connection:
        return connection.execute(select(hosts).where(hosts.c.host == host)).one()


def test_a_free_host_is_leased(store: Store) -> None:
    assert lease(store, "a.test", "b.test") == {
        "a.test": Leased(next_allowed_at=None),
        "b.test": Leased(next_allowed_at=None),
    }
    assert row(store).lease_owner == "one"
    assert row(store).lease_until == NOON + MINUTE


def test_leasing_no_hosts_returns_no_leases(store: Store) -> None:
    assert lease(store) == {}
    assert renew(store, {}) == {}


def test_a_host_leased_by_another_run_is_busy_until_its_lease_ends(store: Store) -> None:
    lease(store, "a.test")

    leases = lease(store, "a.test", "b.test", owner="two", now=NOON + SECOND)

    assert leases == {"a.test": HostBusy(until=NOON + MINUTE), "b.test": Leased(next_allowed_at=None)}
    assert row(store).lease_owner == "one"


@pytest.mark.parametrize("later", [MINUTE, 2 * MINUTE], ids=["at its end", "after it"])
def test_an_expired_lease_can_be_taken_over(store: Store, later: timedelta) -> None:
    lease(store, "a.test")

    leases = lease(store, "a.test", owner="two", now=NOON + later)

    assert leases == {"a.test": Leased(next_allowed_at=None)}
    assert row(store).lease_owner == "two"


def test_the_owner_may_lease_its_host_again(store: Store) -> None:
    lease(store, "a.test")

    assert lease(store, "a.test", now=NOON + SECOND) == {"a.test": Leased(next_allowed_at=None)}
    assert row(store).lease_until == NOON + SECOND + MINUTE


def test_waiting_hosts_shows_since_when_other_runs_wait(store: Store) -> None:
    lease(store, "a.test", "b.test")
    lease(store, "a.test", owner="two", now=NOON + SECOND)
    lease(store, "a.test", owner="three", now=NOON + 2 * SECOND)

    with store.read() as connection:
        waiting = waiting_hosts(connection, now=NOON + 3 * SECOND)

    assert waiting == [("a.test", NOON + SECOND)]


def test_a_new_lease_clears_the_waiting_time(store: Store) -> None:
    lease(store, "a.test")
    lease(store, "a.test", owner="two")
    release(store, {"a.test": NOON})

    lease(store, "a.test", owner="two")

    assert row(store).requested_at is None


def test_renewing_extends_leases_and_returns_the_hosts_others_wait_for(store: Store) -> None:
    lease(store, "a.test", "b.test")
    lease(store, "a.test", owner="two")
    later = NOON + 30 * SECOND

    waited_for = renew(store, {"a.test": later, "b.test": later + SECOND}, now=later)

    assert waited_for == {"a.test": NOON}
    assert row(store, "b.test").lease_until == later + MINUTE
    assert row(store, "b.test").next_allowed_at == later + SECOND
    assert lease(store, "b.test", owner="two", now=NOON + MINUTE + SECOND) == {"b.test": HostBusy(until=later + MINUTE)}


def test_a_lost_host_is_not_renewed_and_is_returned_as_lost(store: Store) -> None:
    lease(store, "a.test", "b.test")
    later = NOON + 2 * MINUTE
    lease(store, "a.test", owner="two", now=later)

    renew(store, {"a.test": later + MINUTE, "b.test": later}, now=later)

    assert row(store).lease_owner == "two"
    assert row(store).next_allowed_at is None
    with store.read() as connection:
        assert lost_hosts(connection, ["a.test", "b.test"], owner="one") == {"a.test"}


def test_a_released_host_keeps_its_next_allowed_time(store: Store) -> None:
    lease(store, "a.test")

    release(store, {"a.test": NOON + 5 * SECOND})

    assert row(store).lease_owner is None
    assert lease(store, "a.test", owner="two") == {"a.test": Leased(next_allowed_at=NOON + 5 * SECOND)}


def test_only_the_owner_releases_a_host(store: Store) -> None:
    lease(store, "a.test")

    release(store, {"a.test": NOON + MINUTE}, owner="two")

    assert row(store).lease_owner == "one"
    assert row(store).next_allowed_at is None


def test_hosts_of_a_dead_owner_are_free_at_once_and_keep_their_spacing(store: Store) -> None:
    lease(store, "a.test", "b.test")
    lease(store, "c.test", owner="two")
    renew(store, {"a.test": NOON + 3 * SECOND, "b.test": NOON})

    assert release_all_of(store, "one") == 2

    leases = lease(store, "a.test", "c.test", owner="three")
    assert leases == {"a.test": Leased(next_allowed_at=NOON + 3 * SECOND), "c.test": HostBusy(until=NOON + MINUTE)}


@ON_POSTGRES
def test_runs_that_lease_the_same_hosts_in_different_orders_never_deadlock(database_url: str) -> None:
    names = [f"{number}.test" for number in range(40)]
    runs, rounds = 4, 12
    barrier = threading.Barrier(runs)

    def visit(run: int) -> int:
        order, owner, leased = random.Random(run), f"run {run}", 0
        with closing(open_store(database_url)) as store:
            for turn in range(rounds):
                sampled = order.sample(names, 30)
                barrier.wait(30)
                leases = lease(store, *sampled, owner=owner)
                held = [host for host, answer in leases.items() if isinstance(answer, Leased)]
                order.shuffle(held)
                renew(store, dict.fromkeys(held, NOON), owner=owner)
                if turn % 2:
                    release_all_of(store, owner)
                else:
                    release(store, dict.fromkeys(held, NOON), owner=owner)
                leased += len(held)
        return leased

    with ThreadPoolExecutor(runs) as pool:
        leased = sum(pool.map(visit, range(runs)))

    assert leased >= rounds * len(names) / 2


class FakeTime:
    """A monotonic clock, and a sleep that only moves it."""

    def __init__(self) -> None:
        self.seconds = 500.0
        self.slept = list[float]()

    def __call__(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds

    def rate_limiter(self, pace: Pace, next_allowed_at: datetime | None = None) -> RateLimiter:
        return RateLimiter(pace, next_allowed_at=next_allowed_at, now=NOON, monotonic=self, sleep=self.sleep)


@pytest.fixture
def timer() -> FakeTime:
    return FakeTime()


PLAIN = Pace(delay_seconds=3)
BUCKET = Pace(delay_seconds=0.2, burst=10)


def request_times(rate_limiter: RateLimiter, clock: FakeTime, count: int, *, each_takes: float = 0) -> list[float]:
    """Return the times of `count` sequential requests, relative to the start."""
    begin = clock.seconds
    times: list[float] = []

    async def ask() -> None:
        for _ in range(count):
            assert await rate_limiter.wait_for_slot()
            times.append(round(clock.seconds - begin, 3))
            clock.seconds += each_takes
            rate_limiter.done()

    asyncio.run(ask())
    return times


def test_requests_are_spaced_from_the_end_of_the_previous_one(timer: FakeTime) -> None:
    assert request_times(timer.rate_limiter(PLAIN), timer, 3, each_takes=10) == [0, 13, 26]


def test_the_first_request_waits_for_the_stored_next_allowed_time(timer: FakeTime) -> None:
    assert request_times(timer.rate_limiter(PLAIN, NOON + 7 * SECOND), timer, 2) == [7, 10]


def test_a_next_allowed_time_in_the_past_is_not_waited_for(timer: FakeTime) -> None:
    assert request_times(timer.rate_limiter(PLAIN, NOON - MINUTE), timer, 1) == [0]


def test_a_published_rate_is_a_bucket_of_ten_that_fills_five_times_a_second(timer: FakeTime) -> None:
    assert request_times(timer.rate_limiter(BUCKET), timer, 13) == [0.0] * 10 + [0.2, 0.4, 0.6]


def test_a_bucket_never_holds_more_than_its_burst(timer: FakeTime) -> None:
    rate_limiter = timer.rate_limiter(BUCKET)
    request_times(rate_limiter, timer, 5)
    timer.seconds += 3600

    assert request_times(rate_limiter, timer, 11) == [0.0] * 10 + [0.2]


def test_an_empty_bucket_stays_empty_in_the_next_run(timer: FakeTime) -> None:
    rate_limiter = timer.rate_limiter(BUCKET)
    request_times(rate_limiter, timer, 10)

    following = timer.rate_limiter(BUCKET, NOON + rate_limiter.time_until_next())

    assert request_times(following, timer, 2) == [0.2, 0.4]


@pytest.mark.parametrize("pace", [PLAIN, BUCKET], ids=["plain", "bucket"])
def test_after_a_pause_nothing_goes_out_before_its_end(timer: FakeTime, pace: Pace) -> None:
    rate_limiter = timer.rate_limiter(pace)

    rate_limiter.pause(20)

    assert rate_limiter.wait_seconds() == pytest.approx(20)
    assert request_times(rate_limiter, timer, 2) == [20, 20 + pace.delay_seconds]


def test_a_pause_carries_over_to_the_next_run(timer: FakeTime) -> None:
    rate_limiter = timer.rate_limiter(BUCKET)
    rate_limiter.pause(20)

    following = timer.rate_limiter(BUCKET, NOON + rate_limiter.time_until_next())

    assert following.wait_seconds() == pytest.approx(20)


def test_a_short_pause_does_not_shorten_a_longer_one(timer: FakeTime) -> None:
    rate_limiter = timer.rate_limiter(PLAIN)

    rate_limiter.pause(20)
    rate_limiter.pause(5)

    assert rate_limiter.wait_seconds() == pytest.approx(20)


def test_repeated_pauses_grow_longer(timer: FakeTime) -> None:
    rate_limiter = timer.rate_limiter(PLAIN)
    pauses: list[float] = []
    for _ in range(4):
        rate_limiter.pause(1)
        pauses.append(rate_limiter.wait_seconds())
        timer.seconds += pauses[-1]
    rate_limiter.reset()
    rate_limiter.pause(1)

    assert pauses == [1, 2, 4, 8]
    assert rate_limiter.wait_seconds() == pytest.approx(1)


def test_a_pause_applies_to_requests_already_waiting_for_a_turn(timer: FakeTime) -> None:
    """Ten requests of a bucket ran at once; the others were still sent after the first 429."""

    async def pause_meanwhile(seconds: float) -> None:
        if not timer.slept:
            rate_limiter.pause(20)
        await timer.sleep(seconds)

    rate_limiter = RateLimiter(BUCKET, next_allowed_at=None, now=NOON, monotonic=timer, sleep=pause_meanwhile)
    request_times(rate_limiter, timer, 10)

    assert request_times(rate_limiter, timer, 1)[0] >= 20


def test_a_pause_that_is_too_long_is_not_waited_for(timer: FakeTime) -> None:
    rate_limiter = timer.rate_limiter(BUCKET)
    rate_limiter.pause(3600)

    assert not asyncio.run(rate_limiter.wait_for_slot(patience_seconds=30))

    assert timer.slept == []


def test_the_hosts_own_spacing_is_always_waited_for(timer: FakeTime) -> None:
    rate_limiter = timer.rate_limiter(Pace(delay_seconds=60))
    request_times(rate_limiter, timer, 1)

    assert asyncio.run(rate_limiter.wait_for_slot(patience_seconds=30))

    assert timer.slept == [60]


def test_a_host_is_paused_when_most_of_its_recent_requests_have_failed() -> None:
    health = HostHealth()

    pauses = [health.failed() for _ in range(60)]

    assert pauses[:27] == [None] * 27
    first, *later = [pause for pause in pauses if pause is not None]
    assert SHORTEST_BREAK_SECONDS <= first < 2 * SHORTEST_BREAK_SECONDS
    assert later == sorted(later)
    assert later[-1] == LONGEST_PAUSE_SECONDS


@pytest.mark.parametrize(("failures_in_ten", "is_paused"), [(5, False), (7, False), (9, True)])
def test_a_host_that_answers_often_enough_is_not_paused(failures_in_ten: int, is_paused: bool) -> None:
    health = HostHealth()
    for n in range(1_000):
        if n % 10 < failures_in_ten:
            health.failed()
        else:
            health.succeeded()

    assert health.is_failing == is_paused


def test_a_host_that_has_recovered_has_its_whole_error_budget_again() -> None:
    health = HostHealth(error_score=20.0, timed_out_at=NOON)
    for _ in range(200):
        health.succeeded()

    assert (health.error_score, health.timed_out_at, health.is_failing) == (0.0, None, False)


def test_the_health_of_a_host_is_stored_by_its_owner_alone(store: Store) -> None:
    lease(store, "a.test", "b.test")
    health = {host: HostHealth(error_score=3.5, timed_out_at=NOON) for host in ("a.test", "b.test")}
    release(store, {"b.test": NOON})
    with store.begin() as connection:
        store_health(connection, health, owner="one")
    release(store, {"a.test": NOON})

    leases = lease(store, "a.test", "b.test", owner="two")

    assert leases["a.test"] == Leased(next_allowed_at=NOON, error_score=3.5, timed_out_at=NOON)
    assert leases["b.test"] == Leased(next_allowed_at=NOON)
