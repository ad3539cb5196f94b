"""The polled system of job boards: requests by platform, parsed feeds, ingestion."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from ingestion_pipeline.companies.boards.board_plan import BoardListing
from ingestion_pipeline.companies.boards.board_writes import ingest_boards
from ingestion_pipeline.companies.boards.listing_rows import place_listings
from ingestion_pipeline.companies.boards.posting import MARK, feed_from_bytes, feed_to_bytes
from ingestion_pipeline.companies.job_listing import listing_as_dict
from ingestion_pipeline.companies.platforms import JobBoard, platform
from ingestion_pipeline.companies.platforms import platform as platform_named
from ingestion_pipeline.engine.polling.protocol import IngestResult, PolledFeed, SinglePageSnapshot
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.pages.visits.page import StoredPage
from ingestion_pipeline.reading.structured.items import SavedBody, SavedBodyResult
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.source import Kind


class BoardSystem:
    """Job boards as the polling engine sees them."""

    may_be_cut = True

    def feed(self, source: Source) -> JobBoard:
        """Return the source's configured board."""
        return platform(source.platform or "").configure(source.url, source.config)

    def parser_version(self, source: Source) -> str:
        """Return platform, version and configuration as one string."""
        adapter = platform(source.platform or "")
        config = json.dumps(dict(source.config), sort_keys=True)
        return f"{adapter.name}:{adapter.version}:{config}"

    def pace(self, source: Source, settings: Settings) -> Pace:  # noqa: ARG002  no platform publishes a rate
        """Return the configured minimum delay."""
        return Pace(delay_seconds=settings.hosts.delay_seconds)

    def honours_robots(self, source: Source) -> bool:
        """Return False for documented APIs and where an operator decided to ignore robots.txt."""
        return platform(source.platform or "").honours_robots and not source.ignores_robots

    def read(self, source: Source, pages: Sequence[StoredPage]) -> bytes:
        """Return every listing of the pages, serialised."""
        parsed = self.feed(source).read(
            [page.body for page in pages],
            content_types=[page.content_type for page in pages],
            urls=[page.url for page in pages],
            now=min((page.fetched_at for page in pages), default=None),
        )
        return feed_to_bytes(parsed)

    def size(self, parsed: bytes) -> int:
        """Return the number of listings, an estimate of the rows to write."""
        return parsed.count(MARK)

    def ingest(
        self, connection: Connection, feeds: Sequence[PolledFeed], *, now: datetime, settings: Settings
    ) -> Sequence[IngestResult]:
        """Write listings, their links, and their evaluation tasks."""
        listings = [
            BoardListing.of(
                polled.task, polled.source, feed_from_bytes(polled.parsed), ingestion_id=polled.ingestion_id
            )
            for polled in feeds
        ]
        return ingest_boards(connection, listings, now=now, settings=settings)

    def link_snapshots(self, connection: Connection, snapshots: Sequence[SinglePageSnapshot]) -> None:
        """Set the snapshot that each listing was parsed from."""
        place_listings(connection, snapshots)


def read_saved(
    platform: str,
    kind: Kind,  # noqa: ARG001 - every system takes it: one may read several kinds
    saved: SavedBody,
    config: Mapping[str, Any],
) -> SavedBodyResult:
    """Return the body's listings and problems; raise ValueError for a bad config."""
    board = platform_named(platform).configure(saved.url, config)
    return SavedBodyResult.of(
        lambda: board.read([saved.body], content_types=[None], now=saved.fetched_at), listing_as_dict
    )
