"""Boards as a polled system: answers by platform, listings as readings, jobs as rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from ingestion_pipeline.companies.boards.ingestion import ingest_boards
from ingestion_pipeline.companies.boards.plan import BoardListing
from ingestion_pipeline.companies.boards.posting import MARK, reading_from_bytes, reading_to_bytes
from ingestion_pipeline.companies.boards.rows import place_listings
from ingestion_pipeline.companies.platforms import JobBoard, platform
from ingestion_pipeline.engine.polling.protocol import Ingested, Placed, PolledReading
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.pages.visits.page import StoredPage
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source


class BoardSystem:
    """What job boards bring to polling."""

    may_be_cut = True

    def listing(self, source: Source) -> JobBoard:
        """The source's board."""
        return platform(source.platform or "").configure(source.url, source.config)

    def reader(self, source: Source) -> str:
        """Platform, version and configuration."""
        adapter = platform(source.platform or "")
        config = json.dumps(dict(source.config), sort_keys=True)
        return f"{adapter.name}:{adapter.version}:{config}"

    def pace(self, source: Source, settings: Settings) -> Pace:  # noqa: ARG002  no platform publishes a rate
        """Our own floor."""
        return Pace(delay_seconds=settings.hosts.delay_seconds)

    def honours_robots(self, source: Source) -> bool:
        """All but documented APIs, and where an operator decided otherwise."""
        return platform(source.platform or "").honours_robots and not source.ignores_robots

    def read(self, source: Source, pages: Sequence[StoredPage]) -> bytes:
        """Every listing the pages state."""
        reading = self.listing(source).read(
            [page.body for page in pages],
            content_types=[page.content_type for page in pages],
            urls=[page.url for page in pages],
            now=min((page.fetched_at for page in pages), default=None),
        )
        return reading_to_bytes(reading)

    def size(self, reading: bytes) -> int:
        """One row a listing, roughly."""
        return reading.count(MARK)

    def ingest(
        self,
        connection: Connection,
        readings: Sequence[PolledReading],
        *,
        now: datetime,
        settings: Settings,
    ) -> Sequence[Ingested]:
        """Listings, their links, and the tasks that judge them."""
        listings = [
            BoardListing.of(
                one.task,
                one.source,
                reading_from_bytes(one.reading),
                ingestion_id=one.ingestion_id,
            )
            for one in readings
        ]
        return ingest_boards(connection, listings, now=now, settings=settings)

    def place(self, connection: Connection, placed: Sequence[Placed]) -> None:
        """Listings know the body that states them."""
        place_listings(connection, placed)
