"""Visits with manners: by HTTP or in a browser, a page is looked at in its host's turn."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol, Self, TypeVar
from urllib.parse import urlsplit

from ingestion_pipeline.pages.http.fetcher import HopCheck, Hops, HttpFetcher
from ingestion_pipeline.pages.http.request import Answer, Fetched, Request, Unchanged
from ingestion_pipeline.pages.politeness.host_leases import HostLease, turn_of
from ingestion_pipeline.pages.politeness.paced_fetch import PacedFetch
from ingestion_pipeline.pages.visits.page import (
    KnownPage,
    NewPage,
    PageAnswer,
    PageVisit,
    SamePage,
    unless_known,
)
from ingestion_pipeline.pages.visits.rendering import Rendered, Renderer, RenderingOptions
from ingestion_pipeline.pages.visits.response_class import (
    EmptyShell,
    empty_in_a_browser,
    needs_browser,
    parsed_appearance,
    plain_appearance,
    refusal_of,
)
from ingestion_pipeline.reading.html.links import canonical_or_none
from ingestion_pipeline.reading.html.visible import VisiblePage, visible_page
from ingestion_pipeline.reading.text.decoding import decode, decoded
from ingestion_pipeline.reading.text.fingerprint import clean_content_hash
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks.errors import Permanent, Transient
from ingestion_pipeline.urls import host_of, without_credentials

ACCEPT_DATA = "application/json,*/*;q=0.5"


async def visit_data(
    fetch: PageFetch, visit: PageVisit, *, now: datetime, check_url: Callable[[str], None] | None
) -> PageAnswer:
    """The answer as it came, or that it is the known one; an empty body is a `Transient`."""
    known = visit.known
    asked = unless_known(Request(url=visit.url, accept=ACCEPT_DATA), known)
    answer = await fetch(asked, now=now, check_redirect=check_url)
    if isinstance(answer, Unchanged):
        if known is None:  # a 304 that nobody asked for
            raise Transient(f"{_shown(visit.url)} sent no body", code="empty_body")
        return _same_data(visit, known, answer, known.served_hash)
    served_hash = hashlib.sha256(answer.body).hexdigest()
    if known is not None and served_hash == known.served_hash:
        return _same_data(visit, known, answer, served_hash)
    return _new(visit, answer, served_hash)


def _same_data(
    visit: PageVisit, known: KnownPage, answer: Fetched | Unchanged, served_hash: str | None
) -> SamePage:
    return SamePage(
        url=visit.url,
        known=known,
        etag=answer.etag,
        last_modified=answer.last_modified,
        served_hash=served_hash,
    )


def _new(visit: PageVisit, answer: Fetched, served_hash: str) -> NewPage:
    if not answer.body.strip(b"\0\t\n\r "):
        raise Transient(f"{_shown(answer.final_url)} sent an empty body", code="empty_body")
    text = decode(answer.body, answer.content_type).encode()
    return NewPage(
        url=visit.url,
        final_url=answer.final_url,
        canonical_url=None,
        status_code=answer.status_code,
        content_type=answer.content_type,
        etag=answer.etag,
        last_modified=answer.last_modified,
        body=answer.body,
        served_hash=served_hash,
        content_hash=clean_content_hash(text),
        text=text,
        markdown=None,
        links=(),
    )


def _shown(url: str) -> str:
    return without_credentials(url)


T = TypeVar("T")
ACCEPT = "text/html,application/xhtml+xml;q=0.9,*/*;q=0.5"
QUICK_REFRESH_SECONDS = 10  # a longer one reloads a ticker or logs a visitor out: it is no redirect
SURELY_LATER = timedelta(days=1)  # most sites say the day alone, in a time zone of their own
LARGE_BYTES = 500_000  # to read more than this would hold up every other visit


class PageFetch(Protocol):
    """`HttpFetcher.fetch`, or the same behind a host's pace."""

    async def __call__(
        self, request: Request, *, now: datetime, check_redirect: HopCheck | None = None
    ) -> Answer:
        """The page, or that it is unchanged; every failure is a `WorkError`."""
        ...


@dataclass(frozen=True, slots=True)
class _Validators:
    """What plain HTTP said this time, to be recognised by at the next visit."""

    etag: str | None
    last_modified: str | None
    served_hash: str | None


@dataclass(frozen=True, slots=True)
class _Served:
    """A page that plain HTTP gave and that is not the known one, read."""

    page: Fetched
    read: VisiblePage
    validators: _Validators


