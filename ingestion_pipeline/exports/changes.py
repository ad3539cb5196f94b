"""Incremental exports: what changed since the last export of the same rows to the same folder.

Each change is exported at least once, in rows that are identified by their primary keys. The cursor
is not the time of the export but that of the oldest transaction still open then: what it writes is
stamped with its own time, may be committed later, and is found by the next export all the same.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from sqlalchemy import Connection, select, text

from ingestion_pipeline.exports.exporting import BadPath, ExportResult, file_name, open_export_rows
from ingestion_pipeline.exports.files import Format, replacing, write
from ingestion_pipeline.exports.request import ExportRequest, NothingPublished
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import export_cursors
from ingestion_pipeline.store.types import Moment

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
    store: Store, request: ExportRequest, form: Format, folder: Path, *, since_last: bool = True
) -> ChangeExport:
    """Write a new file with what changed since the last export, or since `request.since`.

    Only the former moves the cursor, after the file is in place: a process killed in between writes
    the same rows again, into another file.
    """
    target, name = folder.absolute(), file_name(replace(request, since=None), form)
    with store.read() as connection:
        since = _cursor(connection, name, target) if since_last else request.since
    until = watermark(store)
    path = _unused_path(target, name, until)
    exported = _write(store, replace(request, since=since), form, path)
    if since_last:
        _save_cursor(store, name, target, until, rows=exported.rows if exported else 0)
    return ChangeExport(since=since, until=until, exported=exported)


def export_all_or_changes(
    store: Store, request: ExportRequest, form: Format, folder: Path, *, since_last: bool
) -> ExportResult | None:
    """Export the changes, or everything in place of the existing file; no rows, no file."""
    if since_last:
        return export_changes(store, request, form, folder).exported
    return _write(store, request, form, folder / file_name(request, form))


def _write(store: Store, request: ExportRequest, form: Format, path: Path) -> ExportResult | None:
    try:
        with open_export_rows(store, request) as (columns, datasets, batches):
            first = next((batch for batch in batches if batch), None)
            if first is None:
                return None
            with replacing(path) as part:
                rows = write(form, part, columns, chain([first], batches))
    except NothingPublished:
        return None
    except OSError as error:
        raise BadPath(f"cannot write {path}: {error.strerror or error}") from error
    names = tuple(column.name for column in columns)
    return ExportResult(path=path, form=form, rows=rows, columns=names, datasets=tuple(datasets))


def _unused_path(folder: Path, name: str, until: datetime) -> Path:
    """Return a path that no file has, so that no file still being read is replaced."""
    stem, _, extension = name.rpartition(".")
    moment = f"{until:%Y%m%dT%H%M%S.%fZ}"
    path, number = folder / f"{stem}.{moment}.{extension}", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}.{moment}-{number}.{extension}"
    return path


def _cursor(connection: Connection, name: str, folder: Path) -> datetime | None:
    query = select(export_cursors.c.since).where(
        export_cursors.c.name == name, export_cursors.c.destination == str(folder)
    )
    return connection.execute(query).scalar_one_or_none()


def _save_cursor(store: Store, name: str, folder: Path, until: datetime, *, rows: int) -> None:
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
