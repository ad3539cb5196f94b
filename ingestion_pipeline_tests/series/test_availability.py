"""What a source no longer lists: believed twice, from complete listings, and never a large drop."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from random import Random

import pytest

from ingestion_pipeline.series.plan import reason_to_quarantine
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.series.syncing import SOLO, Syncing, releases

HOUR = timedelta(hours=1)
OTHER = "series:other"


@pytest.fixture
def syncing(store: Store, clock: FixedClock, settings: Settings, random: Random) -> Syncing:
    """One source that has listed chapters 9, 10 and 12."""
    found = Syncing(store, clock, settings, random)
    found.given_source()
    found.sync(releases(9, 10, 12))
    clock.advance(hours=1)
    return found


def test_one_complete_listing_without_a_chapter_is_noted_and_not_believed(syncing: Syncing) -> None:
    result = syncing.sync(releases(9, 10))

    assert (result.withdrawn, result.outcome) == (0, "1 missing once")
    assert (result.needs_full_read, syncing.source().needs_full_read) == (True, True)
    assert syncing.available() == ["9", "10", "12"]
    assert syncing.latest()[0] == Decimal(12)
    assert [row["missed_listings"] for row in syncing.links()] == [0, 0, 1]
    assert [row["last_seen_at"] for row in syncing.links()] == [None, None, NOON]


def test_two_complete_listings_without_the_latest_make_the_one_before_it_the_latest(syncing: Syncing) -> None:
    """Trap 22: 12 withdrawn, latest 10; the rows stay."""
    syncing.sync(releases(9, 10))
    result = syncing.sync(releases(9, 10))

    assert (result.withdrawn, result.outcome) == (1, "1 withdrawn")
    assert (result.record_count, result.needs_full_read) == (2, False)
    assert syncing.available() == ["9", "10"]
    assert syncing.latest() == (Decimal(10), NOON)
    assert (len(syncing.chapters()), len(syncing.links())) == (3, 3)
    assert syncing.links()[2]["last_seen_at"] == NOON


def test_an_incomplete_listing_withdraws_nothing(syncing: Syncing) -> None:
    for _ in range(2):
        syncing.sync(releases(9), complete=False)  # cut off
        syncing.sync(releases(9), complete=True, unread=1)  # partly unreadable

    assert syncing.available() == ["9", "10", "12"]
    assert [row["missed_listings"] for row in syncing.links()] == [0, 0, 0]


def test_an_incomplete_listing_between_two_complete_ones_is_no_witness(syncing: Syncing) -> None:
    syncing.sync(releases(9, 10))
    syncing.sync(releases(9), complete=False)
    assert syncing.available() == ["9", "10", "12"]

    syncing.sync(releases(9, 10))
    assert syncing.available() == ["9", "10"]


def test_a_chapter_seen_in_between_must_be_missed_twice_again(syncing: Syncing) -> None:
    syncing.sync(releases(9, 10))
    syncing.sync(releases(9, 10, 12))
    assert [row["missed_listings"] for row in syncing.links()] == [0, 0, 0]
    assert syncing.links()[2]["last_seen_at"] is None

    syncing.sync(releases(9, 10))
    assert syncing.available() == ["9", "10", "12"]


def test_a_chapter_that_returns_is_available_and_latest_again_and_is_not_told_twice(
    syncing: Syncing, clock: FixedClock
) -> None:
    syncing.sync(releases(9, 10, 12, 13))
    syncing.sync(releases(9, 10, 12))
    syncing.sync(releases(9, 10, 12))
    assert syncing.latest()[0] == Decimal(12)
    clock.advance(hours=1)

    result = syncing.sync(releases(9, 10, 12, 13))

    assert (result.new, result.updated, result.record_count) == (0, 1, 4)
    assert syncing.available() == ["9", "10", "12", "13"]
    assert syncing.latest() == (Decimal(13), clock.at)
    assert syncing.links()[3]["detected_at"] == NOON + HOUR
    assert syncing.told() == ["13"]


def test_the_latest_stays_while_another_source_still_has_it(syncing: Syncing) -> None:
    syncing.given_source(OTHER)
    syncing.sync(releases(12), by=OTHER)

    syncing.sync(releases(9, 10))
    syncing.sync(releases(9, 10))

    assert syncing.available() == ["9", "10"]
    assert syncing.latest() == (Decimal(12), NOON)


def test_a_withdrawn_chapter_that_another_source_brings_is_the_latest_again(syncing: Syncing) -> None:
    syncing.sync(releases(9, 10))
    syncing.sync(releases(9, 10))
    syncing.given_source(OTHER)

    syncing.sync(releases(12), by=OTHER)

    assert syncing.latest()[0] == Decimal(12)


def test_a_series_of_which_everything_is_gone_has_no_latest_chapter(syncing: Syncing) -> None:
    for listed in ((9, 10), (9,), (9,)):
        syncing.sync(releases(*listed))
    syncing.given_source(OTHER)
    syncing.sync(releases(None), by=OTHER)
    syncing.given_source(SOLO, accepts_drop=True)
    syncing.sync([])

    assert syncing.latest() == (None, None)


def test_a_source_that_moved_to_another_series_withdraws_nothing_there(syncing: Syncing) -> None:
    syncing.given_source(SOLO, series_id="lone")

    result = syncing.sync(releases(9, 10))

    assert (result.outcome, result.record_count) == ("first sync: 2 new", 2)
    assert syncing.latest("lone")[0] == Decimal(10)
    assert syncing.told() == []


def test_a_source_that_comes_back_to_its_series_is_told_of_again(syncing: Syncing) -> None:
    """What it has there already counts: a listing that brings nothing new is a first sync too."""
    for series_id in ("lone", "solo"):
        syncing.given_source(SOLO, series_id=series_id)
        syncing.sync(releases(9, 10, 12))
    assert syncing.source().record_count == 3

    syncing.sync(releases(9, 10, 12, 13))

    assert syncing.told() == ["13"]


LIMITS = load_settings({}).ingest


@pytest.mark.parametrize(
    ("listed", "known", "vanished", "believed"),
    [
        pytest.param(0, 0, 0, True, id="empty, and it always was"),
        pytest.param(0, 1, 0, False, id="empty after full"),
        pytest.param(3, 0, 0, True, id="first listing"),
        pytest.param(4, 8, 4, True, id="half, but few"),
        pytest.param(5, 10, 5, True, id="exactly half"),
        pytest.param(4, 10, 6, False, id="more than half"),
        pytest.param(2, 6, 4, True, id="more than half, but few"),
        pytest.param(900, 1_000, 100, True, id="many, but a small share"),
    ],
)
def test_a_listing_is_not_believed_when_it_is_empty_or_has_lost_more_than_half(
    listed: int, known: int, vanished: int, believed: bool
) -> None:
    reason = reason_to_quarantine(listed=listed, existing=known, vanished=vanished, accepts_drop=False, limits=LIMITS)
    accepted = reason_to_quarantine(listed=listed, existing=known, vanished=vanished, accepts_drop=True, limits=LIMITS)

    assert (reason is None) is believed
    assert accepted is None


def test_an_empty_listing_after_a_full_one_changes_nothing_however_often_it_comes(syncing: Syncing) -> None:
    before = (syncing.chapters(), syncing.links(), syncing.latest())
    for _ in range(3):
        result = syncing.sync([])
        assert result.quarantined
        assert result.outcome.startswith("quarantined: lists nothing, 3 chapters are known")

    assert (syncing.chapters(), syncing.links(), syncing.latest()) == before
    source = syncing.source()
    assert (source.record_count, source.last_changed_at) == (3, NOON)


def test_a_large_drop_is_quarantined_with_all_it_brings(syncing: Syncing) -> None:
    syncing.sync(releases(*range(1, 13)))

    results = [syncing.sync(releases(1, 2, 3, 4, 99)) for _ in range(3)]

    said = "quarantined: 8 of 12 known chapters are missing from it; the last good data stays"
    assert [one.outcome for one in results] == [said] * 3
    assert len(syncing.available()) == 12
    assert syncing.latest()[0] == Decimal(12)
    assert syncing.source().record_count == 12


def test_a_quarantine_does_not_forget_that_a_chapter_was_missed(syncing: Syncing) -> None:
    """Else the next, good listing would look unchanged and never be read a second time."""
    syncing.sync(releases(9, 10))
    syncing.sync([])
    assert syncing.source().needs_full_read

    syncing.sync(releases(9, 10))
    assert syncing.available() == ["9", "10"]


def test_an_operators_word_is_enough_for_a_drop_and_holds_once(syncing: Syncing) -> None:
    syncing.sync(releases(*range(1, 13)))
    for left, withdrawn in (((1, 2), 10), ((), 2)):
        assert syncing.sync(releases(*left)).quarantined
        syncing.given_source(SOLO, accepts_drop=True)

        result = syncing.sync(releases(*left))

        assert (result.quarantined, result.withdrawn) == (False, withdrawn)
        assert syncing.available() == [str(number) for number in left]
        assert syncing.source().record_count == len(left)
        assert not syncing.source().accepts_drop
        assert not syncing.sync(releases(*left)).quarantined


def test_one_sources_quarantine_is_no_other_sources_business(syncing: Syncing) -> None:
    syncing.given_source(OTHER)
    syncing.sync(releases(9, 10, 12), by=OTHER)

    bad, good = syncing.sync_together({SOLO: [], OTHER: releases(9, 10, 12, 13)})

    assert (bad.quarantined, good.quarantined) == (True, False)
    assert syncing.told() == ["13"]
    assert syncing.latest()[0] == Decimal(13)


def test_a_release_that_has_left_the_window_is_kept(syncing: Syncing) -> None:
    """A feed shows the newest entries: two groups' releases of 13, then only the second one's."""
    first = releases(13, scanlation_group="First", source_chapter_id="a")
    second = releases(13, scanlation_group="Second", source_chapter_id="b")
    syncing.sync([*first, *second], complete=False)

    result = syncing.sync(second, complete=False)

    assert (result.updated, result.has_changes) == (0, False)
    [link] = [row for row in syncing.links() if len(row["releases"]) == 2]
    groups = sorted(release["scanlation_group"] for release in link["releases"])
    assert groups == ["First", "Second"]


def test_what_a_window_says_of_a_known_release_is_newer(syncing: Syncing) -> None:
    both = [*releases(13, title="Old", source_chapter_id="a"), *releases(13, source_chapter_id="b")]
    syncing.sync(both, complete=False)

    syncing.sync(releases(13, title="New", source_chapter_id="a"), complete=False)

    [link] = [row for row in syncing.links() if len(row["releases"]) == 2]
    assert sorted(str(one["title"]) for one in link["releases"]) == ["New", "None"]


def test_a_complete_listing_drops_the_releases_it_no_longer_has(syncing: Syncing) -> None:
    old = releases(9, 10, 12)
    syncing.sync([*old, *releases(12, source_chapter_id="b")])

    syncing.sync(old)

    assert [len(row["releases"]) for row in syncing.links()] == [1, 1, 1]
