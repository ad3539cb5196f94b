"""Host leases in the database, the rate limiter of a leased host, and repair of clock steps.

One run owns a host for a while, spaces its requests, and hands it on. `hosts.next_allowed_at` outlives the lease, so
that spacing and Retry-After hold for every worker. It is a theoretical arrival time: with a plain delay the next
request waits for it; with a published rate a burst may run ahead of it.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Text, Update, and_, exists, func, or_, select, update

from ingestion_pipeline.store.bulk import Row, columns_of, row_source
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import ACTIVE, hosts, runs, tasks
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline.urls import host_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a host may be requested: once each `delay_seconds`, `burst` of them at once."""

    delay_seconds: float
    burst: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """The host is leased, with its robots.txt rules by origin; the first request waits until `next_allowed_at`."""

    next_allowed_at: datetime | None
    robots: Mapping[str, Any] = field(default_factory=dict[str, Any])
    error_score: float = 0.0
    timed_out_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBusy:
    """Another run holds the host, at the longest until `until`."""

    until: datetime


LONGEST_WAIT = timedelta(seconds=30)  # after a longer pause the host is left to a later run


def lease_hosts(
    connection: Connection, names: Collection[str], *, owner: str, now: datetime, lease: timedelta
) -> dict[str, Leased | HostBusy]:
    """Lease each host to the owner; mark those that another run holds as wanted."""
    if not names:
        return {}
    input_rows = row_source(connection, {"host": Text()}, [(host,) for host in sorted(names)], "given")
    missing = select(input_rows.c.host).where(~exists().where(hosts.c.host == input_rows.c.host))
    row = insert_into(connection, hosts).from_select(["host"], missing.order_by(input_rows.c.host))
    connection.execute(row.on_conflict_do_nothing(index_elements=["host"]))
    lock_hosts(connection, names)
    is_free = or_(hosts.c.lease_owner.is_(None), hosts.c.lease_until <= now, hosts.c.lease_owner == owner)
    taken = connection.execute(
        update(hosts)
        .where(hosts.c.host.in_(list(names)), is_free)
        .values(lease_owner=owner, lease_until=now + lease, leased_at=now, requested_at=None)
        .returning(hosts.c.host, hosts.c.next_allowed_at, hosts.c.robots, hosts.c.error_score, hosts.c.timed_out_at)
    )
    leased: dict[str, Leased | HostBusy] = {
        row.host: Leased(
            next_allowed_at=row.next_allowed_at,
            robots=row.robots or {},
            error_score=row.error_score,
            timed_out_at=row.timed_out_at,
        )
        for row in taken
    }
    if busy := set(names) - leased.keys():
        requested = connection.execute(
            update(hosts)
            .where(hosts.c.host.in_(list(busy)))
            .values(requested_at=func.coalesce(hosts.c.requested_at, now))
            .returning(hosts.c.host, hosts.c.lease_until)
        )
        leased |= {host: HostBusy(until=until) for host, until in requested}
    return leased


def lock_hosts(connection: Connection, names: Collection[str]) -> None:
    """Lock the rows in one order, so that two runs with the same hosts cannot deadlock.

    A transaction of several steps locks all its hosts before the first step: those that a later
    step adds would come out of order.
    """
    if not names:
        return
    query = select(hosts.c.host).where(hosts.c.host.in_(list(names))).order_by(hosts.c.host)
    connection.execute(query.with_for_update()).all()


def renew_hosts(
    connection: Connection, *, owner: str, now: datetime, lease: timedelta, next_allowed: Mapping[str, datetime]
) -> dict[str, datetime]:
    """Extend the owner's leases; return the hosts others wait for, with when they were leased."""
    if not next_allowed:
        return {}
    rows = list(next_allowed.items())
    statement = _held_update(connection, ("next_allowed_at",), rows, owner=owner, lease_until=now + lease)
    renewed = connection.execute(statement.returning(hosts.c.host, hosts.c.leased_at, hosts.c.requested_at)).all()
    return {host: leased_at for host, leased_at, requested_at in renewed if requested_at is not None}


