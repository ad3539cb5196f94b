"""Series as a polled system: feeds by platform, releases as readings, chapters as rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, cast

import orjson
from sqlalchemy import Connection

from ingestion_pipeline.engine.polling.protocol import Ingested, Placed, PolledReading
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.pages.visits.page import StoredPage
from ingestion_pipeline.reading.structured.items import Problem, Reading
from ingestion_pipeline.series.chapter import Release, release_as_dict, release_from_dict
from ingestion_pipeline.series.ingestion import ingest_listings
from ingestion_pipeline.series.plan import SourceListing
from ingestion_pipeline.series.platforms import SeriesFeed, platform
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source


def reading_to_bytes(reading: Reading[Release]) -> bytes:
    """The reading for the content store."""
    document = {
        "is_complete": reading.is_complete,
        "problems": [asdict(problem) for problem in reading.problems],
        "notes": list(reading.notes),
        "releases": [release_as_dict(release) for release in reading.records],
    }
    try:
        return orjson.dumps(document)
    except orjson.JSONEncodeError:  # half a surrogate pair: it is kept; ingestion cleans every text
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="surrogatepass")


def reading_from_bytes(stored: bytes) -> Reading[Release]:
    """The reading that `reading_to_bytes` wrote."""
    document = _loaded(stored)
    return Reading(
        records=[release_from_dict(fields) for fields in document["releases"]],
        problems=[Problem(**fields) for fields in document["problems"]],
        is_complete=document["is_complete"],
        notes=document["notes"],
    )


def _loaded(stored: bytes) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", orjson.loads(stored))
    except orjson.JSONDecodeError:  # half a surrogate pair, or no JSON at all
        return cast("dict[str, Any]", json.loads(stored))


class SeriesSystem:
    """What series bring to polling."""

    may_be_cut = False

    def listing(self, source: Source) -> SeriesFeed:
        """The source's feed."""
        return platform(source.platform or "").configure(source.url, source.config)

    def reader(self, source: Source) -> str:
        """Platform, version and configuration."""
        adapter = platform(source.platform or "")
        config = json.dumps(dict(source.config), sort_keys=True)
        return f"{adapter.name}:{adapter.version}:{config}"

    def pace(self, source: Source, settings: Settings) -> Pace:
        """The platform's published rate, else our own floor."""
        rate = platform(source.platform or "").rate
        if rate is None:
            return Pace(delay_seconds=settings.hosts.delay_seconds)
        return Pace(delay_seconds=1 / rate.per_second, burst=rate.burst)

    def honours_robots(self, source: Source) -> bool:
        """All but documented APIs, and where an operator decided otherwise."""
        return platform(source.platform or "").honours_robots and not source.ignores_robots

    def read(self, source: Source, pages: Sequence[StoredPage]) -> bytes:
        """Every release the pages state."""
        reading = self.listing(source).read(
            [page.body for page in pages],
            content_types=[page.content_type for page in pages],
            urls=[page.url for page in pages],
            now=min((page.fetched_at for page in pages), default=None),
        )
        return reading_to_bytes(reading)

    def size(self, reading: bytes) -> int:
        """One row a release, roughly."""
        return reading.count(b'"source_chapter_id"')

    def ingest(
        self,
        connection: Connection,
        readings: Sequence[PolledReading],
        *,
        now: datetime,
        settings: Settings,
    ) -> Sequence[Ingested]:
        """Chapters, their sources and their outbox rows."""
        listings = [
            SourceListing.of(
                one.source, reading_from_bytes(one.reading), ingestion_id=one.ingestion_id
            )
            for one in readings
        ]
        return ingest_listings(connection, listings, now=now, settings=settings)

    def place(self, connection: Connection, placed: Sequence[Placed]) -> None:
        """Chapters name their ingestion, which has its snapshots: nothing is to be written."""
