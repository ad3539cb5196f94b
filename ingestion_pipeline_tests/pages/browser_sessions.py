"""Browser renderers for the tests: one per module, on an event loop that stays open between tests."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ingestion_pipeline.pages import Guard
from ingestion_pipeline.pages.browser import BrowserRenderer, NoBrowser, find_browser
from ingestion_pipeline.pages.browser.chromium import Chromium
from ingestion_pipeline.pages.visits.page import Rendered, RenderingOptions
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pages.page_fetches import AGENT, NOW

T = TypeVar("T")
FAST_LIMITS = {
    "INGESTION_RENDERING__PAGES": "1",
    "INGESTION_RENDERING__PATIENCE_SECONDS": "1.5",
    "INGESTION_RENDERING__MAX_BYTES": "2000000",
}
PLAIN = RenderingOptions(screenshot=False)


def a_page(name: str) -> str:
    """Return a page of the folder of fixtures."""
    return (Path(__file__).parent / "browser" / "fixtures" / f"{name}.html").read_text()


def browser_path() -> Path:
    """Return the machine's Chromium, or skip the test where there is none."""
    try:
        return find_browser(load_settings(os.environ))
    except NoBrowser as error:
        pytest.skip(str(error))


@dataclass
class BrowserSession:
    """A renderer, its event loop, and the site it may reach."""

    runner: asyncio.Runner
    renderer: BrowserRenderer
    web: FakeWeb

    @property
    def chromium(self) -> Chromium:
        starting = self.renderer._starting
        assert starting is not None
        return starting.result()

    @property
    def open_pages(self) -> int:
        return len(self.chromium.browser.contexts)

    def run(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await work

        return self.runner.run(awaited())

    def render(
        self,
        path: str,
        rendering: RenderingOptions = PLAIN,
        *,
        check_url: Callable[[str], None] | None = None,
        **limits: Any,
    ) -> Rendered:
        url = self.web.url(path) if path.startswith("/") else path
        before = self.renderer._settings
        rendering_limits = before.rendering.model_copy(update=limits)
        self.renderer._settings = before.model_copy(update={"rendering": rendering_limits})
        try:
            return self.run(self.renderer.render(url, rendering, check_url=check_url))
        finally:
            self.renderer._settings = before

    def html(self, path: str, rendering: RenderingOptions = PLAIN, **limits: Any) -> str:
        return self.render(path, rendering, **limits).page.body.decode()


def a_renderer(guard: Guard) -> BrowserRenderer:
    variables = {"INGESTION_BROWSER": str(browser_path()), "INGESTION_USER_AGENT": AGENT}
    return BrowserRenderer(load_settings(variables | FAST_LIMITS), guard, clock=lambda: NOW)


@contextmanager
def browser_session(web: FakeWeb, guard: Guard | None = None) -> Iterator[BrowserSession]:
    with asyncio.Runner() as runner:
        session = BrowserSession(runner, a_renderer(guard or Guard(frozenset({web.host_port}))), web)
        try:
            yield session
        finally:
            session.run(session.renderer.aclose())
