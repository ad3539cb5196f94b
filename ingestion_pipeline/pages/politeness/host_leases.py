"""A redirect that leaves its host: the other host is leased, asked for its rules, and paced too."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.http.network import Network
from ingestion_pipeline.pages.politeness import hosts
from ingestion_pipeline.pages.politeness.hosts import (
    LONGEST_WAIT,
    HostBusy,
    Leased,
    Pace,
    RateLimiter,
    await_turn,
)
from ingestion_pipeline.pages.politeness.robots import (
    MAX_BYTES,
    MAX_REDIRECTS,
    HostRules,
    as_stored,
    from_stored,
    rules_of_answer,
    rules_when_unreachable,
)
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks.errors import (
    Fatal,
    Permanent,
    Resource,
    Transient,
    WorkError,
    classify,
)
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.urls import BadUrl, host_of, request_url, without_credentials

LONGEST_TURN = timedelta(seconds=5)  # a visit is held up by another host for no longer

Borrow = Callable[[str], Awaitable["HostLease"]]
"""The host is ours, or `Resource`: whoever redirects to it is asked again later."""


class RedirectLeases:
    """The hosts that the redirects of one visit lead to."""

    def __init__(
        self, *, borrow: Borrow, give_back: Callable[[str], None], clock: SteadyClock
    ) -> None:
        self._borrow = borrow
        self._give_back = give_back
        self._clock = clock

    async def follow(self, url: str, *, honours_robots: bool, until: AsyncExitStack) -> None:
        """Return when the URL may be asked for; its host is kept until the stack is left.

        What the stack held is let go first: nobody waits for one host while he keeps another.
        """
        await until.aclose()
        visited = await until.enter_async_context(self._kept(host_of(url)))
        if honours_robots:
            await visited.robots.admit(url)
        wait = timedelta(seconds=visited.pacer.wait_seconds())
        if wait > LONGEST_TURN:
            raise self._later(url, wait)
        try:
            async with asyncio.timeout(LONGEST_TURN.total_seconds()):
                await until.enter_async_context(turn_of(visited, url, clock=self._clock))
        except TimeoutError:
            raise self._later(url, LONGEST_TURN) from None

    def _later(self, url: str, wait: timedelta) -> Resource:
        said = f"{host_of(url)}, where a redirect leads, wants to be asked later"
        return Resource(said, until=self._clock.now() + wait, code="host_busy")

    @asynccontextmanager
    async def _kept(self, host: str) -> AsyncGenerator[HostLease]:
        visited = await self._borrow(host)
        try:
            yield visited
        except WorkError as error:
            if (pause := asked_pause(error, self._clock.now())) is not None:
                visited.pacer.hold_off(pause.total_seconds())
            raise
        finally:
            self._give_back(host)


@asynccontextmanager
async def turn_of(visited: HostLease, url: str, *, clock: SteadyClock) -> AsyncGenerator[None]:
    """The host may be asked, and is asked by no more at a time than its pace has a burst."""
    async with visited.slots:
        await await_turn(visited.pacer, url, clock=clock)
        try:
            yield
        finally:
            visited.pacer.done()


def asked_pause(failure: WorkError, now: datetime) -> timedelta | None:
    """How long the host wants to be left alone by everybody; None if it did not say so."""
    if isinstance(failure, Resource) and failure.code == "rate_limited":
        return failure.until - now
    if isinstance(failure, Transient) and failure.code == "http_503":
        return failure.retry_after
    return None


# What would hinder the page as well is the poll's own failure: a host that is gone for ever must
# open its breaker one day. So is everything transient; nothing is fetched either way.
_THE_PAGES_OWN = frozenset({"bad_url", "blocked_address", "tls"})


class HostRobots:
    """The rules of one visited host, by origin; `kept` is what its row said when it was leased."""

    def __init__(
        self,
        kept: Mapping[str, Any],
        *,
        fetcher: HttpFetcher,
        pacer: RateLimiter,
        elsewhere: RedirectLeases,
        clock: SteadyClock,
        longest_delay_seconds: float,
    ) -> None:
        self._agent = fetcher.user_agent
        self._fetcher = fetcher
        self._pacer = pacer
        self._elsewhere = elsewhere
        self._clock = clock
        self._longest_delay_seconds = longest_delay_seconds
        known = {origin: from_stored(stored, self._agent) for origin, stored in kept.items()}
        self._known = {origin: rules for origin, rules in known.items() if rules is not None}
        self._has_news = False
        self._one_asks = asyncio.Lock()

    async def admit(self, url: str) -> None:
        """The URL may be fetched, at the pace its host asks for; else `Resource` until it may."""
        try:
            origin = origin_of(url)
        except BadUrl as error:
            raise Permanent(str(error), code="bad_url") from error
        async with self._one_asks:
            rules, is_asked = self._fresh(origin), False
            if rules is None:
                rules, is_asked = await self._ask(origin), True
                self._known[origin] = rules
                self._has_news = True
        self._pacer.slow_down(self._delay_seconds(rules))
        self._check(url, rules)
        wait = timedelta(seconds=self._pacer.wait_seconds())
        if is_asked and wait > LONGEST_WAIT:
            said = f"robots.txt of {host_of(url)} asks for {wait.total_seconds():.0f} seconds"
            raise Resource(said, until=self._clock.now() + wait, code="crawl_delay")

    def check_known(self, url: str) -> None:
        """Raise unless rules that are known allow the URL; those of its host, if not its origin.

        For whoever cannot wait for a robots.txt: http and https of one host seldom differ in it.
        """
        rules = [self._fresh(origin_of(url)) or one for one in self._known.values()]
        for one in rules:
            self._check(url, one)

    def take_news(self, host: str) -> tuple[dict[str, Any], float | None] | None:
        """The rules and delay to keep in the host's row; None if it has them already."""
        if not self._has_news:
            return None
        self._has_news = False
        own = {origin: one for origin, one in self._known.items() if host_of(origin) == host}
        stored = {origin: as_stored(one, self._agent) for origin, one in own.items()}
        return stored, max(map(self._delay_seconds, own.values()), default=0.0) or None

    def _fresh(self, origin: str) -> HostRules | None:
        rules = self._known.get(origin)
        return rules if rules is not None and rules.are_fresh(now=self._clock.now()) else None

    def _check(self, url: str, rules: HostRules) -> None:
        if rules.is_closed:
            said = f"{rules.reason}: nothing is fetched from {host_of(url)}"
            raise Resource(said, until=rules.expires_at, code="robots_unavailable")
        robots = rules.robots
        rule = robots.decisive_rule(self._agent, request_url(url), in_any_order=True)
        if rule is not None and not rule.is_allowed:
            said = f"robots.txt of {host_of(url)} says {str(rule)[:200]!r}"
            raise Resource(
                f"{said}: {without_credentials(url)} is not fetched",
                until=rules.expires_at,
                code="blocked_by_robots",
            )

    def _delay_seconds(self, rules: HostRules) -> float:
        wished = rules.robots.delay_seconds(self._agent) or 0.0
        return min(wished, self._longest_delay_seconds)

    async def _ask(self, origin: str) -> HostRules:
        async with AsyncExitStack() as until:
            await until.enter_async_context(self._turn(origin))
            rules = await self._answer(origin, until)
        # A copy that expires during the pause which it asks for would never let a page through.
        pause = timedelta(seconds=2 * self._delay_seconds(rules))
        return replace(rules, expires_at=max(rules.expires_at, self._clock.now() + pause))

    @asynccontextmanager
    async def _turn(self, url: str) -> AsyncGenerator[None]:
        await await_turn(self._pacer, url, clock=self._clock)
        try:
            yield
        finally:
            self._pacer.done()

    async def _answer(self, origin: str, until: AsyncExitStack) -> HostRules:
        async def follow(url: str) -> None:
            """A hop is one more request, of this host or of one that somebody else may visit."""
            if host_of(url) == host_of(origin):
                await until.aclose()
                await until.enter_async_context(self._turn(url))
            else:
                await self._elsewhere.follow(url, honours_robots=False, until=until)

        try:
            start = await self._fetcher.fetch_start(
                f"{origin}/robots.txt",
                max_bytes=MAX_BYTES,
                max_redirects=MAX_REDIRECTS,
                check_redirect=follow,
            )
        except Permanent as error:
            now = self._clock.now()
            if error.code in _THE_PAGES_OWN:
                raise
            if error.code == "redirects":
                return rules_of_answer(302, {}, b"", now=now)
            return rules_when_unreachable(str(error), now=now)
        return rules_of_answer(start.status_code, start.headers, start.body, now=self._clock.now())


