"""What changed of an export since a moment, by key: the rows as they are now, and the keys that are gone.

For those who keep a copy: `dlt_source`, and tables of Delta Lake and Iceberg. Applying it twice does nothing twice.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Select, func, select

from ingestion_pipeline.engine.system_spec import ExportColumn
from ingestion_pipeline.exports.change_history import RECORDED
from ingestion_pipeline.exports.export_request import TABLES, ExportRequest, NothingPublished, table_columns
from ingestion_pipeline.exports.exported_items import item_columns
from ingestion_pipeline.exports.exporting import BATCH_ROWS, open_export_rows, watermark
from ingestion_pipeline.exports.formats import Batches, Row
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.changes import SEPARATOR, item_row_key
from ingestion_pipeline.store.tables import changes

ITEM_KEY = ("source_id", "item_key")
_CLOCKS = timedelta(seconds=1)  # by which a worker's clock may be behind PostgreSQL's

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedRows:
    """Rows to insert or to replace by their `key`, then keys to delete; all up to `until` is in them."""

    columns: Sequence[ExportColumn]
    key: Sequence[str]
    rows: Batches
    deleted: Iterator[Sequence[Key]]
    until: datetime


def key_of(request: ExportRequest) -> list[str]:
    """Return the names of the columns that identify a row."""
    if request.is_items:
        return list(ITEM_KEY)
    return [str(column.name) for column in TABLES[request.name].table.primary_key.columns]


def columns_of(request: ExportRequest) -> Sequence[ExportColumn]:
    """Return the columns of the rows, without a database."""
    return item_columns(request, ()) if request.is_items else table_columns(request.name)


@contextmanager
def open_changed_rows(
    store: Store, request: ExportRequest, since: datetime | None, *, batch_rows: int = BATCH_ROWS
) -> Generator[ChangedRows]:
    """Yield what changed since the moment that the last call ended with; without one, all rows.

    Deletions are known of tables whose changes are recorded, and of items.
    """
    until = watermark(store)
    if store.engine.dialect.name == "postgresql":
        until -= _CLOCKS
    key = key_of(request)
    # Whole datasets are published at once: of items, only those whose key has changed are taken.
    changed = replace(request, since=None if request.is_items else since)
    try:
        with store.read() as connection, open_export_rows(store, changed, batch_rows=batch_rows) as (columns, _, rows):
            taken = _changed_items(connection, request.name, since) if request.is_items and since else None
            taken_rows = _items(columns, rows, taken) if request.is_items else rows
            deleted = iter(()) if since is None else _deleted(connection, request, since, batch_rows)
            yield ChangedRows(columns=columns, key=key, rows=taken_rows, deleted=deleted, until=until)
    except NothingPublished:
        yield ChangedRows(columns=columns_of(request), key=key, rows=iter(()), deleted=iter(()), until=until)


def _changed_items(connection: Connection, name: str, since: datetime) -> set[str]:
    query = select(changes.c.row_key).where(changes.c.table_name == name, changes.c.occurred_at >= since)
    return set(connection.execute(query).scalars())


def _items(columns: Sequence[ExportColumn], batches: Batches, taken: set[str] | None) -> Batches:
    """Yield the rows that are items, and not the heading of some; with `taken`, only those."""
    names = [column.name for column in columns]
    source, item = (names.index(name) for name in ITEM_KEY)

    def is_taken(row: Row) -> bool:
        return row[item] is not None and (taken is None or item_row_key(row[source], row[item]) in taken)

    for batch in batches:
        yield [row for row in batch if is_taken(row)]


def _deleted(
    connection: Connection, request: ExportRequest, since: datetime, batch_rows: int
) -> Iterator[Sequence[Key]]:
    if not request.is_items and request.name not in RECORDED:
        return
    query = _gone(request.name, since).execution_options(yield_per=batch_rows)
    names = key_of(request)
    for batch in connection.execute(query).partitions():
        if request.is_items:
            yield [tuple(row.row_key.split(SEPARATOR, 1)) for row in batch]
        else:
            yield [tuple(row.before[name] for name in names) for row in batch]


def _gone(name: str, since: datetime) -> Select[Any, Any]:
    """Select the keys whose last change is that they were deleted, with what was there."""
    last = (
        select(func.max(changes.c.id).label("id"))
        .where(changes.c.table_name == name, changes.c.occurred_at >= since)
        .group_by(changes.c.row_key)
        .subquery()
    )
    return (
        select(changes.c.row_key, changes.c.before)
        .join(last, last.c.id == changes.c.id)
        .where(changes.c.op == "delete")
    )
