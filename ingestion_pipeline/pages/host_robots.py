"""robots.txt while a host is visited: asked for once, at the host's pace, and kept in its row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from ingestion_pipeline.pages.elsewhere import RedirectLeases
from ingestion_pipeline.pages.hosts import LONGEST_WAIT, RateLimiter, await_turn
from ingestion_pipeline.pages.http_fetcher import HttpFetcher
from ingestion_pipeline.pages.robots import MAX_BYTES
from ingestion_pipeline.pages.robots_policy import (
    MAX_REDIRECTS,
    HostRules,
    as_stored,
    from_stored,
    rules_of_answer,
    rules_when_unreachable,
)
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.urls import BadUrl, host_of, request_url, without_credentials
from ingestion_pipeline.work.errors import Permanent, Resource

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
