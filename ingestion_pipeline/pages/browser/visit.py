"""Rendering one page in a browser context of its own, so that no cookie outlives the page."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urljoin, urlsplit

from ingestion_pipeline.pages.browser.chromium import CLOSE_SECONDS, BrowserLost, Chromium
from ingestion_pipeline.pages.browser.document import BrowserLimits, Check, Document
from ingestion_pipeline.pages.browser.proxy import GuardedProxy, Pass
from ingestion_pipeline.pages.browser.traffic import Traffic
from ingestion_pipeline.pages.http.fetcher import wire_url
from ingestion_pipeline.pages.http.guard import exempt_hosts, hosts_and_ports
from ingestion_pipeline.pages.http.request import Fetched
from ingestion_pipeline.pages.visits.rendering import Click, ClickDiscovery, Rendered, RenderingOptions, RenderWait
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError
from ingestion_pipeline.urls import without_credentials

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, ElementHandle, Locator, Page


WIDTH = 1280
JPEG_QUALITY = 70
_ERROR_PAGE = "chrome-error:"
_TRIES = 3  # a page that navigates while it is read is read again

# Returns the length instead of the text if it is too long to transfer.
_WHOLE = """limit => {
    const root = document.documentElement;
    const html = root ? root.outerHTML : "";
    if (html.length > limit) return html.length;
    return (document.doctype ? new XMLSerializer().serializeToString(document.doctype) : "") + html;
}"""
_PART = """(part, limit) => {
    if (!part.textContent.trim() && !part.querySelector("a[href], img, input, svg")) return "";
    return part.outerHTML.length > limit ? part.outerHTML.length : part.outerHTML;
}"""
_HEIGHT = """() => Math.max(
    document.documentElement?.scrollHeight ?? 0, document.body?.scrollHeight ?? 0, 1)"""

_log = logging.getLogger(__name__)


class OpenPage:
    """An open page and the operations on it; playwright's errors are not converted."""

    def __init__(
        self, page: Page, traffic: Traffic, document: Document, rendering: RenderingOptions, limits: BrowserLimits
    ) -> None:
        self.page = page
        self.traffic = traffic
        self.limits = limits
        self._document = document
        self._rendering = rendering

    @property
    def shown_url(self) -> str:
        """The page's URL for messages."""
        return without_credentials(self._document.requested_url)

    async def show(self) -> None:
        """Open the page and execute its setup steps."""
        self._document.begin()
        await self.page.goto(self._document.requested_url, wait_until="commit", timeout=0)
        await self.settle()
        if self._rendering.load_wait_seconds:
            await asyncio.sleep(self._rendering.load_wait_seconds)
        for number, step in enumerate(self._rendering.setup):
            match step:
                case Click():
                    await self._click(step.selector, f"setup[{number}].click")
                    await self.settle()
                case RenderWait():
                    await asyncio.sleep(step.seconds)

    async def settle(self) -> None:
        """Return when the page has loaded and is quiet, at the latest after the patience limit."""
        await self.page.wait_for_load_state("domcontentloaded", timeout=0)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.patience_seconds):
                navigations = -1
                while navigations != self._document.navigations:
                    navigations = self._document.navigations
                    await self.page.wait_for_load_state("load", timeout=0)
                    await self.traffic.quiet()

    async def html(self) -> str:
        """Return the DOM as it is now, or the part that the source selects."""
        from playwright.async_api import Error

        for left in reversed(range(_TRIES)):
            try:
                return self._checked(await self._read())
            except Error as error:
                if "context was destroyed" not in str(error) or not left:
                    raise
                await self.settle()
        raise AssertionError("unreachable")

    async def screenshot(self) -> bytes | None:
        """Return the page from its top as JPEG; None if that fails."""
        from playwright.async_api import Error

        try:
            height = min(int(await self.page.evaluate(_HEIGHT)), self.limits.screenshot_height)
            return await self.page.screenshot(
                type="jpeg",
                quality=JPEG_QUALITY,
                full_page=True,
                clip={"x": 0, "y": 0, "width": WIDTH, "height": height},
                timeout=self.limits.patience_seconds * 1_000,
            )
        except (Error, ValueError, TypeError) as error:
            _log.warning("screenshot failed url=%s: %s", self.shown_url, str(error).partition("\n")[0])
            return None

    async def find(self, selector: str, key: str) -> Locator:
        """Return the first element that matches, as soon as there is one."""
        from playwright.async_api import Error
        from playwright.async_api import TimeoutError as Late

        locator = self.page.locator(f"css={selector}").first
        try:
            await locator.wait_for(state="attached", timeout=self.limits.patience_seconds * 1_000)
        except Late:
            raise self.wrong(f"nothing matches {selector!r}", key, "selector") from None
        except Error as error:
            if "selector" not in str(error):
                raise
            raise self.wrong(f"{selector!r} is no CSS selector", key, "selector") from None
        return locator

    def wrong(self, problem: str, key: str, code: str) -> Permanent:
        """Return the failure of a page that does not match the source's config."""
        return Permanent(f"{self.shown_url}: {problem}; correct {key} in its config", code=code)

    async def _click(self, selector: str, key: str) -> None:
        from playwright.async_api import TimeoutError as Late

        locator = await self.find(selector, key)
        try:
            await locator.click(timeout=self.limits.patience_seconds * 1_000)
        except Late:
            problem = f"{selector!r} is there but cannot be clicked: hidden, covered or disabled"
            raise self.wrong(problem, key, "selector") from None

    async def _read(self) -> object:
        if self.page.url.startswith(_ERROR_PAGE):
            raise Transient(f"{self.shown_url} became an error page", code="browser")
        limit = self.limits.max_html_bytes
        selector = self._rendering.content_selector
        if selector is None:
            return cast("object", await self.page.evaluate(_WHOLE, limit))
        part = await self.find(selector, "content_selector")
        html: Any = await part.evaluate(_PART, limit)
        if html == "":
            raise self.wrong(f"{selector!r} matches, but is empty", "content_selector", "selector")
        return html

    def _checked(self, html: object) -> str:
        most = self.limits.max_html_bytes
        if isinstance(html, str) and len(html.encode("utf-8", "replace")) <= most:
            return html
        raise Permanent(
            f"{self.shown_url} has more than {most} bytes of HTML; if that is right, raise the setting fetch.max_bytes",
            code="too_large",
        )


