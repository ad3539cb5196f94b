"""A chapter that an operator withdraws stays withdrawn, whatever the sources list."""

from decimal import Decimal

import pytest

from ingestion_pipeline.series import checks, series_reports
from ingestion_pipeline.series.series_changes import Rejection, UnknownChapter, restore, withdraw
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.tables import notices, outbox
from ingestion_pipeline_tests.builders import a_release
from ingestion_pipeline_tests.series.series_harness import SOLO, SeriesHarness, releases

OTHER = "series:other"


@pytest.fixture
def harness(harness: SeriesHarness, clock: FixedClock) -> SeriesHarness:
    """One source with chapters 1, 2 and, announced an hour later, 99."""
    harness.add_source(listing=releases(1, 2))
    clock.advance(hours=1)
    harness.sync(releases(1, 2, 99))
    return harness


def withdraw_now(harness: SeriesHarness, label: str = "99") -> Rejection:
    with harness.store.begin() as connection:
        at = harness.clock.advance(hours=1)
        return withdraw(connection, "solo", label, reason="a joke", actor="test", now=at)


def restore_now(harness: SeriesHarness, label: str = "99") -> Rejection:
    with harness.store.begin() as connection:
        return restore(connection, "solo", label, actor="test", now=harness.clock.at)


def gaps(harness: SeriesHarness) -> list[str]:
    with harness.store.read() as connection:
        return [finding.message for finding in checks.gaps(connection)]


def available(harness: SeriesHarness) -> int:
    with harness.store.read() as connection:
        return series_reports.reports(connection, [SOLO])[0].total


def test_a_withdrawn_chapter_is_not_the_latest_and_makes_no_gap(harness: SeriesHarness) -> None:
    assert gaps(harness)[0].startswith("missing: 3, 4")

    rejection = withdraw_now(harness, "099.0")

    assert rejection == Rejection(key="99", is_changed=True)
    assert (harness.latest()[0], gaps(harness), available(harness)) == (Decimal(2), [], 2)
    action, subject, detail = harness.audit_entries()[-1]
    assert (action, subject) == ("chapter.withdraw", "solo")
    assert (detail["chapter"], detail["reason"]) == ("99", "a joke")
    assert withdraw_now(harness).is_changed is False
    assert len(harness.audit_entries()) == 1


def test_no_source_restores_a_withdrawn_chapter(harness: SeriesHarness) -> None:
    withdraw_now(harness)
    harness.sync(releases(1, 2, 99))
    harness.add_source(OTHER, listing=releases(1))

    harness.sync(releases(1, 3, 99, language="de"), by=OTHER)  # new to it, and in a new language
    for numbers in ((1, 2), (1, 2), (1, 2, 99)):
        harness.sync(releases(*numbers))  # gone from one source, and back

    assert harness.latest()[0] == Decimal(3)
    assert harness.announced_numbers() == ["99", "3"]
    languages = [row["subject_id"] for row in harness.rows(outbox) if ":" in row["subject_id"]]
    assert languages == [f"{harness.chapter_id('solo', '1')}:de"]
    check_no_language_is_announced(harness)


def check_no_language_is_announced(harness: SeriesHarness) -> None:
    assert not any(row["subject_id"].startswith(f"{harness.chapter_id('solo', '99')}:") for row in harness.rows(outbox))


def test_withdrawing_mutes_pending_notices_and_restoring_reverts_exactly_those(harness: SeriesHarness) -> None:
    wrong, right = harness.chapter_id("solo", "99"), harness.chapter_id("solo", "2")
    harness.follow("ann", "solo")
    harness.add_notice("ann", wrong, "pending", series_id="solo")
    harness.add_notice("ann", right, "pending")
    harness.add_notice("ben", wrong, "sent")
    harness.add_notice("cat", wrong, "muted")
    before = harness.rows(notices)

    assert withdraw_now(harness).notices == 1

    assert [row["status"] for row in harness.rows(notices)] == ["muted", "pending", "sent", "muted"]
    assert [row["handled_at"] for row in harness.rows(outbox)] == [harness.clock.at]

    assert restore_now(harness) == Rejection(key="99", is_changed=True, notices=1)

    assert harness.rows(notices) == before
    assert [row["handled_at"] for row in harness.rows(outbox)] == [None]
    assert (harness.latest()[0], available(harness)) == (Decimal(99), 3)
    assert harness.audit_entries()[-1][0] == "chapter.restore"
    assert restore_now(harness).is_changed is False
    harness.check_invariants()


def test_a_chapter_withdrawn_before_its_notices_is_announced_under_its_corrected_number(harness: SeriesHarness) -> None:
    harness.sync([*releases(1, 2), *releases(99, source_chapter_id="x")])
    withdraw_now(harness)

    harness.sync([*releases(1, 2), *releases(3, source_chapter_id="x")])

    assert harness.announced_numbers() == ["99", "3"]


def test_an_unnumbered_chapter_is_withdrawn_by_its_key(harness: SeriesHarness) -> None:
    harness.sync([*releases(1, 2, 99), *releases(None, source_chapter_id="x7")])

    assert withdraw_now(harness, f"{SOLO}#x7").is_changed
    assert available(harness) == 3
    assert harness.latest()[0] == Decimal(99)


def test_an_unknown_chapter_is_refused_with_the_command_that_lists_all(harness: SeriesHarness) -> None:
    with pytest.raises(UnknownChapter, match="'solo' has no chapter '7'; `ingest series show solo`"):
        withdraw_now(harness, "7")


def test_a_range_of_chapters_fills_a_gap_and_is_withdrawn_by_both_its_ends(harness: SeriesHarness) -> None:
    several = a_release(number=Decimal(3), last_number=Decimal(98), source_chapter_id="volume")
    harness.sync([*releases(1, 2, 99), several])
    filled = gaps(harness)

    rejection = withdraw_now(harness, "3-98")

    assert filled == []
    assert rejection == Rejection(key="3-98", is_changed=True)
    assert gaps(harness)[0].startswith("missing: 3, 4")
