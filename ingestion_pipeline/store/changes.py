# ruff: noqa: S608 - the SQL is put together from names of ours
"""The history of published rows: every insert, update and delete of them is a row of `changes`.

A table declares itself `recorded`, of this package or of a system of yours. Triggers record its changes, not each
writer: no statement can forget it. A writer only states the reason, once for its transaction, with `set_origins`. What
a first sync inserts is recorded without its values, which the row itself has: its first update or delete adds them to
the record, so that folding `changes` gives the tables. Items of datasets are recorded when they are published, by
`catalogs/datasets/item_changes.py`.
"""

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Boolean, Connection, Float, Table, inspect
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


def common_origin(origins: Sequence[Origin]) -> Origin:
    """Return the origin of what all of these changed together: it names no source unless there is only one."""
    if len(origins) == 1:
        return origins[0]
    causes = {origin.cause for origin in origins}
    return Origin(cause=causes.pop() if len(causes) == 1 else Cause.SOURCE_CHANGED, run_id=origins[0].run_id)


SERIES = "series "  # before a series id, which may equal that of a source
LISTING = "listing "  # before the id of a listing
_INFO = "recorded"
_STAMP = "modified_at"  # the database's own stamp of each write
_OPERATOR = Origin(cause=Cause.OPERATOR)


@dataclass(frozen=True, slots=True)
class Recording:
    """How a table is recorded: the columns that its origins are named by, with a prefix, and columns left out."""

    origins: Mapping[str, str]
    without: frozenset[str]

    def keys_of(self, row: str) -> list[str]:
        """Return the SQL of the keys that the origin of the row may have, the first that there is counts."""
        return [f"'{prefix}' || {row}.{column}" for column, prefix in self.origins.items()]


def recorded(origins: Mapping[str, str], *, without: Iterable[str] = ()) -> dict[str, Any]:
    """Return the `info` of a table whose changes are recorded, from its creation on.

    `origins` has the columns that `set_origins` names rows by, each with a prefix. Columns `without` a record are
    those that are filled in after the row was written, or tell nothing of it.
    """
    return {_INFO: Recording(origins, frozenset({_STAMP, *without}))}


def recording_of(table: Table) -> Recording | None:
    """Return how the table is recorded; None if it is not."""
    return table.info.get(_INFO)


def set_origins(
    connection: Connection, by_key: Mapping[str, Origin], *, now: datetime, default: Origin = _OPERATOR
) -> None:
    """Set why rows change from here to the end of the transaction, by the values of their tables' origin columns.

    Rows with other values have the default. Without any statement an operator changes them.
    """
    if connection.dialect.name == "postgresql":
        origins = {key: asdict(origin) for key, origin in by_key.items()}
        document = json.dumps({"at": utc_text(now), "by_key": origins, "default": asdict(default)})
        connection.exec_driver_sql("SELECT set_config('ingestion.origins', %s, true)", (document,))
    else:
        _state(connection).set(by_key, utc_text(now), default)


class OriginState:
    """The origins of a SQLite connection's transaction, which its triggers ask for."""

    def __init__(self) -> None:
        self.bulk: list[str] = []  # not empty: a statement inserts rows that are recorded together
        self.clear()

    def clear(self) -> None:
        """Forget the origins of the last transaction."""
        self.set({}, None, _OPERATOR)

    def set(self, by_key: Mapping[str, Origin], at: str | None, default: Origin) -> None:
        """Store the origins of this transaction."""
        self._by_key, self._at, self._default = by_key, at, default

    def value(self, field: str, *keys: str) -> str | int | None:
        """Return a field of the first origin that one of the keys has; the SQL function `change_origin`."""
        if field == "at":
            return self._at
        origin = next((self._by_key[key] for key in keys if key in self._by_key), self._default)
        value = getattr(origin, field)
        return value.value if field == "cause" else value


def add_functions(connection: Any) -> None:  # noqa: ANN401 - SQLite's driver
    """Give the connection the functions that the triggers call; one in C where each row of a first sync calls it."""
    connection.origins = OriginState()
    connection.create_function("change_origin", -1, connection.origins.value)
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
    recording = recording_of(table)
    if recording is None or len(recording.origins) > 1:
        yield
        return
    bulk = _state(connection).bulk
    bulk.append(table.name)
    try:
        yield
    finally:
        bulk.clear()
    [(column, prefix)] = recording.origins.items()
    place = names.index(column)
    for value in {row[place] for row in rows}:
        _record_after(connection, table, last, (column, prefix, value))