def release_hosts(connection: Connection, next_allowed: Mapping[str, datetime], *, owner: str) -> None:
    """Release the hosts; the next request to each waits until its given time."""
    if next_allowed:
        released = {"lease_owner": None, "lease_until": None}
        rows = list(next_allowed.items())
        connection.execute(_held_update(connection, ("next_allowed_at",), rows, owner=owner, **released))


def store_robots(
    connection: Connection,
    rules_by_host: Mapping[str, tuple[Mapping[str, Any], float | None]],
    *,
    owner: str,
    now: datetime,
) -> None:
    """Store the robots.txt rules and crawl delay of each host that the owner still holds."""
    if rules_by_host:
        names = ("robots", "crawl_delay_seconds")
        rows = [(host, *rules) for host, rules in rules_by_host.items()]
        connection.execute(_held_update(connection, names, rows, owner=owner, robots_fetched_at=now))


def store_health(connection: Connection, health: "Mapping[str, HostHealth]", *, owner: str) -> None:
    """Store the health of each host that the owner still holds."""
    if health:
        rows = [(host, state.error_score, state.timed_out_at) for host, state in health.items()]
        connection.execute(_held_update(connection, ("error_score", "timed_out_at"), rows, owner=owner))


def _held_update(
    connection: Connection, names: Sequence[str], rows: Sequence[Row], *, owner: str, **shared: object
) -> Update:
    """Lock the hosts; return the update of those that the owner still holds.

    A row has a host and the values of the named columns; the `shared` ones are equal for all hosts.
    """
    lock_hosts(connection, [row[0] for row in rows])
    input_rows = row_source(connection, columns_of(hosts, ("host", *names)), rows, "given")
    return (
        update(hosts)
        .where(hosts.c.host == input_rows.c.host, hosts.c.lease_owner == owner)
        .values({name: input_rows.c[name] for name in names} | shared)
    )


def release_owner(connection: Connection, *, owner: str, now: datetime) -> int:
    """Release the hosts of a dead worker; the spacing it last wrote still holds."""
    query = select(hosts.c.host).where(hosts.c.lease_owner == owner, hosts.c.lease_until > now)
    held = list(connection.execute(query).scalars())
    lock_hosts(connection, held)
    statement = update(hosts).where(hosts.c.host.in_(held), hosts.c.lease_owner == owner)
    return connection.execute(statement.values(lease_owner=None, lease_until=None)).rowcount


def lost_hosts(connection: Connection, mine: Collection[str], *, owner: str) -> set[str]:
    """Return those of these hosts that the owner has lost, because its heartbeat was late."""
    query = select(hosts.c.host).where(hosts.c.host.in_(list(mine)), hosts.c.lease_owner == owner)
    return set(mine) - set(connection.execute(query).scalars())


# A failure weighs 1, and 5 % less with every later request: a host whose requests all fail approaches 20.
ERROR_WEIGHT_KEPT = 0.95
# The error budget: about three quarters of the recent requests, at least 28 of them.
ERROR_BUDGET = 15.0
SHORTEST_BREAK_SECONDS = 60.0


