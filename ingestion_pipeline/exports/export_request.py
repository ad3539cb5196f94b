"""What an export covers: the published tables of every system, and the datasets and filters of one request."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, or_, select

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, entity_type, entity_types
from ingestion_pipeline.catalogs.extraction.source_selectors import entity_folder
from ingestion_pipeline.engine.system_spec import ColumnType, ExportColumn, PublishedTable
from ingestion_pipeline.exports.formats import Batches, exact
from ingestion_pipeline.registry import systems
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.store import tables
from ingestion_pipeline.store.tables import data_items, datasets, extractions, sources

# A source's configuration may hold what only its reader should see: headers, tokens, cookies.
_PRIVATE = frozenset({"config", "etag", "last_modified", "parser_version", "content_hash"})
_UNREPORTED = frozenset(column.name for column in tables.sources.columns if column.name.startswith("unreported_"))
SOURCES = PublishedTable(table=tables.sources, without=_PRIVATE | _UNREPORTED, source_id=tables.sources.c.id)
# Published by an asset but not exported: notices are internal.
NOTICES = PublishedTable(table=tables.notices, without=frozenset({"payload"}), is_exported=False)

PUBLISHED: Mapping[str, PublishedTable] = {
    table.name: table for table in (SOURCES, *(table for system in systems() for table in system.published), NOTICES)
}
TABLES: Mapping[str, PublishedTable] = {name: table for name, table in PUBLISHED.items() if table.is_exported}


_ROWS_AT_ONCE = 5_000  # of those that are hashed


class NoSourceOfRows(ValueError):
    """An export by source of rows that belong to no single source."""


def table_columns(name: str) -> list[ExportColumn]:
    """Return the columns of the export, or of what an asset publishes."""
    return PUBLISHED[name].export_columns()


def table_rows(
    connection: Connection,
    name: str,
    *,
    source_id: str | None,
    batch_rows: int,
    since: datetime | None = None,
    newest: int | None = None,
) -> Batches:
    """Yield the rows by their primary key in batches; with `since` those written from then on.

    A table without `modified_at` gives all its rows. With `newest` only so many, the last written first.
    """
    statement = _statement(connection, name, source_id)
    if since is not None and "modified_at" in TABLES[name].table.c:
        statement = statement.where(TABLES[name].table.c.modified_at >= since)
    if newest is not None:
        statement = statement.order_by(None).order_by(*_last_first(name)).limit(newest)
    statement = statement.execution_options(yield_per=batch_rows)
    numbers = [place for place, column in enumerate(table_columns(name)) if column.holds is ColumnType.DECIMAL]
    for batch in connection.execute(statement).partitions():
        yield [_with_numbers(row, numbers) for row in batch] if numbers else list(batch)


# Columns that differ after an equal poll, or tell where a row came from: no news to those who use the rows.
NO_NEWS = frozenset(
    {
        *("modified_at", "updated_at", "last_seen_at", "missed_listings", "evaluated_at", "fetched_at"),
        *("ingestion_id", "snapshot_id", "detail_snapshot_id", "snapshot_ids", "run_id", "listing_run_id"),
        *("config_version", "tracking_id", "phase_times", "progress_message"),
    }
)


@dataclass(frozen=True, slots=True)
class RowsVersion:
    """How many rows a source has, and a hash that is equal as long as they are."""

    rows: int
    version: str


def rows_versions(connection: Connection, name: str, source_ids: Collection[str]) -> dict[str, RowsVersion]:
    """Return the version of the rows of each source; none have one too."""
    export = PUBLISHED[name]
    if export.source_id is None:
        raise NoSourceOfRows(f"rows of {name} belong to no single source")
    columns = [column for column in export.columns() if column.key not in NO_NEWS]
    statement = (
        select(export.source_id.label("rows_of"), *columns)
        .select_from(export.table if export.rows is None else export.rows)
        .where(export.source_id.in_(source_ids))
        .order_by(*export.table.primary_key.columns)
    )
    return _versions(connection, statement, source_ids)


def published_items() -> Select[Any, Any, Any]:
    """Select source, key and values of the published items, by source and key."""
    return (
        select(datasets.c.source_id.label("source"), data_items.c.item_key, data_items.c.data)
        .join(datasets, datasets.c.id == data_items.c.dataset_id)
        .where(datasets.c.id.in_(newest_published()), ~data_items.c.is_flagged, ~data_items.c.is_repeat)
        .order_by(data_items.c.item_key, data_items.c.id)
    )


def item_versions(connection: Connection, source_ids: Collection[str]) -> dict[str, RowsVersion]:
    """Return the version of the published items of each source, with their evidence."""
    statement = published_items().add_columns(data_items.c.grounding).where(datasets.c.source_id.in_(source_ids))
    return _versions(connection, statement, source_ids)


def _versions(
    connection: Connection, statement: Select[*tuple[Any, ...]], source_ids: Collection[str]
) -> dict[str, RowsVersion]:
    digests = {source_id: hashlib.sha256() for source_id in source_ids}
    counts = dict.fromkeys(source_ids, 0)
    for source_id, *values in connection.execute(statement, execution_options={"yield_per": _ROWS_AT_ONCE}):
        digests[source_id].update(json.dumps(values, default=str, sort_keys=True).encode())
        counts[source_id] += 1
    return {key: RowsVersion(counts[key], digest.hexdigest()[:16]) for key, digest in digests.items()}


def _last_first(name: str) -> list[ColumnElement[Any]]:
    table = PUBLISHED[name].table
    if "modified_at" in table.columns:
        return [table.c.modified_at.desc().nulls_last()]
    return [column.desc() for column in table.primary_key.columns]


def _statement(connection: Connection, name: str, source_id: str | None) -> Select[Any]:
    export = PUBLISHED[name]
    rows = export.table if export.rows is None else export.rows
    statement = select(*export.columns()).select_from(rows)
    statement = statement.order_by(*export.table.primary_key.columns)
    if source_id is None:
        return statement
    if export.source_id is None:
        raise NoSourceOfRows(f"rows of {name} belong to no single source: leave the source out")
    if source_id not in sources_by_id(connection, [source_id]):
        raise UnknownSource(source_id)
    return statement.where(export.source_id == source_id)


def _with_numbers(row: Any, numbers: list[int]) -> list[Any]:  # noqa: ANN401 - any column's
    values = list(row)
    for place in numbers:
        values[place] = exact(values[place])
    return values


ITEMS = "data_items"  # of every entity type; an entity type's own name gives its items alone


class UnknownExport(LookupError):
    """A name that nothing is exported under."""


class BadRequest(ValueError):
    """Options that contradict each other; the message says what to use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What to export: a table's rows, or the items of datasets.

    Items are those of the newest published dataset of each source, or of one source; `version` or
    `dataset_id` selects another, whatever its state. `entities` is the folder of your own schema
    files. `since` limits to what was written from then on: rows of a table, or whole datasets that
    were published. With `honours_rights` items of pages that reserve their text are left out. `newest` limits
    to so many rows of a table, the last written first. `as_of` gives the rows that there were at that moment, by the
    record of changes.
    """

    name: str
    source_id: str | None = None
    version: int | None = None
    dataset_id: int | None = None
    evidence: bool = False
    with_flagged: bool = False
    honours_rights: bool = True
    entities: Path | None = None
    since: datetime | None = None
    newest: int | None = None
    as_of: datetime | None = None

    @property
    def is_items(self) -> bool:
        """Return whether items are requested, and not the rows of a table."""
        return self.name not in TABLES

    def check(self) -> None:
        """Raise one of this module's errors if the options are contradictory."""
        names = known_names(self.entities)
        if self.name not in names:
            raise UnknownExport(f"there is no export {self.name!r}; there are: {', '.join(names)}")
        of_items = (self.version, self.dataset_id, self.evidence or None, self.with_flagged or None)
        if not self.is_items and any(option is not None for option in of_items):
            problem = f"{self.name} has no versions, evidence or flagged rows: only items have"
            raise BadRequest(f"{problem} ({', '.join(item_names(self.entities))})")
        if self.as_of is not None and any((*of_items, self.since)):
            raise BadRequest("rows as of a moment have no versions, no evidence and no cursor: leave these out")
        if self.version is not None and self.source_id is None:
            raise BadRequest("a version belongs to a source: name the source too")
        if self.version is not None and self.dataset_id is not None:
            raise BadRequest("either a version of a source or the id of a dataset, not both")

    def kind(self, name: str) -> EntityType:
        """Return the entity type of that name, of the package or your own."""
        return entity_type(name, folder=self.entities)