_KEY = "click_discovery.selector"
_NOTHING_SECONDS = 1.0  # wait after a click without effect; slower effects have open requests
_LOOK_EVERY_SECONDS = 0.02
_CLICK_SECONDS = 2.0

# Elements that look clickable to a person, innermost first; hidden ones do not count.
_CLICKABLES = """container => {
    const named = "a, button, summary, [role=button], [role=link], [role=tab], [onclick]," +
        " input[type=button], input[type=submit]";
    const isShown = one => one.checkVisibility({visibilityProperty: true}) &&
        !one.disabled && one.getAttribute("aria-disabled") !== "true";
    const isHand = one => getComputedStyle(one).cursor === "pointer" &&
        getComputedStyle(one.parentElement).cursor !== "pointer";
    const found = [...container.querySelectorAll("*")].filter(
        one => isShown(one) && (one.matches(named) || isHand(one)));
    const all = new Set(found);
    return found.filter(one => {
        for (let up = one.parentElement; up && up !== container; up = up.parentElement)
            if (all.has(up) && up.matches("a, button")) return false;
        return true;
    });
}"""


async def discover(open_page: OpenPage, options: ClickDiscovery) -> tuple[str, ...]:
    """Return every URL that a click inside the container leads to, once, in page order."""
    start = open_page.page.url
    count = await _count(open_page, options)
    urls: dict[str, None] = {}
    open_page.traffic.led_to = []
    for index in range(count):
        element = await _clickable(open_page, options, index)
        if element is None:  # fewer than before: the last click changed the page
            await _restore(open_page, options, start, count)
            element = await _clickable(open_page, options, index)
        if element is None:
            continue
        for url in await _click(open_page, element, options.wait_seconds, start):
            urls[url] = None
        if open_page.page.url != start and index + 1 < count:
            await _restore(open_page, options, start, count)
    urls.pop(start, None)
    return tuple(urls)


