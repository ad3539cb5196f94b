"""One page in a context of its own, which is gone afterwards: no cookie outlives a page."""

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
from ingestion_pipeline.pages.visits.rendering import (
    Click,
    ClickDiscovery,
    Rendered,
    RenderingOptions,
    RenderWait,
)
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError
from ingestion_pipeline.urls import without_credentials

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, ElementHandle, Locator, Page


WIDTH = 1280
JPEG_QUALITY = 70
_ERROR_PAGE = "chrome-error:"
_TRIES = 3  # a page that navigates while it is read is read again

# The length instead of the text where it is too much: it would have to cross two pipes first.
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


class Stage:
    """A page and all that is done with it; failures of playwright's leave as they are."""

    def __init__(
        self,
        page: Page,
        traffic: Traffic,
        document: Document,
        rendering: RenderingOptions,
        limits: BrowserLimits,
    ) -> None:
        self.page = page
        self.traffic = traffic
        self.limits = limits
        self._document = document
        self._rendering = rendering

    @property
    def shown_url(self) -> str:
        """The page for messages."""
        return without_credentials(self._document.asked)

    async def show(self) -> None:
        """Open the page and bring it to where it is read."""
        self._document.begin()
        await self.page.goto(self._document.asked, wait_until="commit", timeout=0)
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
        """Return when the page has loaded and is quiet; one that never is, is taken as it is."""
        await self.page.wait_for_load_state("domcontentloaded", timeout=0)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.patience_seconds):
                navigations = -1
                while navigations != self._document.navigations:
                    navigations = self._document.navigations
                    await self.page.wait_for_load_state("load", timeout=0)
                    await self.traffic.quiet()

    async def html(self) -> str:
        """The DOM as it is now, or the part of it that the source asks for."""
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
        """The page from its top, as JPEG; a page that cannot be pictured is no error."""
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
            _log.warning("no screenshot of %s: %s", self.shown_url, str(error).partition("\n")[0])
            return None

    async def find(self, selector: str, key: str) -> Locator:
        """The first element that matches, as soon as there is one."""
        from playwright.async_api import Error
        from playwright.async_api import TimeoutError as Late

        found = self.page.locator(f"css={selector}").first
        try:
            await found.wait_for(state="attached", timeout=self.limits.patience_seconds * 1_000)
        except Late:
            raise self.wrong(f"nothing matches {selector!r}", key, "selector") from None
        except Error as error:
            if "selector" not in str(error):
                raise
            raise self.wrong(f"{selector!r} is no CSS selector", key, "selector") from None
        return found

    def wrong(self, said: str, key: str, code: str) -> Permanent:
        """The page is not as the source's config says."""
        return Permanent(f"{self.shown_url}: {said}; correct {key} in its config", code=code)

    async def _click(self, selector: str, key: str) -> None:
        from playwright.async_api import TimeoutError as Late

        found = await self.find(selector, key)
        try:
            await found.click(timeout=self.limits.patience_seconds * 1_000)
        except Late:
            said = f"{selector!r} is there but cannot be clicked: hidden, covered or disabled"
            raise self.wrong(said, key, "selector") from None

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
            f"{self.shown_url} has more than {most} bytes of HTML; if that is right,"
            " raise the setting fetch.max_bytes",
            code="too_large",
        )


_KEY = "click_discovery.selector"
_NOTHING_SECONDS = 1.0  # after a click without any effect; a slower one shows by its requests
_LOOK_EVERY_SECONDS = 0.02
_CLICK_SECONDS = 2.0

# What a person would take for clickable, innermost first; what is not shown does not count.
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


async def discover(stage: Stage, asked: ClickDiscovery) -> tuple[str, ...]:
    """Every address that a click inside the container leads to, once, in page order."""
    start = stage.page.url
    count = await _count(stage, asked)
    found: dict[str, None] = {}
    stage.traffic.led_to = []
    for index in range(count):
        element = await _clickable(stage, asked, index)
        if element is None:  # fewer than before: the last click has changed the page
            await _restore(stage, asked, start, count)
            element = await _clickable(stage, asked, index)
        if element is None:
            continue
        for url in await _click(stage, element, asked.wait_seconds, start):
            found[url] = None
        if stage.page.url != start and index + 1 < count:
            await _restore(stage, asked, start, count)
    found.pop(start, None)
    return tuple(found)


async def _count(stage: Stage, asked: ClickDiscovery) -> int:
    count = await _count_now(stage, asked)
    if count > asked.limit:
        raise Permanent(
            f"{stage.shown_url}: {asked.selector!r} holds {count} clickable elements, more than"
            f" {asked.limit}; narrow {_KEY}, or raise click_discovery.limit",
            code="too_many_clickables",
        )
    if count == 0:
        said = f"nothing inside {asked.selector!r} can be clicked"
        raise stage.wrong(said, _KEY, "selector")
    return count


async def _count_now(stage: Stage, asked: ClickDiscovery) -> int:
    container = await stage.find(asked.selector, _KEY)
    return int(await container.evaluate(f"one => ({_CLICKABLES})(one).length"))


async def _clickable(stage: Stage, asked: ClickDiscovery, index: int) -> ElementHandle | None:
    container = await stage.find(asked.selector, _KEY)
    handle = await container.evaluate_handle(f"(one, index) => ({_CLICKABLES})(one)[index]", index)
    return handle.as_element()


async def _click(
    stage: Stage, element: ElementHandle, wait_seconds: float, start: str
) -> list[str]:
    """Where the click leads: a document, another window, or another address of this page."""
    from playwright.async_api import Error

    led_to = stage.traffic.led_to = []
    try:
        await element.click(timeout=_CLICK_SECONDS * 1_000, no_wait_after=True)
    except Error:  # covered by something: the page's own listeners hear this one all the same
        with suppress(Error):
            await element.evaluate("one => one.click()")
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_seconds):
            await _something(stage, led_to, start)
    wanted = [*led_to, stage.page.url]
    return [url for one in wanted if (url := _usable(start, one)) is not None]


async def _something(stage: Stage, led_to: list[str], start: str) -> None:
    """Return when the click has led somewhere, or when nothing is on its way that could."""
    now = asyncio.get_running_loop().time
    since = now()
    while not led_to and stage.page.url == start:
        if now() - since >= _NOTHING_SECONDS and stage.traffic.is_quiet:
            return
        await asyncio.sleep(_LOOK_EVERY_SECONDS)


async def _restore(stage: Stage, asked: ClickDiscovery, start: str, count: int) -> None:
    """The page as it was before the clicks: by going back, else by opening it again."""
    from playwright.async_api import Error

    if stage.page.url != start:
        with suppress(Error, TimeoutError):
            async with asyncio.timeout(_CLICK_SECONDS):
                await stage.page.evaluate("() => history.back()")
                while stage.page.url != start:  # noqa: ASYNC110 - playwright has no event of it
                    await asyncio.sleep(_LOOK_EVERY_SECONDS)
                await stage.traffic.quiet()
        if stage.page.url == start and await _count_now(stage, asked) == count:
            return
    stage.traffic.led_to = None
    await stage.show()
    stage.traffic.led_to = []


def _usable(start: str, url: str) -> str | None:
    """An address that can be fetched; `mailto:` and the like lead nowhere."""
    try:
        wire_url(url)
    except WorkError:
        return None
    return urljoin(start, url)


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
