"""One poll: fetch a source's listing at its host's pace, and say what came of it."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Sequence
from datetime import datetime, timedelta

from ingestion_pipeline.pages.content import ContentStore
from ingestion_pipeline.pages.host_robots import HostRobots
from ingestion_pipeline.pages.hosts import Pacer, await_turn
from ingestion_pipeline.pages.http_fetcher import HttpFetcher
from ingestion_pipeline.pages.leased_hosts import Visited
from ingestion_pipeline.pages.listing import (
    Fetch,
    Known,
    Listing,
    NewListing,
    SameListing,
    fetch_listing,
)
from ingestion_pipeline.pages.poll_results import Claimed, PageRef, PollResult, StoredListing
from ingestion_pipeline.pages.request import Answer, Fetched, Request
from ingestion_pipeline.pages.workshop import Workshop, our_own_disk
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.outcomes import PollFailure, PollSuccess
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.work.errors import Resource, Transient, WorkError, classify


async def poll_listing(
    shop: Workshop,
    one: Claimed,
    listing: Listing,
    *,
    fetcher: HttpFetcher,
    host: Visited,
    clock: SteadyClock,
) -> PollResult:
    """Unchanged, stored for reading, or a classified failure; it does not raise."""
    pacer = host.pacer
    try:
        system = shop.systems[one.source.kind]
        reader = system.reader(one.source)
        robots = host.robots if system.honours_robots(one.source) else None
        answer = await fetch_listing(
            listing,
            _known(one.source, reader),
            reader=reader,
            fetch=paced(fetcher, pacer, robots, clock),
            max_pages=shop.settings.fetch.max_pages,
        )
        pacer.relax()
        if isinstance(answer, SameListing):
            return _unchanged(one, answer)
        pages = await asyncio.to_thread(_store_pages, shop.content, answer.pages)
        return _stored(one, answer, reader, pages)
    except Exception as error:
        failure = classify(error)
        if (pause := asked_pause(failure, clock.now())) is not None:
            pacer.hold_off(pause.total_seconds())
        return PollFailure(
            task=one.task, source=one.source, error=failure, stack=traceback.format_exc(limit=-20)
        )


def asked_pause(failure: WorkError, now: datetime) -> timedelta | None:
    """How long the host wants to be left alone by everybody; None if it did not say so."""
    if isinstance(failure, Resource) and failure.code == "rate_limited":
        return failure.until - now
    if isinstance(failure, Transient) and failure.code == "http_503":
        return failure.retry_after
    return None


def _known(source: Source, reader: str) -> Known:
    """What an unchanged listing is recognised by; nothing, if it must be read again anyway."""
    if source.needs_full_read or source.reader != reader:
        return Known()
    return Known(
        content_hash=source.content_hash, etag=source.etag, last_modified=source.last_modified
    )


def paced(
    fetcher: HttpFetcher, pacer: Pacer, robots: HostRobots | None, clock: SteadyClock
) -> Fetch:
    """A way to fetch that waits for its turn, asks robots.txt, and tells the pacer of the end."""

    async def fetch(request: Request) -> Answer:
        if robots is not None:
            await robots.admit(request.url)
        await await_turn(pacer, request.url, clock=clock)
        check = robots.check_redirect if robots is not None else None
        try:
            return await fetcher.fetch(request, now=clock.now(), check_redirect=check)
        finally:
            pacer.done()

    return fetch


def _store_pages(content: ContentStore, pages: Sequence[Fetched]) -> tuple[PageRef, ...]:
    with our_own_disk():
        return tuple(
            PageRef(
                url=page.url,
                final_url=page.final_url,
                content_hash=content.put(page.body),
                content_type=page.content_type,
                size_bytes=len(page.body),
                status_code=page.status_code,
                etag=page.etag,
                last_modified=page.last_modified,
            )
            for page in pages
        )


def _unchanged(one: Claimed, same: SameListing) -> PollSuccess:
    return PollSuccess(
        task=one.task,
        source=one.source,
        outcome="unchanged",
        etag=same.etag,
        last_modified=same.last_modified,
    )


def _stored(
    one: Claimed, answer: NewListing, reader: str, pages: tuple[PageRef, ...]
) -> StoredListing:
    return StoredListing(
        task=one.task,
        source=one.source,
        content_hash=answer.content_hash,
        reader=reader,
        pages=pages,
    )
