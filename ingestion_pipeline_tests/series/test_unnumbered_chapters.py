"""Chapters without a number: which source they belong to, and when two are the same."""

from datetime import timedelta
from typing import Any

import pytest

from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline_tests.builders import NOON, a_release
from ingestion_pipeline_tests.series.series_harness import SOLO, SeriesHarness, releases

OTHER = "series:other"
HOURS = timedelta(hours=1)


@pytest.fixture
def harness(harness: SeriesHarness) -> SeriesHarness:
    """Two synced sources of one series."""
    for source in (SOLO, OTHER):
        harness.add_source(source, listing=releases(1))
    return harness


def oneshot(id_: str = "x", title: str | None = "The Long Night!", **changes: Any) -> Release:
    return a_release(**{"number": None, "source_chapter_id": id_, "url": None, "title": title} | changes)


def test_a_oneshot_of_two_sources_with_one_title_within_three_days_is_announced_once(harness: SeriesHarness) -> None:
    harness.sync([*releases(1), oneshot()])
    other_listing = [*releases(1), oneshot("y", "the long  night", published_at=NOON + 72 * HOURS)]

    assert harness.sync(other_listing, by=OTHER).new == 1
    for _ in range(3):
        assert harness.sync(other_listing, by=OTHER).outcome == "nothing new"

    assert harness.keys() == ["1", f"{SOLO}#x"]
    assert [row["source_id"] for row in harness.links()] == [SOLO, OTHER, SOLO, OTHER]
    assert harness.announced_numbers() == [None]
    harness.check_invariants()


def test_a_oneshot_of_two_sources_in_one_batch_is_one_chapter(harness: SeriesHarness) -> None:
    harness.sync_together({SOLO: [*releases(1), oneshot()], OTHER: [*releases(1), oneshot("y")]})

    assert (harness.keys(), harness.announced_numbers()) == (["1", f"{SOLO}#x"], [None])


@pytest.mark.parametrize(
    "other_oneshot",
    [
        pytest.param(oneshot("y", published_at=NOON + 73 * HOURS), id="later"),
        pytest.param(oneshot("y", published_at=NOON - 73 * HOURS), id="earlier"),
        pytest.param(oneshot("y", "The Short Night"), id="another title"),
        pytest.param(oneshot("y", None), id="no title"),
        pytest.param(oneshot("y", "!?"), id="a title without letters"),
        pytest.param(oneshot("y", published_at=None), id="no date"),
    ],
)
def test_oneshots_that_differ_in_title_or_date_stay_apart(harness: SeriesHarness, other_oneshot: Release) -> None:
    harness.sync([*releases(1), oneshot()])
    harness.sync([*releases(1), other_oneshot], by=OTHER)

    assert harness.keys() == ["1", f"{SOLO}#x", f"{OTHER}#y"]


def test_two_oneshots_of_one_source_stay_apart_whatever_their_titles(harness: SeriesHarness) -> None:
    harness.sync([*releases(1), oneshot("x"), oneshot("z")])
    both = [*releases(1), oneshot("y"), oneshot("w")]

    harness.sync(both, by=OTHER)

    assert harness.sync(both, by=OTHER).outcome == "nothing new"
    assert harness.keys() == ["1", f"{SOLO}#x", f"{SOLO}#z"]
    assert len(harness.links()) == 6


@pytest.mark.slow
def test_a_recognised_oneshot_keeps_its_identity_under_a_new_title_and_in_another_series(
    harness: SeriesHarness,
) -> None:
    harness.sync([*releases(1), oneshot()])
    harness.sync([*releases(1), oneshot("y")], by=OTHER)
    harness.split("solo", "two", OTHER)

    result = harness.sync([*releases(1), oneshot("y", "Night, Long")], by=OTHER)

    assert (result.outcome, result.withdrawn) == ("1 updated", 0)
    assert len(harness.available(OTHER)) == 2
    harness.check_invariants()
