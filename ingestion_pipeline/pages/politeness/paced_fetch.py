"""Fetching at a host's pace and under its robots.txt, on every hop of the redirects."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import datetime

from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.http.request import Answer, Request
from ingestion_pipeline.pages.politeness.host_leases import HostLease, HostRobots, host_turn
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.urls import host_of

Check = Callable[[str], Awaitable[None] | None]


class PacedFetch:
    """Fetches pages of the leased host `own`; a redirect to another host leases that host first."""

    def __init__(
        self, fetcher: HttpFetcher, own: str, host: HostLease, robots: HostRobots | None, clock: SteadyClock
    ) -> None:
        self._fetcher = fetcher
        self._own = own
        self._host = host
        self._robots = robots
        self._clock = clock

    async def __call__(
        self, request: Request, *, now: datetime | None = None, check_redirect: Check | None = None
    ) -> Answer:
        """Wait for the host's turn and fetch; `check_redirect` may refuse a hop first."""
        async with AsyncExitStack() as until:
            held = host_of(request.url)
            if held == self._own:
                await self._take_turn(request.url, until)
            else:
                await self._leave(request.url, until)

            async def follow(url: str) -> None:
                nonlocal held
                if check_redirect is not None and inspect.isawaitable(check := check_redirect(url)):
                    await check
                if not held == host_of(url) == self._own:  # each host in its own turn
                    held = host_of(url)
                    await self._leave(url, until)
                else:  # a hop is one more request of the host
                    await until.aclose()
                    await self._take_turn(url, until)

            return await self._fetcher.fetch(request, now=now or self._clock.now(), check_redirect=follow)

    async def _take_turn(self, url: str, until: AsyncExitStack) -> None:
        if self._robots is not None:
            await self._robots.admit(url)  # for each hop: another scheme has another robots.txt
        await until.enter_async_context(host_turn(self._host, url, clock=self._clock))

    async def _leave(self, url: str, until: AsyncExitStack) -> None:
        honours = self._robots is not None
        await self._host.redirect_leases.follow(url, honours_robots=honours, until=until)
