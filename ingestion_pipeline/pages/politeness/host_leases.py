"""Leases of hosts for one run: pacing, robots.txt, hosts that redirects lead to, and the fetch that honours them."""

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.pages.http.fetcher import Check, HttpFetcher
from ingestion_pipeline.pages.http.request import Answer, Request, Start, status_error
from ingestion_pipeline.pages.politeness import hosts
from ingestion_pipeline.pages.politeness.rights import MAX_TDMREP_BYTES, TDMREP_PATH, site_rights, tdm_rules
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
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline.tasks.errors import Fatal, Permanent, Resource, Transient, WorkError, classify
from ingestion_pipeline.urls import BadUrl, host_of, request_url, without_credentials

LONGEST_REDIRECT_WAIT = timedelta(seconds=5)  # for the host that it leads to
YIELD_AFTER = timedelta(minutes=1)  # a host that others wait for for longer is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class RedirectLeases:
    """Leases of the hosts that redirects from one leased host lead to.

    `acquire` raises `Resource` where the redirecting page is to be fetched again later.
    """

    acquire: Callable[[str], Awaitable["HostLease"]]
    release: Callable[[str], None]
    clock: SteadyClock

    async def follow(self, url: str, *, honours_robots: bool, until: AsyncExitStack) -> None:
        """Return when the URL may be requested; its host stays leased until the stack is closed.

        Earlier leases of the stack are released first: nobody waits for a host while holding another.
        """
        await until.aclose()
        lease = await until.enter_async_context(self._held(host_of(url)))
        if honours_robots:
            await lease.robots.admit(url)
        wait = timedelta(seconds=lease.rate_limiter.wait_seconds())
        if wait > LONGEST_REDIRECT_WAIT:
            raise self._later(url, wait)
        try:
            async with asyncio.timeout(LONGEST_REDIRECT_WAIT.total_seconds()):
                await until.enter_async_context(paced_request(lease, url, clock=self.clock))
        except TimeoutError:
            raise self._later(url, LONGEST_REDIRECT_WAIT) from None

    def _later(self, url: str, wait: timedelta) -> Resource:
        message = f"{host_of(url)}, the target of a redirect, may not be requested soon enough"
        return Resource(message, until=self.clock.now() + wait, code="host_busy")

    @asynccontextmanager
    async def _held(self, host: str) -> "AsyncGenerator[HostLease]":
        lease = await self.acquire(host)
        try:
            yield lease
        finally:
            self.release(host)


@asynccontextmanager
async def paced_request(lease: "HostLease", url: str, *, clock: SteadyClock) -> AsyncGenerator[None]:
    """Wait until the leased host may be requested, and note how the request inside ends.

    At most as many requests run at a time as the host's pace has a burst.
    """
    async with lease.slots, _paced_request(lease.rate_limiter, url, clock=clock):
        yield


@asynccontextmanager
async def _paced_request(rate_limiter: hosts.RateLimiter, url: str, *, clock: SteadyClock) -> AsyncGenerator[None]:
    if not await rate_limiter.wait_for_slot(patience_seconds=hosts.LONGEST_WAIT.total_seconds()):
        until = clock.now() + timedelta(seconds=rate_limiter.wait_seconds())
        raise Resource(f"{host_of(url)} asked for a pause", until=until, code="rate_limited")
    try:
        yield
    except WorkError as error:
        _note_failure(rate_limiter, error, now=clock.now())
        raise
    else:
        rate_limiter.reset()
        rate_limiter.health.succeeded()
    finally:
        rate_limiter.done()


def _note_failure(rate_limiter: hosts.RateLimiter, error: WorkError, *, now: datetime) -> None:
    """Pause the host if it asked for that, or if too many of its recent requests failed."""
    is_of_host = error.code in {"timeout", "connection", "dns"} or error.code.startswith("http_5")
    if (requested := _requested_pause(error, now)) is not None:
        rate_limiter.pause(requested.total_seconds())
    elif isinstance(error, Transient) and is_of_host:
        pause_seconds = rate_limiter.health.failed(timed_out_at=now if error.code == "timeout" else None)
        if pause_seconds is not None:
            rate_limiter.pause(pause_seconds)
    elif isinstance(error, Permanent):
        rate_limiter.health.succeeded()


def _requested_pause(failure: WorkError, now: datetime) -> timedelta | None:
    """Return how long the host asks everybody to pause; None if it did not."""
    if isinstance(failure, Resource) and failure.code == "rate_limited":
        return failure.until - now
    if isinstance(failure, Transient) and failure.code == "http_503":
        return failure.retry_after
    return None


