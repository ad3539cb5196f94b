"""Hosts: their leases in the database, the pace of a leased one, clock steps, and outages of our own network.

One run owns a host for a while, spaces its requests, and hands it on. `hosts.next_allowed_at` outlives the lease: the
earliest time of the next request (GCRA); every worker waits for it. When most hosts of a run fail, it is our network,
not the hosts.
"""

import asyncio
import errno
import logging
import math
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Text, Update, and_, exists, func, or_, select, update

from ingestion_pipeline.sources.scheduling.tiers import save_measurements
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.statements import Row, columns_of, insert_into, row_source
from ingestion_pipeline.store.tables import ACTIVE, hosts, measurements, runs, sources, tasks
from ingestion_pipeline.tasks.errors import Resource, Unreachable, WorkError
from ingestion_pipeline.tasks.task import TaskStatus


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
    """Spaces the requests to a leased host, by the monotonic clock, and holds what is known of its health."""

    def __init__(
        self,
        pace: Pace,
        *,
        next_allowed_at: datetime | None,
        now: datetime,
        health: HostHealth | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.pace = pace
        self.health = health or HostHealth()
        self._monotonic = monotonic
        self._sleep = sleep
        wait = (next_allowed_at - now).total_seconds() if next_allowed_at else 0.0
        self._next_at = monotonic() + max(wait, 0.0)  # as of GCRA: a burst may be ahead of it
        self._held_until = -math.inf
        self._ended = -math.inf
        self._pauses = 0
        self._requests = 0
        self._last_progress = 0.0
        self.waited_seconds = 0.0  # for slots, in total

    async def wait_for_slot(self, *, patience_seconds: float = math.inf) -> bool:
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
        earliest = self._next_at - (self.pace.burst - 1) * delay
        self._next_at = max(self._monotonic(), self._next_at) + delay
        return earliest

    def done(self) -> None:
        """Note the end of a request; without a burst the delay counts from here."""
        self._requests -= 1
        self._ended = self._last_progress = self._monotonic()
        if self.pace.burst == 1:
            self._next_at = max(self._next_at, self._ended + self.pace.delay_seconds)

    def unanswered_seconds(self) -> float:
        """Return for how long the host has answered none of the requests that wait for it."""
        return self._monotonic() - self._last_progress if self._requests > 0 else 0.0

    def slow_down(self, delay_seconds: float) -> None:
        """Space requests by at least this delay from the last one on, without bursts."""
        if delay_seconds > self.pace.delay_seconds:
            self.pace = Pace(delay_seconds=delay_seconds)
            self._next_at = max(self._next_at, self._ended + delay_seconds)

    def pause(self, seconds: float) -> None:
        """Send nothing for so many seconds, as the host asked.

        Without an answer in between each further pause is twice as long: a host that says "in a
        second" for ever is not requested every second for ever.
        """
        seconds = min(seconds * 2**self._pauses, max(seconds, LONGEST_PAUSE_SECONDS))
        self._pauses = min(self._pauses + 1, 30)
        pause = seconds + (self.pace.burst - 1) * self.pace.delay_seconds
        self._next_at = max(self._next_at, self._monotonic() + pause)
        self._held_until = max(self._held_until, self._monotonic() + seconds)

    def reset(self) -> None:
        """Start the next pause at its plain length again: the host has answered."""
        self._pauses = 0

    def wait_seconds(self) -> float:
        """Return how long a request would wait now."""
        ahead = (self.pace.burst - 1) * self.pace.delay_seconds
        return max(self._next_at - ahead - self._monotonic(), 0.0)

    def time_until_next(self) -> timedelta:
        """Return how long others must wait for their next request, as if this burst were used up."""
        return timedelta(seconds=max(self._next_at - self._monotonic(), 0.0))


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


NETWORK_DOWN = "network_down"
DOWN_SINCE = "network_down_since"  # measured value: when the last outage was first noticed
LEAST_HOSTS = 3  # fewer hosts may well be down together by chance
RECENT_SECONDS = 60.0  # earlier results of a run say nothing about the network now
RELEASED_FOR = timedelta(seconds=60)
LATELY = timedelta(minutes=5)  # released work comes back sooner, and renews it
OTHER_RUNS = timedelta(minutes=2)
CANARY_SECONDS = 10.0
CONNECT_SECONDS = 10.0  # to the canary
_CONNECT_CODES = ("dns", "connection", "timeout", NETWORK_DOWN)
_OUR_SIDE_ERRNOS = frozenset({errno.ENETUNREACH, errno.ENETDOWN})


class Network:
    """What one run learns about the network; `problem` is set once it is found to be down."""

    def __init__(self, store: Store, *, canary: str = "") -> None:
        self.problem: str | None = None
        self._store = store
        self._canary = canary
        self._canary_checked = -math.inf, False
        self._reached: dict[str, float] = {}
        self._unreachable: dict[str, float] = {}
        self._on_our_side: set[str] = set()
        self._failed_before: set[str] = set()
        self._pending: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._judging = asyncio.Lock()
        self._is_refuted = False

    def expect_failure(self, host: str) -> None:
        """Let a host whose source has failed before say nothing about the network."""
        self._failed_before.add(host)

    @contextmanager
    def attempt(self, host: str) -> Generator[None]:
        """Count the host as undecided until its fetch has an outcome."""
        self._pending[host] += 1
        try:
            yield
        finally:
            self._pending[host] -= 1
            self._changed.set()

    def reached(self, host: str) -> None:
        """Note that a connection to the host was made."""
        self._reached[host] = time.monotonic()
        self._unreachable.pop(host, None)
        self._on_our_side.discard(host)
        self._changed.set()

    def failed(self, host: str, error: Unreachable) -> None:
        """Note that no connection to the host could be made."""
        self._unreachable[host] = time.monotonic()
        self._reached.pop(host, None)
        if _is_on_our_side(error):
            self._on_our_side.add(host)
        self._changed.set()

    def released(self, now: datetime) -> Resource:
        """Return why the work of this run is released."""
        return Resource(self.problem or "network down", until=now + RELEASED_FOR, code=NETWORK_DOWN)

    async def explain(self, host: str, error: Unreachable) -> WorkError:
        """Return the error itself, or a `Resource` error if our own network is down."""
        is_evidence = host not in self._failed_before or bool(self._canary)
        if self.problem is None and is_evidence and not self._is_refuted:
            async with self._judging:
                if self.problem is None:
                    await self._judge()
        if self.problem is None:
            return error
        return self.released(await asyncio.to_thread(self._store.now))

    async def _judge(self) -> None:
        if self._canary:
            if not await self._canary_answers():
                await self._declare(f"no connection to the canary {self._canary}")
            return
        while not self._is_decided():
            self._changed.clear()
            await self._changed.wait()
        unreachable, reached, pending = self._votes()
        since = await asyncio.to_thread(self._down_since, unreachable, reached)
        if since is not None:
            tried = len(unreachable) + reached + pending
            await self._declare(f"no connection to {len(unreachable)} of {tried} hosts", since)

    def _votes(self) -> tuple[set[str], int, int]:
        """Return the unreachable hosts, and how many are reached and undecided."""
        recent = time.monotonic() - RECENT_SECONDS
        unreachable = {host for host, at in self._unreachable.items() if at > recent}
        unreachable -= self._failed_before
        reached = sum(at > recent for at in self._reached.values())
        decided = self._unreachable.keys() | self._reached.keys()
        pending = sum(n > 0 and host not in decided for host, n in self._pending.items())
        return unreachable, reached, pending

    def _is_decided(self) -> bool:
        unreachable, reached, pending = self._votes()
        is_up = len(unreachable) + pending <= reached
        is_down = len(unreachable) > reached + pending and len(unreachable) >= LEAST_HOSTS
        return is_up or is_down or not pending

    def _down_since(self, unreachable: set[str], reached: int) -> datetime | None:
        """Return since when the network is down; None if it is not."""
        count = len(unreachable)
        if count <= reached:
            return None
        first = min(self._unreachable[host] for host in unreachable)
        with self._store.read() as connection:
            now = self._store.clock.now(connection)
            known_since = _known_outage(connection, now=now)
            since = known_since or now - timedelta(seconds=time.monotonic() - first)
            succeeded = _succeeded(connection, since=since)
            if known_since is not None or count >= LEAST_HOSTS:
                # While as many other sources were polled well, these hosts are down and not we.
                self._is_refuted = succeeded >= count
                return None if self._is_refuted else since
            failing = count + _failing(connection, since=now - OTHER_RUNS)
            if failing >= LEAST_HOSTS:
                is_ours = failing > _succeeded(connection, since=now - OTHER_RUNS)
            else:
                is_ours = unreachable <= self._on_our_side and not succeeded
            return since if is_ours else None

    async def _canary_answers(self) -> bool:
        """Connect to the canary, unless that was tried a moment ago."""
        checked_at, answered = self._canary_checked
        if time.monotonic() - checked_at < CANARY_SECONDS:
            return answered
        host, _, port = self._canary.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.close()
            answered = True
        except OSError:  # a timeout is one
            answered = False
        self._canary_checked = time.monotonic(), answered
        return answered

    async def _declare(self, reason: str, since: datetime | None = None) -> None:
        if since is not None:
            await asyncio.to_thread(self._remember, since)
        self.problem = f"network down: {reason}; the work was released and no failure counted"
        log.error("%s", self.problem)

    def _remember(self, since: datetime) -> None:
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            save_measurements(connection, {DOWN_SINCE: since.timestamp()}, now=now)


def _is_on_our_side(error: BaseException | None) -> bool:
    """Return whether the cause is on our side: no route, or a name server that is silent."""
    while error is not None:
        if isinstance(error, socket.gaierror):
            return error.errno == socket.EAI_AGAIN
        if isinstance(error, OSError) and error.errno in _OUR_SIDE_ERRNOS:
            return True
        error = error.__cause__
    return False


def _known_outage(connection: Connection, *, now: datetime) -> datetime | None:
    """Return when an outage began that a run has met lately; None if there was none."""
    query = select(measurements.c.value, measurements.c.updated_at).where(measurements.c.name == DOWN_SINCE)
    row = connection.execute(query).one_or_none()
    if row is None or now - row.updated_at > LATELY:
        return None
    return datetime.fromtimestamp(row.value, UTC)


def _succeeded(connection: Connection, *, since: datetime) -> int:
    query = select(func.count()).select_from(sources).where(sources.c.last_success_at > since)
    return connection.execute(query).scalar_one()


def _failing(connection: Connection, *, since: datetime) -> int:
    """Count the sources that other work could not connect to since then."""
    query = select(func.count(tasks.c.source_id.distinct())).where(
        ACTIVE,
        tasks.c.status == TaskStatus.PENDING.value,
        tasks.c.error_code.in_(_CONNECT_CODES),
        tasks.c.updated_at > since,
    )
    return connection.execute(query).scalar_one()
