"""What goes on in one page's context: every request is seen, and most kinds are refused."""

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
METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST"})  # POST: searches and GraphQL are asked so
QUIET_SECONDS = 0.2
_LOOK_EVERY_SECONDS = 0.02
_ABORTED = "net::ERR_ABORTED"  # by us, or by the next document
_NEVER_ENDING = frozenset({"eventsource", "websocket", "ping"})

Break = Callable[[Exception], None]
"""Ends the visit with an error, once."""
Fail = Callable[[str], None]
"""Ends the visit because a document did not come, for a reason in the browser's words."""


class Traffic:
    """Routes and listeners of a context with one page; `attach` before anything is opened.

    While `led_to` is a list, no document is opened: where the page wanted to go is written down.
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
        """The context's page, with every guard in place."""
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
        """Whether nothing has been on its way for a moment."""
        now = asyncio.get_running_loop().time()
        return not self._open_requests and now - self._busy_at >= QUIET_SECONDS

    async def quiet(self) -> None:
        """Return when nothing has been on its way for a moment."""
        while not self.is_quiet:  # noqa: ASYNC110 - quiet is made by time, which no event marks
            await asyncio.sleep(_LOOK_EVERY_SECONDS)

    async def _watch_documents(self, page: Page) -> None:
        """Redirects pass no route of playwright's: the protocol below it shows each of them."""
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
        # Playwright adds client hints that it makes up; without them the user agent stands alone.
        await session.send("Emulation.setUserAgentOverride", {"userAgent": self._user_agent})
        await session.send("Network.enable")
        await session.send("Fetch.enable", {"patterns": stages})

    def _judged(self, event: Mapping[str, Any]) -> str | None:
        """Why the document is refused, in the protocol's words; None if it is not."""
        try:
            if "responseErrorReason" in event:
                return None
            if "responseStatusCode" in event:
                headers = {one["name"].lower(): one["value"] for one in event["responseHeaders"]}
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
        """Whether a window that the page opened asks; none of them gets anything."""
        try:
            is_ours = request.frame.page == self._page
        except _playwright_error():  # a window that is being opened has no frame yet
            is_ours = not request.is_navigation_request()
        if not is_ours and self.led_to is not None and request.is_navigation_request():
            self.led_to.append(request.url)
        return not is_ours

    def _began(self, request: Request) -> None:
        if request.resource_type not in _NEVER_ENDING:
            self._open_requests.add(request)
        self._busy_at = asyncio.get_running_loop().time()

    def _ended(self, request: Request) -> None:
        self._open_requests.discard(request)
        self._busy_at = asyncio.get_running_loop().time()

    def _failed(self, request: Request) -> None:
        """A document that fails leaves an error page of the browser's own, which is no content."""
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
