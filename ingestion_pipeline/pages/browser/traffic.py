"""The network traffic of one rendered page: every request is checked, most kinds are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from ingestion_pipeline.pages.browser.chromium import BrowserLost, Session
from ingestion_pipeline.pages.browser.document import BrowserLimits, Document
from ingestion_pipeline.tasks.errors import WorkError

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page, Request, Route

SCHEMES = frozenset({"http", "https", "data", "blob", "about"})
METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST"})  # POST: searches and GraphQL use it
QUIET_SECONDS = 0.2
_LOOK_EVERY_SECONDS = 0.02
_ABORTED = "net::ERR_ABORTED"  # by us, or by the next document
_LONG_LIVED = frozenset({"eventsource", "websocket", "ping"})

Break = Callable[[Exception], None]
"""Ends the rendering with an error, once."""
Fail = Callable[[str], None]
"""Ends the rendering because a document failed to load; takes the browser's reason."""


class Traffic:
    """Routes and listeners of a context with one page; call `attach` before opening anything.

    While `led_to` is a list, no document is opened: its URL is added to the list instead.
    """

    def __init__(
        self,
        context: BrowserContext,
        document: Document,
        limits: BrowserLimits,
        break_off: Break,
        *,
        fail: Fail,
        user_agent: str,
    ) -> None:
        self._context = context
        self._document = document
        self._limits = limits
        self._break_off = break_off
        self._fail = fail
        self._user_agent = user_agent
        self._open_requests: set[Request] = set()
        self._tasks: set[asyncio.Task[object]] = set()
        self._inflated_bytes = 0
        self._busy_at = 0.0
        self.led_to: list[str] | None = None

    async def attach(self) -> Page:
        """Open the context's page with every guard in place."""
        await self._context.route("**/*", self._route)
        page = self._page = await self._context.new_page()
        page.on("request", self._began)
        page.on("requestfinished", self._ended)
        page.on("requestfailed", self._failed)
        page.on("crash", lambda _: self._break_off(BrowserLost("the page's process crashed")))
        page.on("download", lambda _: self._break_off(self._document.download()))
        self._context.on("page", self._popped_up)
        await self._watch_documents(page)
        return page

    @property
    def is_quiet(self) -> bool:
        """Whether no request has been open for a moment."""
        now = asyncio.get_running_loop().time()
        return not self._open_requests and now - self._busy_at >= QUIET_SECONDS

    async def quiet(self) -> None:
        """Return when no request has been open for a moment."""
        while not self.is_quiet:  # noqa: ASYNC110 - elapsed time has no event
            await asyncio.sleep(_LOOK_EVERY_SECONDS)

    async def _watch_documents(self, page: Page) -> None:
        """Check every document by the DevTools protocol: playwright's routes miss redirects."""
        session = cast("Session", await self._context.new_cdp_session(page))
        tree = await session.send("Page.getFrameTree")
        window = tree["frameTree"]["frame"]["id"]

        def paused(event: dict[str, Any]) -> None:
            is_ours = event["frameId"] == window
            self._spawn(_decide(session, event, self._judged(event) if is_ours else None))

        def received(event: dict[str, Any]) -> None:
            self._inflate(int(event["dataLength"]))

        session.on("Fetch.requestPaused", paused)
        session.on("Network.dataReceived", received)
        stages = [
            {"resourceType": "Document", "requestStage": "Request"},
            {"resourceType": "Document", "requestStage": "Response"},
        ]
        # Playwright adds invented client hints; this override sends the user agent alone.
        await session.send("Emulation.setUserAgentOverride", {"userAgent": self._user_agent})
        await session.send("Network.enable")
        await session.send("Fetch.enable", {"patterns": stages})

    def _judged(self, event: Mapping[str, Any]) -> str | None:
        """Return why the document is refused, as a protocol error reason; None if it is not."""
        try:
            if "responseErrorReason" in event:
                return None
            if "responseStatusCode" in event:
                headers = {header["name"].lower(): header["value"] for header in event["responseHeaders"]}
                self._document.may_show(event["responseStatusCode"], headers)
            elif self.led_to is not None:
                self.led_to.append(event["request"]["url"])
                return "Aborted"  # the page stays as it is
            else:
                self._document.may_request(event["request"]["url"])
        except WorkError as error:
            self._break_off(error)
            return "BlockedByClient"
        return None

    def _inflate(self, size: int) -> None:
        self._inflated_bytes += size
        if self._inflated_bytes > self._limits.max_bytes:
            self._break_off(self._document.too_large(self._limits.max_bytes))

    async def _route(self, route: Route) -> None:
        request = route.request
        refused = (
            request.url.partition(":")[0].lower() not in SCHEMES
            or request.method not in METHODS
            or request.resource_type in self._limits.blocked_resources
            or self._is_of_another_window(request)
        )
        with suppress(_playwright_error()):  # the page was closed meanwhile
            await (route.abort("blockedbyclient") if refused else route.continue_())

    def _is_of_another_window(self, request: Request) -> bool:
        """Return whether a window that the page opened makes the request; such are refused."""
        try:
            is_ours = request.frame.page == self._page
        except _playwright_error():  # a window that is being opened has no frame yet
            is_ours = not request.is_navigation_request()
        if not is_ours and self.led_to is not None and request.is_navigation_request():
            self.led_to.append(request.url)
        return not is_ours

    def _began(self, request: Request) -> None:
        if request.resource_type not in _LONG_LIVED:
            self._open_requests.add(request)
        self._busy_at = asyncio.get_running_loop().time()

    def _ended(self, request: Request) -> None:
        self._open_requests.discard(request)
        self._busy_at = asyncio.get_running_loop().time()

    def _failed(self, request: Request) -> None:
        """Fail the rendering if a document fails: the browser's error page is no content."""
        self._ended(request)
        reason = request.failure or ""
        if _ABORTED not in reason and request.is_navigation_request() and self._is_own(request):
            self._fail(reason)

    def _is_own(self, request: Request) -> bool:
        with suppress(_playwright_error()):
            return request.frame == self._page.main_frame
        return False

    def _popped_up(self, page: Page) -> None:
        if page != self._page:
            self._spawn(_closed(page))

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _decide(session: Session, event: Mapping[str, Any], refusal: str | None) -> None:
    answer = {"requestId": event["requestId"]}
    with suppress(_playwright_error()):
        if refusal is None:
            await session.send("Fetch.continueRequest", answer)
        else:
            await session.send("Fetch.failRequest", {**answer, "errorReason": refusal})


async def _closed(page: Page) -> None:
    with suppress(_playwright_error()):
        await page.close()


def _playwright_error() -> type[Exception]:
    from playwright.async_api import Error

    return Error
