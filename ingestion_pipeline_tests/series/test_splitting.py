"""One series that is two: by an operator's word, which no file undoes."""

from __future__ import annotations

from decimal import Decimal
from random import Random

import pytest
from sqlalchemy import Connection, select

from ingestion_pipeline.series.lookup import SeriesMerged, UnknownSeries
from ingestion_pipeline.series.operator_changes import CannotSplit, split
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.canonical_series import series_assignments
from ingestion_pipeline.sources.lookup import UnknownSource
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import outbox, series, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.lock_orders import ON_POSTGRES, locked_meanwhile
from ingestion_pipeline_tests.series.identity import (
    all_links,
    audited,
    chapter_id,
    check_invariants,
    merge_now,
    notice,
    split_now,
)
from ingestion_pipeline_tests.series.syncing import LEASE, Syncing, releases

A, B, C = "series:a", "series:b", "series:c"


@pytest.fixture
def syncing(store: Store, clock: FixedClock, settings: Settings, random: Random) -> Syncing:
    """Series `one`, told by a source with chapters 1 to 3, and an hour later one with 2 to 4."""
    found = Syncing(store, clock, settings, random)
    found.given_source(A, series_id="one")
    found.sync(releases(1, 2, 3, source_chapter_id="x"), by=A)
    clock.advance(hours=1)
    found.given_source(B, series_id="one")
    found.sync(releases(2, 3, 4, title="Named", source_chapter_id="y"), by=B)
    return found


def test_a_source_leaves_with_its_chapters_and_their_dates(syncing: Syncing, clock: FixedClock) -> None:
    clock.advance(hours=1)
    came_to = split_now(syncing, "one", "two", B, title="The Second")

    detected = {(source, at, key): when for source, at, key, when, *_ in all_links(syncing)}
    later = clock.at.replace(hour=13)
    assert detected == {(A, "one", key): NOON for key in "123"} | {(B, "two", key): later for key in "234"}
    assert {row["first_detected_at"] for row in syncing.chapters() if row["series_id"] == "two"} == {later}
    assert (came_to.links_moved, came_to.chapters_made, came_to.chapters_removed) == (3, 3, 1)
    assert (syncing.latest("one")[0], syncing.latest("two")[0]) == (Decimal(3), Decimal(4))
    assert [row["title"] for row in syncing.rows(series)] == ["one", "The Second"]
    assert syncing.told() == []
    [(action, subject, detail)] = audited(syncing)
    assert (action, subject, detail["sources"]) == ("series.split", "one", [B])
    check_invariants(syncing)


def test_no_import_undoes_it_and_what_comes_is_news_of_the_new_series(syncing: Syncing) -> None:
    split_now(syncing, "one", "two", B)

    syncing.given_source(B, series_id="one")
    result = syncing.sync(releases(2, 3, 4, 5, title="Named", source_chapter_id="y"), by=B)

    assert (result.outcome, result.record_count) == ("1 new", 4)
    assert (syncing.latest("one")[0], syncing.latest("two")[0]) == (Decimal(3), Decimal(5))
    assert syncing.told() == ["5"]
    check_invariants(syncing)


def test_a_split_undoes_a_merge(syncing: Syncing) -> None:
    syncing.given_source(C, series_id="other")
    syncing.sync(releases(1, 9, None, source_chapter_id="z"), by=C)
    before, counts = all_links(syncing), syncing.source(C).record_count

    merge_now(syncing, "other", "one")
    assert all_links(syncing) != before
    split_now(syncing, "one", "other", C)

    assert all_links(syncing) == before
    assert syncing.source(C).record_count == counts
    with syncing.store.read() as connection:
        found = series_assignments(connection, [A, C])
    assert (found[C].why, found[C].is_assigned) == ("as its declaration says", False)
    check_invariants(syncing)


