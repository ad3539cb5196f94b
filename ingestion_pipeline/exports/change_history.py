"""Reading the changes of published rows: all since a moment, and those of one row."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, select

from ingestion_pipeline.store.changes import TRACKED
from ingestion_pipeline.store.tables import changes, ingestions

AT_ONCE = 1_000  # changes in memory at a time
_CHANGES = select(*(column for column in changes.c if column.name != "id"), ingestions.c.snapshots).outerjoin(
    ingestions, ingestions.c.id == changes.c.ingestion_id
)


class UntrackedTable(ValueError):
    """A table whose changes are not recorded."""

    def __init__(self, name: str) -> None:
        super().__init__(f"changes of {name!r} are not recorded; --table takes: {', '.join(TRACKED)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFilter:
    """Which changes to read; None is any."""

    since: datetime | None = None
    table: str | None = None
    source_id: str | None = None
    cause: str | None = None


def changes_of(connection: Connection, of: ChangeFilter) -> Iterator[dict[str, Any]]:
    """Yield the changes in the order of time, a part of them in memory at once."""
    if of.table is not None and of.table not in TRACKED:
        raise UntrackedTable(of.table)
    query = _CHANGES.order_by(changes.c.occurred_at, changes.c.id)
    if of.since is not None:
        query = query.where(changes.c.occurred_at >= of.since)
    equal = {changes.c.table_name: of.table, changes.c.source_id: of.source_id, changes.c.cause: of.cause}
    query = query.where(*(column == value for column, value in equal.items() if value is not None))
    return _rows(connection, query)


def changes_of_row(connection: Connection, table: str, row_id: int) -> list[dict[str, Any]]:
    """Return the changes of the row, oldest first; none where changes of its table are not recorded."""
    is_row = (changes.c.row_key == str(row_id)) & (changes.c.table_name == table)
    return list(_rows(connection, _CHANGES.where(is_row).order_by(changes.c.id)))


def _rows(connection: Connection, query: Select[Any]) -> Iterator[dict[str, Any]]:
    result = connection.execution_options(yield_per=AT_ONCE).execute(query)
    return (dict(row) for row in result.mappings())
