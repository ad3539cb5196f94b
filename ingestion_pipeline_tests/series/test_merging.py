"""Two series that are one: nothing is lost, nobody is told twice, and every name still works."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from random import Random

import pytest
from sqlalchemy import select, update

from ingestion_pipeline.series.lookup import SeriesMerged, UnknownSeries
from ingestion_pipeline.series.operator_changes import SameSeries, merge
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store, open_store
from ingestion_pipeline.store.tables import chapters, follows, outbox, series
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.series.identity import (
    all_links,
    audited,
    chapter_id,
    check_invariants,
    follow,
    merge_now,
    notice,
    told_notices,
)
from ingestion_pipeline_tests.series.syncing import Syncing, releases
from ingestion_pipeline_tests.series.test_idempotence import ingest, ingest_in_own_transaction, wait_until_blocked

A, B, C = "series:a", "series:b", "series:c"
HOUR = timedelta(hours=1)


@pytest.fixture
def syncing(store: Store, clock: FixedClock, settings: Settings, random: Random) -> Syncing:
    """Series `a` with chapters 1 to 3, an hour later series `b` with 2 to 4."""
    found = Syncing(store, clock, settings, random)
    found.given_source(A, series_id="a")
    found.sync(releases(1, 2, 3, title="From a", source_chapter_id="x"), by=A)
    clock.advance(hours=1)
    found.given_source(B, series_id="b")
    found.sync(releases(2, 3, 4, published_at=None), by=B)
    return found


def test_every_chapter_moves_and_the_same_number_is_one_chapter_of_both(syncing: Syncing) -> None:
    came_to = merge_now(syncing, "a", "b")

    assert {(source, series_id, key) for source, series_id, key, *_ in all_links(syncing)} == {
        *((A, "b", key) for key in "123"),
        *((B, "b", key) for key in "234"),
    }
    two = next(row for row in syncing.chapters() if row["key"] == "2")
    assert (two["title"], two["published_at"], two["first_detected_at"]) == ("From a", NOON, NOON)
    assert (came_to.chapters_moved, came_to.chapters_united, came_to.links_moved) == (1, 2, 2)
    assert (syncing.latest("b")[0], syncing.latest("a")) == (Decimal(4), (None, None))
    assert syncing.told() == []
    [(action, subject, detail)] = audited(syncing)
    assert (action, subject, detail["into"]) == ("series.merge", "a", "b")
    assert detail["chapters_united"] == 2
    check_invariants(syncing)


def test_a_source_that_still_names_the_old_series_goes_on_in_the_new_one(syncing: Syncing) -> None:
    merge_now(syncing, "a", "b")
    before = (all_links(syncing), syncing.source(A).record_count)

    syncing.given_source(A, series_id="a")  # imported again
    unchanged = syncing.sync(releases(1, 2, 3, title="From a", source_chapter_id="x"), by=A)
    assert (unchanged.outcome, all_links(syncing)) == ("nothing new", before[0])

    syncing.sync(releases(1, 2, 3, 5, title="From a", source_chapter_id="x"), by=A)
    assert syncing.latest("b")[0] == Decimal(5)
    assert [row["payload"]["series_id"] for row in syncing.rows(outbox)] == ["b"]
    check_invariants(syncing)


def test_a_file_that_learns_the_new_name_forgets_nothing(syncing: Syncing) -> None:
    """Else the source would be silent, as after a move, and its next chapter never be told."""
    merge_now(syncing, "a", "b")
    before = syncing.source(A)

    syncing.given_source(A, series_id="b")

    after = syncing.source(A)
    assert (after.synced_at, after.record_count) == (before.synced_at, 3)
    syncing.sync(releases(1, 2, 3, 9, title="From a", source_chapter_id="x"), by=A)
    assert syncing.told() == ["9"]


def test_what_was_merged_before_goes_along_and_no_name_leads_in_a_circle(syncing: Syncing) -> None:
    syncing.given_source(C, series_id="c")
    syncing.sync(releases(7), by=C)
    merge_now(syncing, "a", "b")

    for old, new in (("a", "c"), ("b", "a"), ("c", "a")):
        with pytest.raises(SeriesMerged, match="'a' was merged into 'b'; use that id"):
            merge_now(syncing, old, new)
    merge_now(syncing, "b", "c")

    with syncing.store.read() as connection:
        rows = connection.execute(select(series.c.id, series.c.merged_into).order_by(series.c.id))
        assert rows.all() == [("a", "c"), ("b", "c"), ("c", None)]
    assert {series_id for _, series_id, *_ in all_links(syncing)} == {"c"}
    check_invariants(syncing)


def test_a_name_that_is_unknown_or_the_same_is_refused_and_nothing_has_moved(syncing: Syncing) -> None:
    before = all_links(syncing)

    with pytest.raises(UnknownSeries, match="did you mean a"):
        merge_now(syncing, "aa", "b")
    with pytest.raises(UnknownSeries, match="`ingest series list` shows all"):
        merge_now(syncing, "b", "nothing-like-it")
    with pytest.raises(SameSeries):
        merge_now(syncing, "a", "a")

    assert (all_links(syncing), audited(syncing)) == (before, [])


@pytest.mark.parametrize(
    ("going", "staying", "left"),
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
def test_a_recipient_keeps_one_notice_of_a_chapter_and_what_was_sent_stays_sent(
    syncing: Syncing, going: str, staying: str | None, left: list[str]
) -> None:
    notice(syncing, "ann", chapter_id(syncing, "a", "2"), going, series_id="a")
    notice(syncing, "ben", chapter_id(syncing, "a", "1"), "pending", series_id="a")
    if staying:
        notice(syncing, "ann", chapter_id(syncing, "b", "2"), staying, series_id="b")

    merge_now(syncing, "a", "b")

    found = told_notices(syncing)
    assert [(status, at, key) for name, status, at, key in found if name == "ann"] == [
        (status, "b", "2") for status in left
    ]
    assert ("ben", "pending", "b", "1") in found


def test_what_is_still_to_be_told_of_a_united_chapter_is_told_to_the_followers_of_both(syncing: Syncing) -> None:
    syncing.sync(releases(2, 3, 4, 9, published_at=None), by=B)
    with syncing.store.begin() as connection:
        connection.execute(update(outbox).values(handled_at=NOON))
    listed = releases(1, 2, 3, title="From a", source_chapter_id="x")
    syncing.sync([*listed, *releases(8, 9)], by=A)

    merge_now(syncing, "a", "b")

    rows = {row["payload"]["number"]: row for row in syncing.rows(outbox)}
    assert len(rows) == len(syncing.rows(outbox)) == 2
    for number, row in rows.items():
        assert row["handled_at"] is None
        assert row["subject_id"] == str(chapter_id(syncing, "b", number))
        assert row["payload"]["series_id"] == "b"
        assert str(row["payload"]["chapter_id"]) == row["subject_id"]


def test_follows_move_and_one_who_follows_both_keeps_the_one_that_stays(syncing: Syncing) -> None:
    follow(syncing, "ann", "a")
    follow(syncing, "ben", "a", "b")
    with syncing.store.begin() as connection:
        connection.execute(update(follows).where(follows.c.series_id == "b").values(mode="muted"))

    assert merge_now(syncing, "a", "b").follows_moved == 1

    with syncing.store.read() as connection:
        query = select(follows.c.recipient_id, follows.c.series_id, follows.c.mode)
        assert connection.execute(query.order_by(follows.c.recipient_id)).all() == [
            ("ann", "b", None),
            ("ben", "b", "muted"),
        ]


def test_a_source_that_had_a_chapter_in_both_keeps_one_row_with_every_release(syncing: Syncing) -> None:
    syncing.given_source(A, series_id="b")  # it moved by its file, and left its rows behind
    syncing.sync(releases(2, 5, source_chapter_id="y"), by=A)

    merge_now(syncing, "a", "b")

    mine = {key: ids for source, _, key, _, ids, _ in all_links(syncing) if source == A}
    assert mine == {"1": ("x",), "2": ("x", "y"), "3": ("x",), "5": ("y",)}
    [two] = [link for link in all_links(syncing) if link[0] == A and link[2] == "2"]
    assert two[3] == NOON
    check_invariants(syncing)


def test_an_operators_word_on_the_series_that_stays_holds(syncing: Syncing) -> None:
    with syncing.store.begin() as connection:
        four = chapters.c.id == chapter_id(syncing, "b", "4")
        connection.execute(update(chapters).where(four).values(rejected_at=NOON))
        latest = update(series).where(series.c.id == "b").values(latest_chapter=Decimal(3))
        connection.execute(latest)

    merge_now(syncing, "a", "b")

    assert syncing.latest("b")[0] == Decimal(3)
    check_invariants(syncing)


def test_a_listing_that_waits_for_a_merge_goes_where_the_series_went(syncing: Syncing, store: Store) -> None:
    source, start = syncing.source(A), threading.Barrier(2)
    listed = releases(1, 2, 3, 8, title="From a", source_chapter_id="x")

    with ThreadPoolExecutor(1) as pool:
        with store.begin() as connection:
            merge(connection, "a", "b", actor="test", now=syncing.clock.at)
            waiting = pool.submit(ingest_in_own_transaction, syncing, source, listed, start)
            start.wait(20)
            wait_until_blocked(store)
        [result] = waiting.result(60)

    assert result.outcome == "1 new"
    assert {series_id for _, series_id, *_ in all_links(syncing)} == {"b"}
    assert (syncing.latest("b")[0], syncing.told()) == (Decimal(8), ["8"])


def test_a_merge_that_waits_for_a_listing_takes_what_it_brought_along(syncing: Syncing, store: Store) -> None:
    source, start = syncing.source(A), threading.Barrier(2)
    listed = releases(1, 2, 3, 8, title="From a", source_chapter_id="x")

    def merge_in_own_transaction() -> None:
        with closing(open_store(str(syncing.settings.store_url), clock=syncing.clock)) as own:
            start.wait()
            with own.begin() as connection:
                merge(connection, "a", "b", actor="test", now=syncing.clock.at)

    with ThreadPoolExecutor(1) as pool:
        with store.begin() as connection:
            ingest(syncing, connection, source, listed)
            waiting = pool.submit(merge_in_own_transaction)
            start.wait(20)
            wait_until_blocked(store)
        waiting.result(60)

    assert {series_id for _, series_id, *_ in all_links(syncing)} == {"b"}
    assert (syncing.latest("b")[0], syncing.told()) == (Decimal(8), ["8"])
    assert [row["payload"]["series_id"] for row in syncing.rows(outbox)] == ["b"]
