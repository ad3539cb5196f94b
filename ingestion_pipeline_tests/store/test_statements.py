"""What both databases promise alike: types, transactions, clocks, and many rows in one statement."""

import sqlite3
import stat
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Boolean, Connection, Float, Integer, String, Text, case, func, insert, literal, select, update
from sqlalchemy.exc import StatementError

from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import DatabaseClock, FixedClock, Store, open_store
from ingestion_pipeline.store.statements import MANY, NewRows, audit, insert_into, insert_missing, row_source
from ingestion_pipeline.store.tables import audit_log, chapter_sources, chapters, outbox, series
from ingestion_pipeline.store.types import ExactDecimal, Id, Json, UtcDateTime
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.polling_runs import rows
from ingestion_pipeline_tests.processes import Child, open_and_close

pytestmark = pytest.mark.both_databases


def add_chapters(store: Store, now: datetime, *numbers: str) -> None:
    with store.begin() as connection:
        connection.execute(insert(series).values(id="solo", title="Solo", created_at=now))
        connection.execute(
            insert(chapters),
            [
                {"series_id": "solo", "key": f"{position}", "number": Decimal(number), "first_detected_at": now}
                for position, number in enumerate(numbers)
            ],
        )


def stored_payload(store: Store, now: datetime, payload: Any) -> Any:
    with store.begin() as connection:
        row = {"subject_kind": "note", "subject_id": "1", "payload": payload, "created_at": now}
        connection.execute(insert(outbox).values(row))
    return next(row.payload for row in rows(store, outbox))


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(datetime(2026, 3, 1, 12, tzinfo=UTC), id="whole second"),
        pytest.param(datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC), id="microsecond"),
        pytest.param(datetime(2026, 3, 1, 23, tzinfo=timezone(timedelta(hours=-9))), id="zone"),
        pytest.param(datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), id="last century"),
    ],
)
def test_a_time_is_returned_as_the_same_moment_in_utc(store: Store, moment: datetime) -> None:
    with store.begin() as connection:
        audit(connection, actor="me", action="test", subject="time", now=moment)

    [result] = [row.at for row in rows(store, audit_log)]
    assert result == moment
    assert result.tzinfo is UTC


def test_a_time_without_zone_is_refused(store: Store) -> None:
    naive = datetime(2026, 3, 1, 12)  # noqa: DTZ001 - what is refused

    with pytest.raises(StatementError, match="has no time zone"), store.begin() as connection:
        audit(connection, actor="me", action="test", subject="time", now=naive)


def test_times_compare_as_moments_whatever_their_zone(store: Store, now: datetime) -> None:
    later = (now + timedelta(microseconds=1)).astimezone(timezone(timedelta(hours=-11)))
    with store.begin() as connection:
        audit(connection, actor="me", action="early", subject="time", now=now)
        audit(connection, actor="me", action="late", subject="time", now=later)

    with store.read() as connection:
        after = connection.execute(select(audit_log.c.action).where(audit_log.c.at > now))
        newest = connection.execute(select(func.max(audit_log.c.at))).scalar_one()

    assert after.scalars().all() == ["late"]
    assert newest == later


def test_a_time_inside_an_expression_is_written_as_its_column_would(store: Store, now: datetime) -> None:
    """On SQLite it lost its zone there, and was read as local time afterwards."""
    with store.begin() as connection:
        audit(connection, actor="me", action="test", subject="time", now=now)
        later = now + timedelta(hours=1)
        moved = case((audit_log.c.at < later, later), else_=audit_log.c.at)
        connection.execute(update(audit_log).values(at=moved))

    with store.read() as connection:
        query = select(func.coalesce(audit_log.c.at, now), case((audit_log.c.id > 0, now)))
        assert connection.execute(query.where(audit_log.c.at == later)).one() == (later, now)


@pytest.mark.parametrize("text", ["45", "45.0", "045", "45.00", "4.5E+1"])
def test_a_number_is_found_however_it_was_spelled(store: Store, now: datetime, text: str) -> None:
    add_chapters(store, now, text)

    with store.read() as connection:
        same = select(chapters.c.number).where(chapters.c.number == Decimal(45))
        result = connection.execute(same).scalar_one()

    assert str(result) == "45"


@pytest.mark.parametrize("text", ["24.005", "404.99", "0.1", "100", "0", "1234567.8901"])
def test_a_decimal_is_returned_with_every_digit(store: Store, now: datetime, text: str) -> None:
    add_chapters(store, now, text)

    [result] = [row.number for row in rows(store, chapters)]

    assert isinstance(result, Decimal)
    assert str(result) == text


