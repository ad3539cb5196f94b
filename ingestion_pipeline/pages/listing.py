"""A source's whole listing: its first page, and the pages it leads to, or that nothing changed."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from ingestion_pipeline.pages.request import Answer, Fetched, Request, Unchanged
from ingestion_pipeline.urls import without_credentials
from ingestion_pipeline.work.errors import Permanent


class Feed(Protocol):
    """What a configured source can say of its pages, without any network."""

    def first_request(self) -> Request:
        """Where the listing begins."""
        ...

    def next_request(self, body: bytes, *, asked: Request, url: str = "") -> Request | None:
        """What follows this page, the answer to `asked` that came from `url` in the end.

        None if it was the last.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchState:
    """What the last ingestion left: by which an unchanged listing is recognised."""

    content_hash: str | None = None
    etag: str | None = None
    last_modified: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SameListing:
    """Nothing changed; the validators may have."""

    etag: str | None
    last_modified: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewListing:
    """Every page of a listing that differs from the known one."""

    pages: tuple[Fetched, ...]
    content_hash: str


MISSING = "http_404"

Fetch = Callable[[Request], Awaitable[Answer]]


async def fetch_listing(
    listing: Feed,
    known: FetchState,
    *,
    reader: str,
    fetch: Fetch,
    max_pages: int,
    may_be_cut: bool = False,
) -> SameListing | NewListing:
    """All pages, or that they are the known ones; `reader` is part of what must be equal.

    Only a listing of one page is asked for conditionally: a 304 says nothing about the next page.
    With `may_be_cut` a listing of too many pages is fetched as far as it is allowed to go: its
    reader can tell that it is a part; and one that leads back to a page of its own ends there.
    """
    first = replace(listing.first_request(), etag=known.etag, last_modified=known.last_modified)
    answer = await fetch(first)
    if isinstance(answer, Unchanged):
        return SameListing(etag=answer.etag, last_modified=answer.last_modified)
    pages, asked = [answer], first
    requested = {(first.url, first.body)}
    while (following := _next_request(listing, pages, asked)) is not None:
        leads_back = (following.url, following.body) in requested
        if may_be_cut and (leads_back or len(pages) >= max_pages):
            break
        requested.add((following.url, following.body))
        if len(pages) >= max_pages:
            raise Permanent(
                f"{without_credentials(first.url)} leads to more than {max_pages} pages;"
                " raise the setting fetch.max_pages if that is right",
                code="too_many_pages",
            )
        page = await _following(fetch, following)
        if page is None:
            break
        pages.append(page)
        asked = following
    content_hash = listing_hash(pages, reader=reader)
    if content_hash == known.content_hash:
        if len(pages) > 1:
            return SameListing(etag=None, last_modified=None)
        return SameListing(etag=answer.etag, last_modified=answer.last_modified)
    return NewListing(pages=tuple(pages), content_hash=content_hash)


def listing_hash(pages: list[Fetched], *, reader: str) -> str:
    """Equal iff every page is, and the reader and its configuration are the same."""
    digest = hashlib.sha256(reader.encode())
    for page in pages:
        digest.update(hashlib.sha256(page.body).digest())
    return digest.hexdigest()


def _next_request(listing: Feed, pages: list[Fetched], asked: Request) -> Request | None:
    """None also where a server gives its last page again for every number beyond it."""
    if asked.may_be_missing and pages[-1].body == pages[-2].body:
        return None
    return listing.next_request(pages[-1].body, asked=asked, url=pages[-1].final_url)


async def _following(fetch: Fetch, request: Request) -> Fetched | None:
    """The page, or None where the list ended before it."""
    try:
        return _whole(await fetch(request), request)
    except Permanent as error:
        if request.may_be_missing and error.code == MISSING:
            return None
        raise


def _whole(answer: Answer, request: Request) -> Fetched:
    if isinstance(answer, Unchanged):
        shown = without_credentials(request.url)
        raise Permanent(f"{shown} answered 304 to a plain request", code="bad_304")
    return answer
