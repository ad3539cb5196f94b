"""The same listing again or at once writes nothing; ingestions, merges and splits in any order keep every invariant."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select, text, update

from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.chapter_ingestion import ingest_listings
from ingestion_pipeline.series.chapter_plan import SourceListing
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.lookup import series_assignments
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import chapters, follows, notices, outbox, series
from ingestion_pipeline_tests.builders import a_release
from ingestion_pipeline_tests.series.series_harness import SOLO, SeriesHarness, releases

pytestmark = pytest.mark.both_databases

OTHER = "series:other"


def all_rows(harness: SeriesHarness) -> tuple[Any, ...]:
    return harness.chapters(), harness.links(), harness.announced_numbers(), harness.latest()


def test_the_same_listing_three_times_is_ingested_once(harness: SeriesHarness, clock: FixedClock) -> None:
    """T15."""
    harness.add_source(listing=releases(1))
    harness.sync(releases(1, 2))
    before = all_rows(harness)

    for _ in range(3):
        clock.advance(hours=1)
        result = harness.sync(releases(2, 1))
        assert (result.new, result.updated, result.outcome) == (0, 0, "nothing new")

    assert all_rows(harness) == before
    assert [row["number"] for row in harness.chapters()] == [1, 2]
    assert harness.announced_numbers() == ["2"]


@pytest.mark.slow
def test_the_same_listing_in_eight_threads_is_ingested_once(harness: SeriesHarness) -> None:
    """T15: a claim that was taken over, eight times, and every worker writes."""
    harness.add_source(listing=releases(1))
    source, start = harness.source(), threading.Barrier(8)
    listed = releases(*range(1, 40))

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(harness.ingest_in_own_transaction, source, listed, start) for _ in range(8)]
        new = sorted(future.result(60)[0].new for future in futures)

    assert new == [0] * 7 + [38]
    assert (len(harness.chapters()), len(harness.links())) == (39, 39)
    assert len(harness.announced_numbers()) == 38


def test_two_concurrent_transactions_with_the_same_chapter_create_and_announce_it_once(harness: SeriesHarness) -> None:
    """Trap 21: the second begins while the first has written and not committed."""
    for source in (SOLO, OTHER):
        harness.add_source(source, listing=releases(1))
    first, second = harness.source(SOLO), harness.source(OTHER)
    start = threading.Barrier(2)

    with ThreadPoolExecutor(1) as pool:
        with harness.store.begin() as connection:
            first_results = harness.ingest(connection, first, releases(1, 2))
            waiting = pool.submit(harness.ingest_in_own_transaction, second, releases(1, 2), start)
            start.wait(20)
            harness.wait_until_blocked()
        second_results = waiting.result(60)

    assert [first_results[0].new, second_results[0].new] == [1, 1]
    assert harness.keys() == ["1", "2"]
    assert [row["source_id"] for row in harness.links()] == [SOLO, OTHER, SOLO, OTHER]
    assert harness.announced_numbers() == ["2"]


def write_traces(connection: Connection) -> Any:
    """Return values that change when a row of chapters or chapter_sources is written, or an id is used up."""
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.dbapi_connection
        return driver.total_changes
    versions = "SELECT ctid::text, xmin::text, xmax::text FROM {} ORDER BY id"
    ids = "SELECT last_value, is_called FROM {}_id_seq"
    return [
        connection.execute(text(query.format(table))).all()
        for table in ("chapters", "chapter_sources")
        for query in (versions, ids)
    ]


def wal_bytes(connection: Connection, since: str) -> int:
    """Return the bytes of WAL since then that concern the two tables or their indexes."""
    files = """
        SELECT pg_relation_filenode(c.oid) AS file FROM pg_class c
        LEFT JOIN pg_index i ON i.indexrelid = c.oid
        WHERE coalesce(i.indrelid, c.oid) IN ('chapters'::regclass, 'chapter_sources'::regclass)
    """
    return connection.execute(
        text(
            "SELECT coalesce(sum(record_length), 0) FROM pg_get_wal_records_info(:since,"
            " pg_current_wal_flush_lsn()) WHERE EXISTS (SELECT FROM (" + files + ") AS relations"
            " WHERE block_ref LIKE '%/' || file || ' %')"
        ),
        {"since": since},
    ).scalar_one()


def test_unchanged_listings_of_several_sources_write_no_row(harness: SeriesHarness, store: Store) -> None:
    listed = {
        SOLO: releases(*range(1, 51)) + releases(None, source_chapter_id="x"),
        OTHER: releases(*range(30, 60)),
        "series:third": releases(1, 2, 3),
    }
    for source_id in listed:
        harness.add_source(source_id, series_id="third" if "third" in source_id else "solo")
    harness.sync_together(listed)
    listings = [
        SourceListing.of(harness.source(id_), ParsedFeed(records=records[::-1], is_complete=True))
        for id_, records in listed.items()
    ]

    with store.begin() as connection:
        before = write_traces(connection)
        results = ingest_listings(connection, listings, now=harness.clock.at)
        after = write_traces(connection)

    assert [result.outcome for result in results] == ["nothing new"] * 3
    assert after == before


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgres"])
def test_unchanged_listings_write_no_wal_records_for_chapters(harness: SeriesHarness, store: Store) -> None:
    harness.add_source()
    harness.add_source(OTHER)
    harness.sync_together({SOLO: releases(*range(1, 51)), OTHER: releases(*range(1, 31))})
    with store.begin() as connection:
        connection.execute(text("CREATE EXTENSION IF NOT EXISTS pg_walinspect"))
        connection.execute(text("CHECKPOINT"))  # the next touch of a page would be logged whole

    def wal_of(listed: dict[str, list[Release]]) -> int:
        with store.begin() as connection:
            since = connection.execute(text("SELECT pg_current_wal_insert_lsn()")).scalar_one()
            for source_id, records in listed.items():
                harness.ingest(connection, harness.source(source_id), records)
        with store.read() as connection:
            return wal_bytes(connection, since)

    same = {SOLO: releases(*range(1, 51)), OTHER: releases(*range(1, 31))}
    assert wal_of(same) == 0
    assert wal_of(same | {OTHER: releases(*range(1, 31), language="de")}) > 30 * 50


def test_one_changed_release_writes_one_row(harness: SeriesHarness, store: Store) -> None:
    """Proves that `traces`, which the test above relies on, detects a single row."""
    harness.add_source(listing=releases(*range(1, 51)))
    source = harness.source()
    changed = releases(*range(1, 50)) + releases(50, scanlation_group="B")

    with store.begin() as connection:
        before = write_traces(connection)
        [result] = harness.ingest(connection, source, changed)
        after = write_traces(connection)

    assert result.outcome == "1 updated"
    if connection.dialect.name == "sqlite":
        assert after - before == 3  # the row, its change, and its values in the record of its insert
    else:
        assert [len(set(a) - set(b)) for a, b in zip(after, before, strict=True)] == [0, 0, 1, 0]


def test_a_failed_ingestion_can_be_retried_at_once(harness: SeriesHarness, store: Store) -> None:
    """Trap 24."""
    harness.add_source(listing=releases(1))

    def fail_after_writing() -> None:
        with store.begin() as connection:
            harness.ingest(connection, harness.source(), releases(1, 2))
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail_after_writing()
    assert (harness.keys(), harness.announced_numbers()) == (["1"], [])

    assert harness.sync(releases(1, 2)).new == 1
    assert (harness.keys(), harness.announced_numbers()) == (["1", "2"], ["2"])


SOURCES = [f"series:{name}" for name in "abcd"]
STEPS = 30


@dataclass(slots=True)
class Simulation:
    """A random simulation: what sources list, and which chapters each recipient must be notified of."""

    harness: SeriesHarness
    random: Random
    listed: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    owed: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def begin(self) -> None:
        for position, source in enumerate(SOURCES):
            self.listed[source] = set(range(position + 1, position + 9))
            self.harness.add_source(source, series_id=f"s{position % 3}")
            self.poll(source)
        for name, followed in {"ann": ["s0"], "ben": ["s0", "s1"], "cat": ["s2"]}.items():
            self.harness.follow(name, *followed)

    def step(self) -> None:
        self.harness.clock.advance(minutes=10)
        choice = self.random.choice(["publish", "drop", "notify", "merge", "merge", "split"])
        getattr(self, choice)()

    def publish(self) -> None:
        for source in self.random.sample(SOURCES, self.random.randint(1, 3)):
            self.listed[source].add(max(self.listed[source]) + self.random.randint(1, 2))
            self.poll(source)

    def drop(self) -> None:
        source = self.random.choice(SOURCES)
        self.listed[source].remove(self.random.choice(sorted(self.listed[source])))
        self.poll(source)
        self.poll(source)

    def poll(self, source: str) -> None:
        earlier = {row["id"] for row in self.harness.rows(outbox)}
        self.harness.sync([self.release(source, number) for number in self.listed[source]], by=source)
        with self.harness.store.read() as connection:
            followers = connection.execute(select(follows.c.recipient_id, follows.c.series_id)).all()
        self.owed |= {
            (recipient, row["payload"]["number"])
            for row in self.harness.rows(outbox)
            for recipient, series_id in followers
            if row["id"] not in earlier and series_id == row["payload"]["series_id"]
        }

    @staticmethod
    def release(source: str, number: int) -> Release:
        own = f"{source}/{number}"
        is_oneshot = number == 5
        return a_release(
            number=None if is_oneshot else Decimal(number),
            title="Interlude" if is_oneshot else None,
            source_chapter_id=own,
            url=f"https://a.test/{own}",
        )

    def notify(self) -> None:
        """Turn outbox rows into notices, one per recipient and chapter for ever, some sent at once."""
        with self.harness.store.begin() as connection:
            query = select(outbox).where(outbox.c.handled_at.is_(None))
            for row in connection.execute(query).mappings().all():
                subject = (row["subject_kind"], row["subject_id"])
                notified = select(notices.c.recipient).where(
                    notices.c.subject_kind == subject[0], notices.c.subject_id == subject[1]
                )
                pending_followers = select(follows.c.recipient_id).where(
                    follows.c.series_id == row["payload"]["series_id"], follows.c.recipient_id.not_in(notified)
                )
                for recipient in connection.execute(pending_followers).scalars().all():
                    connection.execute(
                        insert(notices).values(
                            recipient=recipient,
                            subject_kind=subject[0],
                            subject_id=subject[1],
                            status=self.random.choice(["sent", "pending"]),
                            mode="immediate",
                            series_id=row["payload"]["series_id"],
                            payload=row["payload"],
                            created_at=self.harness.clock.at,
                        )
                    )
            connection.execute(update(outbox).values(handled_at=self.harness.clock.at))

    def merge(self) -> None:
        if len(self.live()) > 1:
            self.harness.merge(*self.random.sample(self.live(), 2))

    def split(self) -> None:
        with self.harness.store.read() as connection:
            series_by_source = {
                source_id: assignment.series_id
                for source_id, assignment in series_assignments(connection, SOURCES).items()
            }
        old = self.random.choice(sorted(set(series_by_source.values())))
        members = [source_id for source_id in SOURCES if series_by_source[source_id] == old]
        leaving = self.random.sample(members, self.random.randint(1, len(members)))
        merged = [row["id"] for row in self.harness.rows(series) if row["merged_into"] == old]
        others = [series_id for series_id in self.live() if series_id != old]
        new = self.random.choice([*merged, *merged, *others, f"n{len(self.harness.rows(series))}"])
        self.harness.split(old, new, *leaving)
        for position, source in enumerate(SOURCES):  # their files are imported again
            self.harness.add_source(source, series_id=f"s{position % 3}")

    def live(self) -> list[str]:
        return [row["id"] for row in self.harness.rows(series) if row["merged_into"] is None]

    def check(self) -> None:
        self.harness.check_invariants()
        with self.harness.store.read() as connection:
            query = select(chapters.c.id, chapters.c.key)
            keys = {str(row.id): row.key for row in connection.execute(query)}
        notified = [(row["recipient"], row["subject_id"]) for row in self.harness.rows(notices)]
        assert max(Counter(notified).values(), default=1) == 1
        assert {subject for _, subject in notified} <= keys.keys()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_any_sequence_of_ingestions_merges_and_splits_keeps_every_invariant(
    store: Store, clock: FixedClock, settings: Settings, seed: int
) -> None:
    simulation = Simulation(SeriesHarness(store, clock, settings, Random(seed)), Random(seed))
    simulation.begin()
    for _ in range(STEPS):
        simulation.step()
        simulation.check()
    simulation.notify()

    numbers = {str(row["id"]): row["key"] for row in simulation.harness.chapters()}
    rows = simulation.harness.rows(notices)
    notified = {(row["recipient"], numbers[row["subject_id"]]) for row in rows}
    assert simulation.owed
    assert {(recipient, number) for recipient, number in simulation.owed if number is not None} <= notified
