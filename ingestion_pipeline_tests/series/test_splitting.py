"""Splitting a series by command, which no source file undoes."""

from decimal import Decimal

import pytest
from sqlalchemy import Connection, select

from ingestion_pipeline.series.series_changes import CannotSplit, split
from ingestion_pipeline.series.series_reports import SeriesMerged, UnknownSeries
from ingestion_pipeline.sources.lookup import UnknownSource, series_assignments
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.tables import outbox, series, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.lock_orders import ON_POSTGRES, rows_locked_while_waiting
from ingestion_pipeline_tests.series.series_harness import LEASE, SeriesHarness, releases

pytestmark = pytest.mark.both_databases

A, B, C = "series:a", "series:b", "series:c"


@pytest.fixture
def harness(harness: SeriesHarness, clock: FixedClock) -> SeriesHarness:
    """Series `one` with a source of chapters 1 to 3, and an hour later one of 2 to 4."""
    harness.add_source(A, series_id="one", listing=releases(1, 2, 3, source_chapter_id="x"))
    clock.advance(hours=1)
    harness.add_source(B, series_id="one", listing=releases(2, 3, 4, title="Named", source_chapter_id="y"))
    return harness


def test_a_split_moves_a_source_with_its_chapters_and_their_dates(harness: SeriesHarness, clock: FixedClock) -> None:
    clock.advance(hours=1)
    split_result = harness.split("one", "two", B, title="The Second")

    detected = {
        (source, series_id, key): detected_at for source, series_id, key, detected_at, *_ in harness.all_links()
    }
    later = clock.at.replace(hour=13)
    assert detected == {(A, "one", key): NOON for key in "123"} | {(B, "two", key): later for key in "234"}
    assert {row["first_detected_at"] for row in harness.chapters() if row["series_id"] == "two"} == {later}
    assert (split_result.links_moved, split_result.chapters_made, split_result.chapters_removed) == (3, 3, 1)
    assert (harness.latest("one")[0], harness.latest("two")[0]) == (Decimal(3), Decimal(4))
    assert [row["title"] for row in harness.rows(series)] == ["one", "The Second"]
    assert harness.announced_numbers() == []
    [(action, subject, detail)] = harness.audit_entries()
    assert (action, subject, detail["sources"]) == ("series.split", "one", [B])
    harness.check_invariants()


def test_an_import_does_not_undo_a_split_and_new_chapters_belong_to_the_new_series(harness: SeriesHarness) -> None:
    harness.split("one", "two", B)

    harness.add_source(B, series_id="one")
    result = harness.sync(releases(2, 3, 4, 5, title="Named", source_chapter_id="y"), by=B)

    assert (result.outcome, result.record_count) == ("1 new", 4)
    assert (harness.latest("one")[0], harness.latest("two")[0]) == (Decimal(3), Decimal(5))
    assert harness.announced_numbers() == ["5"]
    harness.check_invariants()


def test_a_split_undoes_a_merge(harness: SeriesHarness) -> None:
    harness.add_source(C, series_id="other", listing=releases(1, 9, None, source_chapter_id="z"))
    before, counts = harness.all_links(), harness.source(C).record_count

    harness.merge("other", "one")
    assert harness.all_links() != before
    harness.split("one", "other", C)

    assert harness.all_links() == before
    assert harness.source(C).record_count == counts
    with harness.store.read() as connection:
        assignments = series_assignments(connection, [A, C])
    assert (assignments[C].why, assignments[C].is_assigned) == ("as its declaration says", False)
    harness.check_invariants()


def test_a_merged_source_that_is_not_split_off_stays(harness: SeriesHarness) -> None:
    """Otherwise reusing the series id would move every source that still has it in its file."""
    for source in (C, "series:d"):
        harness.add_source(source, series_id="other", listing=releases(7))
    harness.merge("other", "one")

    harness.split("one", "other", C)

    with harness.store.read() as connection:
        assert {
            source_id: assignment.series_id
            for source_id, assignment in series_assignments(connection, [C, "series:d"]).items()
        } == {C: "other", "series:d": "one"}
    harness.sync(releases(7, 8), by="series:d")
    assert (harness.latest("one")[0], harness.latest("other")[0]) == (Decimal(8), Decimal(7))
    harness.check_invariants()


def test_a_notified_chapter_survives_a_split_and_is_not_announced_again(harness: SeriesHarness) -> None:
    harness.sync(releases(2, 3, 4, 5, title="Named", source_chapter_id="y"), by=B)
    harness.add_notice("ann", harness.chapter_id("one", "5"), "sent")

    assert harness.split("one", "two", B).chapters_removed == 1
    assert harness.latest("one")[0] == Decimal(3)

    harness.sync(releases(1, 2, 3, 5, source_chapter_id="x"), by=A)
    assert [row["subject_kind"] for row in harness.rows(outbox)] == ["chapter"]
    assert harness.announced_numbers() == ["5"]
    harness.check_invariants()


def test_a_running_poll_of_a_split_source_loses_its_claim_and_is_due_again(harness: SeriesHarness) -> None:
    with harness.store.begin() as connection:
        claim_filter = ClaimFilter(kind="poll", source_ids=[A, B])
        at = harness.clock.advance(days=1)
        claimed = claims.claim(connection, claim_filter, owner="w", now=at, lease=LEASE, limit=9)

    harness.split("one", "two", B)

    with harness.store.begin() as connection:
        held_ids = claims.held(connection, [(task.id, task.fence) for task in claimed])
        query = select(tasks.c.source_id, tasks.c.status, tasks.c.not_before)
        polls = {row.source_id: row for row in connection.execute(query)}
    assert held_ids == {task.id for task in claimed if task.source_id == A}
    assert (polls[B].status, polls[B].not_before) == ("PENDING", harness.clock.at)


@pytest.mark.slow
def test_an_impossible_split_is_refused_with_its_reason(harness: SeriesHarness) -> None:
    harness.add_source(C, series_id="other", listing=releases(7))
    harness.merge("other", "one")
    before = harness.all_links()

    with pytest.raises(UnknownSource, match="series:nope"):
        harness.split("one", "two", "series:nope")
    with pytest.raises(UnknownSeries, match="did you mean one"):
        harness.split("onee", "two", A)
    with pytest.raises(SeriesMerged, match="'other' was merged into 'one'"):
        harness.split("other", "two", C)
    with pytest.raises(CannotSplit, match="is not a valid series id"):
        harness.split("one", "No Id", A)
    harness.split("one", "two", B)
    with pytest.raises(CannotSplit, match="series:b belongs to 'two', not to 'one'"):
        harness.split("one", "three", B)
    with pytest.raises(SeriesMerged, match="'other' was merged into 'one'; use that id"):
        harness.split("two", "other", B)

    assert {link for link in harness.all_links() if link[0] != B} == {link for link in before if link[0] != B}
    assert [row["id"] for row in harness.rows(series)] == ["one", "other", "two"]


@ON_POSTGRES
def test_a_split_locks_the_polls_of_remaining_sources_before_any_series(harness: SeriesHarness) -> None:
    """Undoing a merge writes to those sources as well."""

    def act(connection: Connection) -> None:
        split(connection, "one", "two", [B], actor="test", now=harness.clock.at)

    held = select(tasks.c.id).where(tasks.c.source_id == A)
    locked = rows_locked_while_waiting(harness.store, act, held=held, among=select(series.c.id))
    assert locked == []
