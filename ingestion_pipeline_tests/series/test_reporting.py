"""What Dagster is told: changes since the last report, each once."""

from __future__ import annotations

from decimal import Decimal
from random import Random

import pytest

from ingestion_pipeline.series import reporting
from ingestion_pipeline.series.reporting import SourceReport
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.series.syncing import SOLO, Syncing, releases

OTHER = "series:other"


@pytest.fixture
def syncing(store: Store, clock: FixedClock, settings: Settings, random: Random) -> Syncing:
    return Syncing(store, clock, settings, random)


def unreported(syncing: Syncing, limit: int = 10) -> list[str]:
    with syncing.store.read() as connection:
        return reporting.unreported(connection, limit=limit)


def mark_reported(syncing: Syncing, *ids: str) -> None:
    with syncing.store.begin() as connection:
        reporting.mark_reported(connection, ids)


def report(syncing: Syncing, source_id: str = SOLO) -> SourceReport:
    with syncing.store.read() as connection:
        [found] = reporting.reports(connection, [source_id])
    return found


def test_a_source_is_reported_after_each_change_and_not_in_between(
    syncing: Syncing, clock: FixedClock
) -> None:
    syncing.given_source()
    assert unreported(syncing) == []

    syncing.sync(releases(1))
    assert unreported(syncing) == [SOLO]
    mark_reported(syncing, SOLO)
    assert unreported(syncing) == []

    clock.advance(hours=1)
    syncing.sync(releases(1, 2))
    assert unreported(syncing) == [SOLO]


def test_the_oldest_change_is_reported_first_up_to_the_limit(
    syncing: Syncing, clock: FixedClock
) -> None:
    syncing.given_source()
    syncing.given_source(OTHER)
    syncing.sync(releases(1), by=OTHER)
    clock.advance(hours=1)
    syncing.sync(releases(1))

    assert unreported(syncing) == [OTHER, SOLO]
    assert unreported(syncing, limit=1) == [OTHER]


def test_a_quarantined_listing_is_no_change(syncing: Syncing, clock: FixedClock) -> None:
    syncing.given_source()
    syncing.sync(releases(1))
    mark_reported(syncing, SOLO)
    clock.advance(hours=1)

    syncing.sync([])

    assert unreported(syncing) == []


def test_a_report_counts_what_is_new_since_the_last_one(
    syncing: Syncing, clock: FixedClock
) -> None:
    syncing.given_source()
    assert report(syncing) == SourceReport(
        source_id=SOLO,
        series_title=SOLO,
        url="https://solo.test/feed",
        tier="warm",
        outcome="not polled yet",
        new_chapters=0,
        available_chapters=0,
        latest_chapter=None,
        last_changed_at=None,
    )

    syncing.sync(releases(1, 2, "2.5"))
    assert (report(syncing).new_chapters, report(syncing).available_chapters) == (3, 3)
    mark_reported(syncing, SOLO)

    later = clock.advance(hours=1)
    syncing.sync(releases(1, "2.5", 3))
    syncing.sync(releases(1, "2.5", 3))
    assert report(syncing) == SourceReport(
        source_id=SOLO,
        series_title="solo",
        url="https://solo.test/feed",
        tier="hot",
        outcome="1 withdrawn",
        new_chapters=1,
        available_chapters=3,
        latest_chapter=Decimal(3),
        last_changed_at=later,
    )


def test_a_report_speaks_of_its_own_source_alone(syncing: Syncing) -> None:
    syncing.given_source()
    syncing.given_source(OTHER)
    syncing.sync(releases(1, 2), by=OTHER)
    syncing.sync(releases(1))

    assert report(syncing).available_chapters == 1
    assert (report(syncing).latest_chapter, report(syncing).last_changed_at) == (Decimal(2), NOON)


def test_numbers_are_those_that_some_source_still_has(syncing: Syncing) -> None:
    syncing.given_source()
    syncing.given_source(OTHER, series_id="other")
    for listed in ((1, 2, 10, "9.5", None), (1, 10, "9.5", None), (1, 10, "9.5", None)):
        syncing.sync(releases(*listed))
    syncing.sync(releases(7), by=OTHER)

    with syncing.store.read() as connection:
        assert reporting.chapter_numbers(connection) == {
            "solo": [Decimal(1), Decimal("9.5"), Decimal(10)],
            "other": [Decimal(7)],
        }
