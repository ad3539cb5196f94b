"""Reports to Dagster, each change once; and checks of data that is wrong although every run succeeded."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import update

from ingestion_pipeline.series import checks, series_reports
from ingestion_pipeline.series.series_reports import SHOWN_CHAPTERS, ListedChapter, SourceReport
from ingestion_pipeline.sources import Kind, poll_results, status
from ingestion_pipeline.sources.poll_results import PollFailure
from ingestion_pipeline.sources.status import Finding, summary
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.tables import sources
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.ended_tasks import DeadLetterTask
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.series.series_harness import LEASE, SOLO, SeriesHarness, releases

OTHER = "series:other"
BEFORE = NOON - timedelta(days=1)


def unreported(harness: SeriesHarness, limit: int = 10) -> list[str]:
    with harness.store.read() as connection:
        return status.unreported(connection, [Kind.SERIES], limit=limit)


def mark_reported(harness: SeriesHarness, *ids: str) -> None:
    with harness.store.begin() as connection:
        status.mark_reported(connection, ids)


def report(harness: SeriesHarness, source_id: str = SOLO) -> SourceReport:
    with harness.store.read() as connection:
        [source_report] = series_reports.reports(connection, [source_id])
    return source_report


def test_a_source_is_reported_after_each_change_and_not_in_between(harness: SeriesHarness, clock: FixedClock) -> None:
    harness.add_source()
    assert unreported(harness) == []

    harness.sync(releases(1))
    assert unreported(harness) == [SOLO]
    mark_reported(harness, SOLO)
    assert unreported(harness) == []

    clock.advance(hours=1)
    harness.sync(releases(1, 2))
    assert unreported(harness) == [SOLO]


def test_the_oldest_change_is_reported_first_up_to_the_limit(harness: SeriesHarness, clock: FixedClock) -> None:
    harness.add_source()
    harness.add_source(OTHER, listing=releases(1))
    clock.advance(hours=1)
    harness.sync(releases(1))

    assert unreported(harness) == [OTHER, SOLO]
    assert unreported(harness, limit=1) == [OTHER]


def test_a_quarantined_listing_is_no_change(harness: SeriesHarness, clock: FixedClock) -> None:
    harness.add_source(listing=releases(1))
    mark_reported(harness, SOLO)
    clock.advance(hours=1)

    harness.sync([])

    assert unreported(harness) == []


def test_a_report_of_a_source_that_was_never_polled_is_empty(harness: SeriesHarness) -> None:
    harness.add_source()

    zero: dict[str, Any] = dict.fromkeys(("polls", "changes", "new", "updated", "withdrawn", "total"), 0)
    assert report(harness) == SourceReport(
        source_id=SOLO,
        series_title=SOLO,
        url="https://solo.test/feed",
        tier="warm",
        outcome="not polled yet",
        latest_chapter=None,
        newest=[],
        delay_minutes=None,
        has_chapters=False,
        **zero,
    )


def test_a_report_counts_what_happened_since_the_last_one(harness: SeriesHarness, clock: FixedClock) -> None:
    harness.add_source(listing=releases(1, 2, "2.5"))
    first = report(harness)
    assert (first.polls, first.changes, first.new, first.total) == (1, 1, 3, 3)
    mark_reported(harness, SOLO)

    later = clock.advance(hours=1)
    published = later - timedelta(minutes=20)
    listed = [*releases(1, title="Anew"), *releases("2.5"), *releases(3, published_at=published)]
    for _ in range(3):  # the second withdraws what the first missed, the third changes nothing
        harness.sync(listed)

    second = report(harness)
    assert (second.polls, second.changes) == (3, 2)
    assert (second.new, second.updated, second.withdrawn, second.total) == (1, 1, 1, 3)
    assert second.latest_chapter == Decimal(3)
    assert (second.tier, second.series_title, second.delay_minutes) == ("hot", "solo", 20)
    assert [(chapter.number, chapter.is_new) for chapter in second.newest] == [
        (Decimal(3), True),
        (Decimal("2.5"), False),
        (Decimal(1), False),
    ]

    mark_reported(harness, SOLO)
    third = report(harness)
    assert (third.polls, third.changes, third.new, third.updated, third.withdrawn) == (0,) * 5


def test_a_failed_poll_counts_as_a_poll(harness: SeriesHarness, clock: FixedClock) -> None:
    harness.add_source()
    with harness.store.begin() as connection:
        claim_filter = ClaimFilter(kind="poll", source_ids=[SOLO])
        [task] = claims.claim(connection, claim_filter, owner="w", now=clock.at, lease=LEASE, limit=1)
        error = Permanent("gone", code="x")
        failure = PollFailure(task=task, source=harness.source(), error=error, decision=DeadLetterTask())
        poll_results.fail(connection, [failure], now=clock.at, settings=harness.settings, random=harness.random)

    assert (report(harness).polls, report(harness).changes) == (1, 0)


def test_a_preview_lists_the_ten_chapters_detected_last(harness: SeriesHarness, clock: FixedClock) -> None:
    harness.add_source()
    harness.sync(releases(*range(1, 20)), complete=False)
    clock.advance(hours=1)
    harness.sync(releases("0.5"), complete=False)

    newest = report(harness).newest

    assert len(newest) == SHOWN_CHAPTERS == 10
    assert [chapter.number for chapter in newest[:3]] == [Decimal("0.5"), Decimal(19), Decimal(18)]
    assert report(harness).total == report(harness).new == 20


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
def test_the_delay_is_the_median_of_new_dated_chapters(
    chapters: list[ListedChapter], synced_at: datetime | None, minutes: float | None
) -> None:
    assert series_reports.delay_minutes(chapters, synced_at=synced_at) == minutes


def test_a_report_counts_only_its_own_source(harness: SeriesHarness) -> None:
    harness.add_source()
    harness.add_source(OTHER, listing=releases(1, 2))
    harness.sync(releases(1))

    assert report(harness).total == 1
    assert report(harness).latest_chapter == Decimal(2)


def test_chapter_numbers_are_those_that_some_source_still_has(harness: SeriesHarness) -> None:
    harness.add_source()
    harness.add_source(OTHER, series_id="other")
    for numbers in ((1, 2, 10, "9.5", None), (1, 10, "9.5", None), (1, 10, "9.5", None)):
        harness.sync(releases(*numbers))
    harness.sync(releases(7), by=OTHER)

    with harness.store.read() as connection:
        assert checks.chapter_numbers(connection) == {
            "solo": [Decimal(1), Decimal("9.5"), Decimal(10)],
            "other": [Decimal(7)],
        }


def test_gaps_are_what_is_missing_after_a_series_own_first_chapter(harness: SeriesHarness) -> None:
    listed = {
        "whole": releases(1, 2, "2.5", 3),
        "gap": releases(1, 2, 5, "5.5"),
        "late": releases(500, 501, 503),
        "zero": releases(0, 2),
        "half": releases("0.5", 2),
        "oneshot": releases(None),
        "far": releases(1, 200),
        "extras": releases(1, "2.99", 3, "7.98", "9.97"),
        "only-extras": releases("5.99", "9.99"),
    }
    for name in listed:
        harness.add_source(f"series:{name}", series_id=name)
    harness.sync_together({f"series:{name}": messages for name, messages in listed.items()})

    with harness.store.read() as connection:
        messages = {finding.subject: finding.message for finding in checks.gaps(connection)}

    many = ", ".join(str(number) for number in range(2, 22))
    assert messages == {
        "gap": "missing: 3, 4",
        "late": "missing: 502",
        "zero": "missing: 1",
        "half": "missing: 1",
        "far": f"missing: {many}, ...",
        "extras": "missing: 2",
    }


def test_a_withdrawn_chapter_is_a_gap(harness: SeriesHarness) -> None:
    harness.add_source()
    for numbers in ((1, 2, 3), (1, 3), (1, 3)):
        harness.sync(releases(*numbers))

    with harness.store.read() as connection:
        assert checks.gaps(connection) == [Finding(subject="solo", message="missing: 2")]


def test_a_quarantine_is_a_finding_until_a_listing_is_ingested_again(harness: SeriesHarness) -> None:
    harness.add_source(listing=releases(1))
    harness.sync([])
    with harness.store.read() as connection:
        [finding] = checks.quarantined(connection)
    assert finding.subject == SOLO
    assert finding.message.startswith("quarantined: lists nothing, 1 chapters are known")

    harness.sync(releases(1))
    with harness.store.read() as connection:
        assert checks.quarantined(connection) == []


def test_a_source_is_stale_after_three_intervals_without_success(harness: SeriesHarness, clock: FixedClock) -> None:
    harness.add_source(tier="hot", tier_pinned=True)  # every quarter of an hour
    harness.sync(releases(1))
    harness.add_source("series:new")

    def stale() -> list[Finding]:
        with harness.store.read() as connection:
            return checks.stale(connection, now=clock.at, settings=harness.settings)

    clock.advance(minutes=45)
    assert stale() == []

    clock.advance(minutes=1)
    message = "last success 2026-03-01 12:00 UTC; first sync: 1 new"
    assert stale() == [Finding(subject=SOLO, message=message)]

    clock.advance(hours=12)
    with harness.store.begin() as connection:
        connection.execute(update(sources).where(sources.c.id == SOLO).values(status="disabled"))
    never_polled = Finding(subject="series:new", message="never succeeded; not polled yet")
    assert stale() == [never_polled]


@pytest.mark.parametrize(("count", "last"), [(20, "s19: m"), (21, "and 1 more")])
def test_a_summary_writes_out_the_first_twenty(count: int, last: str) -> None:
    findings = [Finding(subject=f"s{number}", message="m") for number in range(count)]

    lines = summary(findings).splitlines()

    assert (lines[0], lines[-1]) == ("s0: m", last)
    assert len(lines) == count