def test_the_greatest_number_is_numeric_not_textual(store: Store, now: datetime) -> None:
    add_chapters(store, now, "9", "10", "9.5")

    with store.read() as connection:
        greatest = connection.execute(select(func.max(chapters.c.number))).scalar_one()
        in_order = connection.execute(select(chapters.c.number).order_by(chapters.c.number))
        above = connection.execute(select(chapters.c.number).where(chapters.c.number > Decimal("9.5")))

    assert greatest == 10
    assert in_order.scalars().all() == [9, Decimal("9.5"), 10]
    assert above.scalars().all() == [10]


COLUMNS: dict[str, Any] = {
    "whole": Integer(),
    "share": Float(),
    "flag": Boolean(),
    "words": Text(),
    "number": ExactDecimal(),
    "moment": UtcDateTime(),
    "document": Json,
}
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
FULL = (
    2**31 - 1,
    0.25,
    True,
    "Ünïcode 漫画 'quoted' \"twice\" \\ {brace} %s :name\n\t🎌",
    Decimal("24.005"),
    NOON,
    {"a": [1, None, {"b": "ß"}], "text": "[1, 2]"},
)
EMPTY = (None,) * len(COLUMNS)
LOOKALIKES = (0, -1.5, False, '{"not": "json"}', Decimal(0), NOON, ["a", {}])


def test_a_row_source_returns_values_of_every_type_unchanged(store: Store) -> None:
    rows = [FULL, EMPTY, LOOKALIKES]

    with store.read() as connection:
        row_cte = row_source(connection, COLUMNS, rows, "given")
        result = [tuple(row) for row in connection.execute(select(row_cte))]

    assert result == rows
    assert [type(value) for value in result[0]] == [type(value) for value in FULL]


def test_an_empty_row_source_is_an_empty_table(store: Store) -> None:
    with store.read() as connection:
        row_cte = row_source(connection, COLUMNS, [], "given")
        result = connection.execute(select(row_cte)).all()

    assert result == []


def test_five_thousand_rows_are_one_statement(store: Store, now: datetime) -> None:
    columns = {"id": Text(), "at": UtcDateTime(), "payload": Json}
    rows = [(f"{number}", now, {"n": number}) for number in range(5_000)]

    with store.begin() as connection:
        row_cte = row_source(connection, columns, rows, "given")
        fresh = select(literal("note"), row_cte.c.id, row_cte.c.payload, row_cte.c.at)
        statement = insert_into(connection, outbox).from_select(
            ["subject_kind", "subject_id", "payload", "created_at"],
            # SQLite reads an ON CONFLICT after a bare FROM as a join's ON
            fresh.where(row_cte.c.id.is_not(None)),
        )
        quiet = statement.on_conflict_do_nothing(index_elements=["subject_kind", "subject_id"])
        first = connection.execute(quiet).rowcount
        second = connection.execute(quiet).rowcount

    with store.read() as connection:
        stored = connection.execute(select(outbox.c.payload).where(outbox.c.subject_id == "4999"))
    assert (first, second) == (5_000, 0)
    assert stored.scalar_one() == {"n": 4_999}


def test_the_numbers_of_a_row_source_compare_as_numbers(store: Store, now: datetime) -> None:
    add_chapters(store, now, "9.50", "12")
    columns = {"number": ExactDecimal()}
    rows = [(Decimal("9.5"),), (Decimal(10),), (Decimal("9.05"),)]

    with store.read() as connection:
        row_cte = row_source(connection, columns, rows, "given")
        greatest = connection.execute(select(func.max(row_cte.c.number))).scalar_one()
        matching = connection.execute(select(chapters.c.number).join(row_cte, chapters.c.number == row_cte.c.number))
        below = connection.execute(
            select(row_cte.c.number).join(chapters, chapters.c.number == 12).where(row_cte.c.number < chapters.c.number)
        )

    assert greatest == 10
    assert matching.scalars().all() == [Decimal("9.5")]
    assert len(below.all()) == 3


def test_rows_update_a_table_from_a_row_source(store: Store, now: datetime) -> None:
    add_chapters(store, now, "1", "2")
    columns = {"number": ExactDecimal(), "title": Text(), "published_at": UtcDateTime()}

    with store.begin() as connection:
        row_cte = row_source(connection, columns, [(Decimal("2.0"), "Two", now)], "given")
        changed = connection.execute(
            update(chapters)
            .where(chapters.c.number == row_cte.c.number)
            .values(title=row_cte.c.title, published_at=row_cte.c.published_at)
        )
        assert changed.rowcount == 1

    with store.read() as connection:
        titles = connection.execute(select(chapters.c.title, chapters.c.published_at).order_by(chapters.c.number))
        assert titles.all() == [(None, None), ("Two", now)]


