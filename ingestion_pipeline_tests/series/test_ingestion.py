"""From listings to rows: what a chapter is, what is new, and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from sqlalchemy import text, update

from ingestion_pipeline.reading.structured.items import Reading
from ingestion_pipeline.series.chapter import release_from_dict
from ingestion_pipeline.series.numbers import chapter_number
from ingestion_pipeline.series.platforms import platform
from ingestion_pipeline.series.system import reading_from_bytes, reading_to_bytes
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import outbox, series
from ingestion_pipeline_tests.builders import NOON, a_definition, a_release
from ingestion_pipeline_tests.samples import sample
from ingestion_pipeline_tests.series.syncing import SOLO, Syncing, releases

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
OTHER = "series:other"


@pytest.fixture
def syncing(store: Store, clock: FixedClock, settings: Settings, random: Random) -> Syncing:
    return Syncing(store, clock, settings, random)


def test_one_number_is_one_chapter_however_it_is_written(syncing: Syncing) -> None:
    """Trap 20; every spelling comes in a poll of its own, so that the database decides."""
    syncing.given_source()
    for label in (45, "45.0", "045", Decimal("45.00"), "45.5", None):
        number = chapter_number(label)
        syncing.sync([a_release(number=number, url="https://a.test/x")], complete=False)

    assert syncing.keys() == ["45", "45.5", f"{SOLO}#https://a.test/x"]
    assert [row["number"] for row in syncing.chapters()] == [Decimal(45), Decimal("45.5"), None]
    assert syncing.latest()[0] == Decimal("45.5")


def test_unnumbered_chapters_with_different_ids_stay_apart(syncing: Syncing) -> None:
    syncing.given_source()
    syncing.given_source(OTHER)
    oneshots = [a_release(number=None, source_chapter_id=one, url=None) for one in ("x", "y")]

    syncing.sync(oneshots)
    syncing.sync(oneshots[:1], by=OTHER)

    assert syncing.keys() == [f"{SOLO}#x", f"{SOLO}#y", f"{OTHER}#x"]
    assert syncing.latest() == (None, None)


def test_an_id_too_long_for_an_index_is_an_id_all_the_same(syncing: Syncing) -> None:
    """A key of 2,700 random bytes is refused by PostgreSQL as a fatal error: the run would stop."""
    syncing.given_source()
    noise = Random(1)
    ids = ["".join(chr(noise.randrange(0x4E00, 0x9FA5)) for _ in range(5_000)) for _ in range(2)]
    listed = [a_release(number=None, source_chapter_id=one) for one in ids]

    assert syncing.sync(listed).new == 2
    assert syncing.sync(listed).outcome == "nothing new"
    assert sorted(row["source_chapter_id"] for row in syncing.links()) == sorted(ids)


def test_every_release_of_a_number_is_kept_in_its_one_row(syncing: Syncing) -> None:
    body = sample("manga/mangadex/feed_big_regression_42.json").read_bytes()
    reading = platform("mangadex").configure("", {}).read([body], content_types=[None])
    syncing.given_source()

    result = syncing.sync(reading.records)

    links = syncing.links()
    kept = [release_from_dict(one) for row in links for one in row["releases"]]
    assert (result.new, len(syncing.chapters()), len(links)) == (23, 23, 23)
    assert len(reading.records) == 42
    assert {one.source_chapter_id for one in kept} == {one.source_chapter_id for one in reading.records}
    assert len(kept) == 42


def test_a_first_sync_of_three_hundred_is_silent_and_then_one_new_is_told_once(
    syncing: Syncing, clock: FixedClock
) -> None:
    """Trap 23."""
    syncing.given_source()
    result = syncing.sync(releases(*range(1, 301)))
    assert (result.new, result.outcome) == (300, "first sync: 300 new")
    assert syncing.told() == []

    clock.advance(hours=1)
    result = syncing.sync(releases(*range(1, 302)))

    assert (result.new, result.updated, result.outcome) == (1, 0, "1 new")
    [row] = syncing.rows(outbox)
    chapter = syncing.chapters()[-1]
    assert (row["subject_kind"], row["subject_id"]) == ("chapter", str(chapter["id"]))
    assert row["payload"] == {
        "series_id": "solo",
        "chapter_id": chapter["id"],
        "number": "301",
        "title": None,
        "source_id": SOLO,
    }
    assert (row["created_at"], row["handled_at"]) == (clock.at, None)


def test_a_second_sources_first_sync_is_silent_too(syncing: Syncing) -> None:
    syncing.given_source()
    syncing.sync(releases(1, 2))
    syncing.given_source(OTHER)

    syncing.sync(releases(1, 2, 3), by=OTHER)
    assert syncing.told() == []

    syncing.sync(releases(1, 2, 3, 4), by=OTHER)
    syncing.sync(releases(1, 2, 4))
    assert syncing.told() == ["4"]
    assert len(syncing.links()) == 7


def test_what_a_first_sync_added_silently_is_told_once_when_another_source_lists_it(syncing: Syncing) -> None:
    third = "series:third"
    syncing.given_source()
    syncing.sync(releases(1, 2))
    syncing.given_source(OTHER)
    syncing.given_source(third)
    syncing.sync(releases(1, "1.5", 2, 3), by=OTHER)
    syncing.sync(releases(1, 2, 3), by=third)
    assert syncing.told() == []

    syncing.sync(releases(1, "1.5", 2, 3))
    assert syncing.told() == ["1.5", "3"]

    with syncing.store.begin() as connection:
        connection.execute(update(outbox).values(handled_at=NOON))
    syncing.sync(releases(1, "1.5", 2, 3), by=third)
    syncing.sync(releases(1, "1.5", 2, 3))
    assert [row["handled_at"] for row in syncing.rows(outbox)] == [NOON, NOON]


def test_the_backlog_of_a_series_is_no_news_whichever_source_lists_it_later(syncing: Syncing) -> None:
    syncing.given_source()
    syncing.sync(releases(1, 2, 3))
    syncing.given_source(OTHER)
    syncing.sync(releases(3), by=OTHER)

    syncing.sync(releases(1, 2, 3), by=OTHER)

    assert syncing.told() == []


def test_a_first_sync_tells_what_was_published_since_the_series_is_watched(syncing: Syncing, clock: FixedClock) -> None:
    """Else a chapter that only the second source ever has would never be told."""
    syncing.given_source()
    syncing.sync(releases(1, 2))
    later = clock.advance(days=9)
    syncing.given_source(OTHER)
    dated = releases("1.5", 3, published_at=later - DAY)
    undated = releases(4, published_at=None)
    older, future = releases(5, published_at=NOON - DAY), releases(6, published_at=later + DAY)

    syncing.sync([*dated, *undated, *older, *future], by=OTHER)
    syncing.sync(releases(1, 2, 3))

    assert syncing.told() == ["3"]


@pytest.mark.parametrize(
    "change", [{"url": "https://moved.test/feed"}, {"config": {"language": "de"}}, {"platform": "mangadex"}]
)
def test_a_source_that_moved_tells_its_new_chapter_and_not_the_backlog_that_it_shows_now(
    syncing: Syncing, clock: FixedClock, change: dict[str, Any]
) -> None:
    syncing.given_source()
    syncing.sync(releases(8, 9, 10, None, published_at=NOON - DAY))
    later = clock.advance(days=1)
    with syncing.store.begin() as connection:
        moved = a_definition(id=SOLO, url="https://solo.test/feed", series="solo")
        register(connection, [replace(moved, **change)], now=later)
    assert syncing.source().synced_at == NOON

    clock.advance(hours=1)
    note = a_release(number=None, url="https://moved.test/note", published_at=later)
    old_note = a_release(number=None, url="https://moved.test/old", published_at=NOON - 9 * DAY)
    backlog = releases(*range(1, 11), published_at=NOON - DAY, language="de")
    syncing.sync([*backlog, *releases(11, published_at=None), note, old_note])
    assert syncing.told() == ["11", None]
    assert len(syncing.rows(outbox)) == 2

    syncing.sync([*backlog, *releases("0.5", 11, published_at=None), note, old_note])
    assert syncing.told() == ["11", None, "0.5"]


def test_a_source_that_moved_tells_what_another_had_brought_in_silence(syncing: Syncing, clock: FixedClock) -> None:
    syncing.given_source()
    syncing.sync(releases(1, 2))
    syncing.given_source(OTHER)
    syncing.sync(releases(1, 2, 3), by=OTHER)
    with syncing.store.begin() as connection:
        moved = a_definition(id=SOLO, url="https://moved.test/feed", series="solo")
        register(connection, [moved], now=clock.advance(hours=1))

    syncing.sync(releases(1, 2, 3))

    assert syncing.told() == ["3"]


def test_two_sources_of_one_batch_bring_a_chapter_once(syncing: Syncing) -> None:
    """Trap 21."""
    for source in (SOLO, OTHER):
        syncing.given_source(source)
        syncing.sync(releases(1), by=source)

    results = syncing.sync_together({SOLO: releases(1, 2), OTHER: releases(1, 2)})

    assert [one.new for one in results] == [1, 1]
    assert syncing.keys() == ["1", "2"]
    assert len(syncing.links()) == 4
    assert syncing.told() == ["2"]


def test_a_batch_tells_what_a_first_sync_beside_it_brings_too(syncing: Syncing) -> None:
    syncing.given_source(OTHER)
    syncing.sync(releases(1), by=OTHER)
    syncing.given_source()

    syncing.sync_together({SOLO: releases(1, 2), OTHER: releases(1, 2)})

    [row] = syncing.rows(outbox)
    assert (row["payload"]["number"], row["payload"]["source_id"]) == ("2", OTHER)


def test_the_latest_chapter_and_its_date_are_raised_and_never_lowered(syncing: Syncing, clock: FixedClock) -> None:
    """Trap 22, T16."""
    syncing.given_source()
    syncing.sync(releases(9, published_at=NOON - 9 * DAY))
    assert syncing.latest() == (Decimal(9), NOON - 9 * DAY)

    twelfth = clock.advance(hours=1)
    syncing.sync(releases(9, 12, published_at=NOON - 9 * DAY))
    assert syncing.latest() == (Decimal(12), twelfth)

    clock.advance(hours=1)
    result = syncing.sync(releases(9, 10, 12, published_at=NOON - 9 * DAY))
    assert result.new == 1
    assert syncing.latest() == (Decimal(12), twelfth)
    assert syncing.told() == ["12", "10"]


def test_the_latest_chapter_is_compared_as_a_number(syncing: Syncing) -> None:
    syncing.given_source()
    for numbers in ((9,), (9, "9.5"), (9, "9.5", 10), (9, "9.5", 10, "10.05")):
        syncing.sync(releases(*numbers))
        assert syncing.latest()[0] == Decimal(str(numbers[-1]))


def test_a_first_sync_is_as_new_as_its_newest_release(syncing: Syncing) -> None:
    past, future = NOON - 30 * DAY, NOON + DAY
    for name, published_at, newest_at in (("past", past, past), ("future", future, NOON), ("unknown", None, NOON)):
        syncing.given_source(f"series:{name}", series_id=name)

        result = syncing.sync(releases(1, 2, published_at=published_at), by=f"series:{name}")

        assert result.newest_at == newest_at
        assert syncing.latest(name) == (Decimal(2), newest_at)


def test_only_what_is_new_makes_a_source_fresh(syncing: Syncing, clock: FixedClock) -> None:
    syncing.given_source()
    syncing.sync(releases(1, published_at=NOON - 30 * DAY))
    clock.advance(hours=1)

    assert syncing.sync(releases(1, title="Renamed")).newest_at is None
    assert syncing.source().last_new_at == NOON - 30 * DAY
    assert syncing.sync(releases(1, 2)).newest_at == clock.at
    assert syncing.source().last_new_at == clock.at


def test_title_and_date_are_overwritten_by_what_is_said_and_never_by_nothing(syncing: Syncing) -> None:
    syncing.given_source()
    syncing.given_source(OTHER)
    syncing.sync(releases(1, title="First", published_at=NOON))
    syncing.sync(releases(1, title=None, published_at=None))
    [chapter] = syncing.chapters()
    assert (chapter["title"], chapter["published_at"]) == ("First", NOON)

    syncing.sync(releases(1, title="  ", published_at=NOON + DAY), by=OTHER)
    [chapter] = syncing.chapters()
    assert (chapter["title"], chapter["published_at"]) == ("First", NOON + DAY)

    syncing.sync(releases(1, title="The First", published_at=None))
    [chapter] = syncing.chapters()
    assert (chapter["title"], chapter["published_at"]) == ("The First", NOON + DAY)


def test_a_title_is_not_lost_between_the_sources_of_one_batch(syncing: Syncing) -> None:
    third = "series:third"
    for source in (SOLO, OTHER, third):
        syncing.given_source(source)

    syncing.sync(releases(1, title=None, published_at=None), by=third)
    syncing.sync_together(
        {
            SOLO: releases(1, 2, title=None, published_at=NOON),
            OTHER: releases(1, 2, title="Named", published_at=None),
            third: releases(1, 2, title=None, published_at=None, language="de"),
        }
    )

    known, new = syncing.chapters()
    assert (known["title"], known["published_at"]) == ("Named", NOON)
    assert (new["title"], new["published_at"]) == ("Named", NOON)


def test_a_changed_release_updates_its_link_and_its_detection_stays(syncing: Syncing, clock: FixedClock) -> None:
    syncing.given_source()
    syncing.sync(releases(1, volume="1", language="en", scanlation_group="A"))
    [before] = syncing.links()
    clock.advance(hours=1)

    result = syncing.sync(releases(1, volume="2", language="de", scanlation_group="B"))

    [after] = syncing.links()
    [chapter] = syncing.chapters()
    assert (result.new, result.updated, result.outcome) == (0, 1, "1 updated")
    assert (after["volume"], after["language"], after["scanlation_group"]) == ("2", "de", "B")
    assert after["fingerprint"] != before["fingerprint"]
    assert (after["detected_at"], chapter["first_detected_at"]) == (NOON, NOON)
    assert syncing.told() == []


def test_a_series_is_called_by_the_name_of_its_source(syncing: Syncing, store: Store) -> None:
    with store.begin() as connection:
        register(connection, [a_definition(name="Solo Leveling")], now=NOON)

    syncing.sync(releases(1))

    assert [row["title"] for row in syncing.rows(series)] == ["Solo Leveling"]


HOSTILE = {
    "sql": ("'); DROP TABLE chapters;--", "'); DROP TABLE chapters;--"),
    "format": ("%s %(a)s {0} :now $1 ?", "%s %(a)s {0} :now $1 ?"),
    "NUL": ("a\0b", "ab"),
    "surrogates": ("a\ud800b\udfff", "ab"),
    "lines": ("  a\r\n\tb ", "a b"),
    "emoji": ("\N{FACE WITH TEARS OF JOY} 第1話 \u202e", "\N{FACE WITH TEARS OF JOY} 第1話 \u202e"),
    "array": ("{a,b}", "{a,b}"),
    "backslash": ("\\u0000 \\", "\\u0000 \\"),
    "long": ("x" * 100_000, "x" * 100_000),
}


def test_hostile_texts_are_stored_as_they_are_or_cleaned(syncing: Syncing, store: Store) -> None:
    syncing.given_source(synced_at=NOON)
    listed = [
        a_release(number=Decimal(number), title=title, scanlation_group=title, volume=title)
        for number, (title, _) in enumerate(HOSTILE.values(), start=1)
    ]

    stored = reading_to_bytes(Reading(records=listed, is_complete=True))
    syncing.sync(reading_from_bytes(stored).records)

    expected = [clean for _, clean in HOSTILE.values()]
    assert [row["title"] for row in syncing.chapters()] == expected
    assert [row["scanlation_group"] for row in syncing.links()] == expected
    assert [row["releases"][0]["volume"] for row in syncing.links()] == expected
    assert [row["payload"]["title"] for row in syncing.rows(outbox)] == expected
    with store.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM chapters")).scalar_one() == 9


def test_an_empty_first_listing_does_not_make_the_backlog_loud(syncing: Syncing) -> None:
    syncing.given_source()
    syncing.sync([], complete=False)

    syncing.sync(releases(*range(1, 31)))

    assert syncing.told() == []
    assert syncing.source().synced_at is not None
