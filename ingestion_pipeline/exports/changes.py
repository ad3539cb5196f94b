"""What changed since the last export of the same thing to the same folder.

Promised is each change at least once, in rows that are known by their primary keys. The cursor is
not the time of the export but of the oldest transaction that was still open then: what it writes is
stamped with its own time, may be committed later, and is found by the next export all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from sqlalchemy import Connection, select, text

from ingestion_pipeline.exports.datasets import NothingPublished
from ingestion_pipeline.exports.exporting import BadPath, Exported, file_name, reading
from ingestion_pipeline.exports.files import Format, replacing, write
from ingestion_pipeline.exports.request import ExportRequest
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import export_cursors
from ingestion_pipeline.store.types import Moment

_OLDEST_OPEN = text(
    "SELECT min(xact_start) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What an export of changes came to: a file, unless nothing had changed."""

    since: datetime | None
    until: datetime
    exported: Exported | None


def watermark(store: Store) -> datetime:
    """A moment before which everything is committed; nothing is written with an earlier one.

    SQLite has one writer: whoever holds the lock knows that there is none. On PostgreSQL the oldest
    open transaction decides; the time is asked first, so that one that begins now is not before it.
    """
    with store.begin() as connection:
        now = connection.execute(select(Moment())).scalar_one()
        if connection.dialect.name != "postgresql":
            return now
        oldest: datetime | None = connection.execute(_OLDEST_OPEN).scalar_one()
    return now if oldest is None else min(now, oldest.astimezone(UTC))


def export_changes(
    store: Store, wanted: ExportRequest, form: Format, folder: Path, *, since_last: bool = True
) -> Changes:
    """A new file holds what changed since the last time, or since `wanted.since`.

    Only the former moves the cursor, after the file is in its place: whoever is killed in between
    writes the same rows again, into another file.
    """
    target, name = folder.absolute(), file_name(replace(wanted, since=None), form)
    with store.read() as connection:
        since = _cursor(connection, name, target) if since_last else wanted.since
    until = watermark(store)
    path = _free(target, name, until)
    exported = _write(store, replace(wanted, since=since), form, path)
    if since_last:
        _move(store, name, target, until, rows=exported.rows if exported else 0)
    return Changes(since=since, until=until, exported=exported)


def export_anew(
    store: Store, wanted: ExportRequest, form: Format, folder: Path, *, since_last: bool
) -> Exported | None:
    """The changes, or everything in place of the file that was there; no rows are no file."""
    if since_last:
        return export_changes(store, wanted, form, folder).exported
    return _write(store, wanted, form, folder / file_name(wanted, form))


def _write(store: Store, wanted: ExportRequest, form: Format, path: Path) -> Exported | None:
    try:
        with reading(store, wanted) as (columns, datasets, batches):
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
    return Exported(path=path, form=form, rows=rows, columns=names, datasets=tuple(datasets))


def _free(folder: Path, name: str, until: datetime) -> Path:
    """A name that no file has: none that somebody may still read is replaced."""
    stem, _, ending = name.rpartition(".")
    moment = f"{until:%Y%m%dT%H%M%S.%fZ}"
    path, number = folder / f"{stem}.{moment}.{ending}", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}.{moment}-{number}.{ending}"
    return path


def _cursor(connection: Connection, name: str, folder: Path) -> datetime | None:
    query = select(export_cursors.c.since).where(
        export_cursors.c.name == name, export_cursors.c.destination == str(folder)
    )
    return connection.execute(query).scalar_one_or_none()


def _move(store: Store, name: str, folder: Path, until: datetime, *, rows: int) -> None:
    """The next export begins here. Two at once both had all up to their own moment."""
    with store.begin() as connection:
        statement = insert_into(connection, export_cursors).values(
            name=name,
            destination=str(folder),
            since=until,
            files=int(rows > 0),
            rows=rows,
            updated_at=Moment(),
        )
        cursor, given = export_cursors.c, statement.excluded
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=["name", "destination"],
                set_={
                    "since": given.since,
                    "files": cursor.files + given.files,
                    "rows": cursor.rows + given.rows,
                    "updated_at": given.updated_at,
                },
            )
        )
