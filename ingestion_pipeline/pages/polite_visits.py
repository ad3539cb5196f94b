"""Visits with manners: by HTTP or in a browser, a page is looked at in its host's turn."""

from __future__ import annotations

from collections.abc import Callable

from ingestion_pipeline.pages.elsewhere import turn_of
from ingestion_pipeline.pages.http_fetcher import HttpFetcher
from ingestion_pipeline.pages.leased_hosts import HostLease
from ingestion_pipeline.pages.paced import PacedFetch
from ingestion_pipeline.pages.page import PageAnswer, PageVisit
from ingestion_pipeline.pages.page_visits import PageVisitor
from ingestion_pipeline.pages.rendering import Rendered, Renderer, RenderingOptions
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.work.errors import Permanent


class PoliteVisitor:
    """Visits for a crawl; without a renderer, pages that need a browser are refused."""

    def __init__(
        self,
        fetcher: HttpFetcher,
        renderer: Renderer | None,
        clock: SteadyClock,
        settings: Settings,
    ) -> None:
        self._fetcher = fetcher
        self._renderer = renderer
        self._clock = clock
        self._settings = settings

    async def visit(
        self, visit: PageVisit, *, host: HostLease, honours_robots: bool, own: str | None = None
    ) -> PageAnswer:
        """The page, or that it is as it was; at the host's pace.

        `own` is the host's name where the page may be another's: then that one is borrowed.
        """
        own = own or host_of(visit.url)
        robots = host.robots if honours_robots else None
        fetch = PacedFetch(self._fetcher, own, host, robots, self._clock)
        renderer = self._renderer and _InTurn(self._renderer, own, host, self._clock)
        visitor = PageVisitor.of(fetch, renderer, self._settings)

        def check_url(url: str) -> None:
            if robots is not None and host_of(url) == own:
                robots.check_known(url)

        return await visitor.visit(visit, now=self._clock.now(), check_url=check_url)


class _InTurn:
    """A browser that opens a page of one host when it is the host's turn, and no other's."""

    def __init__(self, renderer: Renderer, own: str, host: HostLease, clock: SteadyClock) -> None:
        self._renderer = renderer
        self._own = own
        self._host = host
        self._clock = clock

    async def render(
        self,
        url: str,
        rendering: RenderingOptions,
        *,
        check_url: Callable[[str], None] | None = None,
    ) -> Rendered:
        def check(document: str) -> None:
            if host_of(document) != self._own:
                raise Permanent(
                    f"{url} leads to {host_of(document)} in the browser; name a page of that host"
                    " if it is meant",
                    code="leads_elsewhere",
                )
            if check_url is not None:
                check_url(document)

        async with turn_of(self._host, url, clock=self._clock):
            return await self._renderer.render(url, rendering, check_url=check)
