"""From listings to rows: what a chapter is, what is new, and what is announced."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from sqlalchemy import text, update

from ingestion_pipeline.reading.structured.items import ParsedFeed, Problem
from ingestion_pipeline.series.chapter import Release, chapter_number, release_from_dict
from ingestion_pipeline.series.chapter_ingestion import SourceListing
from ingestion_pipeline.series.platforms import platform
from ingestion_pipeline.series.system import feed_from_bytes, feed_to_bytes
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import outbox, series
from ingestion_pipeline_tests.builders import NOON, a_definition, a_release, a_source
from ingestion_pipeline_tests.samples import sample
from ingestion_pipeline_tests.series.series_harness import SOLO, SeriesHarness, releases

pytestmark = pytest.mark.both_databases

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
OTHER = "series:other"


def test_one_number_is_one_chapter_however_it_is_written(harness: SeriesHarness) -> None:
    """Trap 20; every spelling is in a poll of its own, so that the database decides."""
    harness.add_source()
    for label in (45, "45.0", "045", Decimal("45.00"), "45.5", None):
        number = chapter_number(label)
        harness.sync([a_release(number=number, url="https://a.test/x")], complete=False)

    assert harness.keys() == ["45", "45.5", f"{SOLO}#https://a.test/x"]
    assert [row["number"] for row in harness.chapters()] == [Decimal(45), Decimal("45.5"), None]
    assert harness.latest()[0] == Decimal("45.5")


def test_unnumbered_chapters_with_different_ids_stay_apart(harness: SeriesHarness) -> None:
    harness.add_source()
    harness.add_source(OTHER)
    oneshots = [a_release(number=None, source_chapter_id=chapter_id, url=None) for chapter_id in ("x", "y")]

    harness.sync(oneshots)
    harness.sync(oneshots[:1], by=OTHER)

    assert harness.keys() == [f"{SOLO}#x", f"{SOLO}#y", f"{OTHER}#x"]
    assert harness.latest() == (None, None)


def test_an_id_too_long_for_an_index_still_identifies_its_chapter(harness: SeriesHarness) -> None:
    """PostgreSQL refuses a key of 2,700 random bytes with a fatal error, which would stop the run."""
    harness.add_source()
    noise = Random(1)
    ids = ["".join(chr(noise.randrange(0x4E00, 0x9FA5)) for _ in range(5_000)) for _ in range(2)]
    listed = [a_release(number=None, source_chapter_id=chapter_id) for chapter_id in ids]

    assert harness.sync(listed).new == 2
    assert harness.sync(listed).outcome == "nothing new"
    assert sorted(row["source_chapter_id"] for row in harness.links()) == sorted(ids)


def test_every_release_of_a_number_is_kept_in_its_one_row(harness: SeriesHarness) -> None:
    body = sample("manga/mangadex/feed_big_regression_42.json").read_bytes()
    parsed = platform("mangadex").configure("", {}).read([body], content_types=[None])
    harness.add_source()

    result = harness.sync(parsed.records)

    links = harness.links()
    stored_releases = [release_from_dict(release) for row in links for release in row["releases"]]
    assert (result.new, len(harness.chapters()), len(links)) == (23, 23, 23)
    assert len(parsed.records) == 42
    assert {release.source_chapter_id for release in stored_releases} == {
        release.source_chapter_id for release in parsed.records
    }
    assert len(stored_releases) == 42


def test_a_first_sync_of_three_hundred_announces_nothing_and_one_new_chapter_is_announced_once(
    harness: SeriesHarness, clock: FixedClock
) -> None:
    """Trap 23."""
    harness.add_source()
    result = harness.sync(releases(*range(1, 301)))
    assert (result.new, result.outcome) == (300, "first sync: 300 new")
    assert harness.announced_numbers() == []

    clock.advance(hours=1)
    result = harness.sync(releases(*range(1, 302)))

    assert (result.new, result.updated, result.outcome) == (1, 0, "1 new")
    [row] = harness.rows(outbox)
    chapter = harness.chapters()[-1]
    assert (row["subject_kind"], row["subject_id"]) == ("chapter", str(chapter["id"]))
    assert row["payload"] == {
        "series_id": "solo",
        "chapter_id": chapter["id"],
        "number": "301",
        "title": None,
        "source_id": SOLO,
    }
    assert (row["created_at"], row["handled_at"]) == (clock.at, None)


def test_a_second_sources_first_sync_announces_nothing(harness: SeriesHarness) -> None:
    harness.add_source(listing=releases(1, 2))
    harness.add_source(OTHER)

    harness.sync(releases(1, 2, 3), by=OTHER)
    assert harness.announced_numbers() == []

    harness.sync(releases(1, 2, 3, 4), by=OTHER)
    harness.sync(releases(1, 2, 4))
    assert harness.announced_numbers() == ["4"]
    assert len(harness.links()) == 7


def test_a_chapter_of_a_first_sync_is_announced_once_when_another_source_lists_it(harness: SeriesHarness) -> None:
    third = "series:third"
    harness.add_source(listing=releases(1, 2))
    harness.add_source(OTHER)
    harness.add_source(third)
    harness.sync(releases(1, "1.5", 2, 3), by=OTHER)
    harness.sync(releases(1, 2, 3), by=third)
    assert harness.announced_numbers() == []

    harness.sync(releases(1, "1.5", 2, 3))
    assert harness.announced_numbers() == ["1.5", "3"]

    with harness.store.begin() as connection:
        connection.execute(update(outbox).values(handled_at=NOON))
    harness.sync(releases(1, "1.5", 2, 3), by=third)
    harness.sync(releases(1, "1.5", 2, 3))
    assert [row["handled_at"] for row in harness.rows(outbox)] == [NOON, NOON]


def test_the_backlog_of_a_series_is_not_announced_when_another_source_lists_it(harness: SeriesHarness) -> None:
    harness.add_source(listing=releases(1, 2, 3))
    harness.add_source(OTHER, listing=releases(3))

    harness.sync(releases(1, 2, 3), by=OTHER)

    assert harness.announced_numbers() == []


def test_a_first_sync_announces_chapters_published_since_the_series_was_added(harness: SeriesHarness) -> None:
    """Otherwise a chapter that only the second source ever has would never be announced."""
    harness.add_source(listing=releases(1, 2))
    later = harness.clock.advance(days=9)
    harness.add_source(OTHER)
    dated = releases("1.5", 3, published_at=later - DAY)
    undated = releases(4, published_at=None)
    older, future = releases(5, published_at=NOON - DAY), releases(6, published_at=later + DAY)

    harness.sync([*dated, *undated, *older, *future], by=OTHER)
    harness.sync(releases(1, 2, 3))

    assert harness.announced_numbers() == ["3"]


@pytest.mark.parametrize(
    "change", [{"url": "https://moved.test/feed"}, {"config": {"language": "de"}}, {"platform": "mangadex"}]
)
def test_a_moved_source_announces_its_new_chapter_and_not_its_backlog(
    harness: SeriesHarness, clock: FixedClock, change: dict[str, Any]
) -> None:
    harness.add_source(listing=releases(8, 9, 10, None, published_at=NOON - DAY))
    later = clock.advance(days=1)
    with harness.store.begin() as connection:
        moved = a_definition(id=SOLO, url="https://solo.test/feed", series="solo")
        register(connection, [replace(moved, **change)], now=later)
    assert harness.source().synced_at == NOON

    clock.advance(hours=1)
    note = a_release(number=None, url="https://moved.test/note", published_at=later)
    old_note = a_release(number=None, url="https://moved.test/old", published_at=NOON - 9 * DAY)
    backlog = releases(*range(1, 11), published_at=NOON - DAY, language="de")
    harness.sync([*backlog, *releases(11, published_at=None), note, old_note])
    assert harness.announced_numbers() == ["11", None]
    assert len(harness.rows(outbox)) == 2

    harness.sync([*backlog, *releases("0.5", 11, published_at=None), note, old_note])
    assert harness.announced_numbers() == ["11", None, "0.5"]


def test_a_moved_source_announces_a_chapter_of_another_sources_first_sync(harness: SeriesHarness) -> None:
    harness.add_source(listing=releases(1, 2))
    harness.add_source(OTHER, listing=releases(1, 2, 3))
    with harness.store.begin() as connection:
        moved = a_definition(id=SOLO, url="https://moved.test/feed", series="solo")
        register(connection, [moved], now=harness.clock.advance(hours=1))

    harness.sync(releases(1, 2, 3))

    assert harness.announced_numbers() == ["3"]


def test_two_sources_of_one_batch_add_a_chapter_once(harness: SeriesHarness) -> None:
    """Trap 21."""
    for source in (SOLO, OTHER):
        harness.add_source(source, listing=releases(1))

    results = harness.sync_together({SOLO: releases(1, 2), OTHER: releases(1, 2)})

    assert [result.new for result in results] == [1, 1]
    assert harness.keys() == ["1", "2"]
    assert len(harness.links()) == 4
    assert harness.announced_numbers() == ["2"]


def test_a_chapter_that_is_also_in_a_first_sync_of_its_batch_is_announced(harness: SeriesHarness) -> None:
    harness.add_source(OTHER, listing=releases(1))
    harness.add_source()

    harness.sync_together({SOLO: releases(1, 2), OTHER: releases(1, 2)})

    [row] = harness.rows(outbox)
    assert (row["payload"]["number"], row["payload"]["source_id"]) == ("2", OTHER)


def test_the_latest_chapter_and_its_date_are_raised_and_never_lowered(harness: SeriesHarness) -> None:
    """Trap 22, T16."""
    harness.add_source(listing=releases(9, published_at=NOON - 9 * DAY))
    assert harness.latest() == (Decimal(9), NOON - 9 * DAY)

    twelfth = harness.clock.advance(hours=1)
    harness.sync(releases(9, 12, published_at=NOON - 9 * DAY))
    assert harness.latest() == (Decimal(12), twelfth)

    harness.clock.advance(hours=1)
    result = harness.sync(releases(9, 10, 12, published_at=NOON - 9 * DAY))
    assert result.new == 1
    assert harness.latest() == (Decimal(12), twelfth)
    assert harness.announced_numbers() == ["12", "10"]


def test_the_latest_chapter_is_compared_as_a_number(harness: SeriesHarness) -> None:
    harness.add_source()
    for numbers in ((9,), (9, "9.5"), (9, "9.5", 10), (9, "9.5", 10, "10.05")):
        harness.sync(releases(*numbers))
        assert harness.latest()[0] == Decimal(str(numbers[-1]))


def test_a_first_sync_is_as_new_as_its_newest_release(harness: SeriesHarness) -> None:
    past, future = NOON - 30 * DAY, NOON + DAY
    for name, published_at, newest_at in (("past", past, past), ("future", future, NOON), ("unknown", None, NOON)):
        harness.add_source(f"series:{name}", series_id=name)

        result = harness.sync(releases(1, 2, published_at=published_at), by=f"series:{name}")

        assert result.newest_at == newest_at
        assert harness.latest(name) == (Decimal(2), newest_at)


def test_only_a_new_chapter_sets_last_new_at(harness: SeriesHarness, clock: FixedClock) -> None:
    harness.add_source(listing=releases(1, published_at=NOON - 30 * DAY))
    clock.advance(hours=1)

    assert harness.sync(releases(1, title="Renamed")).newest_at is None
    assert harness.source().last_new_at == NOON - 30 * DAY
    assert harness.sync(releases(1, 2)).newest_at == clock.at
    assert harness.source().last_new_at == clock.at


def test_title_and_date_are_overwritten_by_values_and_never_by_nothing(harness: SeriesHarness) -> None:
    harness.add_source()
    harness.add_source(OTHER)
    harness.sync(releases(1, title="First", published_at=NOON))
    harness.sync(releases(1, title=None, published_at=None))
    [chapter] = harness.chapters()
    assert (chapter["title"], chapter["published_at"]) == ("First", NOON)

    harness.sync(releases(1, title="  ", published_at=NOON + DAY), by=OTHER)
    [chapter] = harness.chapters()
    assert (chapter["title"], chapter["published_at"]) == ("First", NOON + DAY)

    harness.sync(releases(1, title="The First", published_at=None))
    [chapter] = harness.chapters()
    assert (chapter["title"], chapter["published_at"]) == ("The First", NOON + DAY)


def test_the_sources_of_one_batch_share_title_and_date(harness: SeriesHarness) -> None:
    third = "series:third"
    for source in (SOLO, OTHER, third):
        harness.add_source(source)

    harness.sync(releases(1, title=None, published_at=None), by=third)
    harness.sync_together(
        {
            SOLO: releases(1, 2, title=None, published_at=NOON),
            OTHER: releases(1, 2, title="Named", published_at=None),
            third: releases(1, 2, title=None, published_at=None, language="de"),
        }
    )

    existing, new = harness.chapters()
    assert (existing["title"], existing["published_at"]) == ("Named", NOON)
    assert (new["title"], new["published_at"]) == ("Named", NOON)


def test_a_changed_release_updates_its_link_and_keeps_its_detection_time(harness: SeriesHarness) -> None:
    harness.add_source(listing=releases(1, volume="1", language="en", scanlation_group="A"))
    [before] = harness.links()
    harness.clock.advance(hours=1)

    result = harness.sync(releases(1, volume="2", language="de", scanlation_group="B"))

    [after] = harness.links()
    [chapter] = harness.chapters()
    assert (result.new, result.updated, result.outcome) == (0, 1, "1 updated")
    assert (after["volume"], after["language"], after["scanlation_group"]) == ("2", "de", "B")
    assert after["fingerprint"] != before["fingerprint"]
    assert (after["detected_at"], chapter["first_detected_at"]) == (NOON, NOON)
    assert harness.announced_numbers() == []


def test_a_series_takes_its_title_from_its_source(harness: SeriesHarness, store: Store) -> None:
    with store.begin() as connection:
        register(connection, [a_definition(name="Solo Leveling")], now=NOON)

    harness.sync(releases(1))

    assert [row["title"] for row in harness.rows(series)] == ["Solo Leveling"]


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


def test_hostile_texts_are_stored_as_they_are_or_cleaned(harness: SeriesHarness, store: Store) -> None:
    harness.add_source(synced_at=NOON)
    listed = [
        a_release(number=Decimal(number), title=title, scanlation_group=title, volume=title)
        for number, (title, _) in enumerate(HOSTILE.values(), start=1)
    ]

    stored = feed_to_bytes(ParsedFeed(records=listed, is_complete=True))
    harness.sync(feed_from_bytes(stored).records)

    expected = [clean for _, clean in HOSTILE.values()]
    assert [row["title"] for row in harness.chapters()] == expected
    assert [row["scanlation_group"] for row in harness.links()] == expected
    assert [row["releases"][0]["volume"] for row in harness.links()] == expected
    assert [row["payload"]["title"] for row in harness.rows(outbox)] == expected
    with store.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM chapters")).scalar_one() == 9


def test_an_empty_first_listing_does_not_announce_the_backlog(harness: SeriesHarness) -> None:
    harness.add_source()
    harness.sync([], complete=False)

    harness.sync(releases(*range(1, 31)))

    assert harness.announced_numbers() == []
    assert harness.source().synced_at is not None


MISSING_DATE = Problem(where="published_at", message="no date", hides_record=False)
MISSING_RECORD = Problem(where="item 3", message="no link")


def a_feed(*problems: Problem) -> ParsedFeed[Release]:
    return ParsedFeed(records=releases(9, 10), problems=problems, is_complete=True, notes=["read as theme x"])


def test_a_parsed_feed_survives_serialization() -> None:
    feed = a_feed(MISSING_DATE, MISSING_RECORD)

    restored = feed_from_bytes(feed_to_bytes(feed))

    assert list(restored.records) == list(feed.records)
    assert (tuple(restored.problems), restored.is_complete) == (feed.problems, True)
    assert restored.notes == feed.notes


def test_only_a_problem_that_may_hide_a_chapter_makes_a_listing_incomplete() -> None:
    source = a_source()

    assert SourceListing.of(source, a_feed(MISSING_DATE)).is_complete
    assert not SourceListing.of(source, a_feed(MISSING_DATE, MISSING_RECORD)).is_complete
    assert SourceListing.of(source, a_feed(MISSING_DATE, MISSING_RECORD)).problems == 2
