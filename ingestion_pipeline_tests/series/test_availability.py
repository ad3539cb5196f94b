"""Withdrawal: a chapter goes after two complete listings without it; a large drop is quarantined."""

from datetime import timedelta
from decimal import Decimal

import pytest

from ingestion_pipeline.series.chapter_plan import reason_to_quarantine
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.series.series_harness import SOLO, SeriesHarness, releases

pytestmark = pytest.mark.both_databases

HOUR = timedelta(hours=1)
OTHER = "series:other"


@pytest.fixture
def harness(harness: SeriesHarness, clock: FixedClock) -> SeriesHarness:
    """One source that has listed chapters 9, 10 and 12."""
    harness.add_source(listing=releases(9, 10, 12))
    clock.advance(hours=1)
    return harness


def test_one_complete_listing_without_a_chapter_counts_a_miss_and_withdraws_nothing(harness: SeriesHarness) -> None:
    result = harness.sync(releases(9, 10))

    assert (result.withdrawn, result.outcome) == (0, "1 missing once")
    assert (result.needs_full_read, harness.source().needs_full_read) == (True, True)
    assert harness.available() == ["9", "10", "12"]
    assert harness.latest()[0] == Decimal(12)
    assert [row["missed_listings"] for row in harness.links()] == [0, 0, 1]
    assert [row["last_seen_at"] for row in harness.links()] == [None, None, NOON]


def test_two_complete_listings_without_the_latest_chapter_lower_the_latest(harness: SeriesHarness) -> None:
    """Trap 22: 12 withdrawn, latest 10; the rows stay."""
    harness.sync(releases(9, 10))
    result = harness.sync(releases(9, 10))

    assert (result.withdrawn, result.outcome) == (1, "1 withdrawn")
    assert (result.record_count, result.needs_full_read) == (2, False)
    assert harness.available() == ["9", "10"]
    assert harness.latest() == (Decimal(10), NOON)
    assert (len(harness.chapters()), len(harness.links())) == (3, 3)
    assert harness.links()[2]["last_seen_at"] == NOON


def test_an_incomplete_listing_withdraws_nothing(harness: SeriesHarness) -> None:
    for _ in range(2):
        harness.sync(releases(9), complete=False)  # cut off
        harness.sync(releases(9), complete=True, unread=1)  # partly unreadable

    assert harness.available() == ["9", "10", "12"]
    assert [row["missed_listings"] for row in harness.links()] == [0, 0, 0]


def test_an_incomplete_listing_between_two_complete_ones_counts_no_miss(harness: SeriesHarness) -> None:
    harness.sync(releases(9, 10))
    harness.sync(releases(9), complete=False)
    assert harness.available() == ["9", "10", "12"]

    harness.sync(releases(9, 10))
    assert harness.available() == ["9", "10"]


def test_a_chapter_seen_in_between_must_be_missed_twice_again(harness: SeriesHarness) -> None:
    harness.sync(releases(9, 10))
    harness.sync(releases(9, 10, 12))
    assert [row["missed_listings"] for row in harness.links()] == [0, 0, 0]
    assert harness.links()[2]["last_seen_at"] is None

    harness.sync(releases(9, 10))
    assert harness.available() == ["9", "10", "12"]


def test_a_chapter_that_returns_is_available_and_latest_again_and_is_announced_once(harness: SeriesHarness) -> None:
    harness.sync(releases(9, 10, 12, 13))
    harness.sync(releases(9, 10, 12))
    harness.sync(releases(9, 10, 12))
    assert harness.latest()[0] == Decimal(12)
    harness.clock.advance(hours=1)

    result = harness.sync(releases(9, 10, 12, 13))

    assert (result.new, result.updated, result.record_count) == (0, 1, 4)
    assert harness.available() == ["9", "10", "12", "13"]
    assert harness.latest() == (Decimal(13), harness.clock.at)
    assert harness.links()[3]["detected_at"] == NOON + HOUR
    assert harness.announced_numbers() == ["13"]


def test_the_latest_stays_while_another_source_still_has_it(harness: SeriesHarness) -> None:
    harness.add_source(OTHER, listing=releases(12))

    harness.sync(releases(9, 10))
    harness.sync(releases(9, 10))

    assert harness.available() == ["9", "10"]
    assert harness.latest() == (Decimal(12), NOON)


def test_a_withdrawn_chapter_that_another_source_brings_is_the_latest_again(harness: SeriesHarness) -> None:
    harness.sync(releases(9, 10))
    harness.sync(releases(9, 10))
    harness.add_source(OTHER)

    harness.sync(releases(12), by=OTHER)

    assert harness.latest()[0] == Decimal(12)


def test_a_series_without_available_chapters_has_no_latest_chapter(harness: SeriesHarness) -> None:
    for numbers in ((9, 10), (9,), (9,)):
        harness.sync(releases(*numbers))
    harness.add_source(OTHER, listing=releases(None))
    harness.add_source(SOLO, accepts_drop=True, listing=[])

    assert harness.latest() == (None, None)


def test_a_source_that_moved_to_another_series_withdraws_nothing_there(harness: SeriesHarness) -> None:
    harness.add_source(SOLO, series_id="lone")

    result = harness.sync(releases(9, 10))

    assert (result.outcome, result.record_count) == ("first sync: 2 new", 2)
    assert harness.latest("lone")[0] == Decimal(10)
    assert harness.announced_numbers() == []