class HostHealth:
    """The recent failures of a host, whoever requests it: its breaker opens when they exceed the error budget."""

    def __init__(self, *, error_score: float = 0.0, timed_out_at: datetime | None = None) -> None:
        self.error_score = error_score
        self.timed_out_at = timed_out_at
        self.has_changes = False

    @property
    def is_failing(self) -> bool:
        """Whether the error budget is used up."""
        return self.error_score >= ERROR_BUDGET

    def succeeded(self) -> None:
        """Note that the host answered."""
        if self.error_score or self.timed_out_at is not None:
            self.has_changes = True
            score = self.error_score * ERROR_WEIGHT_KEPT
            self.error_score, self.timed_out_at = (score if score > 0.01 else 0.0), None  # noqa: PLR2004 - as good as none

    def failed(self, *, timed_out_at: datetime | None = None) -> float | None:
        """Note a failed request; return for how many seconds to pause the host, if the budget is used up.

        The pause is a minute at first, and doubles with about each failed request after it, up to an hour.
        """
        self.has_changes = True
        self.error_score = self.error_score * ERROR_WEIGHT_KEPT + 1
        self.timed_out_at = timed_out_at
        if not self.is_failing:
            return None
        return min(SHORTEST_BREAK_SECONDS * 2 ** (4 * (self.error_score - ERROR_BUDGET)), LONGEST_PAUSE_SECONDS)


LONGEST_PAUSE_SECONDS = 3_600.0  # unless the host itself asks for more


