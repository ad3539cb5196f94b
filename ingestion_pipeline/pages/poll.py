"""One poll: fetch a source's listing at its host's pace, and say what came of it."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from ingestion_pipeline.pages.content import ContentStore
from ingestion_pipeline.pages.elsewhere import asked_pause, turn_of
from ingestion_pipeline.pages.host_robots import HostRobots
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
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.work.errors import classify


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
            fetch=_paced(fetcher, host, robots, clock),
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


def _known(source: Source, reader: str) -> Known:
    """What an unchanged listing is recognised by; nothing, if it must be read again anyway."""
    if source.needs_full_read or source.reader != reader:
        return Known()
    return Known(
        content_hash=source.content_hash, etag=source.etag, last_modified=source.last_modified
    )


def _paced(
    fetcher: HttpFetcher, host: Visited, robots: HostRobots | None, clock: SteadyClock
) -> Fetch:
    async def fetch(request: Request) -> Answer:
        if robots is not None:
            await robots.admit(request.url)
        async with AsyncExitStack() as until:
            await until.enter_async_context(turn_of(host, request.url, clock=clock))
            follow = _followed(request.url, host, robots, until)
            return await fetcher.fetch(request, now=clock.now(), check_redirect=follow)

    return fetch


def _followed(
    asked: str, host: Visited, robots: HostRobots | None, until: AsyncExitStack
) -> Callable[[str], Awaitable[None]]:
    """Asks before each hop: of the host's own rules, or of the host that it leads to."""
    own = host_of(asked)

    async def follow(url: str) -> None:
        if host_of(url) != own:
            honours = robots is not None
            await host.elsewhere.follow(url, honours_robots=honours, until=until)
        elif robots is not None:
            robots.check_redirect(url)

    return follow


def _store_pages(content: ContentStore, pages: Sequence[Fetched]) -> tuple[PageRef, ...]:
    with our_own_disk():
        names = content.put_many([page.body for page in pages])
    return tuple(
        PageRef(
            url=page.url,
            final_url=page.final_url,
            content_hash=name,
            content_type=page.content_type,
            size_bytes=len(page.body),
            status_code=page.status_code,
            etag=page.etag,
            last_modified=page.last_modified,
        )
        for name, page in zip(names, pages, strict=True)
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