def request_for(
    settings: Settings, name: str, *, source_id: str | None = None, evidence: bool = False
) -> ExportRequest:
    """Return the request for these rows, with the entity types of the settings' folder."""
    return ExportRequest(
        name=name,
        source_id=source_id,
        evidence=evidence,
        entities=entity_folder(settings),
        honours_rights=settings.rights.honour,
    )


def known_names(entities: Path | None = None) -> list[str]:
    """Return every name, tables first."""
    return [*TABLES, *item_names(entities)]


def item_names(entities: Path | None = None) -> list[str]:
    """Return the names that give items of datasets."""
    return [ITEMS, *entity_types(entities)]


PUBLISHED_STATUS = "published"  # datasets.status
NAMED_AT_MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A version of a source's items, with the URL that its links are relative to."""

    id: int
    source_id: str
    source_url: str
    version: int
    status: str
    entity_type: str


class NothingPublished(LookupError):
    """No requested dataset is published; the message lists what exists."""


class UnknownDataset(LookupError):
    """A version or dataset that does not exist."""


def chosen_datasets(connection: Connection, request: ExportRequest) -> list[Dataset]:
    """Return the requested datasets by source, at least one.

    Raises NothingPublished, UnknownDataset or UnknownSource if there is none.
    """
    if request.source_id and request.source_id not in sources_by_id(connection, [request.source_id]):
        raise UnknownSource(request.source_id)
    statement = _datasets_statement(request)
    if request.dataset_id is not None:
        statement = statement.where(datasets.c.id == request.dataset_id)
    elif request.version is not None:
        statement = statement.where(datasets.c.version == request.version)
    else:
        statement = statement.where(datasets.c.id.in_(newest_published()))
        if request.since is not None:
            statement = statement.where(*_published_since(request.since))
    chosen = _read(connection, statement)
    if not chosen:
        raise _nothing_found_error(connection, request)
    return chosen


