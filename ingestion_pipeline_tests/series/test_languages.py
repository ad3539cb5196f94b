"""A new language of a chapter is announced apart from the chapter itself."""

import pytest

from ingestion_pipeline.store.tables import outbox
from ingestion_pipeline_tests.series.series_harness import SOLO, SeriesHarness, releases

OTHER = "series:other"


@pytest.fixture
def harness(harness: SeriesHarness) -> SeriesHarness:
    """Two synced sources: one has 1 and 2 in English, the other 1 in German."""
    harness.add_source(listing=releases(1, 2))
    harness.add_source(OTHER, listing=releases(1, language="de"))
    return harness


def announced(harness: SeriesHarness) -> list[tuple[str, str]]:
    """Return the kind, and the number with its language, of every outbox row."""
    return [
        (row["subject_kind"], row["payload"]["number"] + row["payload"].get("language", ""))
        for row in harness.rows(outbox)
    ]


def test_a_first_sync_in_another_language_announces_nothing(harness: SeriesHarness) -> None:
    assert announced(harness) == []


def test_a_new_language_of_a_chapter_is_announced_once_across_sources(harness: SeriesHarness) -> None:
    harness.sync(releases(1, 2, language="de"), by=OTHER)

    [row] = harness.rows(outbox)
    chapter = harness.chapter_id("solo", "2")
    assert (row["subject_kind"], row["subject_id"]) == ("chapter_language", f"{chapter}:de")
    assert row["payload"] == {
        "series_id": "solo",
        "chapter_id": chapter,
        "number": "2",
        "title": None,
        "source_id": OTHER,
        "language": "de",
    }

    harness.sync([*releases(1, 2), *releases(2, language="de", source_chapter_id="x")])
    for _ in range(3):  # withdrawn by one source, and listed again
        harness.sync(releases(1, language="de"), by=OTHER)
    harness.sync(releases(1, 2, language="de"), by=OTHER)
    assert announced(harness) == [("chapter_language", "2de")]


def test_a_new_chapter_in_two_languages_is_announced_once_as_a_chapter(harness: SeriesHarness) -> None:
    harness.sync_together({SOLO: releases(1, 2, 3), OTHER: releases(1, 3, language="de")})

    assert announced(harness) == [("chapter", "3")]


def test_another_release_in_an_existing_language_is_not_announced(harness: SeriesHarness) -> None:
    both = [*releases(1, 2), *releases(1, language="de", source_chapter_id="x")]

    harness.sync(both)

    assert announced(harness) == []


def test_a_language_announcement_moves_with_its_chapter_on_a_merge(harness: SeriesHarness) -> None:
    harness.add_source("series:third", series_id="third")
    harness.sync(releases(2), by="series:third")
    harness.sync(releases(1, 2, language="de"), by=OTHER)

    harness.merge("solo", "third")

    [row] = harness.rows(outbox)
    assert row["subject_id"] == f"{harness.chapter_id('third', '2')}:de"
    assert (row["payload"]["series_id"], row["payload"]["language"]) == ("third", "de")
