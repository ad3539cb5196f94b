"""Whether failures to connect are an outage of our own network, which is no source's fault.

One host that does not answer may be down; when most hosts of a run cannot be connected to, it is
more likely us. Such a failure becomes a `Resource` error: the work is released, no attempt and no
strike is counted, and the run ends with a message that says so.
"""

import asyncio
import errno
import logging
import math
import socket
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, func, select

from ingestion_pipeline.sources.scheduling.budget import save_measurements
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import ACTIVE, measurements, sources, tasks
from ingestion_pipeline.tasks.errors import Resource, Unreachable, WorkError
from ingestion_pipeline.tasks.task import TaskStatus

log = logging.getLogger(__name__)

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
    """Count the sources that were polled well since then."""
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
