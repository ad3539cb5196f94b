# ruff: noqa: S608 - the SQL is put together from names of ours
"""Views of the versions that each recorded row had, `v_NAME_history`, and the merging of old changes.

A version is what the insert of a row says with the updates up to it. The insert of a first sync says nothing as long
as nothing has changed the row since: then the row itself is its only version.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby, takewhile
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    ColumnClause,
    Connection,
    RowMapping,
    Table,
    bindparam,
    delete,
    inspect,
    select,
    tuple_,
    update,
)
from sqlalchemy import column as named
from sqlalchemy import table as table_named
from sqlalchemy.sql.selectable import TableClause

from ingestion_pipeline.store.changes import Recording, recording_of, row_as_json, row_key
from ingestion_pipeline.store.tables import changes
from ingestion_pipeline.store.types import Id, Json, UtcDateTime

COMPACTED_AT_ONCE = 5_000  # rows, of which each has a few changes
ITEMS = "v_items_history"  # of items of datasets, of all types
_OF_ITEMS = ("entity_type", "source_id", "item_key")


def history_name(table: str) -> str:
    """Return the name of the view of the table's versions."""
    return f"v_{table}_history"


def recorded_columns(table: Table) -> list[Column[object]]:
    """Return the columns that a record of the table has."""
    recording = recording_of(table)
    return [column for column in table.columns if recording is None or column.name not in recording.without]


def history_of(table: Table) -> TableClause:
    """Return the view of the table's versions, to select from."""
    own = [named(column.name, column.type) for column in recorded_columns(table)]
    return table_named(history_name(table.name), named("change_id", Id), *own, *_validity())


def history_of_items() -> TableClause:
    """Return the view of the versions of items, to select from."""
    return table_named(
        ITEMS, named("change_id", Id), *map(named, _OF_ITEMS), named("data", Json), named("cause"), *_validity()
    )


def compact(connection: Connection, *, before: datetime, limit: int = COMPACTED_AT_ONCE) -> int:
    """Merge the changes of rows from before that moment into the insert of each; return how many changes that removed.

    Folding what is left gives the same rows, also as of any moment since. Of a row that was deleted before, nothing is
    left.
    """
    old = changes.c.occurred_at < before
    rows = select(changes.c.table_name, changes.c.row_key).where(old, changes.c.op != "insert").distinct().limit(limit)
    is_one = tuple_(changes.c.table_name, changes.c.row_key).in_(rows)
    query = select(changes).where(is_one).order_by(changes.c.id).with_for_update()
    merged: list[dict[str, Any]] = []
    removed: list[int] = []
    for _, of_row in groupby(sorted(connection.execute(query).mappings(), key=_row_of), key=_row_of):
        # Up to the first that stays, in the order of the record: an older one after it may follow from it.
        oldest = list(takewhile(lambda change: change["occurred_at"] < before, of_row))
        first, values = _merged(oldest)
        removed += [change["id"] for change in oldest if change["id"] != first]
        if first is not None:
            merged.append({"of": first, "values": values})
    if merged:
        statement = update(changes).where(changes.c.id == bindparam("of"))
        connection.execute(statement.values(after=bindparam("values", type_=Json)), merged)
    connection.execute(delete(changes).where(changes.c.id.in_(removed)))
    return len(removed)


def _row_of(change: RowMapping) -> tuple[str, str]:
    return change["table_name"], change["row_key"]


def _merged(of_row: Sequence[RowMapping]) -> tuple[int | None, dict[str, Any] | None]:
    """Return the insert that is left, and what it says then; None if the row was deleted at last."""
    first: int | None = None
    values: dict[str, Any] | None = None
    for change in of_row:
        match change["op"]:
            case "insert":
                first, values = change["id"], change["after"]
            case "update":
                values = (values or {}) | change["after"]
            case _:
                first, values = None, None
    return first, values


def _validity() -> list[ColumnClause[Any]]:
    return [named("valid_from", UtcDateTime), named("valid_to", UtcDateTime)]


