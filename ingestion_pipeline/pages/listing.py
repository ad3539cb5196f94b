"""A source's whole listing: its first page, and the pages it leads to, or that nothing changed."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from ingestion_pipeline.pages.request import Answer, Fetched, Request, Unchanged
from ingestion_pipeline.urls import without_credentials
from ingestion_pipeline.work.errors import Permanent


class Listing(Protocol):
    """What a configured source can say of its pages, without any network."""

    def first_request(self) -> Request:
        """Where the listing begins."""
        ...

    def next_request(self, body: bytes, *, url: str = "") -> Request | None:
        """What follows this page, which came from `url` in the end; None if it was the last."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
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


Fetch = Callable[[Request], Awaitable[Answer]]


async def fetch_listing(
    listing: Listing, known: Known, *, reader: str, fetch: Fetch, max_pages: int
) -> SameListing | NewListing:
    """All pages, or that they are the known ones; `reader` is part of what must be equal.

    Only a listing of one page is asked for conditionally: a 304 says nothing about the next page.
    """
    first = replace(listing.first_request(), etag=known.etag, last_modified=known.last_modified)
    answer = await fetch(first)
    if isinstance(answer, Unchanged):
        return SameListing(etag=answer.etag, last_modified=answer.last_modified)
    pages = [answer]
    while (following := _next_request(listing, pages[-1])) is not None:
        if len(pages) >= max_pages:
            raise Permanent(
                f"{without_credentials(first.url)} leads to more than {max_pages} pages;"
                " raise the setting fetch.max_pages if that is right",
                code="too_many_pages",
            )
        pages.append(_whole(await fetch(following), following))
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


def _next_request(listing: Listing, page: Fetched) -> Request | None:
    return listing.next_request(page.body, url=page.final_url)


def _whole(answer: Answer, request: Request) -> Fetched:
    if isinstance(answer, Unchanged):
        shown = without_credentials(request.url)
        raise Permanent(f"{shown} answered 304 to a plain request", code="bad_304")
    return answer
