"""The renderer: one Chromium for a run, and each page in a context of its own, so that no cookie outlives it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime, timedelta
from importlib import resources
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from urllib.parse import urljoin, urlsplit

import yaml

from ingestion_pipeline.extras import how_to_install, is_installed
from ingestion_pipeline.pages.browser.chromium import (
    CLOSE_SECONDS,
    BrowserLost,
    Chromium,
    GuardedProxy,
    NoBrowser,
    Pass,
    find_browser,
    has_sandbox,
    start_chromium,
)
from ingestion_pipeline.pages.browser.document import BrowserDocument, Traffic
from ingestion_pipeline.pages.http.fetcher import HopCheck, wire_url
from ingestion_pipeline.pages.http.guard import Guard, exempt_hosts
from ingestion_pipeline.pages.http.request import Fetched
from ingestion_pipeline.pages.visits.page import Click, ClickDiscovery, Rendered, RenderingOptions, RenderWait
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient, WorkError
from ingestion_pipeline.urls import without_credentials

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, ElementHandle, Locator, Page


WIDTH = 1280
JPEG_QUALITY = 70
_ERROR_PAGE = "chrome-error:"
_TRIES = 3  # a page that navigates while it is read is read again

_FILE = resources.files("ingestion_pipeline.pages.browser") / "page_scripts.yaml"
_SCRIPTS: dict[str, str] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))

_log = logging.getLogger(__name__)


class OpenPage:
    """An open page and the operations on it; playwright's errors are not converted."""

    def __init__(
        self, page: Page, traffic: Traffic, document: BrowserDocument, rendering: RenderingOptions, settings: Settings
    ) -> None:
        self.page = page
        self.traffic = traffic
        self._limits = settings.rendering
        self._max_html_bytes = settings.fetch.max_bytes
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
            async with asyncio.timeout(self._limits.patience_seconds):
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
            height = min(int(await self.page.evaluate(_SCRIPTS["height"])), self._limits.screenshot_height)
            return await self.page.screenshot(
                type="jpeg",
                quality=JPEG_QUALITY,
                full_page=True,
                clip={"x": 0, "y": 0, "width": WIDTH, "height": height},
                timeout=self._limits.patience_seconds * 1_000,
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
            await locator.wait_for(state="attached", timeout=self._limits.patience_seconds * 1_000)
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
            await locator.click(timeout=self._limits.patience_seconds * 1_000)
        except Late:
            problem = f"{selector!r} is there but cannot be clicked: hidden, covered or disabled"
            raise self.wrong(problem, key, "selector") from None

    async def _read(self) -> object:
        if self.page.url.startswith(_ERROR_PAGE):
            raise Transient(f"{self.shown_url} became an error page", code="browser")
        limit = self._max_html_bytes
        selector = self._rendering.content_selector
        if selector is None:
            return cast("object", await self.page.evaluate(_SCRIPTS["whole"], limit))
        part = await self.find(selector, "content_selector")
        html: Any = await part.evaluate(_SCRIPTS["part"], limit)
        if html == "":
            raise self.wrong(f"{selector!r} matches, but is empty", "content_selector", "selector")
        return html

    def _checked(self, html: object) -> str:
        most = self._max_html_bytes
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
    return int(await container.evaluate(f"one => ({_SCRIPTS['clickables']})(one).length"))


async def _clickable(open_page: OpenPage, options: ClickDiscovery, index: int) -> ElementHandle | None:
    container = await open_page.find(options.selector, _KEY)
    handle = await container.evaluate_handle(f"(one, index) => ({_SCRIPTS['clickables']})(one)[index]", index)
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


class PageRendering:
    """Renders one page once; `BrowserLost` means that another browser may succeed."""

    def __init__(
        self,
        chromium: Chromium,
        proxy: GuardedProxy,
        document: BrowserDocument,
        rendering: RenderingOptions,
        settings: Settings,
    ) -> None:
        self._chromium = chromium
        self._proxy = proxy
        self._document = document
        self._url = document.given_url
        self._rendering = rendering
        self._settings = settings
        max_bytes = settings.rendering.max_bytes
        self._pass = Pass(
            max_bytes=max_bytes,
            on_too_much=lambda: self._break_off(document.too_large(max_bytes)),
            exempt=exempt_hosts(self._url),
        )
        self._broken: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def run(self) -> Rendered:
        """Return the rendered page; raise `TimeoutError` if it took too long."""
        from playwright.async_api import Error

        waits = sum(step.seconds for step in self._rendering.setup if isinstance(step, RenderWait))
        allowed_seconds = self._settings.rendering.deadline_seconds + self._rendering.load_wait_seconds + waits
        try:
            with self._proxy.admitting(self._pass):
                async with asyncio.timeout(allowed_seconds) as deadline:
                    return await self._unless_broken(self._in_own_context(deadline))
        except Error as error:
            raise self._classified(str(error)) from error

    async def _in_own_context(self, deadline: asyncio.Timeout) -> Rendered:
        context = await self._chromium.browser.new_context(
            accept_downloads=False,
            permissions=[],
            proxy={
                "server": self._proxy.url,
                "bypass": "<-loopback>",
                "username": self._pass.name,
                "password": self._pass.password,
            },
            service_workers="block",
            user_agent=self._settings.user_agent,
            viewport={"width": WIDTH, "height": 800},
        )
        try:
            return await self._rendered(context, deadline)
        finally:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await context.close()
            except Exception:  # a browser that cannot close a page is killed
                self._chromium.kill()

    async def _rendered(self, context: BrowserContext, deadline: asyncio.Timeout) -> Rendered:
        traffic = Traffic(
            context,
            self._document,
            self._settings,
            self._break_off,
            fail=lambda reason: self._break_off(self._classified(reason)),
        )
        page = await traffic.attach()
        open_page = OpenPage(page, traffic, self._document, self._rendering, self._settings)
        await open_page.show()
        html = await open_page.html()
        final_url, status = page.url, self._document.status_code
        screenshot = await open_page.screenshot() if self._rendering.screenshot else None
        discovered: tuple[str, ...] = ()
        if self._rendering.discovery is not None:
            loop = asyncio.get_running_loop()
            deadline.reschedule(loop.time() + self._settings.rendering.discovery_seconds)
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

    def _break_off(self, error: Exception) -> None:
        if not self._broken.done():
            self._broken.set_result(error)

    def _classified(self, message: str) -> Exception:
        display_url = without_credentials(self._url)
        message = message.partition("\n")[0][:300]
        net = _NET_ERROR.search(message)
        if net is None and _LOST.search(message):
            return BrowserLost(message)
        with suppress(ValueError):  # why the proxy did not reach the host is more precise
            parts = urlsplit(self._document.url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            if (proxy_error := self._pass.failure(parts.hostname or "", port)) is not None:
                return proxy_error
        return (
            Transient(f"{display_url}: {message}", code="browser") if net is None else _net_error(net[1], display_url)
        )


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


NO_BROWSER_WAIT = timedelta(hours=1)  # somebody has to install one
_BROWSERS = 2


class BrowserRenderer:
    """Renders pages within one event loop; close it, or use it with `async with`.

    A browser that crashes or hangs is replaced, and its pages are tried once more.
    """

    def __init__(self, settings: Settings, guard: Guard, *, clock: Callable[[], datetime]) -> None:
        self.browsers_started = 0
        self.pages_rendered = 0
        self._settings = settings
        self._clock = clock
        self._proxy = GuardedProxy(guard)
        self._places = asyncio.Semaphore(settings.rendering.pages)
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

    async def render(self, url: str, rendering: RenderingOptions, *, check_url: HopCheck | None = None) -> Rendered:
        """Return the page after its setup; every failure is a `WorkError`."""
        async with self._places:
            for left in reversed(range(_BROWSERS)):
                chromium = await self._chromium()
                try:
                    rendered = await self._visit(chromium, url, rendering, check_url)
                except BrowserLost as lost:
                    if not await chromium.answers():
                        await self._retire(chromium)
                    if not left:
                        text = f"{without_credentials(url)}: {lost}, {_BROWSERS} times"
                        raise Transient(text, code="browser_crashed") from lost
                else:
                    self.pages_rendered += 1
                    return rendered
        raise AssertionError("unreachable")

    async def _visit(
        self, chromium: Chromium, url: str, rendering: RenderingOptions, check_url: HopCheck | None
    ) -> Rendered:
        document = BrowserDocument(url, self._settings, check_url=check_url, clock=self._clock)
        page = PageRendering(chromium, self._proxy, document, rendering, self._settings)
        try:
            return await page.run()
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
        until = self._clock() + NO_BROWSER_WAIT
        if not is_installed("playwright"):
            raise Resource(how_to_install("playwright"), until=until, code="no_browser")
        from playwright.async_api import Error

        try:
            program = find_browser(self._settings)
        except NoBrowser as error:
            raise Resource(str(error), until=until, code="no_browser") from error
        if not has_sandbox(self._settings.rendering.sandbox) and not self.browsers_started:
            _log.warning("rendering without Chromium's sandbox: root has none, or it is off")
        if not self._proxy.port:
            await self._proxy.start()
        try:
            chromium = await start_chromium(
                program, proxy_url=self._proxy.url, sandbox=self._settings.rendering.sandbox
            )
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
        starting = self._starting
        if starting is None or not starting.done() or starting.cancelled() or starting.exception():
            return
        if starting.result() is chromium:
            self._starting = None
            await chromium.aclose()

    async def _close(self) -> None:
        starting, self._starting = self._starting, None
        try:
            if starting is not None:
                with suppress(Exception):  # one that did not start needs no closing
                    await (await starting).aclose()
        finally:
            await self._proxy.aclose()
