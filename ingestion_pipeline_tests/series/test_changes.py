"""Every change of series, chapters and chapter sources is recorded with its cause; folded, the record is the tables."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import RowMapping, delete, text, update

from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline.series.chapter_ingestion import ingest_listings
from ingestion_pipeline.series.chapter_plan import SourceListing
from ingestion_pipeline.series.series_changes import restore, withdraw
from ingestion_pipeline.store.changes import Cause, Origin
from ingestion_pipeline.store.tables import changes, chapter_sources, chapters, metadata
from ingestion_pipeline_tests.folding import check_fold
from ingestion_pipeline_tests.series.series_harness import SOLO, SeriesHarness, releases

pytestmark = pytest.mark.both_databases

OTHER = "series:other"


def recorded(harness: SeriesHarness, *, after: int = 0) -> list[RowMapping]:
    return [row for row in harness.rows(changes) if row["id"] > after]


def last_change(harness: SeriesHarness) -> int:
    return max((row["id"] for row in harness.rows(changes)), default=0)


def summaries(rows: list[RowMapping]) -> list[tuple[str, str, str, str | None]]:
    return sorted({(row["table_name"], row["op"], row["cause"], row["source_id"]) for row in rows}, key=str)


def check(harness: SeriesHarness) -> None:
    with harness.store.read() as connection:
        check_fold(connection)


def test_a_first_sync_records_each_row_without_repeating_its_values(harness: SeriesHarness) -> None:
    harness.add_source(listing=releases(1, 2))

    rows = recorded(harness)

    inserts = [row for row in rows if row["op"] == "insert"]
    assert [row["table_name"] for row in inserts] == ["series", *["chapters"] * 2, *["chapter_sources"] * 2]
    assert {(row["cause"], row["source_id"]) for row in rows} == {("first_sync", SOLO)}
    assert {(row["before"], row["after"]) for row in inserts[1:]} == {(None, None)}
    assert {row["occurred_at"] for row in rows} == {harness.clock.at}


def test_an_unchanged_listing_records_nothing(harness: SeriesHarness) -> None:
    harness.add_source(listing=releases(1, 2))
    before = last_change(harness)

    harness.sync(releases(1, 2))

    assert recorded(harness, after=before) == []


def test_a_long_listing_is_recorded_row_by_row(harness: SeriesHarness) -> None:
    """SQLite inserts more than a hundred rows, and records them, by statements of their own."""
    harness.add_source(listing=releases(1))
    harness.sync(releases(*range(1, 301)))

    links = [row for row in recorded(harness) if row["table_name"] == "chapter_sources"]

    assert [row["cause"] for row in links] == ["first_sync", *["source_changed"] * 299]
    assert {row["after"]["url"] for row in links[1:]} == {f"https://a.test/chapter/{n}" for n in range(2, 301)}
    check(harness)


def test_an_update_has_the_fields_that_differ_before_and_after(harness: SeriesHarness) -> None:
    harness.add_source(listing=releases(1, title="One"))
    before = last_change(harness)
    harness.sync(releases(1, title="First"))

    [change] = [row for row in recorded(harness, after=before) if row["table_name"] == "chapters"]

    assert (change["op"], change["before"], change["after"]) == ("update", {"title": "One"}, {"title": "First"})


def test_the_first_change_of_a_row_adds_its_values_to_the_record_of_its_insert(harness: SeriesHarness) -> None:
    harness.add_source(listing=releases(1, title="One"))
    harness.sync(releases(1, title="First"))
    harness.sync(releases(1, title="The first"))

    insert, *_ = [row for row in recorded(harness) if row["table_name"] == "chapters"]

    assert (insert["op"], insert["after"]["title"]) == ("insert", "One")


def a_correction(harness: SeriesHarness) -> None:
    harness.sync(releases(1, 2, title="Corrected"))


def a_withdrawal_by_the_source(harness: SeriesHarness) -> None:
    harness.sync(releases(1))
    harness.sync(releases(1))


def another_reader(harness: SeriesHarness) -> None:
    source = harness.source()
    origin = Origin(cause=Cause.READER_CHANGED, source_id=source.id, ingestion_id=5, run_id="run")
    feed = ParsedFeed(records=releases(1, 2, language="fr"), is_complete=True)
    with harness.store.begin() as connection:
        ingest_listings(connection, [SourceListing.of(source, feed, origin=origin)], now=harness.clock.at)


def a_rejection(harness: SeriesHarness) -> None:
    with harness.store.begin() as connection:
        withdraw(connection, "solo", "2", actor="test", now=harness.clock.at)


def a_deletion_by_hand(harness: SeriesHarness) -> None:
    with harness.store.begin() as connection:
        connection.execute(delete(chapter_sources).where(chapter_sources.c.chapter_id == 2))


def a_merge(harness: SeriesHarness) -> None:
    harness.merge("other", "solo")


def a_split(harness: SeriesHarness) -> None:
    harness.split("solo", "part", SOLO)


CAUSES: dict[str, tuple[Callable[[SeriesHarness], object], set[tuple[str, str, str]]]] = {
    "a correction": (
        a_correction,
        {("chapters", "update", "source_changed"), ("chapter_sources", "update", "source_changed")},
    ),
    "a withdrawal": (
        a_withdrawal_by_the_source,
        {("chapter_sources", "update", "source_changed"), ("series", "update", "source_changed")},
    ),
    "a rerun by another reader": (another_reader, {("chapter_sources", "update", "reader_changed")}),
    "an operator's decision": (a_rejection, {("chapters", "update", "operator"), ("series", "update", "operator")}),
    "a deletion": (a_deletion_by_hand, {("chapter_sources", "delete", "operator")}),
    "a merge": (
        a_merge,
        {
            ("series", "update", "operator"),
            ("chapters", "update", "operator"),
            ("chapters", "delete", "operator"),
            ("chapter_sources", "update", "operator"),
        },
    ),
    "a split": (
        a_split,
        {
            ("series", "insert", "operator"),
            ("series", "update", "operator"),
            ("chapters", "insert", "operator"),
            ("chapters", "delete", "operator"),
            ("chapter_sources", "update", "operator"),
        },
    ),
}


@pytest.mark.parametrize("name", CAUSES)
def test_each_change_has_its_cause(harness: SeriesHarness, name: str) -> None:
    act, expected = CAUSES[name]
    harness.add_source(listing=releases(1, 2))
    harness.add_source(OTHER, series_id="other", listing=releases(2, 3))
    with harness.store.begin() as connection:  # as if nobody had been notified: a split removes what it empties
        connection.execute(text("DELETE FROM outbox"))
    before = last_change(harness)

    act(harness)

    assert {(row["table_name"], row["op"], row["cause"]) for row in recorded(harness, after=before)} == expected
    check(harness)


def test_a_change_by_a_poll_names_its_ingestion_and_run(harness: SeriesHarness) -> None:
    harness.add_source(listing=releases(1, 2))
    before = last_change(harness)

    another_reader(harness)

    assert {(row["ingestion_id"], row["run_id"]) for row in recorded(harness, after=before)} == {(5, "run")}


def test_what_several_sources_change_at_once_names_none_of_them(harness: SeriesHarness) -> None:
    harness.add_source()
    harness.add_source(OTHER)
    harness.sync_together({SOLO: releases(1), OTHER: releases(1)})

    assert summaries([row for row in recorded(harness) if row["op"] == "insert"]) == [
        ("chapter_sources", "insert", "first_sync", OTHER),
        ("chapter_sources", "insert", "first_sync", SOLO),
        ("chapters", "insert", "first_sync", None),
        ("series", "insert", "first_sync", None),
    ]


def test_a_transaction_that_is_rolled_back_records_nothing(harness: SeriesHarness) -> None:
    harness.add_source(listing=releases(1))
    before = last_change(harness)

    with suppress(InterruptedError), harness.store.begin() as connection:
        connection.execute(update(chapters).values(title="Two"))
        raise InterruptedError

    assert recorded(harness, after=before) == []


SOURCES, SERIES_IDS = ("a", "b", "c"), ("s0", "s1", "s2")
numbers = st.frozensets(st.integers(1, 7), min_size=1)
source_names, series_names = st.sampled_from(SOURCES), st.sampled_from(SERIES_IDS)
Step = tuple[Any, ...]
listings = st.dictionaries(source_names, numbers, min_size=1)
steps: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("poll"), listings, st.sampled_from("XY"), st.booleans()),
    st.tuples(st.just("poll"), listings, st.just("X"), st.just(True)),
    st.tuples(st.just("merge"), series_names, series_names),
    st.tuples(st.just("split"), series_names, series_names, source_names),
    st.tuples(st.just("withdraw"), series_names, st.integers(1, 7)),
    st.tuples(st.just("restore"), series_names, st.integers(1, 7)),
)


@dataclass(slots=True)
class Story:
    """Sources and series of one story, in a database that many stories share."""

    harness: SeriesHarness
    number: int

    def series(self, name: str) -> str:
        return f"{name}.{self.number}"

    def source(self, name: str) -> str:
        return f"series:{name}.{self.number}"

    def begin(self) -> None:
        for source, series_id in zip(SOURCES, SERIES_IDS, strict=True):
            self.harness.add_source(self.source(source), series_id=self.series(series_id))

    def act(self, step: Step) -> None:
        """Do one step; what is refused (a merge of a series that was merged) is part of the story."""
        self.harness.clock.advance(minutes=10)
        kind, *arguments = step
        with suppress(ValueError, LookupError):
            getattr(self, kind)(*arguments)

    def poll(self, listed: dict[str, frozenset[int]], title: str, complete: bool) -> None:
        by_source = {self.source(name): releases(*sorted(of), title=title) for name, of in listed.items()}
        self.harness.sync_together(by_source, complete=complete)

    def merge(self, old: str, new: str) -> None:
        self.harness.merge(self.series(old), self.series(new))

    def split(self, old: str, new: str, source: str) -> None:
        self.harness.split(self.series(old), self.series(new), self.source(source))

    def withdraw(self, series_id: str, number: int) -> None:
        with self.harness.store.begin() as connection:
            withdraw(connection, self.series(series_id), str(number), actor="test", now=self.harness.clock.at)

    def restore(self, series_id: str, number: int) -> None:
        with self.harness.store.begin() as connection:
            restore(connection, self.series(series_id), str(number), actor="test", now=self.harness.clock.at)


def tell_stories(harness: SeriesHarness, count: int) -> None:
    """Check the fold at the end of each of as many random stories."""
    story_numbers = iter(range(1_000_000))

    @settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(st.lists(steps, min_size=2, max_size=10))
    def follow(story_steps: list[Step]) -> None:
        with harness.store.begin() as connection:
            for table in ("outbox", "chapter_sources", "chapters", "series", "changes"):
                connection.execute(delete(metadata.tables[table]))
        story = Story(harness, next(story_numbers))
        story.begin()
        for step in story_steps:
            story.act(step)
        check(harness)

    follow()


def test_folding_the_changes_of_any_story_gives_the_tables(harness: SeriesHarness) -> None:
    tell_stories(harness, 40)


@pytest.mark.soak
def test_folding_the_changes_of_many_stories_gives_the_tables(harness: SeriesHarness) -> None:
    tell_stories(harness, 5_000)