def origin_of(url: str) -> str:
    """What one robots.txt rules: scheme and host, with the port where it is not the scheme's."""
    scheme, _, rest = request_url(url).partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLease:
    """A host that is ours: how fast it may be asked, for what, and where it may send us on."""

    pacer: RateLimiter
    robots: HostRobots
    elsewhere: RedirectLeases
    slots: asyncio.Semaphore


class LeaseContext(Protocol):
    """What a run brings to the leases of its hosts; the engine's `RunContext` is one."""

    @property
    def store(self) -> Store:  # noqa: D102 - as its type says
        ...

    @property
    def settings(self) -> Settings:  # noqa: D102 - as its type says
        ...

    def pace(self, source: Source) -> Pace:
        """Return how fast a host may be asked for the source."""
        ...


class LeasedHosts:
    """Which hosts are visited now, and which were left but not yet released."""

    def __init__(
        self, shop: LeaseContext, worker: Worker, fetcher: HttpFetcher, clock: SteadyClock
    ) -> None:
        self._shop = shop
        self._worker = worker
        self._fetcher = fetcher
        self._clock = clock
        self._yielding: set[str] = set()
        if fetcher.network is None:
            fetcher.network = Network(
                shop.store,
                canary=shop.settings.fetch.canary,
                connect_seconds=shop.settings.fetch.connect_seconds,
            )
        self.network = fetcher.network
        self.visited: dict[str, HostLease] = {}
        self.left: dict[str, HostLease] = {}
        self._borrowed: dict[str, HostLease] = {}
        self._borrowers: Counter[str] = Counter()
        self._letting_go: set[str] = set()
        self._let_go = asyncio.Condition()

    @asynccontextmanager
    async def letting_go(self) -> AsyncGenerator[dict[str, HostLease]]:
        """The hosts that were left, to be released inside; nobody of this run takes one meanwhile.

        He would begin with what the row said before, and lose the lease under his feet.
        """
        left, self.left = self.left, {}
        self._letting_go |= left.keys()
        try:
            yield left
        finally:
            async with self._let_go:
                self._letting_go -= left.keys()
                self._let_go.notify_all()

    def known(self, host: str) -> HostLease | None:
        """The host as this run already has it: there is one pacer for each."""
        return self.visited.get(host) or self._borrowed.get(host) or self.left.get(host)

    async def _borrow(self, source: Source, host: str) -> HostLease:
        """The host is ours as long as a redirect to it takes; `Resource` if it cannot be had."""
        if (why := self.reason_to_leave(host)) is not None:
            raise why
        async with self._let_go:
            await self._let_go.wait_for(lambda: host not in self._letting_go)
        visited = self.known(host)
        if visited is None:
            # Not at the source's pace: what its platform publishes is said of its own host alone.
            lease = (await asyncio.to_thread(self.lease, {host: source}, is_its_own=False))[host]
            if isinstance(lease, HostBusy):
                said = f"{host}, where a redirect leads, is being visited by another run"
                raise Resource(said, until=lease.until, code="host_busy")
            visited = self.known(host) or lease  # another visit may have been quicker
        self.left.pop(host, None)  # else it would be released meanwhile
        self._borrowed[host] = visited
        self._borrowers[host] += 1
        return visited

    def _give_back(self, host: str) -> None:
        self._borrowers[host] -= 1
        if not self._borrowers[host]:
            visited = self._borrowed.pop(host)
            if host not in self.visited:
                self.left[host] = visited

    def lease(
        self, wanted: Mapping[str, Source], *, is_its_own: bool = True
    ) -> dict[str, HostLease | HostBusy]:
        """Each host, at the pace of the source that wants it; or until when another run has it."""
        if is_its_own:
            for host, source in wanted.items():
                if source.failure_count:
                    self.network.expect_failure(host)

        def act(connection: Connection) -> dict[str, Leased | HostBusy]:
            now = self._shop.store.clock.now(connection)
            return hosts.lease_hosts(
                connection, wanted.keys(), owner=self._worker.owner, now=now, lease=self._lease
            )

        leases = self._shop.store.write(act)
        return {
            host: lease
            if isinstance(lease, HostBusy)
            else self._opened(wanted[host], lease, is_its_own=is_its_own)
            for host, lease in leases.items()
        }

    def _opened(self, source: Source, lease: Leased, *, is_its_own: bool) -> HostLease:
        settings = self._shop.settings
        pace = self._shop.pace(source)
        if not is_its_own:
            pace = Pace(delay_seconds=max(pace.delay_seconds, settings.hosts.delay_seconds))
        pacer = RateLimiter(pace, next_allowed_at=lease.next_allowed_at, now=self._clock.now())
        elsewhere = RedirectLeases(
            borrow=partial(self._borrow, source), give_back=self._give_back, clock=self._clock
        )
        robots = HostRobots(
            lease.robots,
            fetcher=self._fetcher,
            pacer=pacer,
            elsewhere=elsewhere,
            clock=self._clock,
            longest_delay_seconds=settings.hosts.longest_crawl_delay_seconds,
        )
        slots = asyncio.Semaphore(pace.burst)
        return HostLease(pacer=pacer, robots=robots, elsewhere=elsewhere, slots=slots)

    @property
    def _lease(self) -> timedelta:
        # The heartbeat that renews it comes every third of the worker's lease.
        wished = timedelta(seconds=self._shop.settings.hosts.lease_seconds)
        return max(wished, self._worker.lease / 2)

    def renew(self) -> None:
        """With each heartbeat: the hosts stay ours, unless others have waited long enough."""
        mine = dict(self._borrowed) | dict(self.visited)  # copies, since this is another thread
        with self._shop.store.begin() as connection:
            now = self._shop.store.clock.now(connection)
            next_allowed = next_allowed_at(mine, self._shop.store, connection)
            hosts.lock_hosts(connection, mine)
            self._keep_robots(connection, mine, now=now)
            wanted = hosts.renew_hosts(
                connection,
                owner=self._worker.owner,
                now=now,
                lease=self._lease,
                next_allowed=next_allowed,
            )
            lost = hosts.lost_hosts(connection, mine, owner=self._worker.owner)
        patience = timedelta(seconds=self._shop.settings.hosts.yield_after_seconds)
        waited = {host for host, since in wanted.items() if now - since > patience}
        ours_still = {host for host in lost if host in self.visited or host in self._borrowed}
        self._yielding |= waited | ours_still

    def release(
        self,
        connection: Connection,
        left: Mapping[str, HostLease],
        next_allowed: Mapping[str, datetime],
        *,
        now: datetime,
    ) -> None:
        """The hosts are free; whoever comes next knows what we know."""
        hosts.lock_hosts(connection, left)
        self._keep_robots(connection, left, now=now)
        hosts.release_hosts(connection, next_allowed, owner=self._worker.owner)

    def let_go(self, left: Mapping[str, HostLease]) -> None:
        """The same in a transaction of its own; what cannot be released now ends with its lease."""

        def act(connection: Connection) -> None:
            now = self._shop.store.clock.now(connection)
            free = next_allowed_at(left, self._shop.store, connection)
            self.release(connection, left, free, now=now)

        try:
            self._shop.store.write(act)
        except SQLAlchemyError as error:
            if isinstance(classify(error), Fatal):
                raise
            log.warning("hosts were not released; their leases end", exc_info=True)

    def _keep_robots(
        self, connection: Connection, mine: Mapping[str, HostLease], *, now: datetime
    ) -> None:
        news = {host: one.robots.take_news(host) for host, one in mine.items()}
        told = {host: said for host, said in news.items() if said is not None}
        hosts.keep_robots(connection, told, owner=self._worker.owner, now=now)

    def reason_to_leave(self, host: str) -> Resource | None:
        """Why the host is not asked any more in this run, if so."""
        if host in self._yielding:
            later = self._clock.now() + timedelta(seconds=self._shop.settings.hosts.lease_seconds)
            return Resource(f"{host} was handed to another run", until=later, code="host_yielded")
        return None

    def reason_to_wait(self, host: str) -> Resource | None:
        """Why the next request to the host is left to a later run, if so."""
        wait = timedelta(seconds=self.visited[host].pacer.wait_seconds())
        if wait > LONGEST_WAIT:
            until = self._clock.now() + wait
            return Resource(f"{host} asked for a pause", until=until, code="rate_limited")
        return None


def next_allowed_at(
    mine: Mapping[str, HostLease], store: Store, connection: Connection
) -> dict[str, datetime]:
    """When each host may be asked next by others: not a moment too early.

    The time is asked for afterwards, since a process may be held up in between, and is the latest
    that it can be: an answer that was on its way for long is old.
    """
    rests = {host: one.pacer.rest() for host, one in mine.items()}
    latest = store.clock.latest(connection)
    return {host: latest + rest for host, rest in rests.items()}
