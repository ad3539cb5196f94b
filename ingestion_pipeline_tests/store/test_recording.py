"""Whatever is done to a recorded table, folding its changes gives the table, and the views what it was at any time."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Boolean, Connection, Date, Float, Integer, String, Table, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.types import JSON

from ingestion_pipeline.exports.change_history import RECORDED, rows_as_of
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.changes import Cause, Origin, set_origins
from ingestion_pipeline.store.history import compact
from ingestion_pipeline.store.tables import changes, metadata
from ingestion_pipeline.store.types import ExactDecimal, UtcDateTime
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.folding import Rows, check_fold, folded, published
from ingestion_pipeline_tests.processes import Child

pytestmark = pytest.mark.both_databases

TABLES = [table for table in metadata.sorted_tables if table.name in RECORDED]  # parents first
STORIES = {"sqlite": 1_500, "postgresql": 500}  # which takes three times as long
TEXTS = ("", "a", "it's", 'say "hi"', "naïve\n\\", "日本", "null", "%s {0}", "1e5")


VALUES: tuple[tuple[type, Callable[[Random], Any]], ...] = (
    (Boolean, lambda random: random.random() < 0.5),
    (Integer, lambda random: random.randrange(5)),
    (ExactDecimal, lambda random: random.choice([Decimal(1), Decimal("10.5"), Decimal("0.001")])),
    (Float, lambda random: random.choice([0.5, 1 / 3, 1.0, 1e-9, 123456789.123456])),
    (UtcDateTime, lambda random: datetime(2026, 1, random.randrange(1, 4), 1, 2, 3, 456789, tzinfo=UTC)),
    (Date, lambda random: date(2026, 1, random.randrange(1, 4))),
    (JSON, lambda random: random.choice([{}, [], {"a": [1, None, "x"]}, [1.5, True], {"é": {"b": "it's"}}])),
)


def value_of(column: Any, random: Random, parents: dict[str, list[Any]]) -> Any:
    """Return a value that the column may hold, from few: keys collide, and rows stay equal at times."""
    if column.foreign_keys:
        [key] = column.foreign_keys
        return random.choice(parents.get(key.column.table.name) or [None])
    if column.nullable and random.random() < 0.2:
        return None
    made = (make(random) for kind, make in VALUES if isinstance(column.type, kind))
    return next(made, None) if not isinstance(column.type, String) else random.choice(TEXTS)[: column.type.length or 9]


@dataclass(slots=True)
class Story:
    """Random statements on all recorded tables, in transactions that are committed or rolled back."""

    connection: Connection
    now: datetime
    has_pasts: bool
    touched: set[Table] = field(default_factory=set[Table])
    pasts: list[tuple[datetime, Rows]] = field(default_factory=list[tuple[datetime, Rows]])

    def begin(self, cause: Cause) -> None:
        self.connection.begin()
        self.now += timedelta(minutes=1)
        origins = {"a": Origin(cause=Cause.MODEL_CHANGED)}
        set_origins(self.connection, origins, now=self.now, default=Origin(cause=cause))

    def act(self, table: Table, action: str, seed: int) -> None:
        """Do a statement; what the database refuses is part of the story."""
        self.touched.add(table)
        with suppress(IntegrityError), self.connection.begin_nested():
            getattr(self, action)(table, Random(seed))

    def values(self, table: Table, random: Random, *, names: list[str] | None = None) -> dict[str, Any]:
        parents = {
            key.column.table.name: list(self.connection.execute(select(key.column).order_by(key.column)).scalars())
            for key in table.foreign_keys
        }
        taken = [column for column in table.c if names is None or column.name in names]
        return {column.name: value_of(column, random, parents) for column in taken if not _is_number(column)}

    def insert(self, table: Table, random: Random) -> None:
        self.connection.execute(insert(table).values(self.values(table, random)))

    def insert_many(self, table: Table, random: Random) -> None:
        rows = [self.values(table, random) for _ in range(3)]
        for column in table.c:  # what makes a row one is another in each
            for number, row in enumerate(rows):
                if column.name in row and isinstance(row[column.name], str) and not column.foreign_keys:
                    row[column.name] = f"{random.randrange(99)}{number}"[: column.type.length]  # type: ignore[attr-defined]
        self.connection.execute(insert(table), rows)

    def update(self, table: Table, random: Random) -> None:
        names = random.sample([column.name for column in table.c if not column.primary_key], 2)
        values, some = self.values(table, random, names=names), self.some(table, random)
        self.connection.execute(update(table).where(table.c.id.in_(some)).values(values))

    def delete(self, table: Table, random: Random) -> None:
        self.connection.execute(delete(table).where(table.c.id.in_(self.some(table, random))))

    def some(self, table: Table, random: Random) -> list[Any]:
        ids = list(self.connection.execute(select(table.c.id).order_by(table.c.id)).scalars())
        return random.sample(ids, min(len(ids), 2))

    def end(self, *, is_kept: bool, compacted: bool) -> None:
        """Commit or roll back; then old changes may be merged."""
        if not is_kept:
            self.connection.rollback()
            return
        if compacted:
            before = self.now - timedelta(seconds=90)
            while compact(self.connection, before=before, limit=2):
                pass
            self.pasts = [past for past in self.pasts if past[0] >= before]
        if self.has_pasts:
            self.pasts.append((self.now, published(self.connection, self.touched)))
        self.connection.commit()

    def check_pasts(self) -> None:
        """Assert that the views give what the tables held after each transaction."""
        for moment, expected in self.pasts:
            rows = {
                (table.name, str(row["id"])): dict(row)
                for table in self.touched
                for row in self.connection.execute(rows_as_of(table.name, moment)).mappings()
            }
            assert rows == expected


def _is_number(column: Any) -> bool:
    return column.primary_key and isinstance(column.type, Integer)


statements = st.tuples(
    st.sampled_from(TABLES),
    st.sampled_from(["insert", "insert", "insert_many", "update", "update", "delete"]),
    st.integers(0, 2**16),
)
transactions = st.tuples(
    st.sampled_from(Cause),
    st.lists(statements, min_size=1, max_size=4),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([False, False, True]),
)


def follow_stories(store: Store, count: int) -> None:
    """Check the fold, and each past, of as many random stories."""
    with store.begin() as connection:
        register(connection, [a_definition(id=f"series:{name}", series=name) for name in "ab"], now=NOON)

    @settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(st.lists(transactions, min_size=2, max_size=4), st.integers(0, 9))
    def follow(story_transactions: list[tuple[Any, ...]], chance: int) -> None:
        with store.engine.connect() as connection:
            story = Story(connection, NOON, has_pasts=chance == 0)
            for cause, acts, is_kept, compacted in story_transactions:
                story.begin(cause)
                for act in acts:
                    story.act(*act)
                story.end(is_kept=is_kept, compacted=compacted)
            check_fold(connection, story.touched)
            story.check_pasts()
            for table in reversed([table for table in TABLES if table in story.touched]):
                connection.execute(delete(table))
            assert folded(connection) == {}
            connection.execute(delete(changes))
            connection.commit()

    follow()


def test_folding_the_changes_of_any_story_gives_the_tables(store: Store) -> None:
    follow_stories(store, STORIES[store.engine.dialect.name])


@pytest.mark.soak
def test_folding_the_changes_of_many_stories_gives_the_tables(store: Store) -> None:
    follow_stories(store, 25 * STORIES[store.engine.dialect.name])


def test_every_table_with_published_data_is_recorded() -> None:
    assert set(RECORDED) == {
        *("series", "chapters", "chapter_sources"),
        *("companies", "job_listings", "listing_sources", "job_matches"),
        *("businesses", "website_rankings"),
    }


KILLS = 4  # of a writer, each at a random moment


def write_for_ever(url: str, seed: int) -> None:
    """Follow random stories until the process is killed."""
    random, store = Random(seed), open_store(url)
    with store.engine.connect() as connection:
        story = Story(connection, NOON + timedelta(days=seed), has_pasts=False)
        while True:
            story.begin(random.choice(list(Cause)))
            for _ in range(random.randrange(1, 6)):
                action = random.choice(["insert", "insert", "insert_many", "update", "update", "delete"])
                story.act(random.choice(TABLES), action, random.randrange(2**16))
            story.end(is_kept=random.random() < 0.8, compacted=random.random() < 0.1)


def test_a_writer_that_is_killed_leaves_a_record_that_gives_the_tables(store: Store, database_url: str) -> None:
    with store.begin() as connection:
        register(connection, [a_definition(id=f"series:{name}", series=name) for name in "ab"], now=NOON)
    random, last = Random(7), 0
    for kill in range(KILLS):
        writer = Child(write_for_ever, database_url, kill + 1)
        goal = last + random.randrange(30, 120)
        while last < goal:
            with store.read() as connection:
                last = connection.execute(select(func.coalesce(func.max(changes.c.id), 0))).scalar_one()
        writer.kill()
        with store.begin() as connection:
            check_fold(connection)
