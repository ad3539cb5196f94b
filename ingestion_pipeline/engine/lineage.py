"""Lineage of a row, back to the fetch and the config: what systems explain the rows of their tables with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, select

from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.reading.evidence.locating import FoundPlace, LocatedBody, body_of, locate
from ingestion_pipeline.store import tables

BEFORE = "written before lineage was recorded; its next change records it"
CLEARED = "deleted by retention"
MISSING = "its body is no longer in the content store"
DAMAGED = "its body in the content store is damaged: the next fetch of the page stores it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A value of the row and where the snapshot states it; without a place, `why` not."""

    name: str
    value: object
    place: Mapping[str, Any] | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A step of the lineage; if it is not known, `message` is the reason."""

    name: str
    is_known: bool
    message: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def unknown(cls, name: str, message: str) -> "Hop":
        """Return a step that is not known, with the reason."""
        return cls(name=name, is_known=False, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The lineage of one row, from its values to the configuration it was read by."""

    row: str
    facts: Mapping[str, Any]
    fields: Sequence[Field]
    hops: Sequence[Hop]
    evaluation: Mapping[str, Any] | None = None  # of a listing: decision, filter, score
    history: Sequence[Mapping[str, Any]] = ()  # its recorded changes, oldest first


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedTable:
    """A table whose rows `ingest explain` explains; `explain` returns None if what the row belongs to is gone.

    `listed_by` is the command that shows the ids there are.
    """

    table: Table
    explain: Callable[[Connection, ContentStore, RowMapping], Lineage | None]
    listed_by: str | None = None

    def missing(self, row_id: int) -> "UnknownRow":
        """Return the error for a row that does not exist."""
        name = self.table.name
        listed_by = self.listed_by or f"`ingest export {name}`"
        return UnknownRow(f"there is no row {name}:{row_id}; {listed_by} shows the ids there are")


class BadRow(ValueError):
    """A name that is not of the form TABLE:ID."""


class UnknownRow(LookupError):
    """A row that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrigin:
    """The origin that the row's own table records, before any of it is looked up."""

    source_id: str
    snapshot_ids: Sequence[int]
    run_id: str | None = None
    config_version: int | None = None
    is_kept: bool = False  # whether the row was written since lineage is recorded
    steps: Sequence[Hop] = ()
    fetched_at: datetime | None = None  # base of relative dates such as "yesterday"


def row_of(connection: Connection, table: Table, row_id: int) -> RowMapping | None:
    """Return the row with that id."""
    return connection.execute(select(table).where(table.c.id == row_id)).mappings().one_or_none()


def snapshot_row(connection: Connection, snapshot_id: int | None) -> RowMapping | None:
    """Return the row of the snapshot, if there is one."""
    return None if snapshot_id is None else row_of(connection, tables.snapshots, snapshot_id)


def origin_by_poll(connection: Connection, source_id: str, ingestion_id: int | None) -> RowOrigin:
    """Return the origin of a row that a poll wrote."""
    poll = None if ingestion_id is None else row_of(connection, tables.ingestions, ingestion_id)
    if poll is None:
        hop = Hop.unknown("poll", BEFORE if ingestion_id is None else CLEARED)
        return RowOrigin(source_id=source_id, snapshot_ids=_newest_snapshots(connection, source_id), steps=[hop])
    facts = {"ingestion": poll["id"], "parser_version": poll["parser_version"], "at": poll["ingested_at"]}
    hop = Hop(name="poll", is_known=True, message=poll["outcome"], facts=facts)
    return RowOrigin(
        source_id=source_id,
        snapshot_ids=poll["snapshots"],
        run_id=poll["run_id"],
        config_version=poll["config_version"],
        is_kept=True,
        steps=[hop],
        fetched_at=poll["fetched_at"],
    )


def _newest_snapshots(connection: Connection, source_id: str) -> list[int]:
    """Return the last snapshots of a row whose poll is not known: they may still state it."""
    query = (
        select(tables.snapshots.c.id)
        .where(tables.snapshots.c.source_id == source_id, tables.snapshots.c.failure.is_(None))
        .order_by(tables.snapshots.c.fetched_at.desc(), tables.snapshots.c.id.desc())
        .limit(5)
    )
    return list(connection.execute(query).scalars())


def hops_of(connection: Connection, content: ContentStore, origin: RowOrigin, snapshot_id: int | None) -> list[Hop]:
    """Return the hops from the snapshot to the configuration."""
    row = snapshot_row(connection, snapshot_id)
    return [
        *origin.steps,
        _snapshot(content, origin, row),
        _fetch(row),
        _run(connection, origin),
        _configuration(connection, origin),
    ]


def _snapshot(content: ContentStore, origin: RowOrigin, row: RowMapping | None) -> Hop:
    if row is None:
        return Hop.unknown("snapshot", CLEARED if origin.snapshot_ids else BEFORE)
    facts = {"id": row["id"], "url": row["url"], "content_hash": row["content_hash"]}
    facts |= {"bytes": row["size_bytes"], "type": row["content_type"]}
    return _stored_hop("snapshot", content, row, facts)


def detail_hop(content: ContentStore, row: RowMapping | None) -> Hop:
    """Return the hop of the record's own page, which was read besides the list."""
    if row is None:
        return Hop.unknown("detail page", CLEARED)
    facts = {"id": row["id"], "url": row["url"], "at": row["fetched_at"], "run": row["run_id"]}
    return _stored_hop("detail page", content, row, facts)