def test_who_came_by_a_merge_and_does_not_leave_stays(syncing: Syncing) -> None:
    """Else to revive the name would tear along every source that still has it in its file."""
    for source in (C, "series:d"):
        syncing.given_source(source, series_id="other")
        syncing.sync(releases(7), by=source)
    merge_now(syncing, "other", "one")

    split_now(syncing, "one", "other", C)

    with syncing.store.read() as connection:
        assert {key: one.series_id for key, one in series_assignments(connection, [C, "series:d"]).items()} == {
            C: "other",
            "series:d": "one",
        }
    syncing.sync(releases(7, 8), by="series:d")
    assert (syncing.latest("one")[0], syncing.latest("other")[0]) == (Decimal(8), Decimal(7))
    check_invariants(syncing)


def test_a_chapter_that_was_told_stays_and_is_not_told_again_when_another_brings_it(syncing: Syncing) -> None:
    syncing.sync(releases(2, 3, 4, 5, title="Named", source_chapter_id="y"), by=B)
    notice(syncing, "ann", chapter_id(syncing, "one", "5"), "sent")

    assert split_now(syncing, "one", "two", B).chapters_removed == 1
    assert syncing.latest("one")[0] == Decimal(3)

    syncing.sync(releases(1, 2, 3, 5, source_chapter_id="x"), by=A)
    assert [row["subject_kind"] for row in syncing.rows(outbox)] == ["chapter"]
    assert syncing.told() == ["5"]
    check_invariants(syncing)


def test_a_poll_that_is_running_begins_again_and_loses_nothing(syncing: Syncing) -> None:
    with syncing.store.begin() as connection:
        wanted = ClaimFilter(kind="poll", source_ids=[A, B])
        at = syncing.clock.advance(days=1)
        mine = claims.claim(connection, wanted, owner="w", now=at, lease=LEASE, limit=9)

    split_now(syncing, "one", "two", B)

    with syncing.store.begin() as connection:
        held = claims.held(connection, [(task.id, task.fence) for task in mine])
        query = select(tasks.c.source_id, tasks.c.status, tasks.c.not_before)
        found = {row.source_id: row for row in connection.execute(query)}
    assert held == {task.id for task in mine if task.source_id == A}
    assert (found[B].status, found[B].not_before) == ("PENDING", syncing.clock.at)


def test_what_cannot_be_split_is_refused_with_its_reason(syncing: Syncing) -> None:
    syncing.given_source(C, series_id="other")
    syncing.sync(releases(7), by=C)
    merge_now(syncing, "other", "one")
    before = all_links(syncing)

    with pytest.raises(UnknownSource, match="series:nope"):
        split_now(syncing, "one", "two", "series:nope")
    with pytest.raises(UnknownSeries, match="did you mean one"):
        split_now(syncing, "onee", "two", A)
    with pytest.raises(SeriesMerged, match="'other' was merged into 'one'"):
        split_now(syncing, "other", "two", C)
    with pytest.raises(CannotSplit, match="is not a valid series id"):
        split_now(syncing, "one", "No Id", A)
    split_now(syncing, "one", "two", B)
    with pytest.raises(CannotSplit, match="series:b belongs to 'two', not to 'one'"):
        split_now(syncing, "one", "three", B)
    with pytest.raises(SeriesMerged, match="'other' was merged into 'one'; use that id"):
        split_now(syncing, "two", "other", B)

    assert {link for link in all_links(syncing) if link[0] != B} == {link for link in before if link[0] != B}
    assert [row["id"] for row in syncing.rows(series)] == ["one", "other", "two"]


@ON_POSTGRES
def test_a_split_waits_for_the_polls_of_those_that_stay_before_it_holds_a_series(
    syncing: Syncing, clock: FixedClock
) -> None:
    """The undoing of a merge writes to those as well, each by its name."""

    def act(connection: Connection) -> None:
        split(connection, "one", "two", [B], actor="test", now=clock.at)

    held = select(tasks.c.id).where(tasks.c.source_id == A)
    has = locked_meanwhile(syncing.store, act, held=held, among=select(series.c.id))
    assert has == []
