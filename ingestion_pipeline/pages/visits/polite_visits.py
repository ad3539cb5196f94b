"""Fetching pages politely, by HTTP or in a browser, recognising unchanged ones, and reading saved ones.

A saved page is read as a fetched one would be, without network or database.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from ingestion_pipeline.pages.http.fetcher import MAX_REDIRECTS, HopCheck, Hops, HttpFetcher
from ingestion_pipeline.pages.http.request import Answer, Fetched, Request, Unchanged
from ingestion_pipeline.pages.politeness.host_leases import HostLease, HostRobots, PacedFetch, paced_request
from ingestion_pipeline.pages.politeness.rights import Rights, allows_models, meta_rights
from ingestion_pipeline.pages.visits.page import (
    Content,
    EmptyShell,
    KnownPage,
    NewPage,
    PageAnswer,
    PageVisit,
    Rendered,
    Renderer,
    RenderingOptions,
    SamePage,
    WrongType,
    classify_parsed,
    classify_raw,
    classify_response,
    error_for,
    needs_browser,
    unless_known,
)
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import canonical_or_none
from ingestion_pipeline.reading.html.markdown import VisiblePage, WebPage, read_page, visible_page
from ingestion_pipeline.reading.structured.items import ParsedFeed, Problem, SavedBody, SavedBodyResult
from ingestion_pipeline.reading.text.plain_text import clean_content_hash, decode
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.tasks.errors import Permanent, Transient
from ingestion_pipeline.urls import checked_url, host_of, without_credentials

ACCEPT_DATA = "application/json,*/*;q=0.5"


T = TypeVar("T")
ACCEPT = "text/html,application/xhtml+xml;q=0.9,*/*;q=0.5"
QUICK_REFRESH_SECONDS = 10  # a longer one reloads a ticker or logs out: it is no redirect
CHANGED_AT_MARGIN = timedelta(days=1)  # most sites state the day only, in their own time zone
LARGE_BYTES = 500_000  # parsing more than this would block the event loop


class PageFetch(Protocol):
    """`HttpFetcher.fetch`, or the same at a host's pace."""

    async def __call__(self, request: Request, *, now: datetime, check_redirect: HopCheck | None = None) -> Answer:
        """Return the page, or that it is unchanged; every failure is a `WorkError`."""
        ...


@dataclass(frozen=True, slots=True)
class _Validators:
    """The validators of the plain response, by which the page is recognised next time."""

    etag: str | None
    last_modified: str | None
    served_hash: str | None
    rights: Rights | None = None  # of its headers and meta elements; None: it was not sent


@dataclass(frozen=True, slots=True)
class _Served:
    """A changed page that plain HTTP served, parsed."""

    page: Fetched
    read: VisiblePage
    validators: _Validators


