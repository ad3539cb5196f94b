# ruff: noqa: S608 - the SQL is put together from names of ours
"""The history of published rows: every insert, update and delete of them is a row of `changes`.

Triggers record them, not each writer: no statement can forget it. A writer only states the reason, once for its
transaction, with `set_origins`. What a first sync inserts is recorded without its values, which the row itself has:
its first update or delete adds them to the record, so that folding `changes` gives the tables.
"""

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Boolean, Connection, Table, inspect
from sqlalchemy.types import JSON

from ingestion_pipeline.store.types import utc_text


class Cause(StrEnum):
    """Why a published row changed."""

    FIRST_SYNC = "first_sync"
    SOURCE_CHANGED = "source_changed"
    READER_CHANGED = "reader_changed"
    MODEL_CHANGED = "model_changed"
    PROFILE_CHANGED = "profile_changed"
    OPERATOR = "operator"
    RETENTION = "retention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Why rows change in a transaction, and the source, poll and run that they change by."""

    cause: Cause
    source_id: str | None = None
    ingestion_id: int | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class TrackedTable:
    """A table whose changes are recorded; `set_origins` names the origin of its rows by their `origin_column`."""

    name: str
    origin_column: str
    origin_prefix: str = ""

    def key_of(self, row: str) -> str:
        """Return the SQL of the key that the origin of the row has."""
        return f"'{self.origin_prefix}' || {row}.{self.origin_column}"


SERIES = "series "  # before a series id, which may equal that of a source
TRACKED = {
    "series": TrackedTable("series", "id", SERIES),
    "chapters": TrackedTable("chapters", "series_id", SERIES),
    "chapter_sources": TrackedTable("chapter_sources", "source_id"),
}
UNRECORDED = "modified_at"  # the database's own stamp of each write
_OPERATOR = Origin(cause=Cause.OPERATOR)


def set_origins(connection: Connection, by_key: Mapping[str, Origin], *, now: datetime) -> None:
    """Set why rows change from here to the end of the transaction, by the value of their table's origin column.

    Rows with another value are changed by an operator.
    """
    origins = {key: asdict(origin) for key, origin in by_key.items()}
    if connection.dialect.name == "postgresql":
        document = json.dumps({"at": utc_text(now), "by_key": origins})
        connection.exec_driver_sql("SELECT set_config('ingestion.origins', %s, true)", (document,))
    else:
        _state(connection).set(by_key, utc_text(now))


class OriginState:
    """The origins of a SQLite connection's transaction, which its triggers ask for."""

    def __init__(self) -> None:
        self.bulk: list[str] = []  # not empty: a statement inserts rows that are recorded together
        self.clear()

    def clear(self) -> None:
        """Forget the origins of the last transaction."""
        self.set({}, None)

    def set(self, by_key: Mapping[str, Origin], at: str | None) -> None:
        """Store the origins of this transaction."""
        self._by_key, self._at = by_key, at

    def value(self, key: str, field: str) -> str | int | None:
        """Return a field of the origin with that key; the SQL function `change_origin`."""
        if field == "at":
            return self._at
        value = getattr(self._by_key.get(key, _OPERATOR), field)
        return value.value if field == "cause" else value


def add_functions(connection: Any) -> None:  # noqa: ANN401 - SQLite's driver
    """Give the connection the functions that the triggers call; one in C where each row of a first sync calls it."""
    connection.origins = OriginState()
    connection.create_function("change_origin", 2, connection.origins.value)
    connection.create_function("is_bulk_insert", 0, connection.origins.bulk.__len__)


def forget_origins(connection: Connection) -> None:
    """Begin a transaction of SQLite without origins; PostgreSQL forgets them by itself."""
    _state(connection).clear()


def _state(connection: Connection) -> OriginState:
    driver: Any = connection.connection.dbapi_connection
    return driver.origins


@contextmanager
def recorded_after(
    connection: Connection, table: Table, last: int, names: Sequence[str], rows: Sequence[Sequence[Any]]
) -> Generator[None]:
    """Record the rows that are inserted meanwhile, whose ids are greater than `last`; for SQLite.

    One statement for each origin takes a third of the time of a trigger for each row.
    """
    if table.name not in TRACKED:
        yield
        return
    bulk = _state(connection).bulk
    bulk.append(table.name)
    try:
        yield
    finally:
        bulk.clear()
    place = names.index(TRACKED[table.name].origin_column)
    for value in {row[place] for row in rows}:
        _record_after(connection, table, last, value)