class PageVisitor:
    """Visits pages; what it is led to by redirects and refreshes counts together."""

    def __init__(
        self,
        fetch: PageFetch,
        renderer: Renderer | None = None,
        *,
        markdown: bool = True,
        render_again: timedelta = timedelta(days=1),
        max_hops: int = 5,
    ) -> None:
        self._fetch = fetch
        self._renderer = renderer
        self._markdown = markdown
        self._render_again = render_again
        self._max_hops = max_hops

    @classmethod
    def of(cls, fetch: PageFetch, renderer: Renderer | None, settings: Settings) -> Self:
        """A visitor as the settings want it."""
        return cls(
            fetch,
            renderer,
            markdown=settings.snapshots.markdown,
            render_again=timedelta(seconds=settings.snapshots.render_again_seconds),
            max_hops=settings.fetch.max_redirects,
        )

    async def visit(
        self, visit: PageVisit, *, now: datetime, check_url: HopCheck | None = None
    ) -> PageAnswer:
        """The page if it says something new, else that it does not; all else is a `WorkError`.

        Walls, pages that say "not found", files and empty shells leave as errors of their own code
        (see `refusals`); a bot wall is not shown to the browser either.
        """
        if visit.is_data:
            return await visit_data(self._fetch, visit, now=now, check_url=check_url)
        visit = _without_what_was_shown_otherwise(visit)
        if (known := visit.known) is not None and self._is_as_it_was(visit, known, now=now):
            validators = _Validators(known.etag, known.last_modified, known.served_hash)
            return _same(visit, known, validators, rendered_at=known.rendered_at)
        found = await self._served(visit, Hops(visit.url, self._max_hops, check_url), now=now)
        shell: EmptyShell | None = None
        if isinstance(found, _Served):
            shell = _judged(found.page, found.read)
            if shell is None and not visit.render:
                return await _off_the_loop(len(found.page.body), self._plain, visit, found)
        elif visit.known is not None and not self._is_to_be_rendered(visit, visit.known, now=now):
            return _same(visit, visit.known, found, rendered_at=visit.known.rendered_at)
        if self._renderer is None:
            raise needs_browser(visit.url, shell.reason if shell else "it is to be rendered")
        shown = await self._renderer.render(visit.url, visit.rendering, check_url=check_url)
        return await self._rendered(visit, found, shown, now=now)

    async def _served(
        self, visit: PageVisit, hops: Hops, *, now: datetime
    ) -> _Served | _Validators:
        """What plain HTTP gives in the end: another page than the known one, or only validators."""
        known = visit.known
        asked = unless_known(Request(url=visit.url, accept=ACCEPT), known)
        while True:
            answer = await self._fetch(asked, now=now, check_redirect=hops.follow)
            if isinstance(answer, Unchanged):
                return _Validators(
                    answer.etag, answer.last_modified, known.served_hash if known else None
                )
            validators = _validators(answer, hops)
            if known is not None and validators.served_hash == known.served_hash:
                return validators
            read = await _off_the_loop(len(answer.body), _read, answer)
            target = _refresh_target(answer, read)
            if target is None or hops.is_reload(answer.final_url, target):
                return _Served(answer, read, validators)
            hops.refresh(answer.final_url, target)
            asked = replace(asked, url=target)

    def _is_as_it_was(self, visit: PageVisit, known: KnownPage, *, now: datetime) -> bool:
        """Whether the site says that the page was not changed since it was got: nobody is asked."""
        if visit.changed_at is None or known.fetched_at is None:
            return False
        is_older = known.fetched_at - visit.changed_at >= SURELY_LATER
        return is_older and not self._is_to_be_rendered(visit, known, now=now)

    def _is_to_be_rendered(self, visit: PageVisit, known: KnownPage, *, now: datetime) -> bool:
        """Whether a page whose served bytes are the known ones needs the browser all the same."""
        if known.rendered_at is None:
            return visit.render
        return now - known.rendered_at >= self._render_again

    def _plain(self, visit: PageVisit, served: _Served) -> PageAnswer:
        page = self._new(visit, served.page, served.read, served.validators)
        if visit.known is not None and _is_same(page, visit.known):
            return _same(visit, visit.known, served.validators, rendered_at=None)
        return self._with_markdown(page, served.read)

    async def _rendered(
        self, visit: PageVisit, found: _Served | _Validators, shown: Rendered, *, now: datetime
    ) -> PageAnswer:
        """What the browser shows; its validators are those of plain HTTP."""
        validators = found.validators if isinstance(found, _Served) else found
        read = await _off_the_loop(len(shown.page.body), _read, shown.page)
        if isinstance(seen := _judged(shown.page, read, is_rendered=True), EmptyShell):
            raise empty_in_a_browser(seen, visit.url)
        page = self._new(visit, shown.page, read, validators)
        page = _with_what_the_browser_saw(page, shown, visit)
        if visit.known is not None and _is_same(page, visit.known):
            return _same(visit, visit.known, validators, rendered_at=now)
        return self._with_markdown(page, read)

    def _new(
        self, visit: PageVisit, page: Fetched, read: VisiblePage, validators: _Validators
    ) -> NewPage:
        """The page without its Markdown, which is made only if it turns out to be new."""
        canonical = read.way.canonical_url
        return NewPage(
            url=visit.url,
            final_url=page.final_url,
            canonical_url=canonical if _is_same_site(canonical, page.final_url) else None,
            status_code=page.status_code,
            content_type=page.content_type,
            etag=validators.etag,
            last_modified=validators.last_modified,
            body=page.body,
            served_hash=validators.served_hash or "",
            content_hash=clean_content_hash(read.utf8),
            text=read.utf8,
            markdown=None,
            links=read.links,
        )

    def _with_markdown(self, page: NewPage, read: VisiblePage) -> NewPage:
        if not self._markdown:
            return page
        return replace(page, markdown=read.utf8_markdown())