@dataclass(frozen=True, slots=True)
class PageVisitor:
    """Fetches pages; redirects and refreshes count against one limit."""

    fetch: PageFetch
    renderer: Renderer | None = None
    _: KW_ONLY
    markdown: bool = True
    render_again: timedelta = timedelta(days=1)

    async def visit(self, visit: PageVisit, *, now: datetime, check_url: HopCheck | None = None) -> PageAnswer:
        """Return the page if its text or links are new, else that it is unchanged.

        Blocked pages, pages that say "not found", files and empty shells are errors with codes of
        their own (see `error_for`); a blocked page is not opened in the browser either.
        """
        if visit.is_data:
            return await self._data(visit, now=now, check_url=check_url)
        visit = _without_other_rendering(visit)
        if (known_page := visit.known_page) is not None and self._is_as_it_was(visit, known_page, now=now):
            validators = _Validators(known_page.etag, known_page.last_modified, known_page.served_hash)
            return _same(visit, known_page, validators, rendered_at=known_page.rendered_at)
        served = await self._served(visit, Hops(visit.url, MAX_REDIRECTS, check_url), now=now)
        shell: EmptyShell | None = None
        if isinstance(served, _Served):
            shell = _empty_shell_or_raise(served.page, served.read)
            if shell is None and not visit.render:
                return await _run_by_size(len(served.page.body), self._plain, visit, served)
        elif visit.known_page is not None and not self._is_to_be_rendered(visit, visit.known_page, now=now):
            return _same(visit, visit.known_page, served, rendered_at=visit.known_page.rendered_at)
        if self.renderer is None:
            raise needs_browser(visit.url, shell.reason if shell else "it is to be rendered")
        rendered = await self.renderer.render(visit.url, visit.rendering, check_url=check_url)
        return await self._rendered(visit, served, rendered, now=now)

    async def _data(self, visit: PageVisit, *, now: datetime, check_url: HopCheck | None) -> PageAnswer:
        """Return the response as it came, or that it is unchanged; an empty body is `Transient`."""
        known_page = visit.known_page
        request = unless_known(Request(url=visit.url, accept=ACCEPT_DATA), known_page)
        answer = await self.fetch(request, now=now, check_redirect=check_url)
        if isinstance(answer, Unchanged):
            if known_page is None:  # a 304 to an unconditional request
                raise Transient(f"{without_credentials(visit.url)} sent no body", code="empty_body")
            return _same(visit, known_page, _Validators(answer.etag, answer.last_modified, known_page.served_hash))
        validators = _Validators(
            answer.etag, answer.last_modified, hashlib.sha256(answer.body).hexdigest(), answer.rights
        )
        if known_page is not None and validators.served_hash == known_page.served_hash:
            return _same(visit, known_page, validators)
        _refuse_empty(answer)
        return _new_page(visit, answer, validators, text=decode(answer.body, answer.content_type).encode())

    async def _served(self, visit: PageVisit, hops: Hops, *, now: datetime) -> _Served | _Validators:
        """Fetch by plain HTTP; return a changed page, or the validators of an unchanged one."""
        known_page = visit.known_page
        request = unless_known(Request(url=visit.url, accept=ACCEPT), known_page)
        while True:
            answer = await self.fetch(request, now=now, check_redirect=hops.follow)
            if isinstance(answer, Unchanged):
                return _Validators(answer.etag, answer.last_modified, known_page.served_hash if known_page else None)
            validators = _validators(answer, hops)
            if known_page is not None and validators.served_hash == known_page.served_hash:
                return validators
            read = await _run_by_size(len(answer.body), _read, answer)
            target = _refresh_target(answer, read)
            if target is None or hops.is_reload(answer.final_url, target):
                return _Served(answer, read, validators)
            hops.refresh(answer.final_url, target)
            request = replace(request, url=target)

    def _is_as_it_was(self, visit: PageVisit, known_page: KnownPage, *, now: datetime) -> bool:
        """Return whether the site says that the page is unchanged since it was fetched."""
        if visit.changed_at is None or known_page.fetched_at is None:
            return False
        is_older = known_page.fetched_at - visit.changed_at >= CHANGED_AT_MARGIN
        return is_older and not self._is_to_be_rendered(visit, known_page, now=now)

    def _is_to_be_rendered(self, visit: PageVisit, known_page: KnownPage, *, now: datetime) -> bool:
        """Return whether a page with unchanged served bytes must be rendered all the same."""
        if known_page.rendered_at is None:
            return visit.render
        return now - known_page.rendered_at >= self.render_again

    def _plain(self, visit: PageVisit, served: _Served) -> PageAnswer:
        page = _new_html(visit, served.page, served.read, served.validators)
        return self._unless_same(visit, page, served.read, served.validators)

    async def _rendered(
        self, visit: PageVisit, served: _Served | _Validators, rendered: Rendered, *, now: datetime
    ) -> PageAnswer:
        """Return the page as rendered; its validators are those of the plain response."""
        validators = served.validators if isinstance(served, _Served) else served
        read = await _run_by_size(len(rendered.page.body), _read, rendered.page)
        if isinstance(shell := _empty_shell_or_raise(rendered.page, read, is_rendered=True), EmptyShell):
            raise shell.error(visit.url)
        page = replace(
            _new_html(visit, rendered.page, read, validators),
            is_rendered=True,
            rendering_hash=visit.rendering_hash,
            screenshot=rendered.screenshot,
            discovered=tuple(dict.fromkeys(filter(None, map(canonical_or_none, rendered.discovered)))),
        )
        return self._unless_same(visit, page, read, validators, rendered_at=now)

    def _unless_same(
        self, visit: PageVisit, page: NewPage, read: VisiblePage, seen: _Validators, rendered_at: datetime | None = None
    ) -> PageAnswer:
        """Return the page with its Markdown, or that it has the content, links and options of the known one."""
        if (earlier := visit.known_page) is not None:
            hashes = (page.content_hash, page.links_hash, page.rendering_hash)
            if hashes == (earlier.content_hash, earlier.links_hash, earlier.rendering_hash):
                return _same(visit, earlier, seen, rendered_at=rendered_at)
        return replace(page, markdown=read.utf8_markdown()) if self.markdown else page