def _record_after(connection: Connection, table: Table, last: int, value: str) -> None:
    """Record the rows with a greater id and this value of the origin column; `+` has SQLite read them by id."""
    tracked, state = TRACKED[table.name], _state(connection)
    key = f"{tracked.origin_prefix}{value}"
    fields = {field: state.value(key, field) for field in ("source_id", "cause", "ingestion_id", "run_id", "at")}
    whole = _whole_row("r", {name: column.type for name, column in table.c.items() if name != UNRECORDED})
    after = "NULL" if fields["cause"] == Cause.FIRST_SYNC.value else whole
    source_id = "COALESCE(:source_id, r.source_id)" if "source_id" in table.c else ":source_id"
    connection.exec_driver_sql(
        f"INSERT INTO changes ({_COLUMNS}) SELECT '{table.name}', r.id, {source_id}, 'insert', NULL, {after},"
        f" :cause, :ingestion_id, :run_id, COALESCE(:at, {_SQLITE_NOW})"
        f" FROM {table.name} AS r WHERE r.id > :last AND +r.{tracked.origin_column} = :value",
        fields | {"last": last, "value": value},
    )


_COLUMNS = "table_name, row_key, source_id, op, before, after, cause, ingestion_id, run_id, occurred_at"
_SQLITE_NOW = "strftime('%Y-%m-%d %H:%M:%f000+00:00', 'now')"


def create_triggers(connection: Connection) -> None:
    """Create the triggers; a migration that adds a column to a table creates those of SQLite again."""
    is_postgresql = connection.dialect.name == "postgresql"
    for table in TRACKED.values():
        columns = {column["name"]: column["type"] for column in inspect(connection).get_columns(table.name)}
        for statement in (_postgresql if is_postgresql else _sqlite)(table, columns):
            connection.exec_driver_sql(statement)


def _postgresql(table: TrackedTable, columns: Mapping[str, Any]) -> list[str]:
    """Return a function and the triggers that call it once for all rows of a statement."""
    name, key = table.name, table.key_of("r")
    source_id = (
        "COALESCE(o.origin ->> 'source_id', r.source_id)" if "source_id" in columns else "o.origin ->> 'source_id'"
    )
    row, earlier = f"to_jsonb(r) - '{UNRECORDED}'", f"to_jsonb(p) - '{UNRECORDED}'"
    origin = f"CROSS JOIN LATERAL (SELECT COALESCE(origins -> ({key}), operator) AS origin OFFSET 0) AS o"
    complete = f"""UPDATE changes SET after = to_jsonb(p) - '{UNRECORDED}' FROM old_rows AS p
            WHERE row_key = p.id::text AND table_name = '{name}' AND op = 'insert' AND after IS NULL;"""
    differing = f"""CROSS JOIN LATERAL (
                SELECT jsonb_object_agg(f.key, d.earlier -> f.key) AS before, jsonb_object_agg(f.key, f.value) AS after
                FROM (SELECT {row} AS document, {earlier} AS earlier OFFSET 0) AS d, jsonb_each(d.document) AS f
                WHERE f.value IS DISTINCT FROM d.earlier -> f.key
            ) AS d"""

    def record(op: str, before: str, after: str, rows: str) -> str:
        return f"""INSERT INTO changes ({_COLUMNS})
            SELECT '{name}', r.id, {source_id}, '{op}', {before}, {after}, o.origin ->> 'cause',
                (o.origin ->> 'ingestion_id')::bigint, o.origin ->> 'run_id', moment
            FROM {rows}"""

    inserted = f"CASE o.origin ->> 'cause' WHEN '{Cause.FIRST_SYNC}' THEN NULL ELSE {row} END"
    # The plan is made for the first statement, which may have one row: a nested loop would be kept for thousands.
    # Turned off, it makes costs high enough for JIT, which took 150 ms for each statement.
    function = f"""
CREATE FUNCTION record_{name}() RETURNS trigger LANGUAGE plpgsql
SET timezone = 'UTC' SET enable_nestloop = off SET jit = off AS $$
DECLARE
    stated jsonb := COALESCE(NULLIF(current_setting('ingestion.origins', true), ''), '{{}}')::jsonb;
    origins jsonb := COALESCE(stated -> 'by_key', '{{}}');
    operator jsonb := '{{"cause": "{Cause.OPERATOR}"}}';
    moment timestamptz := COALESCE((stated ->> 'at')::timestamptz, now());
BEGIN
    IF TG_OP = 'INSERT' THEN
        {record("insert", "NULL", inserted, f"new_rows AS r {origin}")};
    ELSIF TG_OP = 'UPDATE' THEN
        {complete}
        {record("update", "d.before", "d.after", f"new_rows AS r JOIN old_rows AS p USING (id) {differing} {origin}")}
            WHERE d.after IS NOT NULL;
    ELSE
        {complete}
        {record("delete", row, "NULL", f"old_rows AS r {origin}")};
    END IF;
    RETURN NULL;
END $$"""
    transitions = {
        "INSERT": "NEW TABLE AS new_rows",
        "UPDATE": "OLD TABLE AS old_rows NEW TABLE AS new_rows",
        "DELETE": "OLD TABLE AS old_rows",
    }
    triggers = (
        f"CREATE TRIGGER changes_{event.lower()} AFTER {event} ON {name} REFERENCING {rows}"
        f" FOR EACH STATEMENT EXECUTE FUNCTION record_{name}()"
        for event, rows in transitions.items()
    )
    return [function, *triggers]


