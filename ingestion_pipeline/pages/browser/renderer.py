"""The renderer: one Chromium for a run, started by the first page that needs it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Self

from ingestion_pipeline.pages.browser.chromium import (
    BrowserLost,
    Chromium,
    NoBrowser,
    find_browser,
    has_sandbox,
    start_chromium,
)
from ingestion_pipeline.pages.browser.document import BrowserLimits, Check
from ingestion_pipeline.pages.browser.proxy import GuardedProxy
from ingestion_pipeline.pages.browser.visit import PageRendering, RenderingContext
from ingestion_pipeline.pages.http.guard import Guard
from ingestion_pipeline.pages.visits.rendering import Rendered, RenderingOptions
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.tasks.errors import Resource, Transient
from ingestion_pipeline.urls import without_credentials

NO_BROWSER_WAIT = timedelta(hours=1)  # somebody has to install one
_TRIES = 2

_log = logging.getLogger(__name__)


class BrowserRenderer:
    """Renders pages within one event loop; close it, or use it with `async with`.

    A browser that crashes or hangs is replaced, and its pages are tried once more.
    """

    def __init__(
        self, settings: Settings, limits: BrowserLimits, guard: Guard, *, clock: Callable[[], datetime]
    ) -> None:
        self.browsers_started = 0
        self.pages_rendered = 0
        self._settings = settings
        self._clock = clock
        self._limits = limits
        self._proxy = GuardedProxy(guard, connect_seconds=limits.connect_seconds)
        self._places = asyncio.Semaphore(limits.pages)
        self._starting: asyncio.Task[Chromium] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End browser, driver and proxy, even if the closing is cancelled."""
        closing = asyncio.ensure_future(self._close())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait({closing})
            raise

    async def render(self, url: str, rendering: RenderingOptions, *, check_url: Check | None = None) -> Rendered:
        """Return the page after its setup; every failure is a `WorkError`."""
        async with self._places:
            for left in reversed(range(_TRIES)):
                chromium = await self._chromium()
                try:
                    rendered = await self._visit(chromium, url, rendering, check_url)
                except BrowserLost as lost:
                    if not await chromium.answers():
                        await self._retire(chromium)
                    if not left:
                        raise _gave_up(url, lost) from lost
                else:
                    self.pages_rendered += 1
                    return rendered
        raise AssertionError("unreachable")

    async def _visit(
        self, chromium: Chromium, url: str, rendering: RenderingOptions, check_url: Check | None
    ) -> Rendered:
        host = RenderingContext(
            chromium=chromium,
            proxy=self._proxy,
            limits=self._limits,
            user_agent=self._settings.user_agent,
            clock=self._clock,
        )
        try:
            return await PageRendering(host, url, rendering, check_url=check_url).run()
        except TimeoutError as error:
            if not await chromium.answers():
                raise BrowserLost("the browser does not answer") from error
            display_url = without_credentials(url)
            raise Transient(f"{display_url} was not rendered in time", code="timeout") from error

    async def _chromium(self) -> Chromium:
        """Return the run's browser, started if needed; concurrent callers get the same one."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        starting = self._starting
        try:
            chromium = await asyncio.shield(starting)
        except Exception:
            if self._starting is starting:
                self._starting = None
            raise
        if chromium.browser.is_connected():
            return chromium
        await self._retire(chromium)
        return await self._chromium()

    async def _start(self) -> Chromium:
        from playwright.async_api import Error

        try:
            program = find_browser(self._settings)
        except NoBrowser as error:
            until = self._clock() + NO_BROWSER_WAIT
            raise Resource(str(error), until=until, code="no_browser") from error
        if not has_sandbox(self._limits.sandbox) and not self.browsers_started:
            _log.warning("rendering without Chromium's sandbox: root has none, or it is off")
        if not self._proxy.port:
            await self._proxy.start()
        try:
            chromium = await start_chromium(program, proxy_url=self._proxy.url, sandbox=self._limits.sandbox)
        except Error as error:
            raise self._does_not_start(str(program), error) from error
        self.browsers_started += 1
        return chromium

    def _does_not_start(self, program: str, error: Exception) -> Resource:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next((line for line in lines if "sandbox" in line.lower()), lines[0])[:300]
        return Resource(
            f"{program} does not start: {reason}; `ingest doctor` looks at it, and the setting"
            " rendering.sandbox=off helps where a container has no sandbox",
            until=self._clock() + NO_BROWSER_WAIT,
            code="no_browser",
        )

    async def _retire(self, chromium: Chromium) -> None:
        """Close an unusable browser; the next page starts another."""
        if self._starting is not None and self._is(self._starting, chromium):
            self._starting = None
            await chromium.aclose()

    @staticmethod
    def _is(starting: asyncio.Task[Chromium], chromium: Chromium) -> bool:
        is_started = starting.done() and not starting.cancelled() and not starting.exception()
        return is_started and starting.result() is chromium

    async def _close(self) -> None:
        starting, self._starting = self._starting, None
        try:
            if starting is not None:
                with suppress(Exception):  # one that did not start needs no closing
                    await (await starting).aclose()
        finally:
            await self._proxy.aclose()


def _gave_up(url: str, lost: BrowserLost) -> Transient:
    display_url = without_credentials(url)
    return Transient(f"{display_url}: {lost}, {_TRIES} times", code="browser_crashed")