def _stored_hop(name: str, content: ContentStore, row: RowMapping, facts: Mapping[str, Any]) -> Hop:
    """Return the hop of a snapshot, with whether its body is stored and intact."""
    body_hash = row["body_hash"]
    if body_hash and content.find(body_hash) is not None:
        return Hop(name=name, is_known=True, message=f"snapshot {row['id']}", facts=facts)
    is_damaged = bool(body_hash) and content.has(body_hash)
    return Hop(name=name, is_known=False, message=DAMAGED if is_damaged else MISSING, facts=facts)


def _fetch(row: RowMapping | None) -> Hop:
    if row is None:
        return Hop.unknown("fetch", "not known without its snapshot")
    facts = {"at": row["fetched_at"], "status": row["status_code"], "url": row["final_url"]}
    facts |= {"etag": row["etag"], "run": row["run_id"]}
    how = "shown by a browser" if row["rendered_at"] else "by HTTP"
    return Hop(name="fetch", is_known=True, message=f"last {how}", facts=facts)


def _run(connection: Connection, origin: RowOrigin) -> Hop:
    if origin.run_id is None:
        details = "written by a command, not by a Dagster run" if origin.is_kept else BEFORE
        return Hop(name="run", is_known=origin.is_kept, message=details)
    query = select(tables.runs).where(tables.runs.c.run_id == origin.run_id)
    row = connection.execute(query).mappings().one_or_none()
    facts: dict[str, Any] = {"id": origin.run_id}
    if row is None:
        details = "Dagster may know it; its heartbeat was deleted"
        return Hop(name="run", is_known=True, message=details, facts=facts)
    facts |= {"job": row["job"], "started": row["started_at"], "ended": row["ended_at"]}
    return Hop(name="run", is_known=True, message=f"a run of {row['job']}", facts=facts)


def _configuration(connection: Connection, origin: RowOrigin) -> Hop:
    versions = tables.source_versions
    current = connection.execute(
        select(tables.sources.c.config_version).where(tables.sources.c.id == origin.source_id)
    ).scalar_one_or_none()
    name = "configuration"
    if origin.config_version is None:
        return Hop.unknown(name, f"{BEFORE}; it is at version {current} now")
    query = select(versions).where(
        versions.c.source_id == origin.source_id, versions.c.version == origin.config_version
    )
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return Hop.unknown(name, f"there is no source {origin.source_id} any more")
    facts = {"source": origin.source_id, **{column: row[column] for column in ("version", "since")}}
    facts |= {column: row[column] for column in ("url", "platform", "config")}
    details = "as it is now" if row["version"] == current else f"it is at version {current} now"
    return Hop(name=name, is_known=True, message=f"version {row['version']}; {details}", facts=facts)


_DERIVED = "the body words it differently: it was combined or converted"
_NO_DATE = "normalised: no text near the record, read as a date, gives it"
_NOT_FOUND = "the stored body does not state it"
_NO_BODY = "no stored body of it can be read"


def values_in_body(
    connection: Connection,
    content: ContentStore,
    name: str,
    facts: Mapping[str, Any],
    origin: RowOrigin,
    anchors: Sequence[str],
    values: Mapping[str, Any],
) -> Lineage:
    """Return the lineage with the page that states most values, and where it states each."""
    stated = {key: value for key, value in values.items() if value is not None}
    chosen = origin.snapshot_ids[0] if origin.snapshot_ids else None
    places: dict[str, FoundPlace | None] = dict.fromkeys(stated)
    has_body = False
    for snapshot_id in origin.snapshot_ids:  # a list may have pages: the one that states most
        body = body_of_snapshot(content, snapshot_row(connection, snapshot_id))
        has_body = has_body or body is not None
        located = locate(body, anchors, stated, now=origin.fetched_at) if body is not None else {}
        if _count(located) > _count(places):
            chosen, places = snapshot_id, located
        if _count(places) == len(stated):
            break
    fields = [
        _field(key, value, places[key], _why(value, any(places.values())) if has_body else _NO_BODY)
        for key, value in stated.items()
    ]
    hops = hops_of(connection, content, origin, chosen)
    return Lineage(row=name, facts=facts, fields=fields, hops=hops)


def _why(value: object, is_there: bool) -> str:  # noqa: FBT001 - of the record
    if not is_there:
        return _NOT_FOUND
    return _NO_DATE if isinstance(value, datetime) else _DERIVED


def _count(places: Mapping[str, FoundPlace | None]) -> int:
    return sum(place is not None for place in places.values())


def _field(name: str, value: object, place: FoundPlace | None, why: str) -> Field:
    if place is None:
        return Field(name=name, value=value, why=why)
    return Field(name=name, value=value, place=place_facts(place))


def place_facts(place: FoundPlace) -> dict[str, Any]:
    """Return what is known of the place."""
    return {key: value for key, value in asdict(place).items() if value is not None}


def body_of_snapshot(content: ContentStore, row: RowMapping | None) -> LocatedBody | None:
    """Return the stored body of the snapshot, to locate values in; None if it is gone."""
    stored = content.find(row["body_hash"]) if row and row["body_hash"] else None
    return None if row is None or stored is None else body_of(stored, row["content_type"])


def text_of_snapshot(content: ContentStore, row: RowMapping | None) -> str | None:
    """Return the stored text of the snapshot, without markup; None if it is gone."""
    stored = content.find(row["text_hash"]) if row and row["text_hash"] else None
    return None if stored is None else stored.decode()