# Errors that the page itself would meet are failures of the poll: a host that is gone for good
# must open its breaker one day. So is everything transient; nothing is fetched either way.
_PAGE_ERROR_CODES = frozenset({"bad_url", "blocked_address", "tls"})


class HostRobots:
    """The robots.txt rules of one leased host, by origin, starting with those its row stored."""

    def __init__(
        self,
        stored_rules: Mapping[str, Any],
        *,
        fetcher: HttpFetcher,
        rate_limiter: hosts.RateLimiter,
        redirect_leases: RedirectLeases,
        longest_delay_seconds: float,
        reads_tdm: bool = False,
    ) -> None:
        self._reads_tdm = reads_tdm
        self._agent = fetcher.user_agent
        self._fetcher = fetcher
        self._rate_limiter = rate_limiter
        self._redirect_leases = redirect_leases
        self._clock = redirect_leases.clock
        self._longest_delay_seconds = longest_delay_seconds
        rules_by_origin = {origin: from_stored(stored, self._agent) for origin, stored in stored_rules.items()}
        self._rules = {origin: rules for origin, rules in rules_by_origin.items() if rules is not None}
        self._has_changes = False
        self._fetch_lock = asyncio.Lock()

    async def admit(self, url: str) -> None:
        """Slow down to the crawl delay; raise `Resource` unless the URL may be fetched."""
        try:
            origin = origin_of(url)
        except BadUrl as error:
            raise Permanent(str(error), code="bad_url") from error
        async with self._fetch_lock:
            rules, is_fetched = self._fresh(origin), False
            if rules is None:
                rules, is_fetched = await self._fetch_rules(origin), True
                self._rules[origin] = rules
                self._has_changes = True
        self._rate_limiter.slow_down(self._delay_seconds(rules))
        self._check(url, rules)
        wait = timedelta(seconds=self._rate_limiter.wait_seconds())
        if is_fetched and wait > hosts.LONGEST_WAIT:
            message = f"robots.txt of {host_of(url)} asks for {wait.total_seconds():.0f} seconds"
            raise Resource(message, until=self._clock.now() + wait, code="crawl_delay")

    def check_cached(self, url: str) -> None:
        """Raise unless cached rules allow the URL; those of its host if its origin has none.

        For callers that cannot wait for a robots.txt: http and https of one host seldom differ in it.
        """
        for cached_rules in self._rules.values():
            self._check(url, self._fresh(origin_of(url)) or cached_rules)

    def rights(self, url: str) -> dict[str, str]:
        """Return what the site's files say about the use of the page by machines."""
        rules = self._rules.get(origin_of(url))
        if rules is None:
            return {}
        parts = urlsplit(url)
        path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        return site_rights(path, signal=rules.robots.group(self._agent).signal, tdm=rules.tdm)

    def take_changes(self, host: str) -> tuple[dict[str, Any], float | None] | None:
        """Return the rules and delay to store in the host's row; None if they are stored."""
        if not self._has_changes:
            return None
        self._has_changes = False
        own = {origin: host_rules for origin, host_rules in self._rules.items() if host_of(origin) == host}
        stored = {origin: as_stored(host_rules, self._agent) for origin, host_rules in own.items()}
        return stored, max(map(self._delay_seconds, own.values()), default=0.0) or None

    def _fresh(self, origin: str) -> HostRules | None:
        rules = self._rules.get(origin)
        return rules if rules is not None and rules.are_fresh(now=self._clock.now()) else None

    def _check(self, url: str, rules: HostRules) -> None:
        if rules.is_closed:
            message = f"{rules.reason}: nothing is fetched from {host_of(url)}"
            raise Resource(message, until=rules.expires_at, code="robots_unavailable")
        rule = rules.robots.decisive_rule(self._agent, request_url(url), in_any_order=True)
        if rule is not None and not rule.is_allowed:
            message = f"robots.txt of {host_of(url)} says {str(rule)[:200]!r}"
            raise Resource(
                f"{message}: {without_credentials(url)} is not fetched",
                until=rules.expires_at,
                code="blocked_by_robots",
            )

    def _delay_seconds(self, rules: HostRules) -> float:
        requested = rules.robots.delay_seconds(self._agent) or 0.0
        return min(requested, self._longest_delay_seconds)

    async def _fetch_rules(self, origin: str) -> HostRules:
        rules: HostRules | None = None
        try:
            async with AsyncExitStack() as until:
                start = await self._request_file(origin, until)
                now = self._clock.now()
                rules = rules_of_answer(start.status_code, start.headers, start.body, now=now)
                refusal = status_error(start.status_code, start.headers, origin, now)
                if refusal is not None and "retry-after" in start.headers:
                    raise refusal  # pauses the host that answered, also for sources that ignore its rules
        except WorkError as error:
            rules = rules or self._rules_after(error)
        if self._reads_tdm and not rules.is_closed:
            rules = replace(rules, tdm=await self._fetch_tdm(origin))
        # Rules that expire during the crawl delay they ask for would never admit a page.
        pause = timedelta(seconds=2 * self._delay_seconds(rules))
        return replace(rules, expires_at=max(rules.expires_at, self._clock.now() + pause))

    async def _fetch_tdm(self, origin: str) -> Sequence[Sequence[str]]:
        """Return the rules of the site's tdmrep.json; none of a file that cannot be read."""
        try:
            async with AsyncExitStack() as until:
                start = await self._request_file(origin, until, path=TDMREP_PATH, max_bytes=MAX_TDMREP_BYTES)
        except WorkError as error:
            log.debug("tdmrep.json not read origin=%s: %s", origin, error)
            return ()
        return tdm_rules(start.body) if start.status_code == 200 else ()  # noqa: PLR2004

    async def _request_file(
        self, origin: str, until: AsyncExitStack, *, path: str = "/robots.txt", max_bytes: int = MAX_BYTES
    ) -> Start:
        async def follow(url: str) -> None:
            """Wait until the redirect's host may be requested: a hop is one more request."""
            if host_of(url) == host_of(origin):
                await until.aclose()
                await self._wait(url, until)
            else:
                await self._redirect_leases.follow(url, honours_robots=False, until=until)

        await self._wait(origin, until)
        return await self._fetcher.fetch_start(
            f"{origin}{path}", max_bytes=max_bytes, max_redirects=MAX_REDIRECTS, check_redirect=follow
        )

    async def _wait(self, url: str, until: AsyncExitStack) -> None:
        await until.enter_async_context(_paced_request(self._rate_limiter, url, clock=self._clock))

    def _rules_after(self, error: WorkError) -> HostRules:
        """Return the rules of a host whose robots.txt cannot be read; raise what its pages would meet as well."""
        if not isinstance(error, Permanent) or error.code in _PAGE_ERROR_CODES:
            raise error
        if error.code == "redirects":
            return rules_of_answer(302, {}, b"", now=self._clock.now())
        return rules_when_unreachable(str(error), now=self._clock.now())