class RateLimiter:
    """Spaces the requests to a leased host, by the monotonic clock."""

    def __init__(
        self,
        pace: Pace,
        *,
        next_allowed_at: datetime | None,
        now: datetime,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.pace = pace
        self._monotonic = monotonic
        self._sleep = sleep
        wait = (next_allowed_at - now).total_seconds() if next_allowed_at else 0.0
        self._arrival = monotonic() + max(wait, 0.0)
        self._held_until = -math.inf
        self._ended = -math.inf
        self._pauses = 0
        self._requests = 0
        self._last_progress = 0.0
        self.waited_seconds = 0.0  # for turns, in total

    async def turn(self, *, patience_seconds: float = math.inf) -> bool:
        """Wait for the next request and book it; return False if a pause lasts longer.

        A pause that the host asks for meanwhile applies to those who wait already.
        """
        while self._held_until - self._monotonic() <= patience_seconds:
            earliest, held_until, began = self._book(), self._held_until, self._monotonic()
            while (wait := earliest - self._monotonic()) > 0:
                await self._sleep(wait)
            self.waited_seconds += self._monotonic() - began
            if held_until == self._held_until:
                self._requests += 1
                self._last_progress = self._monotonic()
                return True
        return False

    def _book(self) -> float:
        """Return the time of the next request, and move the one after it."""
        delay = self.pace.delay_seconds
        earliest = self._arrival - (self.pace.burst - 1) * delay
        self._arrival = max(self._monotonic(), self._arrival) + delay
        return earliest

    def done(self) -> None:
        """Note the end of a request; without a burst the delay counts from here."""
        self._requests -= 1
        self._ended = self._last_progress = self._monotonic()
        if self.pace.burst == 1:
            self._arrival = max(self._arrival, self._ended + self.pace.delay_seconds)

    def unanswered_seconds(self) -> float:
        """Return for how long the host has answered none of the requests that wait for it."""
        return self._monotonic() - self._last_progress if self._requests > 0 else 0.0

    def slow_down(self, delay_seconds: float) -> None:
        """Space requests by at least this delay from the last one on, without bursts."""
        if delay_seconds > self.pace.delay_seconds:
            self.pace = Pace(delay_seconds=delay_seconds)
            self._arrival = max(self._arrival, self._ended + delay_seconds)

    def pause(self, seconds: float) -> None:
        """Send nothing for so many seconds, as the host asked.

        Without an answer in between each further pause is twice as long: a host that says "in a
        second" for ever is not requested every second for ever.
        """
        seconds = min(seconds * 2**self._pauses, max(seconds, LONGEST_PAUSE_SECONDS))
        self._pauses = min(self._pauses + 1, 30)
        pause = seconds + (self.pace.burst - 1) * self.pace.delay_seconds
        self._arrival = max(self._arrival, self._monotonic() + pause)
        self._held_until = max(self._held_until, self._monotonic() + seconds)

    def reset(self) -> None:
        """Start the next pause at its plain length again: the host has answered."""
        self._pauses = 0

    def wait_seconds(self) -> float:
        """Return how long a request would wait now."""
        ahead = (self.pace.burst - 1) * self.pace.delay_seconds
        return max(self._arrival - ahead - self._monotonic(), 0.0)

    def rest(self) -> timedelta:
        """Return how long it is until the arrival time."""
        return timedelta(seconds=max(self._arrival - self._monotonic(), 0.0))


async def await_turn(rate_limiter: RateLimiter, url: str, *, clock: SteadyClock) -> None:
    """Return when the URL's host may be requested; raise `Resource` if its pause is long."""
    if not await rate_limiter.turn(patience_seconds=LONGEST_WAIT.total_seconds()):
        until = clock.now() + timedelta(seconds=rate_limiter.wait_seconds())
        raise Resource(f"{host_of(url)} asked for a pause", until=until, code="rate_limited")


log = logging.getLogger(__name__)

TOLERANCE = timedelta(minutes=2)  # clocks of machines differ and are adjusted by seconds


def clock_set_back(connection: Connection, *, now: datetime) -> timedelta | None:
    """Return by how much the newest run or open task is dated ahead of the clock, if it is."""
    queries = (
        select(func.max(runs.c.started_at)),
        select(func.max(tasks.c.updated_at)).where(ACTIVE),  # ended tasks delay nothing
    )
    newest = [connection.execute(query).scalar() for query in queries]
    ahead = max((at - now for at in newest if at is not None), default=timedelta())
    return ahead if ahead > TOLERANCE else None


def repair_clock_step(connection: Connection, *, now: datetime, longest_lease: timedelta) -> int:
    """Free leases and make due what was written before the clock was set back; how many tasks."""
    future = now + TOLERANCE
    query = select(runs.c.run_id).where(runs.c.started_at > future).limit(1)
    if connection.execute(query).first() is None:  # cheap: each step of a run calls this
        return 0
    mended = _repair_tasks(connection, now=now, unrenewed=future + longest_lease)
    _repair_hosts(connection, now=now, unrenewed=future + longest_lease)
    is_over = or_(runs.c.ended_at.is_not(None), runs.c.lease_until > runs.c.started_at)
    connection.execute(update(runs).where(runs.c.started_at > future, is_over).values(started_at=now, lease_until=now))
    log.warning("clock was set back tasks_due_again=%d", mended)
    return mended


def _repair_tasks(connection: Connection, *, now: datetime, unrenewed: datetime) -> int:
    is_waiting = and_(tasks.c.status == TaskStatus.PENDING.value, tasks.c.not_before > now)
    is_held = and_(tasks.c.status == TaskStatus.PROCESSING.value, tasks.c.lease_until > unrenewed)
    due = {"not_before": now, "updated_at": now}
    changed = 0
    for those, values in ((is_waiting, due), (is_held, due | {"lease_until": now - timedelta(seconds=1)})):
        dated_ahead = select(tasks.c.id).where(ACTIVE, tasks.c.updated_at > now + TOLERANCE, those)
        locked = dated_ahead.order_by(tasks.c.id).with_for_update().cte("locked")  # in the order used everywhere
        statement = update(tasks).where(tasks.c.id.in_(select(locked.c.id))).values(values)
        changed += connection.execute(statement).rowcount
    return changed


def _repair_hosts(connection: Connection, *, now: datetime, unrenewed: datetime) -> None:
    is_free = or_(hosts.c.lease_owner.is_(None), hosts.c.lease_until > unrenewed)
    query = select(hosts.c.host).where(hosts.c.leased_at > now + TOLERANCE, is_free)
    dated_ahead = list(connection.execute(query).scalars())
    lock_hosts(connection, dated_ahead)
    nothing = {"lease_owner": None, "lease_until": None, "leased_at": None, "next_allowed_at": None}
    connection.execute(update(hosts).where(hosts.c.host.in_(dated_ahead)).values(nothing))