def _new_html(visit: PageVisit, page: Fetched, read: VisiblePage, validators: _Validators) -> NewPage:
    """Return the page without its Markdown, which is made only if the page is new."""
    canonical = read.way.canonical_url
    stated = canonical if _is_same_site(canonical, page.final_url) else None
    return replace(_new_page(visit, page, validators, text=read.utf8), canonical_url=stated, links=read.links)


def _new_page(visit: PageVisit, page: Fetched, validators: _Validators, *, text: bytes) -> NewPage:
    return NewPage(
        url=visit.url,
        final_url=page.final_url,
        status_code=page.status_code,
        content_type=page.content_type,
        etag=validators.etag,
        last_modified=validators.last_modified,
        body=page.body,
        served_hash=validators.served_hash or "",
        content_hash=clean_content_hash(text),
        text=text,
        rights=validators.rights,
    )


async def _run_by_size(size: int, work: Callable[..., T], *arguments: object) -> T:
    """Run the work here, or in a thread if the input is large."""
    if size > LARGE_BYTES:
        return await asyncio.to_thread(work, *arguments)
    return work(*arguments)


def _refuse_empty(page: Fetched) -> None:
    if not page.body.strip(b"\0\t\n\r "):
        raise Transient(f"{without_credentials(page.final_url)} sent an empty body", code="empty_body")


def _read(page: Fetched) -> VisiblePage:
    _refuse_empty(page)
    headers = {"content-type": page.content_type} if page.content_type else {}
    response_class = classify_raw(headers, page.body)
    if response_class is not None and (error := error_for(response_class, page.final_url)) is not None:
        raise error
    return visible_page(Document.of(page.body, page.content_type, url=page.final_url))


def _empty_shell_or_raise(page: Fetched, read: VisiblePage, *, is_rendered: bool = False) -> EmptyShell | None:
    """Return the empty shell that the page is, or None; raise if it is no content otherwise."""
    response_class = classify_parsed(
        page.final_url, page.status_code, read.html, read.tree, utf8=read.utf8, is_rendered=is_rendered
    )
    if isinstance(response_class, EmptyShell):
        return response_class
    if (error := error_for(response_class, page.final_url)) is not None:
        raise error
    return None


def _validators(page: Fetched, hops: Hops) -> _Validators:
    # After a refresh they belong to another page: the requested one would answer 304 to them.
    stated = (None, None) if hops.refreshed else (page.etag, page.last_modified)
    rights = {**page.rights, **meta_rights(page.body)}
    return _Validators(*stated, hashlib.sha256(page.body).hexdigest(), rights)


def _refresh_target(page: Fetched, read: VisiblePage) -> str | None:
    refresh = read.way.refresh
    if refresh is None or refresh.url is None or refresh.seconds > QUICK_REFRESH_SECONDS:
        return None
    is_itself = canonical_or_none(refresh.url) == canonical_or_none(page.final_url)
    return None if is_itself else refresh.url


def _same(
    visit: PageVisit, known_page: KnownPage, validators: _Validators, *, rendered_at: datetime | None = None
) -> SamePage:
    return SamePage(
        url=visit.url,
        known_page=known_page,
        etag=validators.etag,
        last_modified=validators.last_modified,
        served_hash=validators.served_hash,
        rendered_at=rendered_at,
        rights=known_page.rights if validators.rights is None else validators.rights,
    )


def _without_other_rendering(visit: PageVisit) -> PageVisit:
    """Drop the known page if it was rendered with other options, since it cannot be compared."""
    known_page = visit.known_page
    if known_page is None or known_page.rendered_at is None or known_page.rendering_hash == visit.rendering_hash:
        return visit
    return replace(visit, known_page=None)


def _is_same_site(canonical: str | None, url: str) -> bool:
    """Return whether the canonical URL is on the same host, but for a leading www."""
    if canonical is None or canonical == url:
        return canonical == url
    there, here = urlsplit(canonical), urlsplit(url)
    same_port = there.port == here.port or {there.port, here.port} <= {None, 80, 443}
    theirs, ours = ((parts.hostname or "").removeprefix("www.") for parts in (there, here))
    return same_port and theirs == ours