def origin_of(url: str) -> str:
    """Return scheme and host that one robots.txt applies to, with a port other than the default."""
    scheme, _, rest = request_url(url).partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLease:
    """A host leased by this run: its rate limiter, its robots.txt rules and its redirect leases."""

    rate_limiter: hosts.RateLimiter
    robots: HostRobots
    redirect_leases: RedirectLeases
    slots: asyncio.Semaphore


class LeaseContext(Protocol):
    """What the host leases need from a run; the engine's `RunContext` is one."""

    @property
    def store(self) -> Store: ...  # noqa: D102 - as its type says
    @property
    def settings(self) -> Settings: ...  # noqa: D102 - as its type says
    def pace(self, source: Source) -> hosts.Pace: ...  # noqa: D102 - how fast a host may be requested for the source


class LeasedHosts:
    """The hosts that this run uses (`active`), and those finished but not released yet (`idle`)."""

    def __init__(self, ctx: LeaseContext, worker: Worker, fetcher: HttpFetcher, clock: SteadyClock) -> None:
        self._ctx = ctx
        self._worker = worker
        self._fetcher = fetcher
        self._clock = clock
        self._yielding: set[str] = set()
        if fetcher.network is None:
            fetcher.network = hosts.Network(ctx.store, canary=ctx.settings.fetch.canary)
        self.network = fetcher.network
        self.active: dict[str, HostLease] = {}
        self.idle: dict[str, HostLease] = {}
        self._redirect_hosts: dict[str, HostLease] = {}
        self._redirect_users: Counter[str] = Counter()
        self._releasing: set[str] = set()
        self._released = asyncio.Condition()

    @asynccontextmanager
    async def releasing(self) -> AsyncGenerator[dict[str, HostLease]]:
        """Yield the finished hosts, to be released inside; this run leases none meanwhile.

        A lease taken meanwhile would start from the old row, and be lost by the release.
        """
        idle, self.idle = self.idle, {}
        self._releasing |= idle.keys()
        try:
            yield idle
        finally:
            async with self._released:
                self._releasing -= idle.keys()
                self._released.notify_all()

    def existing_lease(self, host: str) -> HostLease | None:
        """Return the lease this run already has of the host: there is one rate limiter for each."""
        return self.active.get(host) or self._redirect_hosts.get(host) or self.idle.get(host)

    async def _acquire(self, source: Source, host: str) -> HostLease:
        """Lease the host for the time of a redirect; raise `Resource` if it cannot be leased."""
        if (reason := self.reason_to_leave(host)) is not None:
            raise reason
        async with self._released:
            await self._released.wait_for(lambda: host not in self._releasing)
        host_lease = self.existing_lease(host)
        if host_lease is None:
            # Not at the source's pace: a published rate applies to the platform's own host only.
            lease = (await asyncio.to_thread(self.lease, {host: source}, is_its_own=False))[host]
            if isinstance(lease, hosts.HostBusy):
                message = f"{host}, the target of a redirect, is leased by another run"
                raise Resource(message, until=lease.until, code="host_busy")
            host_lease = self.existing_lease(host) or lease  # another request may have been quicker
        self.idle.pop(host, None)  # or it would be released meanwhile
        self._redirect_hosts[host] = host_lease
        self._redirect_users[host] += 1
        return host_lease

    def _release_redirect(self, host: str) -> None:
        self._redirect_users[host] -= 1
        if not self._redirect_users[host]:
            host_lease = self._redirect_hosts.pop(host)
            if host not in self.active:
                self.idle[host] = host_lease

    def lease(
        self, sources_by_host: Mapping[str, Source], *, is_its_own: bool = True
    ) -> dict[str, HostLease | hosts.HostBusy]:
        """Lease each host at the pace of its source; `HostBusy` for one that another run holds."""
        if is_its_own:
            for host, source in sources_by_host.items():
                if source.failure_count:
                    self.network.expect_failure(host)

        def act(connection: Connection) -> dict[str, hosts.Leased | hosts.HostBusy]:
            now = self._ctx.store.clock.now(connection)
            return hosts.lease_hosts(
                connection, sources_by_host.keys(), owner=self._worker.owner, now=now, lease=self._lease
            )

        return {
            host: self._opened(host, sources_by_host[host], lease, is_its_own=is_its_own)
            for host, lease in self._ctx.store.write(act).items()
        }

    def _opened(
        self, host: str, source: Source, lease: hosts.Leased | hosts.HostBusy, *, is_its_own: bool
    ) -> HostLease | hosts.HostBusy:
        if isinstance(lease, hosts.HostBusy):
            return lease
        settings = self._ctx.settings
        if lease.timed_out_at is not None:
            self._fetcher.slow_hosts.add(host)
        pace = self._ctx.pace(source)
        if not is_its_own:
            pace = hosts.Pace(delay_seconds=max(pace.delay_seconds, settings.hosts.delay_seconds))
        health = hosts.HostHealth(error_score=lease.error_score, timed_out_at=lease.timed_out_at)
        now = self._clock.now()
        rate_limiter = hosts.RateLimiter(pace, next_allowed_at=lease.next_allowed_at, now=now, health=health)
        redirect_leases = RedirectLeases(
            acquire=partial(self._acquire, source), release=self._release_redirect, clock=self._clock
        )
        robots = HostRobots(
            lease.robots,
            fetcher=self._fetcher,
            rate_limiter=rate_limiter,
            redirect_leases=redirect_leases,
            longest_delay_seconds=settings.hosts.longest_crawl_delay_seconds,
            reads_tdm=settings.rights.honour and settings.has_model,
        )
        slots = asyncio.Semaphore(pace.burst)
        return HostLease(rate_limiter=rate_limiter, robots=robots, redirect_leases=redirect_leases, slots=slots)

    @property
    def _lease(self) -> timedelta:
        # The heartbeat that renews it comes every third of the worker's lease.
        configured = timedelta(seconds=self._ctx.settings.hosts.lease_seconds)
        return max(configured, self._worker.lease / 2)

    def renew(self) -> None:
        """Renew the hosts with each heartbeat; give up those that others have waited for long."""
        # Copies: this runs in another thread.
        mine = dict(self._redirect_hosts) | dict(self.active)
        with self._ctx.store.begin() as connection:
            now = self._ctx.store.clock.now(connection)
            next_allowed = next_allowed_at(mine, self._ctx.store, connection)
            hosts.lock_hosts(connection, mine)
            self._store_robots(connection, mine, now=now)
            waited_for = hosts.renew_hosts(
                connection, owner=self._worker.owner, now=now, lease=self._lease, next_allowed=next_allowed
            )
            lost = hosts.lost_hosts(connection, mine, owner=self._worker.owner)
        self._yielding |= {host for host, since in waited_for.items() if now - since > YIELD_AFTER}
        self._yielding |= {host for host in lost if host in self.active or host in self._redirect_hosts}

    def release(
        self,
        connection: Connection,
        idle: Mapping[str, HostLease],
        next_allowed: Mapping[str, datetime],
        *,
        now: datetime,
    ) -> None:
        """Release the hosts and store their robots.txt rules and next allowed times."""
        hosts.lock_hosts(connection, idle)
        self._store_robots(connection, idle, now=now)
        health = {host: lease.rate_limiter.health for host, lease in idle.items()}
        changed = {host: state for host, state in health.items() if state.has_changes}
        hosts.store_health(connection, changed, owner=self._worker.owner)
        hosts.release_hosts(connection, next_allowed, owner=self._worker.owner)

    def release_in_own_transaction(self, idle: Mapping[str, HostLease]) -> None:
        """Release the hosts in a separate transaction; if that fails, their leases expire."""

        def act(connection: Connection) -> None:
            now = self._ctx.store.clock.now(connection)
            self.release(connection, idle, next_allowed_at(idle, self._ctx.store, connection), now=now)

        try:
            self._ctx.store.write(act)
        except SQLAlchemyError as error:
            if isinstance(classify(error), Fatal):
                raise
            log.warning("hosts not released; their leases stay until they expire", exc_info=True)

    def _store_robots(self, connection: Connection, mine: Mapping[str, HostLease], *, now: datetime) -> None:
        changes = {host: host_lease.robots.take_changes(host) for host, host_lease in mine.items()}
        changed = {host: rules for host, rules in changes.items() if rules is not None}
        hosts.store_robots(connection, changed, owner=self._worker.owner, now=now)

    def reason_to_leave(self, host: str) -> Resource | None:
        """Return why this run makes no further requests to the host; None if it may."""
        if host in self._yielding:
            later = self._clock.now() + timedelta(seconds=self._ctx.settings.hosts.lease_seconds)
            return Resource(f"{host} was handed to another run", until=later, code="host_yielded")
        return None

    def reason_to_wait(self, host: str) -> Resource | None:
        """Return why the next request to the host is left to a later run; None if it is not."""
        lease = self.active[host]
        wait = timedelta(seconds=lease.rate_limiter.wait_seconds())
        if wait > hosts.LONGEST_WAIT:
            until = self._clock.now() + wait
            if lease.rate_limiter.health.is_failing:
                return Resource(f"most requests to {host} have failed; it is paused", until=until, code="host_failing")
            return Resource(f"{host} asked for a pause", until=until, code="rate_limited")
        return None


