"""Merging two series: nothing is lost, nothing is announced twice, and every series id still works."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy import select, update

from ingestion_pipeline.series.series_changes import SameSeries, merge
from ingestion_pipeline.series.series_reports import SeriesMerged, UnknownSeries
from ingestion_pipeline.store import FixedClock, Store, open_store
from ingestion_pipeline.store.tables import chapters, follows, outbox, series
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.series.series_harness import SeriesHarness, releases

pytestmark = pytest.mark.both_databases

A, B, C = "series:a", "series:b", "series:c"
HOUR = timedelta(hours=1)


@pytest.fixture
def harness(harness: SeriesHarness, clock: FixedClock) -> SeriesHarness:
    """Series `a` with chapters 1 to 3, an hour later series `b` with 2 to 4."""
    harness.add_source(A, series_id="a", listing=releases(1, 2, 3, title="From a", source_chapter_id="x"))
    clock.advance(hours=1)
    harness.add_source(B, series_id="b", listing=releases(2, 3, 4, published_at=None))
    return harness


def test_a_merge_moves_every_chapter_and_unites_the_same_number(harness: SeriesHarness) -> None:
    merged = harness.merge("a", "b")

    assert {(source, series_id, key) for source, series_id, key, *_ in harness.all_links()} == {
        *((A, "b", key) for key in "123"),
        *((B, "b", key) for key in "234"),
    }
    two = next(row for row in harness.chapters() if row["key"] == "2")
    assert (two["title"], two["published_at"], two["first_detected_at"]) == ("From a", NOON, NOON)
    assert (merged.chapters_moved, merged.chapters_united, merged.links_moved) == (1, 2, 2)
    assert (harness.latest("b")[0], harness.latest("a")) == (Decimal(4), (None, None))
    assert harness.announced_numbers() == []
    [(action, subject, detail)] = harness.audit_entries()
    assert (action, subject, detail["into"]) == ("series.merge", "a", "b")
    assert detail["chapters_united"] == 2
    harness.check_invariants()


def test_a_source_that_still_names_the_merged_series_is_ingested_into_the_new_one(harness: SeriesHarness) -> None:
    harness.merge("a", "b")
    before = (harness.all_links(), harness.source(A).record_count)

    harness.add_source(A, series_id="a")  # imported again
    unchanged = harness.sync(releases(1, 2, 3, title="From a", source_chapter_id="x"), by=A)
    assert (unchanged.outcome, harness.all_links()) == ("nothing new", before[0])

    harness.sync(releases(1, 2, 3, 5, title="From a", source_chapter_id="x"), by=A)
    assert harness.latest("b")[0] == Decimal(5)
    assert [row["payload"]["series_id"] for row in harness.rows(outbox)] == ["b"]
    harness.check_invariants()


def test_a_source_file_with_the_new_series_id_keeps_the_sources_state(harness: SeriesHarness) -> None:
    """Otherwise the source would count as moved, and its next chapter would never be announced."""
    harness.merge("a", "b")
    before = harness.source(A)

    harness.add_source(A, series_id="b")

    after = harness.source(A)
    assert (after.synced_at, after.record_count) == (before.synced_at, 3)
    harness.sync(releases(1, 2, 3, 9, title="From a", source_chapter_id="x"), by=A)
    assert harness.announced_numbers() == ["9"]


def test_earlier_merges_move_along_and_merge_cycles_are_refused(harness: SeriesHarness) -> None:
    harness.add_source(C, series_id="c", listing=releases(7))
    harness.merge("a", "b")

    for old, new in (("a", "c"), ("b", "a"), ("c", "a")):
        with pytest.raises(SeriesMerged, match="'a' was merged into 'b'; use that id"):
            harness.merge(old, new)
    harness.merge("b", "c")

    with harness.store.read() as connection:
        rows = connection.execute(select(series.c.id, series.c.merged_into).order_by(series.c.id))
        assert rows.all() == [("a", "c"), ("b", "c"), ("c", None)]
    assert {series_id for _, series_id, *_ in harness.all_links()} == {"c"}
    harness.check_invariants()


def test_an_unknown_or_identical_series_is_refused_and_nothing_moves(harness: SeriesHarness) -> None:
    before = harness.all_links()

    with pytest.raises(UnknownSeries, match="did you mean a"):
        harness.merge("aa", "b")
    with pytest.raises(UnknownSeries, match="`ingest series list` shows all"):
        harness.merge("b", "nothing-like-it")
    with pytest.raises(SameSeries):
        harness.merge("a", "a")

    assert (harness.all_links(), harness.audit_entries()) == (before, [])


@pytest.mark.parametrize(
    ("moved_status", "existing_status", "remaining"),
    [
        ("sent", None, ["sent"]),
        ("pending", None, ["pending"]),
        ("pending", "sent", ["sent"]),
        ("sent", "pending", ["sent"]),
        ("pending", "failed", ["pending"]),
        ("pending", "muted", ["muted"]),
        ("sent", "sent", ["sent"]),
    ],
)
def test_a_merge_leaves_each_recipient_one_notice_per_chapter_and_sent_stays_sent(
    harness: SeriesHarness, moved_status: str, existing_status: str | None, remaining: list[str]
) -> None:
    harness.add_notice("ann", harness.chapter_id("a", "2"), moved_status, series_id="a")
    harness.add_notice("ben", harness.chapter_id("a", "1"), "pending", series_id="a")
    if existing_status:
        harness.add_notice("ann", harness.chapter_id("b", "2"), existing_status, series_id="b")

    harness.merge("a", "b")

    summaries = harness.notice_summaries()
    assert [(status, at, key) for name, status, at, key in summaries if name == "ann"] == [
        (status, "b", "2") for status in remaining
    ]
    assert ("ben", "pending", "b", "1") in summaries


def test_unhandled_outbox_rows_of_united_chapters_are_announced_in_the_new_series(harness: SeriesHarness) -> None:
    harness.sync(releases(2, 3, 4, 9, published_at=None), by=B)
    with harness.store.begin() as connection:
        connection.execute(update(outbox).values(handled_at=NOON))
    listed = releases(1, 2, 3, title="From a", source_chapter_id="x")
    harness.sync([*listed, *releases(8, 9)], by=A)

    harness.merge("a", "b")

    rows = {row["payload"]["number"]: row for row in harness.rows(outbox)}
    assert len(rows) == len(harness.rows(outbox)) == 2
    for number, row in rows.items():
        assert row["handled_at"] is None
        assert row["subject_id"] == str(harness.chapter_id("b", number))
        assert row["payload"]["series_id"] == "b"
        assert str(row["payload"]["chapter_id"]) == row["subject_id"]


def test_follows_move_and_a_follower_of_both_keeps_the_existing_follow(harness: SeriesHarness) -> None:
    harness.follow("ann", "a")
    harness.follow("ben", "a", "b")
    with harness.store.begin() as connection:
        connection.execute(update(follows).where(follows.c.series_id == "b").values(mode="muted"))

    assert harness.merge("a", "b").follows_moved == 1

    with harness.store.read() as connection:
        query = select(follows.c.recipient_id, follows.c.series_id, follows.c.mode)
        assert connection.execute(query.order_by(follows.c.recipient_id)).all() == [
            ("ann", "b", None),
            ("ben", "b", "muted"),
        ]


def test_a_source_with_a_chapter_in_both_series_keeps_one_row_with_every_release(harness: SeriesHarness) -> None:
    harness.add_source(A, series_id="b")  # it moved by its file, and left its rows behind
    harness.sync(releases(2, 5, source_chapter_id="y"), by=A)

    harness.merge("a", "b")

    releases_by_key = {key: ids for source, _, key, _, ids, _ in harness.all_links() if source == A}
    assert releases_by_key == {"1": ("x",), "2": ("x", "y"), "3": ("x",), "5": ("y",)}
    [two] = [link for link in harness.all_links() if link[0] == A and link[2] == "2"]
    assert two[3] == NOON
    harness.check_invariants()


def test_a_rejected_chapter_stays_rejected_after_a_merge(harness: SeriesHarness) -> None:
    with harness.store.begin() as connection:
        four = chapters.c.id == harness.chapter_id("b", "4")
        connection.execute(update(chapters).where(four).values(rejected_at=NOON))
        latest = update(series).where(series.c.id == "b").values(latest_chapter=Decimal(3))
        connection.execute(latest)

    harness.merge("a", "b")

    assert harness.latest("b")[0] == Decimal(3)
    harness.check_invariants()


def test_a_listing_that_waited_for_a_merge_is_ingested_into_the_new_series(harness: SeriesHarness) -> None:
    source, start = harness.source(A), threading.Barrier(2)
    listed = releases(1, 2, 3, 8, title="From a", source_chapter_id="x")

    with ThreadPoolExecutor(1) as pool:
        with harness.store.begin() as connection:
            merge(connection, "a", "b", actor="test", now=harness.clock.at)
            waiting = pool.submit(harness.ingest_in_own_transaction, source, listed, start)
            start.wait(20)
            harness.wait_until_blocked()
        [result] = waiting.result(60)

    assert result.outcome == "1 new"
    assert {series_id for _, series_id, *_ in harness.all_links()} == {"b"}
    assert (harness.latest("b")[0], harness.announced_numbers()) == (Decimal(8), ["8"])


def test_a_merge_that_waited_for_a_listing_moves_its_chapters(harness: SeriesHarness, store: Store) -> None:
    source, start = harness.source(A), threading.Barrier(2)
    listed = releases(1, 2, 3, 8, title="From a", source_chapter_id="x")

    def merge_in_own_transaction() -> None:
        with closing(open_store(str(harness.settings.store_url), clock=harness.clock)) as own:
            start.wait()
            with own.begin() as connection:
                merge(connection, "a", "b", actor="test", now=harness.clock.at)

    with ThreadPoolExecutor(1) as pool:
        with store.begin() as connection:
            harness.ingest(connection, source, listed)
            waiting = pool.submit(merge_in_own_transaction)
            start.wait(20)
            harness.wait_until_blocked()
        waiting.result(60)

    assert {series_id for _, series_id, *_ in harness.all_links()} == {"b"}
    assert (harness.latest("b")[0], harness.announced_numbers()) == (Decimal(8), ["8"])
    assert [row["payload"]["series_id"] for row in harness.rows(outbox)] == ["b"]
