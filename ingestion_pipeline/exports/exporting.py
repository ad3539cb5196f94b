"""Exports, full or incremental: read the requested rows in batches and write them as one file.

An incremental export writes what changed since the last export of the same rows to the same folder. Each change is
exported at least once, in rows that are identified by their primary keys. The cursor is not the time of the export
but that of the oldest transaction still open then: what it writes is stamped with its own time, may be committed
later, and is found by the next export all the same.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from sqlalchemy import Connection, select, text

from ingestion_pipeline.catalogs.extraction.entity_type import EntityField, entity_types
from ingestion_pipeline.engine.system_spec import ColumnType, ExportColumn
from ingestion_pipeline.exports.change_history import RECORDED, check_name, rows_as_of
from ingestion_pipeline.exports.export_request import (
    ITEMS,
    PUBLISHED,
    Dataset,
    ExportRequest,
    NothingPublished,
    chosen_datasets,
    table_columns,
    table_rows,
)
from ingestion_pipeline.exports.exported_items import ITEM_ROWS, item_columns, item_rows, proved_values
from ingestion_pipeline.exports.formats import Batches, Format, Row, private_folder, replacing, write
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.history import recorded_columns
from ingestion_pipeline.store.statements import insert_into
from ingestion_pipeline.store.tables import export_cursors
from ingestion_pipeline.store.types import Moment
from ingestion_pipeline.urls import without_secrets

BATCH_ROWS = 5_000  # 15 MB of courses with their evidence; a Parquet row group


class BadPath(ValueError):
    """A path that cannot be written; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """A file that was written."""

    path: Path
    form: Format
    rows: int
    columns: tuple[str, ...]
    datasets: tuple[Dataset, ...]


OnRows = Callable[[int], None]  # gets the number of rows of each batch that is written


def export(
    store: Store,
    request: ExportRequest,
    form: Format,
    path: Path,
    *,
    batch_rows: int = BATCH_ROWS,
    on_rows: OnRows | None = None,
) -> ExportResult:
    """Write exactly the requested rows to the file, or leave it unchanged."""
    target = _target(path)
    with open_export_rows(store, request, batch_rows=batch_rows, on_rows=on_rows) as (columns, datasets, batches):
        return _write_file(target, form, columns, datasets, batches)


def _write_file(
    path: Path, form: Format, columns: Sequence[ExportColumn], datasets: Sequence[Dataset], batches: Batches
) -> ExportResult:
    try:
        with replacing(path) as part:
            rows = write(form, part, columns, batches)
    except OSError as error:
        raise BadPath(f"cannot write {path}: {error.strerror or error}") from error
    names = tuple(column.name for column in columns)
    return ExportResult(path=path, form=form, rows=rows, columns=names, datasets=tuple(datasets))


@contextmanager
def open_export_rows(
    store: Store, request: ExportRequest, *, batch_rows: int = BATCH_ROWS, on_rows: OnRows | None = None
) -> Generator[tuple[list[ExportColumn], Sequence[Dataset], Batches]]:
    """Yield the columns, their datasets, and the rows, which are read lazily."""
    request.check()
    with store.read() as connection:
        # Ids are counted by one statement and used by the next; SQLite reads one snapshot anyway.
        if connection.dialect.name == "postgresql":
            connection.execution_options(isolation_level="REPEATABLE READ")
        if request.as_of is not None:
            columns = columns_as_of(request)
            rows = _rows_as_of(connection, request, request.as_of, batch_rows)
            yield columns, (), _without_secrets(columns, rows, on_rows)
            return
        if not request.is_items:
            rows = table_rows(
                connection,
                request.name,
                source_id=request.source_id,
                batch_rows=batch_rows,
                since=request.since,
                newest=request.newest,
            )
            columns = table_columns(request.name)
            yield columns, (), _without_secrets(columns, rows, on_rows)
            return
        datasets = chosen_datasets(connection, request)
        rows = item_rows(connection, request, datasets, batch_rows=batch_rows)
        columns = item_columns(request, datasets)
        yield columns, datasets, _without_secrets(columns, rows, on_rows)


def columns_as_of(request: ExportRequest) -> list[ExportColumn]:
    """Return the columns of the rows as of a moment: those of the table that are recorded, or of the type."""
    check_name(request.name, request.entities)
    if request.is_items:
        own_fields = {field.name for field in request.kind(request.name).fields}
        fields = [column for column in item_columns(request, []) if column.name in own_fields]
        return [ExportColumn(name="source_id"), ExportColumn(name="item_key"), *fields]
    own = {column.name for column in recorded_columns(RECORDED[request.name])}
    return [column for column in table_columns(request.name) if column.name in own]


