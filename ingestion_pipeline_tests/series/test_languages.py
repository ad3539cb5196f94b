"""A language that a chapter did not have is told apart from the chapter itself."""

from __future__ import annotations

from random import Random

import pytest

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import outbox
from ingestion_pipeline_tests.series.identity import chapter_id, merge_now
from ingestion_pipeline_tests.series.syncing import SOLO, Syncing, releases

OTHER = "series:other"


@pytest.fixture
def syncing(store: Store, clock: FixedClock, settings: Settings, random: Random) -> Syncing:
    """Two sources that are synced: one has 1 and 2 in English, the other 1 in German."""
    found = Syncing(store, clock, settings, random)
    found.given_source()
    found.sync(releases(1, 2))
    found.given_source(OTHER)
    found.sync(releases(1, language="de"), by=OTHER)
    return found


def spoken(syncing: Syncing) -> list[tuple[str, str]]:
    """Kind, and number with language, of every outbox row."""
    return [
        (row["subject_kind"], row["payload"]["number"] + row["payload"].get("language", ""))
        for row in syncing.rows(outbox)
    ]


def test_a_first_sync_in_another_language_is_silent(syncing: Syncing) -> None:
    assert spoken(syncing) == []


def test_a_language_that_nobody_had_is_told_once_whoever_brings_it_next(syncing: Syncing) -> None:
    syncing.sync(releases(1, 2, language="de"), by=OTHER)

    [row] = syncing.rows(outbox)
    chapter = chapter_id(syncing, "solo", "2")
    assert (row["subject_kind"], row["subject_id"]) == ("chapter_language", f"{chapter}:de")
    assert row["payload"] == {
        "series_id": "solo",
        "chapter_id": chapter,
        "number": "2",
        "title": None,
        "source_id": OTHER,
        "language": "de",
    }

    syncing.sync([*releases(1, 2), *releases(2, language="de", source_chapter_id="x")])
    for _ in range(3):  # withdrawn by one source, and brought again
        syncing.sync(releases(1, language="de"), by=OTHER)
    syncing.sync(releases(1, 2, language="de"), by=OTHER)
    assert spoken(syncing) == [("chapter_language", "2de")]


def test_a_new_chapter_in_two_languages_is_told_as_a_chapter_alone(syncing: Syncing) -> None:
    syncing.sync_together({SOLO: releases(1, 2, 3), OTHER: releases(1, 3, language="de")})

    assert spoken(syncing) == [("chapter", "3")]


def test_another_release_in_a_language_that_is_there_is_no_news(syncing: Syncing) -> None:
    both = [*releases(1, 2), *releases(1, language="de", source_chapter_id="mine")]

    syncing.sync(both)

    assert spoken(syncing) == []


def test_a_language_of_a_chapter_follows_it_into_another_series(syncing: Syncing) -> None:
    syncing.given_source("series:third", series_id="third")
    syncing.sync(releases(2), by="series:third")
    syncing.sync(releases(1, 2, language="de"), by=OTHER)

    merge_now(syncing, "solo", "third")

    [row] = syncing.rows(outbox)
    assert row["subject_id"] == f"{chapter_id(syncing, 'third', '2')}:de"
    assert (row["payload"]["series_id"], row["payload"]["language"]) == ("third", "de")
