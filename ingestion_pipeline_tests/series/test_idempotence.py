"""The same listing again, and at the same moment: one row, one notice, and nothing written."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from random import Random
from typing import Any

import pytest
from sqlalchemy import Connection, text

from ingestion_pipeline.engine.polling.protocol import IngestResult
from ingestion_pipeline.reading.structured.items import Reading
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.ingestion import ingest_listings
from ingestion_pipeline.series.plan import SourceListing
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store import FixedClock, Store, open_store
from ingestion_pipeline_tests.series.syncing import SOLO, Syncing, releases

OTHER = "series:other"


@pytest.fixture
def syncing(store: Store, clock: FixedClock, settings: Settings, random: Random) -> Syncing:
    return Syncing(store, clock, settings, random)


def ingest(syncing: Syncing, connection: Connection, source: Source, listed: list[Release]) -> Any:
    listing = SourceListing.of(source, Reading(records=listed, is_complete=True))
    return ingest_listings(connection, [listing], now=syncing.clock.at, settings=syncing.settings)


def ingest_in_own_transaction(
    syncing: Syncing, source: Source, listed: list[Release], start: threading.Barrier
) -> list[IngestResult]:
    with closing(open_store(str(syncing.settings.store_url), clock=syncing.clock)) as own:
        start.wait()
        with own.begin() as connection:
            return ingest(syncing, connection, source, listed)


def everything(syncing: Syncing) -> tuple[Any, ...]:
    return syncing.chapters(), syncing.links(), syncing.told(), syncing.latest()


def test_the_same_listing_three_times_is_ingested_once(syncing: Syncing, clock: FixedClock) -> None:
    """T15."""
    syncing.given_source()
    syncing.sync(releases(1))
    syncing.sync(releases(1, 2))
    before = everything(syncing)

    for _ in range(3):
        clock.advance(hours=1)
        result = syncing.sync(releases(2, 1))
        assert (result.new, result.updated, result.outcome) == (0, 0, "nothing new")

    assert everything(syncing) == before
    assert [row["number"] for row in syncing.chapters()] == [1, 2]
    assert syncing.told() == ["2"]


@pytest.mark.slow
def test_the_same_listing_in_eight_threads_is_ingested_once(syncing: Syncing) -> None:
    """T15: a claim that was taken over, eight times, and every worker writes."""
    syncing.given_source()
    syncing.sync(releases(1))
    source, start = syncing.source(), threading.Barrier(8)
    listed = releases(*range(1, 40))

    with ThreadPoolExecutor(8) as pool:
        each = [pool.submit(ingest_in_own_transaction, syncing, source, listed, start) for _ in range(8)]
        new = sorted(one.result(60)[0].new for one in each)

    assert new == [0] * 7 + [38]
    assert (len(syncing.chapters()), len(syncing.links())) == (39, 39)
    assert len(syncing.told()) == 38


def wait_until_blocked(store: Store) -> None:
    """Until another transaction waits for a lock; on SQLite it waits before it begins."""
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    deadline = time.monotonic() + 20
    while store.engine.dialect.name == "postgresql":
        with store.read() as connection:
            if connection.execute(waiting).scalar_one():
                return
        if time.monotonic() > deadline:
            raise TimeoutError("the second transaction never came to wait")
        time.sleep(0.01)


def test_two_transactions_that_bring_the_same_chapter_make_one_and_tell_it_once(syncing: Syncing, store: Store) -> None:
    """Trap 21: the second begins while the first has written and not committed."""
    for source in (SOLO, OTHER):
        syncing.given_source(source)
        syncing.sync(releases(1), by=source)
    first, second = syncing.source(SOLO), syncing.source(OTHER)
    start = threading.Barrier(2)

    with ThreadPoolExecutor(1) as pool:
        with store.begin() as connection:
            one = ingest(syncing, connection, first, releases(1, 2))
            waiting = pool.submit(ingest_in_own_transaction, syncing, second, releases(1, 2), start)
            start.wait(20)
            wait_until_blocked(store)
        two = waiting.result(60)

    assert [one[0].new, two[0].new] == [1, 1]
    assert syncing.keys() == ["1", "2"]
    assert [row["source_id"] for row in syncing.links()] == [SOLO, OTHER, SOLO, OTHER]
    assert syncing.told() == ["2"]


def traces(connection: Connection) -> Any:
    """What changes when a row of chapters or chapter_sources is written, or an id is used up."""
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
    """How much of the log since then is about the two tables or their indexes."""
    files = """
        SELECT pg_relation_filenode(c.oid) AS file FROM pg_class c
        LEFT JOIN pg_index i ON i.indexrelid = c.oid
        WHERE coalesce(i.indrelid, c.oid) IN ('chapters'::regclass, 'chapter_sources'::regclass)
    """
    return connection.execute(
        text(
            "SELECT coalesce(sum(record_length), 0) FROM pg_get_wal_records_info(:since,"
            " pg_current_wal_flush_lsn()) WHERE EXISTS (SELECT FROM (" + files + ") AS ours"
            " WHERE block_ref LIKE '%/' || file || ' %')"
        ),
        {"since": since},
    ).scalar_one()


def test_unchanged_listings_of_several_sources_write_not_one_row(syncing: Syncing, store: Store) -> None:
    listed = {
        SOLO: releases(*range(1, 51)) + releases(None, source_chapter_id="x"),
        OTHER: releases(*range(30, 60)),
        "series:third": releases(1, 2, 3),
    }
    for source_id in listed:
        syncing.given_source(source_id, series_id="third" if "third" in source_id else "solo")
    syncing.sync_together(listed)
    listings = [
        SourceListing.of(syncing.source(id_), Reading(records=known[::-1], is_complete=True))
        for id_, known in listed.items()
    ]

    with store.begin() as connection:
        before = traces(connection)
        results = ingest_listings(connection, listings, now=syncing.clock.at, settings=syncing.settings)
        after = traces(connection)

    assert [result.outcome for result in results] == ["nothing new"] * 3
    assert after == before


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgres"])
def test_unchanged_listings_leave_no_byte_of_log_about_chapters(syncing: Syncing, store: Store) -> None:
    syncing.given_source()
    syncing.given_source(OTHER)
    syncing.sync_together({SOLO: releases(*range(1, 51)), OTHER: releases(*range(1, 31))})
    with store.begin() as connection:
        connection.execute(text("CREATE EXTENSION IF NOT EXISTS pg_walinspect"))
        connection.execute(text("CHECKPOINT"))  # the next touch of a page would be logged whole

    def log_of(listed: dict[str, list[Release]]) -> int:
        with store.begin() as connection:
            since = connection.execute(text("SELECT pg_current_wal_insert_lsn()")).scalar_one()
            for source_id, known in listed.items():
                ingest(syncing, connection, syncing.source(source_id), known)
        with store.read() as connection:
            return wal_bytes(connection, since)

    same = {SOLO: releases(*range(1, 51)), OTHER: releases(*range(1, 31))}
    assert log_of(same) == 0
    assert log_of(same | {OTHER: releases(*range(1, 31), language="de")}) > 30 * 50


def test_one_changed_release_writes_one_row(syncing: Syncing, store: Store) -> None:
    """The measure of the test above is a measure: it sees a single row."""
    syncing.given_source()
    syncing.sync(releases(*range(1, 51)))
    source = syncing.source()
    changed = releases(*range(1, 50)) + releases(50, scanlation_group="B")

    with store.begin() as connection:
        before = traces(connection)
        [result] = ingest(syncing, connection, source, changed)
        after = traces(connection)

    assert result.outcome == "1 updated"
    if connection.dialect.name == "sqlite":
        assert after - before == 1
    else:
        assert [len(set(a) - set(b)) for a, b in zip(after, before, strict=True)] == [0, 0, 1, 0]


def test_a_failed_ingestion_can_be_tried_again_at_once(syncing: Syncing, store: Store) -> None:
    """Trap 24."""
    syncing.given_source()
    syncing.sync(releases(1))

    def fail_after_writing() -> None:
        with store.begin() as connection:
            ingest(syncing, connection, syncing.source(), releases(1, 2))
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail_after_writing()
    assert (syncing.keys(), syncing.told()) == (["1"], [])

    assert syncing.sync(releases(1, 2)).new == 1
    assert (syncing.keys(), syncing.told()) == (["1", "2"], ["2"])