def _rows_as_of(connection: Connection, request: ExportRequest, moment: datetime, batch_rows: int) -> Batches:
    names = [column.name for column in columns_as_of(request)]
    query = rows_as_of(request.name, moment, source_id=request.source_id).execution_options(yield_per=batch_rows)
    for batch in connection.execute(query).mappings().partitions():
        if request.is_items:
            fields = request.kind(request.name).fields
            yield [[item["source_id"], item["item_key"], *proved_values(fields, item["data"])] for item in batch]
        else:
            yield [[row[name] for name in names] for row in batch]


def _without_secrets(columns: Sequence[ExportColumn], batches: Batches, on_rows: OnRows | None) -> Batches:
    """Remove secrets from URLs: rows that older versions wrote may have some."""
    names = [column.name for column in columns]
    places = [place for place, name in enumerate(names) if name.endswith(("url", "website"))]
    for batch in batches:
        yield [_safe_row(row, places) for row in batch]
        if on_rows is not None:
            on_rows(len(batch))


def _safe_row(row: Row, places: Sequence[int]) -> Row:
    safe = {place: without_secrets(row[place]) for place in places if isinstance(row[place], str)}
    if all(row[place] == address for place, address in safe.items()):
        return row
    return [safe.get(place, value) for place, value in enumerate(row)]


def file_name(request: ExportRequest, form: Format) -> str:
    """Return the file name, distinct for each combination of options."""
    # No id has a tilde, so names stay unique; a colon is a drive letter on Windows.
    parts = [request.name, (request.source_id or "").replace(":", "~")]
    parts.append(f"v{request.version}" if request.version is not None else "")
    parts.append(f"dataset{request.dataset_id}" if request.dataset_id is not None else "")
    parts.append(f"{request.as_of:%Y%m%dT%H%M%S}" if request.as_of is not None else "")
    parts.append("evidence" if request.evidence else "")
    parts.append("flagged" if request.with_flagged else "")
    return ".".join(part for part in [*parts, form.value] if part)


def export_published(
    store: Store,
    folder: Path,
    form: Format,
    *,
    source_ids: Sequence[str] = (),
    evidence: bool = False,
    entities: Path | None = None,
    honours_rights: bool = True,
) -> list[ExportResult]:
    """Write one file per newest published dataset, of these sources or of all.

    `entities` is the folder of your own schema files. A named source without a published dataset is
    an error; without names it gives no file.
    """
    private_folder(folder)
    with store.read() as connection:
        datasets = _published(connection, source_ids)
    exported: list[ExportResult] = []
    for dataset in datasets:
        newest = ExportRequest(
            name=dataset.entity_type,
            source_id=dataset.source_id,
            evidence=evidence,
            entities=entities,
            honours_rights=honours_rights,
        )
        request = replace(newest, version=dataset.version)
        exported.append(export(store, request, form, folder / file_name(newest, form)))
    return exported


def _published(connection: Connection, source_ids: Sequence[str]) -> list[Dataset]:
    if source_ids:
        each = [ExportRequest(name=ITEMS, source_id=source_id) for source_id in dict.fromkeys(source_ids)]
        return [dataset for request in each for dataset in chosen_datasets(connection, request)]
    try:
        return chosen_datasets(connection, ExportRequest(name=ITEMS))
    except NothingPublished:
        return []


def _target(path: Path) -> Path:
    target = path.absolute()
    if target.is_dir():
        raise BadPath(f"{path} is a folder: name a file in it")
    if not target.parent.is_dir():
        raise BadPath(f"cannot write {path}: there is no folder {target.parent}; make it first")
    return target


