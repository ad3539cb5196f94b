"""The main document of a rendered page under the rules of a page fetched by HTTP, and the traffic of its page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ingestion_pipeline.pages.browser.chromium import BrowserLost, CdpSession
from ingestion_pipeline.pages.http.fetcher import MAX_REDIRECTS, HopCheck, next_url, wire_url
from ingestion_pipeline.pages.http.request import status_error
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.tasks.errors import Permanent, WorkError
from ingestion_pipeline.urls import without_credentials

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page, Request, Route


_HTML = frozenset({"", "text/html", "application/xhtml+xml"})
_NO_BODY = frozenset({204, 205})


class BrowserDocument:
    """The main document of a page, from the requested URL through all that it leads to.

    Redirects, refreshes and scripts count alike; every refusal is a `WorkError`.
    """

    def __init__(
        self, url: str, settings: Settings, *, check_url: HopCheck | None, clock: Callable[[], datetime]
    ) -> None:
        self.given_url = url
        self.requested_url = wire_url(url)
        self.url = self.requested_url
        self.status_code = 0
        self.navigations = -1
        self._fetch = settings.fetch
        self._check_url = check_url
        self._clock = clock

    def begin(self) -> None:
        """Reset to the requested URL, before it is opened."""
        self.url = self.requested_url
        self.navigations = -1

    def may_request(self, url: str) -> None:
        """Raise if the document must not be requested."""
        self.navigations += 1
        if self.navigations == 0:
            return
        url = next_url(self.url, url)
        if self.navigations > MAX_REDIRECTS:
            raise Permanent(f"{self._shown} redirects more than {MAX_REDIRECTS} times", code="redirects")
        if self._check_url is not None:
            self._check_url(url)
        self.url = url

    def may_show(self, status: int, headers: Mapping[str, str]) -> None:
        """Raise if the response is no web page; header names are lower case."""
        if 300 <= status < 400 and "location" in headers:  # noqa: PLR2004 - it leads on
            return
        if error := status_error(status, headers, self.url, self._clock(), blocked_for=self._fetch.blocked_for):
            raise error
        if status in _NO_BODY:
            raise Permanent(f"{self._shown} answered {status}: there is no page", code="no_page")
        if headers.get("content-disposition", "").lower().startswith("attachment"):
            raise self.download()
        label = headers.get("content-type", "").partition(";")[0].strip().lower()
        if label not in _HTML:
            raise Permanent(
                f"{self._shown} is {label[:80]}, no web page; fetch it without `render: true`", code="wrong_type"
            )
        self.status_code = status

    def download(self) -> Permanent:
        """Return the failure of a page that is a download."""
        return Permanent(
            f"{self._shown} is a download, no web page; fetch it without `render: true`", code="wrong_type"
        )

    def too_large(self, max_bytes: int) -> Permanent:
        """Return the failure of a page that loads too much."""
        return Permanent(
            f"{self._shown} loads more than {max_bytes} bytes; if that is right, raise the setting rendering.max_bytes",
            code="too_large",
        )

    @property
    def _shown(self) -> str:
        return without_credentials(self.url)


SCHEMES = frozenset({"http", "https", "data", "blob", "about"})
METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST"})  # POST: searches and GraphQL use it
QUIET_SECONDS = 0.2
_LOOK_EVERY_SECONDS = 0.02
_ABORTED = "net::ERR_ABORTED"  # by us, or by the next document
_LONG_LIVED = frozenset({"eventsource", "websocket", "ping"})


class Traffic:
    """Routes and listeners of a context with one page; call `attach` before opening anything.

    `break_off` ends the rendering with an error, once; `fail` because a document failed to load, for the browser's
    reason. While `led_to` is a list, no document is opened: its URL is added to the list instead.
    """

    def __init__(
        self,
        context: BrowserContext,
        document: BrowserDocument,
        settings: Settings,
        break_off: Callable[[Exception], None],
        *,
        fail: Callable[[str], None],
    ) -> None:
        self._context = context
        self._document = document
        self._max_bytes = settings.rendering.max_bytes
        self._blocked_types = settings.rendering.blocked_types
        self._user_agent = settings.user_agent
        self._break_off = break_off
        self._fail = fail
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
        session: CdpSession = await self._context.new_cdp_session(page)
        tree = await session.send("Page.getFrameTree")
        window = tree["frameTree"]["frame"]["id"]

        def paused(event: dict[str, Any]) -> None:
            is_ours = event["frameId"] == window
            self._spawn(_decide(session, event, self._judged(event) if is_ours else None))

        def received(event: dict[str, Any]) -> None:
            self._inflate(int(event["dataLength"]))

        session.on("Fetch.requestPaused", paused)
        session.on("Network.dataReceived", received)
        stages = [{"resourceType": "Document", "requestStage": stage} for stage in ("Request", "Response")]
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
        if self._inflated_bytes > self._max_bytes:
            self._break_off(self._document.too_large(self._max_bytes))

    async def _route(self, route: Route) -> None:
        request = route.request
        refused = (
            request.url.partition(":")[0].lower() not in SCHEMES
            or request.method not in METHODS
            or request.resource_type in self._blocked_types
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


async def _decide(session: CdpSession, event: Mapping[str, Any], refusal: str | None) -> None:
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
