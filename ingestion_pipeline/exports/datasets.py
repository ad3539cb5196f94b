"""Which datasets are exported: the newest published of each source, or the one that was named."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, or_, select

from ingestion_pipeline.exports.request import ITEMS, ExportRequest
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.store.tables import datasets, extractions, sources

PUBLISHED = "published"  # datasets.status; whoever publishes writes it
NAMED_AT_MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A version of a source's items, and the address that its links are relative to."""

    id: int
    source_id: str
    source_url: str
    version: int
    status: str
    entity_type: str


class NothingPublished(LookupError):
    """No dataset that was asked for is published; the message says what there is."""


class UnknownDataset(LookupError):
    """There is no such version or dataset."""


def chosen_datasets(connection: Connection, wanted: ExportRequest) -> list[Dataset]:
    """The datasets that are wanted, by source; at least one.

    Raises:
        NothingPublished, UnknownDataset, UnknownSource: there is none.
    """
    if wanted.source_id and wanted.source_id not in sources_by_id(connection, [wanted.source_id]):
        raise UnknownSource(wanted.source_id)
    statement = _of(wanted)
    if wanted.dataset_id is not None:
        statement = statement.where(datasets.c.id == wanted.dataset_id)
    elif wanted.version is not None:
        statement = statement.where(datasets.c.version == wanted.version)
    else:
        statement = statement.where(datasets.c.id.in_(newest_published()))
        if wanted.since is not None:
            statement = statement.where(*_published_since(wanted.since))
    found = _read(connection, statement)
    if not found:
        raise _nothing(connection, wanted)
    return found


def newest_published() -> Select[Any]:
    """The ids of the newest published dataset of each source."""
    newer = datasets.alias("newer")
    is_outdated = (
        select(newer.c.id)
        .where(
            newer.c.source_id == datasets.c.source_id,
            newer.c.status == PUBLISHED,
            newer.c.version > datasets.c.version,
        )
        .exists()
    )
    return select(datasets.c.id).where(datasets.c.status == PUBLISHED, ~is_outdated)


def _published_since(since: datetime) -> tuple[ColumnElement[bool], ...]:
    """Written since, and not only to say that an extraction found it unchanged."""
    a_little = since - timedelta(minutes=1)  # by the clock of who did it, which may be behind
    confirmed, published = datasets.c.confirmed_at, datasets.c.published_at
    is_news = or_(confirmed.is_(None), confirmed < a_little, published >= a_little)
    return datasets.c.modified_at >= since, is_news


def _of(wanted: ExportRequest) -> Select[*tuple[Any, ...]]:
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
    if wanted.source_id is not None:
        statement = statement.where(datasets.c.source_id == wanted.source_id)
    if wanted.name != ITEMS:
        statement = statement.where(datasets.c.entity_type == wanted.name)
    return statement


def _read(connection: Connection, statement: Select[*tuple[Any, ...]]) -> list[Dataset]:
    return [Dataset(**row) for row in connection.execute(statement).mappings()]


def _nothing(connection: Connection, wanted: ExportRequest) -> LookupError:
    whose = f" of {wanted.source_id}" if wanted.source_id else ""
    what = "items" if wanted.name == ITEMS else f"items of the type {wanted.name}"
    there_is = _there_is(connection, wanted)
    if wanted.dataset_id is not None:
        return UnknownDataset(f"dataset {wanted.dataset_id} holds no {what}{whose}; {there_is}")
    if wanted.version is not None:
        return UnknownDataset(
            f"there is no version {wanted.version} with {what}{whose}; {there_is}"
        )
    return NothingPublished(f"no {what}{whose} are published yet; {there_is}")


def _there_is(connection: Connection, wanted: ExportRequest) -> str:
    """What an operator can do instead: other versions, or the extractions that build one."""
    found = _read(connection, _of(wanted))
    if found:
        told = [f"version {one.version} of {one.source_id} is {one.status}" for one in found]
        more = ", ..." if len(found) > NAMED_AT_MOST else ""
        said = f"{', '.join(told[:NAMED_AT_MOST])}{more}"
        return f"{said}; --source ID --version N exports one all the same"
    running = select(extractions.c.status, func.count()).group_by(extractions.c.status)
    if wanted.name != ITEMS:
        running = running.where(extractions.c.entity_type == wanted.name)
    if wanted.source_id is not None:
        running = running.where(extractions.c.source_id == wanted.source_id)
    counts = [
        f"{count} {status}" for status, count in connection.execute(running.order_by("status"))
    ]
    if counts:
        more = "`ingest extractions list` says what they wait for"
        return f"extractions: {', '.join(counts)}; {more}"
    if wanted.name == ITEMS:
        return "nothing was extracted so far"
    asks = f"`entity: {wanted.name}` in a catalogue's config asks for it"
    return f"nothing was extracted so far for it; {asks}"