def next_allowed_at(mine: Mapping[str, HostLease], store: Store, connection: Connection) -> dict[str, datetime]:
    """Return when others may request each host, never too early.

    The time is read afterwards, since the process may be held up in between, and it is the latest
    possible time: a slow answer of the database is old when it arrives.
    """
    times = {host: lease.rate_limiter.time_until_next() for host, lease in mine.items()}
    latest = store.clock.latest(connection)
    return {host: latest + time for host, time in times.items()}


@dataclass(frozen=True, slots=True)
class PacedFetch:
    """Fetches pages of the leased host `own`; a redirect to another host leases that host first."""

    fetcher: HttpFetcher
    own: str
    host: HostLease
    robots: HostRobots | None
    clock: SteadyClock

    async def __call__(
        self, request: Request, *, now: datetime | None = None, check_redirect: Check | None = None
    ) -> Answer:
        """Fetch as soon as the host may be requested; `check_redirect` may refuse a hop first."""
        async with AsyncExitStack() as until:
            held = host_of(request.url)
            if held == self.own:
                await self._request_own(request.url, until)
            else:
                await self._request_other(request.url, until)

            async def follow(url: str) -> None:
                nonlocal held
                if check_redirect is not None and inspect.isawaitable(check := check_redirect(url)):
                    await check
                if not held == host_of(url) == self.own:  # each host at its own pace
                    held = host_of(url)
                    await self._request_other(url, until)
                else:  # a hop is one more request of the host
                    await until.aclose()
                    await self._request_own(url, until)

            return await self.fetcher.fetch(request, now=now or self.clock.now(), check_redirect=follow)

    async def _request_own(self, url: str, until: AsyncExitStack) -> None:
        if self.robots is not None:
            await self.robots.admit(url)  # for each hop: another scheme has another robots.txt
        await until.enter_async_context(paced_request(self.host, url, clock=self.clock))

    async def _request_other(self, url: str, until: AsyncExitStack) -> None:
        await self.host.redirect_leases.follow(url, honours_robots=self.robots is not None, until=until)