async def _off_the_loop(size: int, work: Callable[..., T], *arguments: object) -> T:
    """Done here, or in a thread if there is much of it."""
    if size > LARGE_BYTES:
        return await asyncio.to_thread(work, *arguments)
    return work(*arguments)


def _read(page: Fetched) -> VisiblePage:
    if not page.body.strip(b"\0\t\n\r "):
        shown = without_credentials(page.final_url)
        raise Transient(f"{shown} sent an empty body", code="empty_body")
    headers = {"content-type": page.content_type} if page.content_type else {}
    seen = plain_appearance(headers, page.body)
    if seen is not None and (refusal := refusal_of(seen, page.final_url)) is not None:
        raise refusal
    html, utf8 = decoded(page.body, page.content_type)
    return visible_page(html, url=page.final_url, utf8=utf8)


def _judged(page: Fetched, read: VisiblePage, *, is_rendered: bool = False) -> EmptyShell | None:
    """An empty shell, or nothing to say of it; whatever else is no content is raised."""
    seen = parsed_appearance(
        page.final_url,
        page.status_code,
        read.html,
        read.tree,
        utf8=read.utf8,
        is_rendered=is_rendered,
    )
    if isinstance(seen, EmptyShell):
        return seen
    if (refusal := refusal_of(seen, page.final_url)) is not None:
        raise refusal
    return None


def _validators(page: Fetched, hops: Hops) -> _Validators:
    served_hash = hashlib.sha256(page.body).hexdigest()
    # Behind a refresh they are another page's: the one that was asked for would answer 304 to them.
    if hops.refreshed:
        return _Validators(None, None, served_hash)
    return _Validators(page.etag, page.last_modified, served_hash)


def _refresh_target(page: Fetched, read: VisiblePage) -> str | None:
    refresh = read.way.refresh
    if refresh is None or refresh.url is None or refresh.seconds > QUICK_REFRESH_SECONDS:
        return None
    is_itself = canonical_or_none(refresh.url) == canonical_or_none(page.final_url)
    return None if is_itself else refresh.url


def _same(
    visit: PageVisit, known: KnownPage, validators: _Validators, *, rendered_at: datetime | None
) -> SamePage:
    return SamePage(
        url=visit.url,
        known=known,
        etag=validators.etag,
        last_modified=validators.last_modified,
        served_hash=validators.served_hash,
        rendered_at=rendered_at,
    )


def _with_what_the_browser_saw(page: NewPage, shown: Rendered, visit: PageVisit) -> NewPage:
    return replace(
        page,
        is_rendered=True,
        rendering_hash=visit.rendering_hash,
        screenshot=shown.screenshot,
        discovered=tuple(dict.fromkeys(filter(None, map(canonical_or_none, shown.discovered)))),
    )


def _without_what_was_shown_otherwise(visit: PageVisit) -> PageVisit:
    """What another recipe made the browser show says nothing of what this one would."""
    known = visit.known
    if known is None or known.rendered_at is None or known.rendering_hash == visit.rendering_hash:
        return visit
    return replace(visit, known=None)


def _is_same(page: NewPage, known: KnownPage) -> bool:
    """Whether the stored page still serves: it says this, leads there and was made in this way."""
    found = (page.content_hash, page.links_hash, page.rendering_hash)
    return found == (known.content_hash, known.links_hash, known.rendering_hash)


def _is_same_site(canonical: str | None, url: str) -> bool:
    """Whether the address is of the same host, but for a leading www: others are not believed."""
    if canonical is None or canonical == url:
        return canonical == url
    there, here = urlsplit(canonical), urlsplit(url)
    same_port = there.port == here.port or {there.port, here.port} <= {None, 80, 443}
    return same_port and _bare(there.hostname) == _bare(here.hostname)


def _bare(host: str | None) -> str:
    return (host or "").removeprefix("www.")


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