def _record_after(connection: Connection, table: Table, last: int, origin: tuple[str, str, str]) -> None:
    """Record the rows with a greater id and this value of the origin column; `+` has SQLite read them by id."""
    origin_column, prefix, value = origin
    state, without = _state(connection), table.info[_INFO].without
    fields = {
        field: state.value(field, f"{prefix}{value}")
        for field in ("source_id", "cause", "ingestion_id", "run_id", "at")
    }
    whole = row_as_json("r", {name: column.type for name, column in table.c.items() if name not in without})
    after = "NULL" if fields["cause"] == Cause.FIRST_SYNC.value else whole
    source_id = "COALESCE(:source_id, r.source_id)" if "source_id" in table.c else ":source_id"
    connection.exec_driver_sql(
        f"INSERT INTO changes ({_COLUMNS}) SELECT '{table.name}', r.id, {source_id}, 'insert', NULL, {after},"
        f" :cause, :ingestion_id, :run_id, COALESCE(:at, {_SQLITE_NOW})"
        f" FROM {table.name} AS r WHERE r.id > :last AND +r.{origin_column} = :value",
        fields | {"last": last, "value": value},
    )


_COLUMNS = "table_name, row_key, source_id, op, before, after, cause, ingestion_id, run_id, occurred_at"
_SQLITE_NOW = "strftime('%Y-%m-%d %H:%M:%f000+00:00', 'now')"


def create_triggers(connection: Connection, tables: Iterable[Table]) -> None:
    """Create the triggers of those tables that are recorded.

    A migration that adds a column to a table creates those of SQLite again.
    """
    is_postgresql = connection.dialect.name == "postgresql"
    for table in tables:
        if (recording := recording_of(table)) is None:
            continue
        columns = {column["name"]: column["type"] for column in inspect(connection).get_columns(table.name)}
        for statement in (_postgresql if is_postgresql else _sqlite)(table, recording, columns):
            connection.exec_driver_sql(statement)


SEPARATOR = "/"  # in a `row_key`, between the columns of a key, or the source and the key of an item


def item_row_key(source_id: str, item_key: str) -> str:
    """Return the `row_key` that the changes of an item have."""
    return f"{source_id}{SEPARATOR}{item_key}"


def row_key(table: Table, row: str) -> str:
    """Return the SQL of the `row_key` of a row: its primary key as text, a slash between its columns."""
    return f" || '{SEPARATOR}' || ".join(f"CAST({row}.{column.name} AS TEXT)" for column in table.primary_key.columns)