async def _count(open_page: OpenPage, options: ClickDiscovery) -> int:
    count = await _count_now(open_page, options)
    if count > options.limit:
        raise Permanent(
            f"{open_page.shown_url}: {options.selector!r} holds {count} clickable elements, more"
            f" than {options.limit}; narrow {_KEY}, or raise click_discovery.limit",
            code="too_many_clickables",
        )
    if count == 0:
        problem = f"nothing inside {options.selector!r} can be clicked"
        raise open_page.wrong(problem, _KEY, "selector")
    return count


async def _count_now(open_page: OpenPage, options: ClickDiscovery) -> int:
    container = await open_page.find(options.selector, _KEY)
    return int(await container.evaluate(f"one => ({_CLICKABLES})(one).length"))


async def _clickable(open_page: OpenPage, options: ClickDiscovery, index: int) -> ElementHandle | None:
    container = await open_page.find(options.selector, _KEY)
    handle = await container.evaluate_handle(f"(one, index) => ({_CLICKABLES})(one)[index]", index)
    return handle.as_element()


async def _click(open_page: OpenPage, element: ElementHandle, wait_seconds: float, start: str) -> list[str]:
    """Return where the click leads: a document, another window, or another URL of this page."""
    from playwright.async_api import Error

    led_to = open_page.traffic.led_to = []
    try:
        await element.click(timeout=_CLICK_SECONDS * 1_000, no_wait_after=True)
    except Error:  # covered by something: a scripted click still reaches the page's listeners
        with suppress(Error):
            await element.evaluate("one => one.click()")
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_seconds):
            await _wait_for_effect(open_page, led_to, start)
    addresses = [*led_to, open_page.page.url]
    return [url for address in addresses if (url := _usable(start, address)) is not None]


async def _wait_for_effect(open_page: OpenPage, led_to: list[str], start: str) -> None:
    """Return when the click has led somewhere, or when nothing is loading that could."""
    now = asyncio.get_running_loop().time
    since = now()
    while not led_to and open_page.page.url == start:
        if now() - since >= _NOTHING_SECONDS and open_page.traffic.is_quiet:
            return
        await asyncio.sleep(_LOOK_EVERY_SECONDS)


async def _restore(open_page: OpenPage, options: ClickDiscovery, start: str, count: int) -> None:
    """Restore the page as it was before the clicks: by going back, else by opening it again."""
    from playwright.async_api import Error

    if open_page.page.url != start:
        with suppress(Error, TimeoutError):
            async with asyncio.timeout(_CLICK_SECONDS):
                await open_page.page.evaluate("() => history.back()")
                while open_page.page.url != start:  # noqa: ASYNC110 - playwright has no event for it
                    await asyncio.sleep(_LOOK_EVERY_SECONDS)
                await open_page.traffic.quiet()
        if open_page.page.url == start and await _count_now(open_page, options) == count:
            return
    open_page.traffic.led_to = None
    await open_page.show()
    open_page.traffic.led_to = []


def _usable(start: str, url: str) -> str | None:
    """Return a URL that can be fetched; None for `mailto:` and the like."""
    try:
        wire_url(url)
    except WorkError:
        return None
    return urljoin(start, url)