@pytest.mark.parametrize("payload", [{"b": [1, 2.5, None, True]}, [], {}, "漫画 \\u0041", {"deep": {"er": [{}]}}])
def test_a_document_is_returned_equal(store: Store, now: datetime, payload: Any) -> None:
    assert stored_payload(store, now, payload) == payload


def test_an_error_leaves_nothing_of_its_transaction(store: Store, now: datetime) -> None:
    def write_and_fail() -> None:
        with store.begin() as connection:
            audit(connection, actor="me", action="test", subject="1", now=now)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()

    assert len(rows(store, audit_log)) == 0


def test_reading_does_not_wait_for_a_writer(store: Store, now: datetime) -> None:
    counted: list[int] = []

    def count_rows() -> None:
        with store.read() as connection:
            count = select(func.count()).select_from(audit_log)
            counted.append(connection.execute(count).scalar_one())

    with store.begin() as connection:
        audit(connection, actor="me", action="test", subject="1", now=now)
        reader = threading.Thread(target=count_rows)
        reader.start()
        reader.join(timeout=10)
        counted_meanwhile = list(counted)
    count_rows()

    assert counted_meanwhile == [0]
    assert counted == [0, 1]


@pytest.mark.slow
def test_a_transaction_that_has_read_may_write_despite_concurrent_writes(store: Store, now: datetime) -> None:
    """A transaction that takes SQLite's lock only at its first write may be refused there."""

    def write(subject: str) -> None:
        with store.begin() as connection:
            connection.execute(select(audit_log.c.id)).all()
            if subject == "first":
                other.start()
                other.join(timeout=0.3)
            audit(connection, actor="me", action="test", subject=subject, now=now)

    other = threading.Thread(target=write, args=["second"])
    write("first")
    other.join(timeout=10)

    subjects = {row.subject for row in rows(store, audit_log)}
    assert subjects == {"first", "second"}


def test_a_store_uses_the_clock_it_was_given(store: Store, clock: FixedClock, now: datetime) -> None:
    clock.advance(hours=2)

    assert store.now() == now + timedelta(hours=2)


def test_the_database_clock_returns_utc_and_advances(database_url: str) -> None:
    store = open_store(database_url)
    try:
        with store.read() as connection:
            first = DatabaseClock().now(connection)
            second = DatabaseClock().now(connection)
    finally:
        store.close()

    assert first.utcoffset() == timedelta(0)
    assert second > first


@pytest.mark.slow
def test_only_its_owner_can_read_the_sqlite_file(tmp_path: Path) -> None:
    file = tmp_path / "home" / "ingestion.db"
    store = open_store(f"sqlite:///{file}")
    try:
        with store.begin():
            beside = {path.name: stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()}
        with store.read() as connection:
            mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
    finally:
        store.close()

    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert set(beside.values()) == {0o600}
    assert {"ingestion.db", "ingestion.db-wal"} <= beside.keys()
    assert mode == "wal"


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_an_in_memory_database_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="name a file"):
        open_store(url)


@pytest.mark.slow
def test_opening_a_new_file_waits_for_a_concurrent_opening(tmp_path: Path) -> None:
    """SQLite refuses to switch to its log at once while another process is about to."""
    file = tmp_path / "ingestion.db"
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("PRAGMA user_version = 1")  # one page, as in each new file of ours
        other.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.3, lambda: other.execute("COMMIT"))
        release.start()

        open_store(f"sqlite:///{file}").close()

        release.join()
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"])
def test_opening_a_file_twice_keeps_the_locks_of_the_first(
    store: Store, database_url: str, now: datetime, tmp_path: Path
) -> None:
    """Otherwise a process that closes the file would take itself for the last, and delete our log."""
    with store.begin() as connection:
        audit(connection, actor="me", action="test", subject="1", now=now)

    open_store(database_url).close()
    Child(open_and_close, database_url).result()

    assert (tmp_path / "home" / "ingestion.db-wal").exists()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param({"id": 2**70}, {"id": 2**70}, id="beyond 64 bits"),
        pytest.param({7: "seven"}, {"7": "seven"}, id="keys that are no text"),
    ],
)
def test_a_document_accepts_values_of_yaml(store: Store, value: Any, expected: Any) -> None:
    with store.read() as connection:
        row_cte = row_source(connection, {"document": Json}, [(value,)], "given")
        document = connection.execute(select(row_cte.c.document)).scalar_one()

    assert document == expected


def test_a_time_without_zone_is_refused_among_many_rows(store: Store) -> None:
    naive = datetime(2026, 3, 1, 12)  # noqa: DTZ001 - what is refused

    with store.read() as connection, pytest.raises(ValueError, match="has no time zone"):
        row_source(connection, {"at": UtcDateTime()}, [(naive,)], "given")


