"""Sources that deliver listings, as a run does it: rows, source and task in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, select, update

from ingestion_pipeline.engine.polling.protocol import IngestResult
from ingestion_pipeline.reading.structured.items import Problem, Reading
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.ingestion import ingest_listings
from ingestion_pipeline.series.plan import SourceListing
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source, poll_results
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_results import PollSuccess
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import chapter_sources, chapters, outbox, series, sources
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline_tests.builders import a_definition, a_release

LEASE = timedelta(hours=1)
SOLO = "series:solo"


def releases(*numbers: float | str | None, **changes: Any) -> list[Release]:
    """One release for each number, at an address of its own."""
    return [
        a_release(
            number=None if number is None else Decimal(str(number)), url=f"https://a.test/chapter/{number}", **changes
        )
        for number in numbers
    ]


@dataclass(slots=True)
class Syncing:
    """The store as sources fill it; time stands where `clock` stands."""

    store: Store
    clock: FixedClock
    settings: Settings
    random: Random

    def given_source(self, source_id: str = SOLO, *, series_id: str = "solo", **row: Any) -> None:
        """A source of the series, never polled, due now."""
        definition = a_definition(
            id=source_id, url=f"https://{source_id.partition(':')[2]}.test/feed", series=series_id
        )
        with self.store.begin() as connection:
            register(connection, [definition], now=self.clock.at)
            if row:
                connection.execute(update(sources).where(sources.c.id == source_id).values(**row))

    def sync(
        self, listed: Sequence[Release], *, by: str = SOLO, complete: bool = True, unread: int = 0
    ) -> IngestResult:
        """What the source's next poll comes to."""
        [result] = self.sync_together({by: listed}, complete=complete, unread=unread)
        return result

    def sync_together(
        self, listed: Mapping[str, Sequence[Release]], *, complete: bool = True, unread: int = 0
    ) -> list[IngestResult]:
        """Several sources' polls in one batch."""
        with self.store.begin() as connection:
            return self.sync_in(connection, listed, complete=complete, unread=unread)

    def sync_in(
        self, connection: Connection, listed: Mapping[str, Sequence[Release]], *, complete: bool = True, unread: int = 0
    ) -> list[IngestResult]:
        """The same inside a transaction of the test's own."""
        now = self.clock.at
        wanted = ClaimFilter(kind="poll", source_ids=list(listed))
        mine = claims.claim(connection, wanted, owner="w", now=now, lease=LEASE, limit=99)
        by_source = {task.source_id: task for task in mine}
        known = sources_by_id(connection, list(listed))
        problems = [Problem(where=str(number), message="unreadable") for number in range(unread)]
        readings = {
            one: Reading(records=list(found), problems=problems, is_complete=complete) for one, found in listed.items()
        }
        listings = [SourceListing.of(known[one], reading) for one, reading in readings.items()]
        results = ingest_listings(connection, listings, now=now, settings=self.settings)
        successes = [
            PollSuccess(
                task=by_source[result.source_id],
                source=known[result.source_id],
                outcome=result.outcome,
                etag=None,
                last_modified=None,
                is_read=not result.quarantined,
                changed=result.has_changes and not result.quarantined,
                updated=result.updated,
                withdrawn=result.withdrawn,
                newest_at=result.newest_at,
                needs_full_read=result.needs_full_read,
                record_count=result.record_count,
            )
            for result in results
        ]
        poll_results.succeed(connection, successes, now=now, settings=self.settings, random=self.random)
        return results

    def source(self, source_id: str = SOLO) -> Source:
        with self.store.read() as connection:
            return sources_by_id(connection, [source_id])[source_id]

    def latest(self, series_id: str = "solo") -> tuple[Decimal | None, datetime | None]:
        """The series' latest chapter, and since when."""
        query = select(series.c.latest_chapter, series.c.last_chapter_at)
        with self.store.read() as connection:
            row = connection.execute(query.where(series.c.id == series_id)).one()
        return row.latest_chapter, row.last_chapter_at

    def rows(self, table: Table) -> list[RowMapping]:
        with self.store.read() as connection:
            return list(connection.execute(select(table).order_by(table.c.id)).mappings())

    def chapters(self) -> list[RowMapping]:
        return self.rows(chapters)

    def keys(self) -> list[str]:
        return [row["key"] for row in self.chapters()]

    def links(self) -> list[RowMapping]:
        return self.rows(chapter_sources)

    def available(self, source_id: str = SOLO) -> list[str]:
        """The keys of what the source still has."""
        query = (
            select(chapters.c.key)
            .join(chapter_sources, chapter_sources.c.chapter_id == chapters.c.id)
            .where(chapter_sources.c.source_id == source_id, chapter_sources.c.available)
            .order_by(chapters.c.number)
        )
        with self.store.read() as connection:
            return list(connection.execute(query).scalars())

    def told(self) -> list[str | None]:
        """The numbers of the chapters that the outbox calls new."""
        rows = self.rows(outbox)
        return [row["payload"]["number"] for row in rows if row["subject_kind"] == "chapter"]
