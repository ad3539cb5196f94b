"""One poll: fetch a source's listing at its host's pace, and say what came of it."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Sequence

from ingestion_pipeline.pages.content import ContentStore
from ingestion_pipeline.pages.elsewhere import asked_pause
from ingestion_pipeline.pages.http_fetcher import HttpFetcher
from ingestion_pipeline.pages.leased_hosts import HostLease
from ingestion_pipeline.pages.listing import (
    Feed,
    FetchState,
    NewListing,
    SameListing,
    fetch_listing,
)
from ingestion_pipeline.pages.paced import PacedFetch
from ingestion_pipeline.pages.poll_results import ClaimedPoll, PageRef, PollResult, StoredListing
from ingestion_pipeline.pages.request import Fetched
from ingestion_pipeline.pages.workshop import RunContext, storage_errors_fatal
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.outcomes import PollFailure, PollSuccess
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.urls import host_of, without_secrets
from ingestion_pipeline.work.errors import classify


async def poll_listing(
    shop: RunContext,
    one: ClaimedPoll,
    listing: Feed,
    *,
    fetcher: HttpFetcher,
    host: HostLease,
    clock: SteadyClock,
) -> PollResult:
    """Unchanged, stored for reading, or a classified failure; it does not raise."""
    pacer = host.pacer
    try:
        system = shop.systems[one.source.kind]
        reader = system.reader(one.source)
        robots = host.robots if system.honours_robots(one.source) else None
        own = host_of(listing.first_request().url)
        answer = await fetch_listing(
            listing,
            _known(one.source, reader),
            reader=reader,
            fetch=PacedFetch(fetcher, own, host, robots, clock),
            max_pages=shop.settings.fetch.max_pages,
            may_be_cut=system.may_be_cut,
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


def _known(source: Source, reader: str) -> FetchState:
    """What an unchanged listing is recognised by; nothing, if it must be read again anyway."""
    if source.needs_full_read or source.reader != reader:
        return FetchState()
    return FetchState(
        content_hash=source.content_hash, etag=source.etag, last_modified=source.last_modified
    )


def _store_pages(content: ContentStore, pages: Sequence[Fetched]) -> tuple[PageRef, ...]:
    with storage_errors_fatal():
        names = content.put_many([page.body for page in pages])
    return tuple(
        PageRef(
            url=without_secrets(page.url),
            final_url=without_secrets(page.final_url),
            content_hash=name,
            content_type=page.content_type,
            size_bytes=len(page.body),
            status_code=page.status_code,
            etag=page.etag,
            last_modified=page.last_modified,
        )
        for name, page in zip(names, pages, strict=True)
    )


def _unchanged(one: ClaimedPoll, same: SameListing) -> PollSuccess:
    return PollSuccess(
        task=one.task,
        source=one.source,
        outcome="unchanged",
        etag=same.etag,
        last_modified=same.last_modified,
    )


def _stored(
    one: ClaimedPoll, answer: NewListing, reader: str, pages: tuple[PageRef, ...]
) -> StoredListing:
    return StoredListing(
        task=one.task,
        source=one.source,
        content_hash=answer.content_hash,
        reader=reader,
        pages=pages,
    )
