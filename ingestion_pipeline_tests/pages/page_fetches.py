"""Fetches and visits of pages from a web on loopback, at a fixed time and with a fake browser."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from ingestion_pipeline.pages import Answer, Fetched, FetchLimits, Guard, HttpFetcher, Request
from ingestion_pipeline.pages.visits.page import (
    KnownPage,
    NewPage,
    PageAnswer,
    PageVisit,
    Rendered,
    RenderingOptions,
    SamePage,
)
from ingestion_pipeline.pages.visits.polite_visits import PageVisitor
from ingestion_pipeline.tasks.errors import WorkError
from ingestion_pipeline_tests.fakes import FakeWeb

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
AGENT = "ingestion_pipeline-tests"
T = TypeVar("T")
Error = TypeVar("Error", bound=WorkError)


@contextmanager
def failing(kind: type[Error], code: str, *, match: str | None = None) -> Iterator[pytest.ExceptionInfo[Error]]:
    """Assert that an error of this class and code is raised inside."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert caught.value.code == code


def run_with_fetcher(
    work: Callable[[HttpFetcher], Awaitable[T]],
    guard: Guard,
    limits: FetchLimits | None = None,
    ca_file: Path | None = None,
) -> T:
    async def run() -> T:
        async with HttpFetcher(AGENT, limits or FetchLimits(), guard, ca_file=ca_file) as fetcher:
            return await work(fetcher)

    return asyncio.run(run())


def fetch(web: FakeWeb, request: str | Request = "/", limits: FetchLimits | None = None) -> Answer:
    page_request = Request(url=web.url(request)) if isinstance(request, str) else request
    guard = Guard(frozenset({web.host_port}))
    return run_with_fetcher(lambda fetcher: fetcher.fetch(page_request, now=NOW), guard, limits)


def fetch_page(web: FakeWeb, path: str = "/", limits: FetchLimits | None = None) -> Fetched:
    answer = fetch(web, path, limits)
    assert isinstance(answer, Fetched)
    return answer


DAY = timedelta(days=1)
SHELL = '<!doctype html><title>Shop</title><div id="root"></div><script src="/app.js"></script>'


def a_document(text: str = "Baking I has 12 seats.", *, head: str = "", more: str = "") -> str:
    """Return a page with more text than any blocked page has."""
    filler = "<p>" + "The kitchen is open to all who want to learn. " * 40
    return f"<!doctype html><html><head>{head}</head><body><h1>{text}</h1>{more}{filler}</body>"


@dataclass
class FakeBrowser:
    """Replace the browser: return these bodies one by one and repeat the last."""

    bodies: list[str]
    requests: list[tuple[str, RenderingOptions]] = field(default_factory=list)

    async def render(
        self, url: str, rendering: RenderingOptions, *, check_url: Callable[[str], None] | None = None
    ) -> Rendered:
        if check_url is not None:
            check_url(url)
        body = self.bodies[min(len(self.requests), len(self.bodies) - 1)]
        self.requests.append((url, rendering))
        page = Fetched(
            url=url,
            final_url=url,
            status_code=200,
            body=body.encode(),
            content_type="text/html; charset=utf-8",
            etag=None,
            last_modified=None,
        )
        return Rendered(page=page, screenshot=b"\x89PNG", discovered=(f"{url}?found",))


def visit_page(
    web: FakeWeb,
    visit: str | PageVisit = "/",
    browser: FakeBrowser | None = None,
    *,
    now: datetime = NOW,
    check_url: Callable[[str], None] | None = None,
    markdown: bool = True,
) -> PageAnswer:
    page_visit = PageVisit(url=web.url(visit)) if isinstance(visit, str) else visit
    return run_with_fetcher(
        lambda fetcher: PageVisitor(fetcher.fetch, browser, markdown=markdown).visit(
            page_visit, now=now, check_url=check_url
        ),
        Guard(frozenset({web.host_port})),
    )


def as_new_page(answer: PageAnswer) -> NewPage:
    assert isinstance(answer, NewPage)
    return answer


def as_same_page(answer: PageAnswer) -> SamePage:
    assert isinstance(answer, SamePage)
    return answer


def known_page_of(answer: PageAnswer, *, at: datetime = NOW) -> KnownPage:
    """Return the known page that the store would have after this answer."""
    if isinstance(answer, SamePage):
        names = ("served_hash", "etag", "last_modified", "rendered_at")
        return replace(answer.known_page, **{name: getattr(answer, name) for name in names})
    names = ("content_hash", "final_url", "served_hash", "etag", "last_modified", "links_hash", "rendering_hash")
    rendered_at = at if answer.is_rendered else None
    return KnownPage(snapshot_id=1, rendered_at=rendered_at, **{name: getattr(answer, name) for name in names})