_UNSTATED = "null: the page does not state it, or nothing proves it"
_OF_FIELD = {
    "__evidence": "how {} is proved: exact, fuzzy, value or source; null: it is not stated",
    "__start": "where the proof of {} begins, in characters of the page's text; null: no span",
    "__end": "where the proof of {} ends, in characters of the page's text; null: no span",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDescription:
    """A column, the type of its values, and what they mean."""

    name: str
    holds: ColumnType
    meaning: str


def describe_columns(request: ExportRequest) -> list[ColumnDescription]:
    """Return every column of the file that would be written, without a database."""
    if not request.is_items:
        columns = table_columns(request.name)
        means = {column.name: PUBLISHED[request.name].meaning(column.name) for column in columns}
    else:
        kinds = entity_types(request.entities)
        names = list(kinds) if request.name == ITEMS else [request.name]
        columns = item_columns(request, [_dataset_of_type(name) for name in names])
        fields = {column.name: column for name in names for column in kinds[name].fields}
        means = {column.name: _describe_item_column(column.name, fields) for column in columns}
    return [ColumnDescription(name=column.name, holds=column.holds, meaning=means[column.name]) for column in columns]


def _dataset_of_type(kind: str) -> Dataset:
    return Dataset(id=0, source_id="", source_url="", version=0, status="", entity_type=kind)


def _describe_item_column(name: str, fields: dict[str, EntityField]) -> str:
    if name in fields:
        about = fields[name].about or "as its type's schema file has it"
        return f"{about}; {_UNSTATED}"
    for suffix, template in _OF_FIELD.items():
        if name.endswith(suffix):
            return template.format(name.removesuffix(suffix))
    return ITEM_ROWS.meaning(name)


_OLDEST_OPEN = text(
    "SELECT min(xact_start) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeExport:
    """The result of an export of changes: a file, unless nothing had changed."""

    since: datetime | None
    until: datetime
    exported: ExportResult | None


def watermark(store: Store) -> datetime:
    """Return a moment before which everything is committed; later rows carry later times.

    SQLite has one writer: holding the lock proves that there is none. On PostgreSQL the oldest open
    transaction decides; the time is read first, so that one that begins now is not before it.
    """
    with store.begin() as connection:
        now = connection.execute(select(Moment())).scalar_one()
        if connection.dialect.name != "postgresql":
            return now
        oldest: datetime | None = connection.execute(_OLDEST_OPEN).scalar_one()
    return now if oldest is None else min(now, oldest.astimezone(UTC))


def export_changes(
    store: Store,
    request: ExportRequest,
    form: Format,
    folder: Path,
    *,
    since_last: bool = True,
    on_rows: OnRows | None = None,
) -> ChangeExport:
    """Write a new file with what changed since the last export, or since `request.since`.

    Only the former moves the cursor, after the file is in place: a process killed in between writes
    the same rows again, into another file.
    """
    target, name = folder.absolute(), file_name(replace(request, since=None), form)
    with store.read() as connection:
        since = read_cursor(connection, name, target) if since_last else request.since
    until = watermark(store)
    path = _unused_path(target, name, until)
    exported = _write(store, replace(request, since=since), form, path, on_rows)
    if since_last:
        save_cursor(store, name, target, until, rows=exported.rows if exported else 0)
    return ChangeExport(since=since, until=until, exported=exported)


def export_all_or_changes(
    store: Store, request: ExportRequest, form: Format, folder: Path, *, since_last: bool
) -> ExportResult | None:
    """Export the changes, or everything in place of the existing file; no rows, no file."""
    if since_last:
        return export_changes(store, request, form, folder).exported
    return _write(store, request, form, folder / file_name(request, form))


def _write(
    store: Store, request: ExportRequest, form: Format, path: Path, on_rows: OnRows | None = None
) -> ExportResult | None:
    try:
        with open_export_rows(store, request, on_rows=on_rows) as (columns, datasets, batches):
            first = next((batch for batch in batches if batch), None)
            if first is None:
                return None
            return _write_file(path, form, columns, datasets, chain([first], batches))
    except NothingPublished:
        return None


def _unused_path(folder: Path, name: str, until: datetime) -> Path:
    """Return a path that no file has, so that no file still being read is replaced."""
    stem, _, extension = name.rpartition(".")
    moment = f"{until:%Y%m%dT%H%M%S.%fZ}"
    path, number = folder / f"{stem}.{moment}.{extension}", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}.{moment}-{number}.{extension}"
    return path


def read_cursor(connection: Connection, name: str, folder: Path) -> datetime | None:
    """Return where the next export of that name to the folder begins; None: with all rows."""
    query = select(export_cursors.c.since).where(
        export_cursors.c.name == name, export_cursors.c.destination == str(folder)
    )
    return connection.execute(query).scalar_one_or_none()


def save_cursor(store: Store, name: str, folder: Path, until: datetime, *, rows: int) -> None:
    """Store where the next export begins; two at once both exported up to their own moment."""
    with store.begin() as connection:
        statement = insert_into(connection, export_cursors).values(
            name=name, destination=str(folder), since=until, files=int(rows > 0), rows=rows, updated_at=Moment()
        )
        cursor, excluded = export_cursors.c, statement.excluded
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=["name", "destination"],
                set_={
                    "since": excluded.since,
                    "files": cursor.files + excluded.files,
                    "rows": cursor.rows + excluded.rows,
                    "updated_at": excluded.updated_at,
                },
            )
        )
