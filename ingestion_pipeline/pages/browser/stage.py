"""One page in a browser, from its address to what it holds: opened, set up, read, pictured."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from ingestion_pipeline.pages.browser.document import Document
from ingestion_pipeline.pages.browser.limits import BrowserLimits
from ingestion_pipeline.pages.browser.traffic import Traffic
from ingestion_pipeline.pages.rendering import Click, RenderingOptions, RenderWait
from ingestion_pipeline.urls import without_credentials
from ingestion_pipeline.work.errors import Permanent, Transient

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

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
