"""What Dagster is told: changes since the last report, each once."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from random import Random

import pytest

from ingestion_pipeline.series import reporting
from ingestion_pipeline.series.reporting import SHOWN_CHAPTERS, ListedChapter, SourceReport
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, poll_results, status
from ingestion_pipeline.sources.poll_results import PollFailure
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.series.syncing import LEASE, SOLO, Syncing, releases

OTHER = "series:other"
BEFORE = NOON - timedelta(days=1)


@pytest.fixture
def syncing(store: Store, clock: FixedClock, settings: Settings, random: Random) -> Syncing:
    return Syncing(store, clock, settings, random)


def unreported(syncing: Syncing, limit: int = 10) -> list[str]:
    with syncing.store.read() as connection:
        return status.unreported(connection, [Kind.SERIES], limit=limit)


def mark_reported(syncing: Syncing, *ids: str) -> None:
    with syncing.store.begin() as connection:
        status.mark_reported(connection, ids)


def report(syncing: Syncing, source_id: str = SOLO) -> SourceReport:
    with syncing.store.read() as connection:
        [found] = reporting.reports(connection, [source_id])
    return found


def test_a_source_is_reported_after_each_change_and_not_in_between(syncing: Syncing, clock: FixedClock) -> None:
    syncing.given_source()
    assert unreported(syncing) == []

    syncing.sync(releases(1))
    assert unreported(syncing) == [SOLO]
    mark_reported(syncing, SOLO)
    assert unreported(syncing) == []

    clock.advance(hours=1)
    syncing.sync(releases(1, 2))
    assert unreported(syncing) == [SOLO]


def test_the_oldest_change_is_reported_first_up_to_the_limit(syncing: Syncing, clock: FixedClock) -> None:
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


def test_a_report_of_a_source_that_was_never_polled_knows_nothing(syncing: Syncing) -> None:
    syncing.given_source()

    assert report(syncing) == SourceReport(
        source_id=SOLO,
        series_title=SOLO,
        url="https://solo.test/feed",
        tier="warm",
        outcome="not polled yet",
        polls=0,
        changes=0,
        new=0,
        updated=0,
        withdrawn=0,
        total=0,
        latest_chapter=None,
        last_changed_at=None,
        newest=[],
        delay_minutes=None,
    )


def test_a_report_counts_what_happened_since_the_last_one(syncing: Syncing, clock: FixedClock) -> None:
    syncing.given_source()
    syncing.sync(releases(1, 2, "2.5"))
    first = report(syncing)
    assert (first.polls, first.changes, first.new, first.total) == (1, 1, 3, 3)
    mark_reported(syncing, SOLO)

    later = clock.advance(hours=1)
    published = later - timedelta(minutes=20)
    listed = [*releases(1, title="Anew"), *releases("2.5"), *releases(3, published_at=published)]
    for _ in range(3):  # the second one withdraws what the first one missed, the third is quiet
        syncing.sync(listed)

    found = report(syncing)
    assert (found.polls, found.changes) == (3, 2)
    assert (found.new, found.updated, found.withdrawn, found.total) == (1, 1, 1, 3)
    assert (found.latest_chapter, found.last_changed_at) == (Decimal(3), later)
    assert (found.tier, found.series_title, found.delay_minutes) == ("hot", "solo", 20)
    assert [(one.number, one.is_new) for one in found.newest] == [
        (Decimal(3), True),
        (Decimal("2.5"), False),
        (Decimal(1), False),
    ]

    mark_reported(syncing, SOLO)
    again = report(syncing)
    assert (again.polls, again.changes, again.new, again.updated, again.withdrawn) == (0,) * 5


def test_a_poll_that_failed_is_counted_as_one(syncing: Syncing, clock: FixedClock) -> None:
    syncing.given_source()
    with syncing.store.begin() as connection:
        wanted = ClaimFilter(kind="poll", source_ids=[SOLO])
        [task] = claims.claim(connection, wanted, owner="w", now=clock.at, lease=LEASE, limit=1)
        failure = PollFailure(task=task, source=syncing.source(), error=Permanent("gone", code="x"))
        poll_results.fail(connection, [failure], now=clock.at, settings=syncing.settings, random=syncing.random)

    assert (report(syncing).polls, report(syncing).changes) == (1, 0)


def test_a_preview_holds_the_ten_that_were_detected_last(syncing: Syncing, clock: FixedClock) -> None:
    syncing.given_source()
    syncing.sync(releases(*range(1, 20)), complete=False)
    clock.advance(hours=1)
    syncing.sync(releases("0.5"), complete=False)

    newest = report(syncing).newest

    assert len(newest) == SHOWN_CHAPTERS == 10
    assert [one.number for one in newest[:3]] == [Decimal("0.5"), Decimal(19), Decimal(18)]
    assert report(syncing).total == report(syncing).new == 20


def a_chapter(published_minutes_ago: float | None, *, is_new: bool = True) -> ListedChapter:
    ago = published_minutes_ago
    return ListedChapter(
        number=Decimal(1),
        title=None,
        published_at=None if ago is None else NOON - timedelta(minutes=ago),
        detected_at=NOON,
        is_new=is_new,
    )


@pytest.mark.parametrize(
    ("chapters", "synced_at", "minutes"),
    [
        ([a_chapter(5), a_chapter(60), a_chapter(10)], BEFORE, 10),
        ([a_chapter(5), a_chapter(10, is_new=False)], BEFORE, 5),
        ([a_chapter(0)], BEFORE, 0),
        ([a_chapter(None), a_chapter(-5)], BEFORE, None),
        ([a_chapter(5)], NOON, None),
        ([a_chapter(5)], None, None),
        ([], BEFORE, None),
    ],
    ids=["median", "new ones", "at once", "no date or a coming one", "backlog", "no sync", "none"],
)
def test_a_delay_is_known_or_it_is_none(
    chapters: list[ListedChapter], synced_at: datetime | None, minutes: float | None
) -> None:
    assert reporting.delay_minutes(chapters, synced_at=synced_at) == minutes


def test_a_report_speaks_of_its_own_source_alone(syncing: Syncing) -> None:
    syncing.given_source()
    syncing.given_source(OTHER)
    syncing.sync(releases(1, 2), by=OTHER)
    syncing.sync(releases(1))

    assert report(syncing).total == 1
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