@dataclass(frozen=True, slots=True)
class PoliteVisitor:
    """Fetches pages for a crawl; without a renderer, pages that need a browser are refused."""

    fetcher: HttpFetcher
    renderer: Renderer | None
    clock: SteadyClock
    settings: Settings

    async def visit(
        self, visit: PageVisit, *, host: HostLease, honours_robots: bool, own: str | None = None
    ) -> PageAnswer:
        """Return the page, or that it is unchanged, at the host's pace.

        `own` is the leased host, if the page may be on another one, which is then leased as well.
        """
        own = own or host_of(visit.url)
        robots = host.robots if honours_robots else None
        snapshots = self.settings.snapshots
        visitor = PageVisitor(
            PacedFetch(self.fetcher, own, host, robots, self.clock),
            self.renderer and _PoliteRenderer(self.renderer, own, host, self.clock),
            markdown=snapshots.markdown,
            render_again=timedelta(seconds=snapshots.render_again_seconds),
        )

        def check_url(url: str) -> None:
            if robots is not None and host_of(url) == own:
                robots.check_cached(url)

        answer = await visitor.visit(visit, now=self.clock.now(), check_url=check_url)
        return self._with_rights(answer, robots)

    def _with_rights(self, answer: PageAnswer, robots: HostRobots | None) -> PageAnswer:
        """Return the page with what its site says about its use, beside what it says itself."""
        url = answer.final_url if isinstance(answer, NewPage) else answer.known_page.final_url or answer.url
        of_site = {} if robots is None else robots.rights(url)
        rights = {**of_site, **(answer.rights or {})} or None
        if isinstance(answer, SamePage):
            return replace(answer, rights=rights)
        may_ask = not self.settings.rights.honour or allows_models(rights)
        return replace(answer, rights=rights, may_ask_models=may_ask)


@dataclass(frozen=True, slots=True)
class _PoliteRenderer:
    """A renderer that opens pages of one host at its pace, and of no other host."""

    renderer: Renderer
    own: str
    host: HostLease
    clock: SteadyClock

    async def render(
        self, url: str, rendering: RenderingOptions, *, check_url: Callable[[str], None] | None = None
    ) -> Rendered:
        def check(document: str) -> None:
            if host_of(document) != self.own:
                raise Permanent(
                    f"{url} leads to {host_of(document)} in the browser; name a page of that host if you want that one",
                    code="leads_elsewhere",
                )
            if check_url is not None:
                check_url(document)

        async with paced_request(self.host, url, clock=self.clock):
            return await self.renderer.render(url, rendering, check_url=check)


class NoPageConfig(ValueError):
    """A config was passed to a parser that takes none."""


def read_saved(
    platform: str,
    kind: Kind,  # noqa: ARG001 - every system takes it: one may read several kinds
    saved: SavedBody,
    config: Mapping[str, Any],
) -> SavedBodyResult:
    """Return the page as one record, with problems; a bad URL or config raises ValueError."""
    if config:
        raise NoPageConfig(f"{platform} takes no config; remove {', '.join(sorted(config))}")
    if saved.url:
        checked_url(saved.url)
    return SavedBodyResult.of(lambda: _reading(saved), page_as_dict)


def page_as_dict(page: WebPage) -> dict[str, Any]:
    """Return the page in plain values, as `ingest read` prints it."""
    return {
        "title": page.title,
        "canonical_url": page.canonical_url,
        "language": page.language,
        "links": list(page.links),
        "markdown": page.markdown,
        "text": page.text,
    }


def _reading(saved: SavedBody) -> ParsedFeed[WebPage]:
    if not saved.body.strip(b"\0\t\n\r "):
        raise Transient("the body is empty; fetch the page again", code="empty_body")
    document = Document.of(saved.body, url=saved.url or None)
    page = read_page(document)
    response_class = classify_response(saved.url, 200, {}, saved.body, document=document)
    if isinstance(response_class, WrongType):
        raise Permanent(f"{response_class.reason}; only web pages are read", code="not_html")
    if isinstance(response_class, Content):
        return ParsedFeed(records=[page])
    problem = Problem(where="body", message=response_class.reason, code=response_class.code, hides_record=False)
    return ParsedFeed(records=[page], problems=[problem])
