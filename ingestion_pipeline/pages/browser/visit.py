"""One page in a context of its own, which is gone afterwards: no cookie outlives a page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from ingestion_pipeline.pages.browser.chromium import CLOSE_SECONDS, BrowserLost, Chromium
from ingestion_pipeline.pages.browser.discovery import discover
from ingestion_pipeline.pages.browser.document import Check, Document
from ingestion_pipeline.pages.browser.limits import BrowserLimits
from ingestion_pipeline.pages.browser.proxy import GuardedProxy, Pass
from ingestion_pipeline.pages.browser.stage import WIDTH, Stage
from ingestion_pipeline.pages.browser.traffic import Traffic
from ingestion_pipeline.pages.guard import exempt_hosts, hosts_and_ports
from ingestion_pipeline.pages.rendering import Rendered, RenderingOptions, RenderWait
from ingestion_pipeline.pages.request import Fetched
from ingestion_pipeline.urls import without_credentials
from ingestion_pipeline.work.errors import Permanent, Transient, WorkError

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

T = TypeVar("T")
_NET_ERROR = re.compile(r"net::(ERR_[A-Z0-9_]+)")
_LOST = re.compile(r"crash|has been closed|target closed|connection closed", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Who a page is a guest of, and by which rules."""

    chromium: Chromium
    proxy: GuardedProxy
    limits: BrowserLimits
    user_agent: str
    clock: Callable[[], datetime]


class Visit:
    """Renders one page once; `BrowserLost` means that another browser may do better."""

    def __init__(
        self, host: Host, url: str, rendering: RenderingOptions, *, check_url: Check | None
    ) -> None:
        self._host = host
        self._url = url
        self._rendering = rendering
        self._document = Document(url, host.limits, check_url=check_url, clock=host.clock)
        own = exempt_hosts()  # the source's; else the page's
        self._pass = Pass(
            max_bytes=host.limits.max_bytes,
            on_too_much=self._too_much,
            exempt=hosts_and_ports([url]) if own is None else own,
        )
        self._broken: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def run(self) -> Rendered:
        """The page, or why there is none; a `TimeoutError` if it took too long."""
        from playwright.async_api import Error

        try:
            with self._host.proxy.admitting(self._pass):
                async with asyncio.timeout(self._allowed_seconds()) as deadline:
                    return await self._unless_broken(self._guest(deadline))
        except Error as error:
            raise self._classified(str(error)) from error

    def _allowed_seconds(self) -> float:
        waits = sum(one.seconds for one in self._rendering.setup if isinstance(one, RenderWait))
        return self._host.limits.deadline_seconds + self._rendering.load_wait_seconds + waits

    async def _guest(self, deadline: asyncio.Timeout) -> Rendered:
        context = await self._context()
        try:
            return await self._rendered(context, deadline)
        finally:
            await self._close(context)

    async def _context(self) -> BrowserContext:
        return await self._host.chromium.browser.new_context(
            accept_downloads=False,
            permissions=[],
            proxy={
                "server": self._host.proxy.url,
                "bypass": "<-loopback>",
                "username": self._pass.name,
                "password": self._pass.password,
            },
            service_workers="block",
            user_agent=self._host.user_agent,
            viewport={"width": WIDTH, "height": 800},
        )

    async def _rendered(self, context: BrowserContext, deadline: asyncio.Timeout) -> Rendered:
        limits = self._host.limits
        traffic = Traffic(
            context,
            self._document,
            limits,
            self._break_off,
            fail=lambda reason: self._break_off(self._classified(reason)),
            user_agent=self._host.user_agent,
        )
        page = await traffic.attach()
        stage = Stage(page, traffic, self._document, self._rendering, limits)
        await stage.show()
        html = await stage.html()
        final_url, status = page.url, self._document.status_code
        screenshot = await stage.screenshot() if self._rendering.screenshot else None
        discovered: tuple[str, ...] = ()
        if self._rendering.discovery is not None:
            loop = asyncio.get_running_loop()
            deadline.reschedule(loop.time() + limits.discovery_seconds)
            discovered = await discover(stage, self._rendering.discovery)
        fetched = Fetched(
            url=self._url,
            final_url=final_url,
            status_code=status,
            body=html.encode("utf-8", "replace"),
            content_type="text/html; charset=utf-8",
            etag=None,  # a validator belongs to the bytes of the server, and these are not they
            last_modified=None,
        )
        return Rendered(page=fetched, screenshot=screenshot, discovered=discovered)

    async def _unless_broken(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result; what breaks the visit wins over the errors that follow from it."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._broken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        if self._broken.done():
            raise self._broken.result()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def _close(self, context: BrowserContext) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await context.close()
        except Exception:  # a browser that does not let go of a page is killed
            self._host.chromium.kill()

    def _break_off(self, error: Exception) -> None:
        if not self._broken.done():
            self._broken.set_result(error)

    def _too_much(self) -> None:
        self._break_off(self._document.too_large(self._host.limits.max_bytes))

    def _classified(self, said: str) -> Exception:
        shown = without_credentials(self._url)
        said = said.partition("\n")[0][:300]
        net = _NET_ERROR.search(said)
        if net is None and _LOST.search(said):
            return BrowserLost(said)
        if (known := self._proxys_word()) is not None:
            return known
        if net is None:
            return Transient(f"{shown}: {said}", code="browser")
        return _net_error(net[1], shown)

    def _proxys_word(self) -> WorkError | None:
        """Why the proxy did not reach the host of the document; it knows more than the browser."""
        with suppress(ValueError):
            parts = urlsplit(self._document.url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            return self._pass.failure(parts.hostname or "", port)
        return None


def _net_error(name: str, shown: str) -> WorkError:
    match name:
        case _ if name.startswith("ERR_CERT_"):
            return Permanent(f"{shown}: {name}; its certificate must be renewed", code="tls")
        case "ERR_UNSAFE_PORT" | "ERR_INVALID_URL" | "ERR_DISALLOWED_URL_SCHEME":
            return Permanent(f"{shown}: a browser does not open it ({name})", code="bad_url")
        case "ERR_TOO_MANY_REDIRECTS" | "ERR_UNSAFE_REDIRECT":
            return Permanent(f"{shown}: {name}", code="redirects")
        case _:
            return Transient(f"{shown}: {name}", code="connection")