def create_history_views(connection: Connection, tables: Iterable[Table]) -> None:
    """Create the view of each of these tables that is recorded; a migration drops it before it changes the table."""
    for table in tables:
        if recording := recording_of(table):
            connection.exec_driver_sql(_view(connection, table, recording))


def create_items_view(connection: Connection, tables: Iterable[Table]) -> None:
    """Create the view of the versions of items: of what is recorded under no table's name."""
    names = ", ".join(f"'{table.name}'" for table in tables if recording_of(table))
    versions = _versions(connection.dialect.name, f"c.table_name NOT IN ({names})", "NULL")
    key = "SUBSTR(v.row_key, LENGTH(v.source_id) + 2)"
    connection.exec_driver_sql(
        f"CREATE VIEW {ITEMS} AS {versions} SELECT v.id AS change_id, v.table_name AS entity_type, v.source_id,"
        f" {key} AS item_key, v.document AS data, v.cause, v.occurred_at AS valid_from, v.valid_to FROM versions AS v"
    )


def _view(connection: Connection, table: Table, recording: Recording) -> str:
    name, dialect = table.name, connection.dialect.name
    kinds = {column["name"]: column["type"] for column in inspect(connection).get_columns(name)}
    recorded_kinds = {column: kind for column, kind in kinds.items() if column not in recording.without}
    if dialect == "postgresql":
        whole = "to_jsonb(t)"
        fields = ", ".join(f"r.{column}" for column in recorded_kinds)
        rows = f"versions AS v CROSS JOIN LATERAL jsonb_populate_record(NULL::{name}, v.document) AS r"
    else:
        whole = row_as_json("t", recorded_kinds)
        parts = (
            f"v.document {'->' if isinstance(kind, JSON) else '->>'} '{column}' AS {column}"
            for column, kind in recorded_kinds.items()
        )
        fields, rows = ", ".join(parts), "versions AS v"
    key = row_key(table, "t")
    if [column.name for column in table.primary_key.columns] == ["id"]:  # by its index
        is_row = f"t.id = CAST(c.row_key AS {kinds['id']})"
    else:
        is_row = f"{key} = c.row_key"
    row = f"(SELECT {whole} FROM {name} AS t WHERE {is_row})"
    versions = _versions(dialect, f"c.table_name = '{name}'", row)
    return (
        f"CREATE VIEW {history_name(name)} AS {versions} SELECT v.id AS change_id, {fields}, v.cause,"
        f" v.occurred_at AS valid_from, v.valid_to FROM {rows}"
    )


def _versions(dialect: str, condition: str, row: str) -> str:
    """Return the versions as a common table expression: each has a document of all the fields of its row."""
    since_insert = """u.table_name = c.table_name AND u.row_key = c.row_key AND u.id <= c.id AND u.id >= (
            SELECT MAX(i.id) FROM changes AS i WHERE i.table_name = c.table_name AND i.row_key = c.row_key
            AND i.op = 'insert' AND i.id <= c.id)"""
    if dialect == "postgresql":
        merged = f"""(SELECT jsonb_object_agg(l.key, l.value) FROM (SELECT DISTINCT ON (f.key) f.key, f.value
            FROM changes AS u CROSS JOIN LATERAL jsonb_each(u.after) AS f WHERE {since_insert}
            ORDER BY f.key, u.id DESC) AS l)"""
    else:
        merged = f"""(SELECT json_group_object(l.key, json(l.value)) FROM (
            SELECT f.key, u.after -> f.fullkey AS value, MAX(u.id) FROM changes AS u, json_each(u.after) AS f
            WHERE {since_insert} GROUP BY f.key) AS l)"""
    return f"""WITH versions AS MATERIALIZED (
        SELECT c.id, c.table_name, c.row_key, c.source_id, c.cause, c.occurred_at, c.valid_to,
            CASE WHEN c.op = 'insert' THEN COALESCE(c.after, {row}) ELSE {merged} END AS document
        FROM (SELECT c.*, LEAD(c.occurred_at) OVER (PARTITION BY c.table_name, c.row_key ORDER BY c.id) AS valid_to
            FROM changes AS c WHERE {condition}) AS c
        WHERE c.op <> 'delete')"""
