"""One look at an API's answer: no browser makes more of it, and no words in it make it a wall."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from ingestion_pipeline.pages.page import (
    KnownPage,
    NewPage,
    PageAnswer,
    PageVisit,
    SamePage,
    unless_known,
)
from ingestion_pipeline.pages.request import Fetched, Request, Unchanged
from ingestion_pipeline.reading.decode import decode
from ingestion_pipeline.reading.fingerprint import clean_content_hash
from ingestion_pipeline.urls import without_credentials
from ingestion_pipeline.work.errors import Transient

if TYPE_CHECKING:
    from ingestion_pipeline.pages.page_visits import PageFetch

ACCEPT = "application/json,*/*;q=0.5"


async def visit_data(
    fetch: PageFetch, visit: PageVisit, *, now: datetime, check_url: Callable[[str], None] | None
) -> PageAnswer:
    """The answer as it came, or that it is the known one; an empty body is a `Transient`."""
    known = visit.known
    asked = unless_known(Request(url=visit.url, accept=ACCEPT), known)
    answer = await fetch(asked, now=now, check_redirect=check_url)
    if isinstance(answer, Unchanged):
        if known is None:  # a 304 that nobody asked for
            raise Transient(f"{_shown(visit.url)} sent no body", code="empty_body")
        return _same(visit, known, answer, known.served_hash)
    served_hash = hashlib.sha256(answer.body).hexdigest()
    if known is not None and served_hash == known.served_hash:
        return _same(visit, known, answer, served_hash)
    return _new(visit, answer, served_hash)


def _same(
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
