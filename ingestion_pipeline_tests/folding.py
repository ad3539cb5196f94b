"""The published tables, built up from the record of changes alone, and compared with what they hold."""

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Boolean, Connection, Date, Table, select
from sqlalchemy.types import JSON

from ingestion_pipeline.exports.change_history import RECORDED
from ingestion_pipeline.exports.export_request import newest_published
from ingestion_pipeline.reading.evidence.grounding import PROVED
from ingestion_pipeline.store.changes import item_row_key
from ingestion_pipeline.store.history import recorded_columns
from ingestion_pipeline.store.tables import changes, data_items, datasets
from ingestion_pipeline.store.types import ExactDecimal, UtcDateTime

Record = dict[str, Any]
Rows = dict[tuple[str, str], Record]


def typed(table: Table | None, values: Record) -> Record:
    """Return a row as JSON has it with the types that the table gives; that of an item as it is."""
    return values if table is None else {name: _typed(table.c[name].type, value) for name, value in values.items()}


def _typed(kind: object, value: Any) -> Any:
    if value is None or isinstance(kind, JSON | Boolean):
        return value
    if isinstance(kind, UtcDateTime):
        return datetime.fromisoformat(value).astimezone(UTC)
    if isinstance(kind, Date):
        return date.fromisoformat(value)
    return Decimal(str(value)).normalize() if isinstance(kind, ExactDecimal) else value


def folded(connection: Connection) -> dict[tuple[str, str], Record | None]:
    """Fold the changes from the first on; None: as in the table, until it changes."""
    rows: dict[tuple[str, str], Record | None] = {}
    for change in connection.execute(select(changes).order_by(changes.c.id)).mappings():
        key, table = (change["table_name"], change["row_key"]), RECORDED.get(change["table_name"])
        before = None if change["before"] is None else typed(table, change["before"])
        after = None if change["after"] is None else typed(table, change["after"])
        match change["op"]:
            case "insert":
                assert key not in rows, f"inserted twice: {change}"
                rows[key] = after
            case "update":
                row = rows[key]
                assert row is not None
                assert before is not None
                assert after is not None
                assert before.keys() == after.keys()
                assert {name: row.get(name) for name in before} == before
                rows[key] = row | after
            case _:
                assert rows.pop(key) == before
    return rows


def published(connection: Connection, tables: Iterable[Table] = (*RECORDED.values(), data_items)) -> Rows:
    """Return what the recorded tables hold, and the published items."""
    rows: Rows = {}
    for table in tables:
        if table is data_items:
            rows |= published_items(connection)
            continue
        for row in connection.execute(select(table.c.id, *recorded_columns(table)[1:])).mappings():
            rows[table.name, str(row["id"])] = dict(row)
    return rows


def published_items(connection: Connection) -> Rows:
    rows: Rows = {}
    items = (
        select(data_items, datasets.c.source_id)
        .join(datasets, datasets.c.id == data_items.c.dataset_id)
        .where(datasets.c.id.in_(newest_published()), ~data_items.c.is_flagged, ~data_items.c.is_repeat)
    )
    for item in connection.execute(items).mappings():
        key = (item["entity_type"], item_row_key(item["source_id"], item["item_key"]))
        rows[key] = proved_fields(item["data"], item["grounding"])
    return rows


def proved_fields(data: Mapping[str, Any], grounding: Mapping[str, Any]) -> Record:
    proved = {str(status) for status in PROVED}
    return {
        name: value
        for name, value in data.items()
        if value is not None and (grounding.get(name) or {}).get("status") in proved
    }


def check_fold(connection: Connection, tables: Iterable[Table] = (*RECORDED.values(), data_items)) -> None:
    """Assert that what is folded is what the tables hold, of which others are empty."""
    held, rows = published(connection, tables), folded(connection)
    assert held.keys() == rows.keys()
    for key, row in rows.items():
        is_item = row is not None and key[0] not in RECORDED
        stated = {name: value for name, value in row.items() if value is not None} if is_item and row else row
        assert stated in (None, held[key]), key
