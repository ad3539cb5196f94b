"""A redirect that leaves its host: the other host is leased, asked for its rules, and paced too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ingestion_pipeline.pages.hosts import await_turn
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.work.errors import Resource, Transient, WorkError

if TYPE_CHECKING:
    from ingestion_pipeline.pages.leased_hosts import HostLease

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