def _postgresql(table: Table, recording: Recording, columns: Mapping[str, Any]) -> list[str]:
    """Return a function and the triggers that call it once for all rows of a statement."""
    name, keys = table.name, ", ".join(column.name for column in table.primary_key.columns)
    pairs = f"new_rows AS r JOIN old_rows AS p USING ({keys})"
    source_id = (
        "COALESCE(o.origin ->> 'source_id', r.source_id)" if "source_id" in columns else "o.origin ->> 'source_id'"
    )
    left_out = "".join(f" - '{column}'" for column in sorted(recording.without))
    row, earlier = f"to_jsonb(r){left_out}", f"to_jsonb(p){left_out}"
    by_key = ", ".join(f"origins -> ({key})" for key in recording.keys_of("r"))
    origin = f"CROSS JOIN LATERAL (SELECT COALESCE({by_key}, otherwise) AS origin OFFSET 0) AS o"
    complete = f"""UPDATE changes SET after = {earlier} FROM old_rows AS p
            WHERE row_key = {row_key(table, "p")} AND table_name = '{name}' AND op = 'insert' AND after IS NULL;"""
    differing = f"""CROSS JOIN LATERAL (
                SELECT jsonb_object_agg(f.key, d.earlier -> f.key) AS before, jsonb_object_agg(f.key, f.value) AS after
                FROM (SELECT {row} AS document, {earlier} AS earlier OFFSET 0) AS d, jsonb_each(d.document) AS f
                WHERE f.value IS DISTINCT FROM d.earlier -> f.key
            ) AS d"""

    def record(op: str, before: str, after: str, rows: str) -> str:
        return f"""INSERT INTO changes ({_COLUMNS})
            SELECT '{name}', {row_key(table, "r")}, {source_id}, '{op}', {before}, {after}, o.origin ->> 'cause',
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
    otherwise jsonb := COALESCE(stated -> 'default', '{{"cause": "{Cause.OPERATOR}"}}'::jsonb);
    moment timestamptz := COALESCE((stated ->> 'at')::timestamptz, now());
BEGIN
    IF TG_OP = 'INSERT' THEN
        {record("insert", "NULL", inserted, f"new_rows AS r {origin}")};
    ELSIF TG_OP = 'UPDATE' THEN
        {complete}
        {record("update", "d.before", "d.after", f"{pairs} {differing} {origin}")}
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


def _sqlite(table: Table, recording: Recording, columns: Mapping[str, Any]) -> list[str]:
    """Return the triggers, which SQLite calls for each row."""
    name = table.name
    kinds = {column: kind for column, kind in columns.items() if column not in recording.without}
    differs = " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in kinds)
    differing = " UNION ALL ".join(
        f"SELECT '{column}' AS name, {_json_text('OLD', column, kind)} AS old, {_json_text('NEW', column, kind)} AS new"
        f" WHERE OLD.{column} IS NOT NEW.{column}"
        for column, kind in kinds.items()
    )
    complete = (
        f"UPDATE changes SET after = {row_as_json('OLD', kinds)} WHERE row_key = {row_key(table, 'OLD')}"
        f" AND table_name = '{name}' AND op = 'insert' AND after IS NULL;"
    )

    def record(op: str, row: str, before: str, after: str) -> str:
        keys = ", ".join(recording.keys_of(row))
        source_id, cause, ingestion_id, run_id, at = (
            f"change_origin('{field}', {keys})" for field in ("source_id", "cause", "ingestion_id", "run_id", "at")
        )
        if "source_id" in kinds:
            source_id = f"COALESCE({source_id}, {row}.source_id)"
        return (
            f"INSERT INTO changes ({_COLUMNS}) SELECT '{name}', {row_key(table, row)}, {source_id}, '{op}', {before},"
            f" {after}, {cause}, {ingestion_id}, {run_id}, COALESCE({at}, {_SQLITE_NOW})"
        )

    is_first = f"change_origin('cause', {', '.join(recording.keys_of('NEW'))}) = '{Cause.FIRST_SYNC}'"
    inserted = f"CASE WHEN {is_first} THEN NULL ELSE {row_as_json('NEW', kinds)} END"
    return [
        f"CREATE TRIGGER changes_{name}_insert AFTER INSERT ON {name} WHEN NOT is_bulk_insert()"
        f" BEGIN {record('insert', 'NEW', 'NULL', inserted)}; END",
        f"CREATE TRIGGER changes_{name}_update AFTER UPDATE ON {name} WHEN {differs} BEGIN {complete}"
        f" {record('update', 'NEW', 'd.before', 'd.after')} FROM (SELECT json_group_object(name, json(old)) AS before,"
        f" json_group_object(name, json(new)) AS after FROM ({differing})) AS d; END",
        f"CREATE TRIGGER changes_{name}_delete AFTER DELETE ON {name} BEGIN {complete}"
        f" {record('delete', 'OLD', row_as_json('OLD', kinds), 'NULL')}; END",
    ]


def row_as_json(row: str, kinds: Mapping[str, Any]) -> str:
    """Return the SQL of the row as SQLite records it."""
    """Return the SQL of the row as SQLite records it."""
    return f"json_object({', '.join(_pair(row, name, kind) for name, kind in kinds.items())})"


def _pair(row: str, name: str, kind: object) -> str:
    return f"'{name}', {row}.{name}" if _is_scalar(kind) else f"'{name}', json({_json_text(row, name, kind)})"


def _is_scalar(kind: object) -> bool:
    return not isinstance(kind, JSON | Boolean | Float)


def _json_text(row: str, name: str, kind: object) -> str:
    value = f"{row}.{name}"
    if isinstance(kind, JSON):
        return f"COALESCE({value}, 'null')"
    if isinstance(kind, Boolean):
        return f"CASE {value} WHEN 1 THEN 'true' WHEN 0 THEN 'false' ELSE 'null' END"
    if isinstance(kind, Float):  # SQLite's own JSON has 15 digits of it, which are not all
        return f"CASE WHEN {value} IS NULL THEN 'null' ELSE printf('%!.17g', {value}) END"
    return f"json_quote({value})"