def newest_published() -> Select[Any]:
    """Select the ids of the newest published dataset of each source."""
    newer = datasets.alias("newer")
    is_outdated = (
        select(newer.c.id)
        .where(
            newer.c.source_id == datasets.c.source_id,
            newer.c.status == PUBLISHED_STATUS,
            newer.c.version > datasets.c.version,
        )
        .exists()
    )
    return select(datasets.c.id).where(datasets.c.status == PUBLISHED_STATUS, ~is_outdated)


def _published_since(since: datetime) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions: written since, and not only confirmed as unchanged."""
    a_little = since - timedelta(minutes=1)  # tolerance: the publisher's clock may be behind
    confirmed, published = datasets.c.confirmed_at, datasets.c.published_at
    is_news = or_(confirmed.is_(None), confirmed < a_little, published >= a_little)
    return datasets.c.modified_at >= since, is_news


def _datasets_statement(request: ExportRequest) -> Select[*tuple[Any, ...]]:
    statement = (
        select(
            datasets.c.id,
            datasets.c.source_id,
            sources.c.url.label("source_url"),
            datasets.c.version,
            datasets.c.status,
            datasets.c.entity_type,
        )
        .join(sources, sources.c.id == datasets.c.source_id)
        .order_by(datasets.c.source_id, datasets.c.version)
    )
    if request.source_id is not None:
        statement = statement.where(datasets.c.source_id == request.source_id)
    if request.name != ITEMS:
        statement = statement.where(datasets.c.entity_type == request.name)
    return statement


def _read(connection: Connection, statement: Select[*tuple[Any, ...]]) -> list[Dataset]:
    return [Dataset(**row) for row in connection.execute(statement).mappings()]


def _nothing_found_error(connection: Connection, request: ExportRequest) -> LookupError:
    whose = f" of {request.source_id}" if request.source_id else ""
    what = "items" if request.name == ITEMS else f"items of the type {request.name}"
    there_is = _describe_available(connection, request)
    if request.dataset_id is not None:
        return UnknownDataset(f"dataset {request.dataset_id} holds no {what}{whose}; {there_is}")
    if request.version is not None:
        return UnknownDataset(f"there is no version {request.version} with {what}{whose}; {there_is}")
    return NothingPublished(f"no {what}{whose} are published yet; {there_is}")


def _describe_available(connection: Connection, request: ExportRequest) -> str:
    """Return what an operator can do instead: other versions, or running extractions."""
    existing = _read(connection, _datasets_statement(request))
    if existing:
        versions = [f"version {dataset.version} of {dataset.source_id} is {dataset.status}" for dataset in existing]
        more = ", ..." if len(existing) > NAMED_AT_MOST else ""
        listed = f"{', '.join(versions[:NAMED_AT_MOST])}{more}"
        return f"{listed}; --source ID --version N exports one anyway"
    running = select(extractions.c.status, func.count()).group_by(extractions.c.status)
    if request.name != ITEMS:
        running = running.where(extractions.c.entity_type == request.name)
    if request.source_id is not None:
        running = running.where(extractions.c.source_id == request.source_id)
    counts = [f"{count} {status}" for status, count in connection.execute(running.order_by("status"))]
    if counts:
        more = "`ingest extractions list` shows what they wait for"
        return f"extractions: {', '.join(counts)}; {more}"
    if request.name == ITEMS:
        return "nothing was extracted so far"
    asks = f"`entity: {request.name}` in a catalogue's config requests it"
    return f"nothing was extracted so far for it; {asks}"