def test_a_value_without_a_column_type_is_refused(store: Store) -> None:
    with store.read() as connection, pytest.raises(TypeError, match="cannot hold"):
        row_source(connection, {"words": String()}, [(object(),)], "given")


def test_a_text_is_never_truncated(store: Store) -> None:
    """A truncated text could equal another one."""
    with store.read() as connection:
        row_cte = row_source(connection, {"id": String(3)}, [("abcdef",)], "given")
        text = connection.execute(select(row_cte.c.id)).scalar_one()

    assert text == "abcdef"


AT = datetime(2026, 3, 1, 12, 30, tzinfo=timezone(timedelta(hours=2)))
LINK = {"chapter_id": Id, "source_id": Text(), "url": Text(), "releases": Json}
CHAPTER = {"series_id": Text(), "key": Text(), "number": ExactDecimal(), "title": Text(), "published_at": UtcDateTime()}


@pytest.fixture(params=[3, MANY], ids=["few", "many"])
def count(request: pytest.FixtureRequest) -> int:
    return request.param


def insert_chapters(connection: Connection, *rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    new = NewRows(
        table=chapters,
        columns=CHAPTER,
        rows=rows,
        identity=("series_id", "key"),
        shared={"first_detected_at": (UtcDateTime(), AT)},
    )
    return sorted(insert_missing(connection, new, returning=("key", "id")))


def test_existing_rows_stay_and_only_inserted_ones_are_returned(store: Store, count: int) -> None:
    with store.begin() as connection:
        connection.execute(insert(series).values(id="s", title="s", created_at=AT))
        insert_chapters(connection, ("s", "1", Decimal(1), "first", None))

        new_rows = [("s", str(n), Decimal(n), "later", AT) for n in range(1, count + 1)]
        inserted = insert_chapters(connection, *new_rows)
        inserted_again = insert_chapters(connection, *new_rows)
        rows = {row.key: row for row in connection.execute(select(chapters))}

    assert inserted == sorted((key, row.id) for key, row in rows.items() if key != "1")
    assert inserted_again == []
    assert len(rows) == count
    assert (rows["1"].title, rows["1"].published_at) == ("first", None)


def test_each_value_is_returned_unchanged(store: Store, count: int) -> None:
    numbers = [None, Decimal("1E+2"), *(Decimal(n) / 8 for n in range(count - 2))]
    titles = [None, 'one "two"\n\u6b21', *("more" for _ in numbers[2:])]
    with store.begin() as connection:
        connection.execute(insert(series).values(id="s", title="s", created_at=AT))
        new_rows = [
            ("s", str(n), number, title, AT) for n, (number, title) in enumerate(zip(numbers, titles, strict=True))
        ]
        insert_chapters(connection, *new_rows)
        rows = connection.execute(select(chapters).order_by(chapters.c.id)).all()

    assert {(row.key, row.number, row.title) for row in rows} == {
        (key, number, title) for _, key, number, title, _ in new_rows
    }
    assert {row.published_at for row in rows} == {row.first_detected_at for row in rows} == {AT}
    assert None not in {row.modified_at for row in rows}


def test_a_document_is_returned_unchanged(store: Store, count: int) -> None:
    message = [{"title": 'one "two" \u6b21', "number": None, "at": {"7": [1.5, True]}}]
    with store.begin() as connection:
        register(connection, [a_definition(id="series:a")], now=AT)
        connection.execute(insert(series).values(id="s", title="s", created_at=AT))
        inserted = insert_chapters(connection, *(("s", str(n), None, None, None) for n in range(count)))
        links = NewRows(
            table=chapter_sources,
            columns=LINK,
            rows=[(id_, "series:a", None, message) for _, id_ in inserted],
            identity=("source_id", "chapter_id"),
            shared={"detected_at": (UtcDateTime(), AT), "fingerprint": (Text(), "f")},
        )
        returned = insert_missing(connection, links)
        stored_links = connection.execute(select(chapter_sources)).all()

    assert returned == []
    assert [row.releases for row in stored_links] == [message] * count
    assert {(row.fingerprint, row.url, row.available) for row in stored_links} == {("f", None, True)}


def test_a_time_without_zone_is_refused_in_bulk_inserts(store: Store, count: int) -> None:
    naive = datetime(2026, 3, 1, 12)  # noqa: DTZ001 - what is refused
    rows = [("s", str(n), None, None, naive) for n in range(count)]

    with store.begin() as connection, pytest.raises(ValueError, match="has no time zone"):
        insert_chapters(connection, *rows)