def test_a_source_that_returns_to_its_series_announces_new_chapters_again(harness: SeriesHarness) -> None:
    """Its existing chapters count: a listing without anything new is a first sync too."""
    for series_id in ("lone", "solo"):
        harness.add_source(SOLO, series_id=series_id, listing=releases(9, 10, 12))
    assert harness.source().record_count == 3

    harness.sync(releases(9, 10, 12, 13))

    assert harness.announced_numbers() == ["13"]


@pytest.mark.parametrize(
    ("listed", "existing", "vanished", "is_accepted"),
    [
        pytest.param(0, 0, 0, True, id="empty, and always empty"),
        pytest.param(0, 1, 0, False, id="empty after full"),
        pytest.param(3, 0, 0, True, id="first listing"),
        pytest.param(4, 8, 4, True, id="half, but few"),
        pytest.param(5, 10, 5, True, id="exactly half"),
        pytest.param(4, 10, 6, False, id="more than half"),
        pytest.param(2, 6, 4, True, id="more than half, but few"),
        pytest.param(900, 1_000, 100, True, id="many, but a small share"),
    ],
)
def test_a_listing_is_quarantined_when_it_is_empty_or_has_lost_more_than_half(
    listed: int, existing: int, vanished: int, is_accepted: bool
) -> None:
    reason = reason_to_quarantine(listed=listed, existing=existing, vanished=vanished, accepts_drop=False)
    accepted = reason_to_quarantine(listed=listed, existing=existing, vanished=vanished, accepts_drop=True)

    assert (reason is None) is is_accepted
    assert accepted is None


def test_an_empty_listing_after_a_full_one_never_changes_anything(harness: SeriesHarness) -> None:
    before = (harness.chapters(), harness.links(), harness.latest())
    for _ in range(3):
        result = harness.sync([])
        assert result.quarantined
        assert result.outcome.startswith("quarantined: lists nothing, 3 chapters are known")

    assert (harness.chapters(), harness.links(), harness.latest()) == before
    source = harness.source()
    assert (source.record_count, source.last_changed_at) == (3, NOON)


def test_a_quarantined_drop_adds_no_new_chapters_either(harness: SeriesHarness) -> None:
    harness.sync(releases(*range(1, 13)))

    results = [harness.sync(releases(1, 2, 3, 4, 99)) for _ in range(3)]

    outcome = "quarantined: 8 of 12 known chapters are missing from it; the last good data stays"
    assert [result.outcome for result in results] == [outcome] * 3
    assert len(harness.available()) == 12
    assert harness.latest()[0] == Decimal(12)
    assert harness.source().record_count == 12


def test_a_quarantine_keeps_the_count_of_missed_listings(harness: SeriesHarness) -> None:
    """Otherwise the next good listing would look unchanged and never be parsed a second time."""
    harness.sync(releases(9, 10))
    harness.sync([])
    assert harness.source().needs_full_read

    harness.sync(releases(9, 10))
    assert harness.available() == ["9", "10"]


def test_an_accepted_drop_is_ingested_and_the_acceptance_is_used_up(harness: SeriesHarness) -> None:
    harness.sync(releases(*range(1, 13)))
    for remaining, withdrawn in (((1, 2), 10), ((), 2)):
        assert harness.sync(releases(*remaining)).quarantined
        harness.add_source(SOLO, accepts_drop=True)

        result = harness.sync(releases(*remaining))

        assert (result.quarantined, result.withdrawn) == (False, withdrawn)
        assert harness.available() == [str(number) for number in remaining]
        assert harness.source().record_count == len(remaining)
        assert not harness.source().accepts_drop
        assert not harness.sync(releases(*remaining)).quarantined


def test_one_sources_quarantine_does_not_affect_another_source(harness: SeriesHarness) -> None:
    harness.add_source(OTHER, listing=releases(9, 10, 12))

    bad, good = harness.sync_together({SOLO: [], OTHER: releases(9, 10, 12, 13)})

    assert (bad.quarantined, good.quarantined) == (True, False)
    assert harness.announced_numbers() == ["13"]
    assert harness.latest()[0] == Decimal(13)


def test_a_release_that_has_left_the_window_is_kept(harness: SeriesHarness) -> None:
    """A feed shows the newest entries: two groups' releases of 13, then only the second one's."""
    first = releases(13, scanlation_group="First", source_chapter_id="a")
    second = releases(13, scanlation_group="Second", source_chapter_id="b")
    harness.sync([*first, *second], complete=False)

    result = harness.sync(second, complete=False)

    assert (result.updated, result.has_changes) == (0, False)
    [link] = [row for row in harness.links() if len(row["releases"]) == 2]
    groups = sorted(release["scanlation_group"] for release in link["releases"])
    assert groups == ["First", "Second"]


def test_a_window_updates_a_known_release(harness: SeriesHarness) -> None:
    both = [*releases(13, title="Old", source_chapter_id="a"), *releases(13, source_chapter_id="b")]
    harness.sync(both, complete=False)

    harness.sync(releases(13, title="New", source_chapter_id="a"), complete=False)

    [link] = [row for row in harness.links() if len(row["releases"]) == 2]
    assert sorted(str(release["title"]) for release in link["releases"]) == ["New", "None"]


def test_a_complete_listing_drops_the_releases_it_no_longer_has(harness: SeriesHarness) -> None:
    old = releases(9, 10, 12)
    harness.sync([*old, *releases(12, source_chapter_id="b")])

    harness.sync(old)

    assert [len(row["releases"]) for row in harness.links()] == [1, 1, 1]