def _sqlite(table: TrackedTable, columns: Mapping[str, Any]) -> list[str]:
    """Return the triggers, which SQLite calls for each row."""
    name, kinds = table.name, {column: kind for column, kind in columns.items() if column != UNRECORDED}
    differs = " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in kinds)
    differing = " UNION ALL ".join(
        f"SELECT '{column}' AS name, {_json_text('OLD', column, kind)} AS old, {_json_text('NEW', column, kind)} AS new"
        f" WHERE OLD.{column} IS NOT NEW.{column}"
        for column, kind in kinds.items()
    )
    complete = (
        f"UPDATE changes SET after = {_whole_row('OLD', kinds)} WHERE row_key = CAST(OLD.id AS TEXT)"
        f" AND table_name = '{name}' AND op = 'insert' AND after IS NULL;"
    )

    def record(op: str, row: str, before: str, after: str) -> str:
        key = table.key_of(row)
        source_id, cause, ingestion_id, run_id, at = (
            f"change_origin({key}, '{field}')" for field in ("source_id", "cause", "ingestion_id", "run_id", "at")
        )
        if "source_id" in kinds:
            source_id = f"COALESCE({source_id}, {row}.source_id)"
        return (
            f"INSERT INTO changes ({_COLUMNS}) SELECT '{name}', {row}.id, {source_id}, '{op}', {before}, {after},"
            f" {cause}, {ingestion_id}, {run_id}, COALESCE({at}, {_SQLITE_NOW})"
        )

    is_first = f"change_origin({table.key_of('NEW')}, 'cause') = '{Cause.FIRST_SYNC}'"
    inserted = f"CASE WHEN {is_first} THEN NULL ELSE {_whole_row('NEW', kinds)} END"
    return [
        f"CREATE TRIGGER changes_{name}_insert AFTER INSERT ON {name} WHEN NOT is_bulk_insert()"
        f" BEGIN {record('insert', 'NEW', 'NULL', inserted)}; END",
        f"CREATE TRIGGER changes_{name}_update AFTER UPDATE ON {name} WHEN {differs} BEGIN {complete}"
        f" {record('update', 'NEW', 'd.before', 'd.after')} FROM (SELECT json_group_object(name, json(old)) AS before,"
        f" json_group_object(name, json(new)) AS after FROM ({differing})) AS d; END",
        f"CREATE TRIGGER changes_{name}_delete AFTER DELETE ON {name} BEGIN {complete}"
        f" {record('delete', 'OLD', _whole_row('OLD', kinds), 'NULL')}; END",
    ]


def _whole_row(row: str, kinds: Mapping[str, Any]) -> str:
    return f"json_object({', '.join(_pair(row, name, kind) for name, kind in kinds.items())})"


def _pair(row: str, name: str, kind: object) -> str:
    return f"'{name}', {row}.{name}" if _is_scalar(kind) else f"'{name}', json({_json_text(row, name, kind)})"


def _is_scalar(kind: object) -> bool:
    return not isinstance(kind, JSON) and not isinstance(kind, Boolean)


def _json_text(row: str, name: str, kind: object) -> str:
    value = f"{row}.{name}"
    if isinstance(kind, JSON):
        return f"COALESCE({value}, 'null')"
    if isinstance(kind, Boolean):
        return f"CASE {value} WHEN 1 THEN 'true' WHEN 0 THEN 'false' ELSE 'null' END"
    return f"json_quote({value})"
