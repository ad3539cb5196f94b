"""An export from beginning to end: what is wanted, read in batches, written as one whole file."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import Connection

from ingestion_pipeline.catalogs.extraction.entity_type import EntityField, entity_types
from ingestion_pipeline.exports.columns import Batches, ExportColumn, Row
from ingestion_pipeline.exports.datasets import Dataset, chosen_datasets
from ingestion_pipeline.exports.files import Format, private_folder, replacing, write
from ingestion_pipeline.exports.items import item_columns, item_rows
from ingestion_pipeline.exports.meanings import meaning
from ingestion_pipeline.exports.request import ITEMS, ExportRequest
from ingestion_pipeline.exports.tables import table_columns, table_rows
from ingestion_pipeline.store import Store
from ingestion_pipeline.urls import without_secrets

BATCH_ROWS = 5_000  # 15 MB of courses with their evidence; a Parquet row group


class BadPath(ValueError):
    """The file cannot be written where it is wanted; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A file that was written."""

    path: Path
    form: Format
    rows: int
    columns: tuple[str, ...]
    datasets: tuple[Dataset, ...]


def export(
    store: Store, wanted: ExportRequest, form: Format, path: Path, *, batch_rows: int = BATCH_ROWS
) -> Exported:
    """The file holds exactly what is wanted, or it is as it was before."""
    target = _target(path)
    with reading(store, wanted, batch_rows=batch_rows) as (columns, datasets, batches):
        try:
            with replacing(target) as part:
                rows = write(form, part, columns, batches)
        except OSError as error:
            raise BadPath(f"cannot write {target}: {error.strerror or error}") from error
    names = tuple(column.name for column in columns)
    return Exported(path=target, form=form, rows=rows, columns=names, datasets=tuple(datasets))


@contextmanager
def reading(
    store: Store, wanted: ExportRequest, *, batch_rows: int = BATCH_ROWS
) -> Generator[tuple[list[ExportColumn], Sequence[Dataset], Batches]]:
    """The columns, the datasets they are of, and the rows, which are read as they are asked for."""
    wanted.check()
    with store.read() as connection:
        _see_one_state(connection)
        if not wanted.is_items:
            source_id = wanted.source_id
            rows = table_rows(
                connection,
                wanted.name,
                source_id=source_id,
                batch_rows=batch_rows,
                since=wanted.since,
                newest=wanted.newest,
            )
            columns = table_columns(wanted.name)
            yield columns, (), _without_secrets(columns, rows)
            return
        datasets = chosen_datasets(connection, wanted)
        rows = item_rows(connection, wanted, datasets, batch_rows=batch_rows)
        columns = item_columns(wanted, datasets)
        yield columns, datasets, _without_secrets(columns, rows)


def _without_secrets(columns: Sequence[ExportColumn], batches: Batches) -> Batches:
    """Take secrets out of addresses: rows that older versions wrote may have some."""
    names = [column.name for column in columns]
    places = [place for place, name in enumerate(names) if name.endswith(("url", "website"))]
    for batch in batches:
        yield [_safe_row(row, places) for row in batch]


def _safe_row(row: Row, places: Sequence[int]) -> Row:
    safe = {place: without_secrets(row[place]) for place in places if isinstance(row[place], str)}
    if all(row[place] == address for place, address in safe.items()):
        return row
    return [safe.get(place, value) for place, value in enumerate(row)]


def _see_one_state(connection: Connection) -> None:
    # Ids are counted by one statement and given by the next; SQLite's reader sees one state anyway.
    if connection.dialect.name == "postgresql":
        connection.execution_options(isolation_level="REPEATABLE READ")


def file_name(wanted: ExportRequest, form: Format) -> str:
    """What the file is called: another one for whatever is wanted besides the name."""
    # No id has a tilde, so that two sources never get one file; a colon is a drive's elsewhere.
    parts = [wanted.name, (wanted.source_id or "").replace(":", "~")]
    parts.append(f"v{wanted.version}" if wanted.version is not None else "")
    parts.append(f"dataset{wanted.dataset_id}" if wanted.dataset_id is not None else "")
    parts.append("evidence" if wanted.evidence else "")
    parts.append("flagged" if wanted.with_flagged else "")
    return ".".join(part for part in [*parts, form.value] if part)


def export_published(
    store: Store,
    folder: Path,
    form: Format,
    *,
    source_ids: Sequence[str] = (),
    evidence: bool = False,
    entities: Path | None = None,
) -> list[Exported]:
    """One file for each source's newest published dataset; of all sources, or of these.

    `entities` is the folder of schema files of one's own. Nothing published is no
    file, and no error: a source that was named and has none is one.
    """
    private_folder(folder)
    with store.read() as connection:
        found = _published(connection, source_ids)
    exported: list[Exported] = []
    for one in found:
        newest = ExportRequest(
            name=one.entity_type, source_id=one.source_id, evidence=evidence, entities=entities
        )
        wanted = replace(newest, version=one.version)
        exported.append(export(store, wanted, form, folder / file_name(newest, form)))
    return exported


def _published(connection: Connection, source_ids: Sequence[str]) -> list[Dataset]:
    from ingestion_pipeline.exports.datasets import NothingPublished

    if source_ids:
        each = [ExportRequest(name=ITEMS, source_id=one) for one in dict.fromkeys(source_ids)]
        return [one for wanted in each for one in chosen_datasets(connection, wanted)]
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
class Described:
    """A column, what its values are, and what they mean."""

    name: str
    holds: str
    meaning: str


def described(wanted: ExportRequest) -> list[Described]:
    """Every column of the file that would be written, in its order; no database is asked."""
    if not wanted.is_items:
        columns = table_columns(wanted.name)
        means = {one.name: meaning(wanted.name, one.name) for one in columns}
    else:
        kinds = entity_types(wanted.entities)
        names = list(kinds) if wanted.name == ITEMS else [wanted.name]
        columns = item_columns(wanted, [_any_of(name) for name in names])
        fields = {one.name: one for name in names for one in kinds[name].fields}
        means = {one.name: _of_item(one.name, fields) for one in columns}
    return [
        Described(name=one.name, holds=one.holds.value, meaning=means[one.name]) for one in columns
    ]


def _any_of(kind: str) -> Dataset:
    return Dataset(id=0, source_id="", source_url="", version=0, status="", entity_type=kind)


def _of_item(name: str, fields: dict[str, EntityField]) -> str:
    if name in fields:
        about = fields[name].about or "as its type's schema file has it"
        return f"{about}; {_UNSTATED}"
    for suffix, said in _OF_FIELD.items():
        if name.endswith(suffix):
            return said.format(name.removesuffix(suffix))
    return meaning(ITEMS, name)