T = TypeVar("T")
_NET_ERROR = re.compile(r"net::(ERR_[A-Z0-9_]+)")
_LOST = re.compile(r"crash|has been closed|target closed|connection closed", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderingContext:
    """What a rendering needs: browser, proxy, limits, user agent and clock."""

    chromium: Chromium
    proxy: GuardedProxy
    limits: BrowserLimits
    user_agent: str
    clock: Callable[[], datetime]


class PageRendering:
    """Renders one page once; `BrowserLost` means that another browser may succeed."""

    def __init__(
        self, host: RenderingContext, url: str, rendering: RenderingOptions, *, check_url: Check | None
    ) -> None:
        self._host = host
        self._url = url
        self._rendering = rendering
        self._document = Document(url, host.limits, check_url=check_url, clock=host.clock)
        own = exempt_hosts()  # those of the source; else only the page's host is exempt
        self._pass = Pass(
            max_bytes=host.limits.max_bytes,
            on_too_much=self._too_much,
            exempt=hosts_and_ports([url]) if own is None else own,
        )
        self._broken: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def run(self) -> Rendered:
        """Return the rendered page; raise `TimeoutError` if it took too long."""
        from playwright.async_api import Error

        try:
            with self._host.proxy.admitting(self._pass):
                async with asyncio.timeout(self._allowed_seconds()) as deadline:
                    return await self._unless_broken(self._in_own_context(deadline))
        except Error as error:
            raise self._classified(str(error)) from error

    def _allowed_seconds(self) -> float:
        waits = sum(step.seconds for step in self._rendering.setup if isinstance(step, RenderWait))
        return self._host.limits.deadline_seconds + self._rendering.load_wait_seconds + waits

    async def _in_own_context(self, deadline: asyncio.Timeout) -> Rendered:
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
        open_page = OpenPage(page, traffic, self._document, self._rendering, limits)
        await open_page.show()
        html = await open_page.html()
        final_url, status = page.url, self._document.status_code
        screenshot = await open_page.screenshot() if self._rendering.screenshot else None
        discovered: tuple[str, ...] = ()
        if self._rendering.discovery is not None:
            loop = asyncio.get_running_loop()
            deadline.reschedule(loop.time() + limits.discovery_seconds)
            discovered = await discover(open_page, self._rendering.discovery)
        fetched = Fetched(
            url=self._url,
            final_url=final_url,
            status_code=status,
            body=html.encode("utf-8", "replace"),
            content_type="text/html; charset=utf-8",
            etag=None,  # validators belong to the bytes that the server sent
            last_modified=None,
        )
        return Rendered(page=fetched, screenshot=screenshot, discovered=discovered)

    async def _unless_broken(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work; what broke the rendering wins over errors that follow."""
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
        except Exception:  # a browser that cannot close a page is killed
            self._host.chromium.kill()

    def _break_off(self, error: Exception) -> None:
        if not self._broken.done():
            self._broken.set_result(error)

    def _too_much(self) -> None:
        self._break_off(self._document.too_large(self._host.limits.max_bytes))

    def _classified(self, message: str) -> Exception:
        display_url = without_credentials(self._url)
        message = message.partition("\n")[0][:300]
        net = _NET_ERROR.search(message)
        if net is None and _LOST.search(message):
            return BrowserLost(message)
        if (proxy_error := self._proxy_error()) is not None:
            return proxy_error
        if net is None:
            return Transient(f"{display_url}: {message}", code="browser")
        return _net_error(net[1], display_url)

    def _proxy_error(self) -> WorkError | None:
        """Return why the proxy did not reach the document's host; more precise than the browser."""
        with suppress(ValueError):
            parts = urlsplit(self._document.url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            return self._pass.failure(parts.hostname or "", port)
        return None


def _net_error(name: str, display_url: str) -> WorkError:
    match name:
        case _ if name.startswith("ERR_CERT_"):
            return Permanent(f"{display_url}: {name}; its certificate must be renewed", code="tls")
        case "ERR_UNSAFE_PORT" | "ERR_INVALID_URL" | "ERR_DISALLOWED_URL_SCHEME":
            return Permanent(f"{display_url}: a browser does not open it ({name})", code="bad_url")
        case "ERR_TOO_MANY_REDIRECTS" | "ERR_UNSAFE_REDIRECT":
            return Permanent(f"{display_url}: {name}", code="redirects")
        case _:
            return Transient(f"{display_url}: {name}", code="connection")
