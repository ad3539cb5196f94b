"""The same listing again or concurrently: one row, one outbox row, and nothing written."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, text

from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.chapter_ingestion import ingest_listings
from ingestion_pipeline.series.chapter_plan import SourceListing
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline_tests.series.series_harness import (
    SOLO,
    SeriesHarness,
    ingest,
    ingest_in_own_transaction,
    releases,
    wait_until_blocked,
)

pytestmark = pytest.mark.both_databases

OTHER = "series:other"


def all_rows(harness: SeriesHarness) -> tuple[Any, ...]:
    return harness.chapters(), harness.links(), harness.announced_numbers(), harness.latest()


def test_the_same_listing_three_times_is_ingested_once(harness: SeriesHarness, clock: FixedClock) -> None:
    """T15."""
    harness.add_source()
    harness.sync(releases(1))
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
    harness.add_source()
    harness.sync(releases(1))
    source, start = harness.source(), threading.Barrier(8)
    listed = releases(*range(1, 40))

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(ingest_in_own_transaction, harness, source, listed, start) for _ in range(8)]
        new = sorted(future.result(60)[0].new for future in futures)

    assert new == [0] * 7 + [38]
    assert (len(harness.chapters()), len(harness.links())) == (39, 39)
    assert len(harness.announced_numbers()) == 38


def test_two_concurrent_transactions_with_the_same_chapter_create_and_announce_it_once(
    harness: SeriesHarness, store: Store
) -> None:
    """Trap 21: the second begins while the first has written and not committed."""
    for source in (SOLO, OTHER):
        harness.add_source(source)
        harness.sync(releases(1), by=source)
    first, second = harness.source(SOLO), harness.source(OTHER)
    start = threading.Barrier(2)

    with ThreadPoolExecutor(1) as pool:
        with store.begin() as connection:
            first_results = ingest(harness, connection, first, releases(1, 2))
            waiting = pool.submit(ingest_in_own_transaction, harness, second, releases(1, 2), start)
            start.wait(20)
            wait_until_blocked(store)
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
                ingest(harness, connection, harness.source(source_id), records)
        with store.read() as connection:
            return wal_bytes(connection, since)

    same = {SOLO: releases(*range(1, 51)), OTHER: releases(*range(1, 31))}
    assert wal_of(same) == 0
    assert wal_of(same | {OTHER: releases(*range(1, 31), language="de")}) > 30 * 50


def test_one_changed_release_writes_one_row(harness: SeriesHarness, store: Store) -> None:
    """Proves that `traces`, which the test above relies on, detects a single row."""
    harness.add_source()
    harness.sync(releases(*range(1, 51)))
    source = harness.source()
    changed = releases(*range(1, 50)) + releases(50, scanlation_group="B")

    with store.begin() as connection:
        before = write_traces(connection)
        [result] = ingest(harness, connection, source, changed)
        after = write_traces(connection)

    assert result.outcome == "1 updated"
    if connection.dialect.name == "sqlite":
        assert after - before == 1
    else:
        assert [len(set(a) - set(b)) for a, b in zip(after, before, strict=True)] == [0, 0, 1, 0]


def test_a_failed_ingestion_can_be_retried_at_once(harness: SeriesHarness, store: Store) -> None:
    """Trap 24."""
    harness.add_source()
    harness.sync(releases(1))

    def fail_after_writing() -> None:
        with store.begin() as connection:
            ingest(harness, connection, harness.source(), releases(1, 2))
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail_after_writing()
    assert (harness.keys(), harness.announced_numbers()) == (["1"], [])

    assert harness.sync(releases(1, 2)).new == 1
    assert (harness.keys(), harness.announced_numbers()) == (["1", "2"], ["2"])
