"""Reading the changes of published rows: all since a moment, those of one row, and what a table was at a moment."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Select, Table, or_, select

from ingestion_pipeline.catalogs.extraction.entity_type import entity_type, entity_types
from ingestion_pipeline.catalogs.extraction.source_selectors import entity_folder
from ingestion_pipeline.registry import systems
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.changes import item_row_key, recording_of
from ingestion_pipeline.store.history import history_of, history_of_items, recorded_columns
from ingestion_pipeline.store.tables import changes, data_items, datasets, ingestions

AT_ONCE = 1_000  # changes in memory at a time
RECORDED: Mapping[str, Table] = {
    table.name: table for system in systems() for table in system.tables if recording_of(table) is not None
}
_CHANGES = select(*changes.c, ingestions.c.snapshots).outerjoin(ingestions, ingestions.c.id == changes.c.ingestion_id)


class UntrackedTable(ValueError):
    """A table whose changes are not recorded."""

    def __init__(self, name: str, names: list[str]) -> None:
        super().__init__(f"changes of {name!r} are not recorded; there are those of: {', '.join(names)}")


class UnknownField(ValueError):
    """A field that no row of the table has."""


class TooOld(ValueError):
    """A moment before the oldest that the record of changes is whole at."""

    def __init__(self, moment: datetime, settings: Settings) -> None:
        days = settings.retention.changes_seconds // 86_400
        cure = "INGESTION_RETENTION__CHANGES_SECONDS keeps more from now on"
        super().__init__(f"{moment:%Y-%m-%d} is longer ago than changes are kept ({days} days); {cure}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFilter:
    """Which changes to read; None is any. `after` is the id of a change, those with a greater one are read."""

    since: datetime | None = None
    table: str | None = None
    source_id: str | None = None
    cause: str | None = None
    after: int | None = None


def recorded_names(entities: Path | None = None) -> list[str]:
    """Return the names that changes are recorded under: tables, and types of items."""
    return [*RECORDED, *entity_types(entities)]


def check_name(name: str | None, entities: Path | None = None) -> None:
    """Raise UntrackedTable if no changes are recorded under that name."""
    if name is not None and name not in (names := recorded_names(entities)):
        raise UntrackedTable(name, names)


def check_field(name: str, field: str | None, settings: Settings) -> None:
    """Raise UntrackedTable or UnknownField if no changes of that are recorded."""
    entities = entity_folder(settings)
    check_name(name, entities)
    if name in RECORDED:
        fields = [str(column.name) for column in recorded_columns(RECORDED[name])]
    else:
        fields = [each.name for each in entity_type(name, folder=entities).fields]
    if field is not None and field not in fields:
        raise UnknownField(f"{name} has no field {field!r}; there are: {', '.join(fields)}")


def changes_of(connection: Connection, of: ChangeFilter) -> Iterator[dict[str, Any]]:
    """Yield the changes in the order of time, a part of them in memory at once."""
    query = _CHANGES.order_by(changes.c.occurred_at, changes.c.id)
    if of.since is not None:
        query = query.where(changes.c.occurred_at >= of.since)
    if of.after is not None:
        query = query.where(changes.c.id > of.after)
    equal = {changes.c.table_name: of.table, changes.c.source_id: of.source_id, changes.c.cause: of.cause}
    query = query.where(*(column == value for column, value in equal.items() if value is not None))
    return _rows(connection, query)


def changes_of_row(connection: Connection, table: str, row_id: int) -> list[dict[str, Any]]:
    """Return the changes of the row, oldest first; none where changes of its table are not recorded."""
    name, key = table, str(row_id)
    if table == data_items.name:
        columns = (data_items.c.entity_type, datasets.c.source_id, data_items.c.item_key)
        query = select(*columns).join(datasets, datasets.c.id == data_items.c.dataset_id)
        name, source_id, item_key = connection.execute(query.where(data_items.c.id == row_id)).one()
        key = item_row_key(source_id, item_key)
    is_row = (changes.c.row_key == key) & (changes.c.table_name == name)
    return list(_rows(connection, _CHANGES.where(is_row).order_by(changes.c.id)))


def rows_as_of(name: str, moment: datetime, *, source_id: str | None = None) -> Select[*tuple[Any, ...]]:
    """Select the rows that the table, or the type of items, had at that moment."""
    table = RECORDED.get(name)
    view = history_of_items() if table is None else history_of(table)
    own = ("source_id", "item_key", "data") if table is None else [column.name for column in recorded_columns(table)]
    query = select(*(view.c[column] for column in own)).where(
        view.c.valid_from <= moment, or_(view.c.valid_to.is_(None), view.c.valid_to > moment)
    )
    if table is None:
        query = query.where(view.c.entity_type == name)
    if source_id is not None:
        query = query.where(view.c.source_id == source_id)
    return query.order_by(view.c.change_id)


def check_moment(moment: datetime, settings: Settings, *, now: datetime) -> None:
    """Raise TooOld if maintenance may have merged changes since that moment."""
    if moment < now - timedelta(seconds=settings.retention.changes_seconds):
        raise TooOld(moment, settings)


def _rows(connection: Connection, query: Select[Any]) -> Iterator[dict[str, Any]]:
    result = connection.execution_options(yield_per=AT_ONCE).execute(query)
    return (dict(row) for row in result.mappings())
