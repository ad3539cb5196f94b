"""Ingest listings of series sources as a run does (rows, source and task in one transaction); merge, split, follow."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, insert, select, update

from ingestion_pipeline.reading.structured.items import ParsedFeed, Problem
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.chapter_ingestion import ingest_listings
from ingestion_pipeline.series.chapter_plan import SourceListing
from ingestion_pipeline.series.series_changes import Merged, Split, merge, split
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source, poll_results
from ingestion_pipeline.sources.lookup import series_assignments, sources_by_id
from ingestion_pipeline.sources.poll_results import IngestResult, PollSuccess
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import FixedClock, Store, open_store
from ingestion_pipeline.store.tables import (
    audit_log,
    chapter_sources,
    chapters,
    follows,
    notices,
    outbox,
    recipients,
    series,
    sources,
)
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline_tests.builders import a_definition, a_release
from ingestion_pipeline_tests.postgres import wait_until_blocked

LEASE = timedelta(hours=1)
SOLO = "series:solo"
Link = tuple[str, str, str, Any, Any, bool]


def releases(*numbers: float | str | None, **changes: Any) -> list[Release]:
    """One release for each number, at an address of its own."""
    return [
        a_release(
            number=None if number is None else Decimal(str(number)), url=f"https://a.test/chapter/{number}", **changes
        )
        for number in numbers
    ]


@dataclass(slots=True)
class SeriesHarness:
    """A store with series sources and a fixed clock."""

    store: Store
    clock: FixedClock
    settings: Settings
    random: Random

    def add_source(
        self, source_id: str = SOLO, *, series_id: str = "solo", listing: Sequence[Release] | None = None, **row: Any
    ) -> None:
        """Register a source of the series, due now; with a listing, ingest it as its first poll."""
        definition = a_definition(
            id=source_id, url=f"https://{source_id.partition(':')[2]}.test/feed", series=series_id
        )
        with self.store.begin() as connection:
            register(connection, [definition], now=self.clock.at)
            if row:
                connection.execute(update(sources).where(sources.c.id == source_id).values(**row))
        if listing is not None:
            self.sync(listing, by=source_id)

    def sync(
        self, listing: Sequence[Release], *, by: str = SOLO, complete: bool = True, unread: int = 0
    ) -> IngestResult:
        """Ingest a listing as the source's next poll."""
        [result] = self.sync_together({by: listing}, complete=complete, unread=unread)
        return result

    def sync_together(
        self, listings: Mapping[str, Sequence[Release]], *, complete: bool = True, unread: int = 0
    ) -> list[IngestResult]:
        """Ingest several sources' listings in one batch."""
        with self.store.begin() as connection:
            return self.sync_in(connection, listings, complete=complete, unread=unread)

    def sync_in(
        self, connection: Connection, listed: Mapping[str, Sequence[Release]], *, complete: bool = True, unread: int = 0
    ) -> list[IngestResult]:
        """Ingest the listings inside the test's own transaction."""
        now = self.clock.at
        claim_filter = ClaimFilter(kind="poll", source_ids=list(listed))
        claimed = claims.claim(connection, claim_filter, owner="w", now=now, lease=LEASE, limit=99)
        by_source = {task.source_id: task for task in claimed}
        polled_sources = sources_by_id(connection, list(listed))
        problems = [Problem(where=str(number), message="unreadable") for number in range(unread)]
        listings = [
            SourceListing.of(
                polled_sources[source_id], ParsedFeed(records=list(records), problems=problems, is_complete=complete)
            )
            for source_id, records in listed.items()
        ]
        results = ingest_listings(connection, listings, now=now)
        successes = [
            PollSuccess(
                task=by_source[result.source_id],
                source=polled_sources[result.source_id],
                result=result,
                is_read=not result.quarantined,
            )
            for result in results
        ]
        poll_results.succeed(connection, successes, now=now, settings=self.settings, random=self.random)
        return results

    def source(self, source_id: str = SOLO) -> Source:
        with self.store.read() as connection:
            return sources_by_id(connection, [source_id])[source_id]

    def latest(self, series_id: str = "solo") -> tuple[Decimal | None, datetime | None]:
        """Return the series' latest chapter and its date."""
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
        """Return the keys of the chapters that the source still has."""
        query = (
            select(chapters.c.key)
            .join(chapter_sources, chapter_sources.c.chapter_id == chapters.c.id)
            .where(chapter_sources.c.source_id == source_id, chapter_sources.c.available)
            .order_by(chapters.c.number)
        )
        with self.store.read() as connection:
            return list(connection.execute(query).scalars())

    def announced_numbers(self) -> list[str | None]:
        """Return the numbers of the new chapters in the outbox."""
        rows = self.rows(outbox)
        return [row["payload"]["number"] for row in rows if row["subject_kind"] == "chapter"]

    def merge(self, old: str, new: str) -> Merged:
        with self.store.begin() as connection:
            return merge(connection, old, new, actor="test", now=self.clock.at)

    def split(self, old: str, new: str, *source_ids: str, title: str | None = None) -> Split:
        with self.store.begin() as connection:
            return split(connection, old, new, source_ids, title=title, actor="test", now=self.clock.at)

    def follow(self, recipient: str, *series_ids: str) -> None:
        with self.store.begin() as connection:
            existing = connection.execute(select(recipients.c.id)).scalars()
            created = {"created_at": self.clock.at}
            if recipient not in set(existing):
                row = {"address_url": "json://a.test", "kinds": ["chapter"], "mode": "immediate"}
                connection.execute(
                    insert(recipients).values(id=recipient, origin="row", updated_at=self.clock.at, **row, **created)
                )
            for series_id in series_ids:
                connection.execute(
                    insert(follows).values(recipient_id=recipient, series_id=series_id, origin="row", **created)
                )

    def add_notice(self, recipient: str, chapter_id: int, status: str, **row: Any) -> None:
        values = {
            "recipient": recipient,
            "subject_kind": "chapter",
            "subject_id": str(chapter_id),
            "status": status,
            "mode": "immediate",
            "payload": {"chapter_id": chapter_id},
            "created_at": self.clock.at,
        }
        with self.store.begin() as connection:
            connection.execute(insert(notices).values(values | row))

    def notice_summaries(self) -> list[tuple[str, str, str, str]]:
        """Return recipient, status, series id and chapter key of every notice."""
        with self.store.read() as connection:
            rows = connection.execute(select(notices).order_by(notices.c.id)).mappings().all()
            chapters_by_id = {
                str(row.id): (row.series_id, row.key)
                for row in connection.execute(select(chapters.c.id, chapters.c.series_id, chapters.c.key))
            }
        return [(row["recipient"], row["status"], *chapters_by_id[row["subject_id"]]) for row in rows]

    def ingest(self, connection: Connection, source: Source, listed: list[Release]) -> Any:
        listing = SourceListing.of(source, ParsedFeed(records=listed, is_complete=True))
        return ingest_listings(connection, [listing], now=self.clock.at)

    def ingest_in_own_transaction(
        self, source: Source, listed: list[Release], start: threading.Barrier
    ) -> list[IngestResult]:
        with closing(open_store(str(self.settings.store_url), clock=self.clock)) as own:
            start.wait()
            with own.begin() as connection:
                return self.ingest(connection, source, listed)

    def wait_until_blocked(self) -> None:
        """Return when another transaction waits for a lock; on SQLite at once, since it waits before it begins."""
        if self.store.engine.dialect.name == "postgresql":
            wait_until_blocked(self.store)

    def chapter_id(self, series_id: str, key: str) -> int:
        return next(row["id"] for row in self.chapters() if (row["series_id"], row["key"]) == (series_id, key))

    def all_links(self) -> set[Link]:
        """Return source, series, key, detection, releases and availability of every chapter source."""
        query = select(chapter_sources, chapters.c.series_id, chapters.c.key, chapters.c.first_detected_at).join(
            chapters, chapters.c.id == chapter_sources.c.chapter_id
        )
        with self.store.read() as connection:
            return {
                (
                    row["source_id"],
                    row["series_id"],
                    row["key"],
                    row["detected_at"],
                    tuple(sorted(str(release["source_chapter_id"]) for release in row["releases"])),
                    row["available"],
                )
                for row in connection.execute(query).mappings()
            }

    def audit_entries(self) -> list[tuple[str, str, dict[str, Any]]]:
        with self.store.read() as connection:
            query = select(audit_log.c.action, audit_log.c.subject, audit_log.c.detail)
            return [tuple(row) for row in connection.execute(query.order_by(audit_log.c.id))]

    def check_invariants(self) -> None:
        """Assert what must hold after any merge, split and ingestion."""
        with self.store.read() as connection:
            ids = list(connection.execute(select(sources.c.id)).scalars())
            series_by_source = {
                source_id: assignment.series_id for source_id, assignment in series_assignments(connection, ids).items()
            }
            rows = connection.execute(select(series)).mappings().all()
            announced = connection.execute(select(outbox.c.subject_id)).scalars().all()
            query = select(sources.c.id, sources.c.record_count)
            counts = {row.id: row.record_count for row in connection.execute(query)}
        links = self.all_links()
        assert {(source_id, series_id) for source_id, series_id, *_ in links} <= set(series_by_source.items())
        keys = [(row["series_id"], row["key"]) for row in self.chapters()]
        assert len(keys) == len(set(keys))
        merged = {row["id"]: row["merged_into"] for row in rows if row["merged_into"]}
        assert not set(merged.values()) & merged.keys()  # one step, hence no chain and no cycle
        assert {subject_id.partition(":")[0] for subject_id in announced} <= {str(row["id"]) for row in self.chapters()}
        assert counts == dict.fromkeys(ids, 0) | dict(Counter(link[0] for link in links if link[-1]))
        for row in rows:
            available_keys = {
                key for _, series_id, key, *_, is_available in links if is_available and series_id == row["id"]
            }
            numbers = [
                chapter["number"]
                for chapter in self.chapters()
                if chapter["series_id"] == row["id"]
                and chapter["key"] in available_keys
                and chapter["number"] is not None
                and chapter["rejected_at"] is None
            ]
            assert row["latest_chapter"] == max(numbers, default=None), row["id"]
