"""Chapters without a number: whose they are, and when two are one."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import pytest

from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline_tests.builders import NOON, a_release
from ingestion_pipeline_tests.series.identity import check_invariants, split_now
from ingestion_pipeline_tests.series.syncing import SOLO, Syncing, releases

OTHER = "series:other"
HOURS = timedelta(hours=1)


@pytest.fixture
def syncing(store: Store, clock: FixedClock, settings: Settings, random: Random) -> Syncing:
    """Two synced sources of one series."""
    found = Syncing(store, clock, settings, random)
    for source in (SOLO, OTHER):
        found.given_source(source)
        found.sync(releases(1), by=source)
    return found


def oneshot(id_: str = "x", title: str | None = "The Long Night!", **changes: Any) -> Release:
    return a_release(**{"number": None, "source_chapter_id": id_, "url": None, "title": title} | changes)


def test_two_sources_oneshot_with_one_title_within_three_days_is_one_and_told_once(syncing: Syncing) -> None:
    syncing.sync([*releases(1), oneshot()])
    theirs = [*releases(1), oneshot("y", "the long  night", published_at=NOON + 72 * HOURS)]

    assert syncing.sync(theirs, by=OTHER).new == 1
    for _ in range(3):
        assert syncing.sync(theirs, by=OTHER).outcome == "nothing new"

    assert syncing.keys() == ["1", f"{SOLO}#x"]
    assert [row["source_id"] for row in syncing.links()] == [SOLO, OTHER, SOLO, OTHER]
    assert syncing.told() == [None]
    check_invariants(syncing)


def test_at_the_same_moment_they_are_one_too(syncing: Syncing) -> None:
    syncing.sync_together({SOLO: [*releases(1), oneshot()], OTHER: [*releases(1), oneshot("y")]})

    assert (syncing.keys(), syncing.told()) == (["1", f"{SOLO}#x"], [None])


@pytest.mark.parametrize(
    "theirs",
    [
        pytest.param(oneshot("y", published_at=NOON + 73 * HOURS), id="later"),
        pytest.param(oneshot("y", published_at=NOON - 73 * HOURS), id="earlier"),
        pytest.param(oneshot("y", "The Short Night"), id="another title"),
        pytest.param(oneshot("y", None), id="no title"),
        pytest.param(oneshot("y", "!?"), id="a title of nothing"),
        pytest.param(oneshot("y", published_at=None), id="no date"),
    ],
)
def test_what_may_be_another_one_stays_apart(syncing: Syncing, theirs: Release) -> None:
    syncing.sync([*releases(1), oneshot()])
    syncing.sync([*releases(1), theirs], by=OTHER)

    assert syncing.keys() == ["1", f"{SOLO}#x", f"{OTHER}#y"]


def test_two_of_one_source_stay_apart_whatever_they_are_called(syncing: Syncing) -> None:
    syncing.sync([*releases(1), oneshot("x"), oneshot("z")])
    both = [*releases(1), oneshot("y"), oneshot("w")]

    syncing.sync(both, by=OTHER)

    assert syncing.sync(both, by=OTHER).outcome == "nothing new"
    assert syncing.keys() == ["1", f"{SOLO}#x", f"{SOLO}#z"]
    assert len(syncing.links()) == 6


def test_a_oneshot_that_was_recognised_is_so_under_a_new_title_and_in_another_series(syncing: Syncing) -> None:
    syncing.sync([*releases(1), oneshot()])
    syncing.sync([*releases(1), oneshot("y")], by=OTHER)
    split_now(syncing, "solo", "two", OTHER)

    result = syncing.sync([*releases(1), oneshot("y", "Night, Long")], by=OTHER)

    assert (result.outcome, result.withdrawn) == ("1 updated", 0)
    assert len(syncing.available(OTHER)) == 2
    check_invariants(syncing)
