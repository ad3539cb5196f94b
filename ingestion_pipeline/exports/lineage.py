"""Where a row comes from: row, fields, spans, snapshot, fetch, run, configuration of the source.

Every hop says what it is, or why it is not known: written before lineage was kept, cleared away, or
done by no run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, select

from ingestion_pipeline.pages.content import ContentStore
from ingestion_pipeline.store import tables

BEFORE = "written before lineage was kept; its next change will tell"
CLEARED = "cleared away by retention"
MISSING = "its body is not in the content store any more"
DAMAGED = "its body in the content store is damaged: the next fetch of the page stores it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A value of the row and where the snapshot states it; `place` None: `why` says so."""

    name: str
    value: object
    place: Mapping[str, Any] | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A step of the chain; if it is not known, `said` is the reason."""

    name: str
    is_known: bool
    said: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The chain of one row, from what it says to what it was read by."""

    row: str
    facts: Mapping[str, Any]
    fields: Sequence[Field]
    hops: Sequence[Hop]
    judgement: Mapping[str, Any] | None = None  # of a listing: verdict, filter, score


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The row's way, as its own table tells it, before any of it is looked up."""

    source_id: str
    snapshot_ids: Sequence[int]
    run_id: str | None
    config_version: int | None
    is_kept: bool  # whether the row is of the time since lineage is kept
    steps: Sequence[Hop] = ()
    fetched_at: datetime | None = None  # what "yesterday" was counted from


def row_of(connection: Connection, table: Table, row_id: int) -> RowMapping | None:
    """The row with that id."""
    return connection.execute(select(table).where(table.c.id == row_id)).mappings().one_or_none()


def snapshot_row(connection: Connection, snapshot_id: int) -> RowMapping | None:
    """What is known of the snapshot."""
    return row_of(connection, tables.snapshots, snapshot_id)


def ingestion_of(connection: Connection, ingestion_id: int | None) -> RowMapping | None:
    """The poll that the row names."""
    return None if ingestion_id is None else row_of(connection, tables.ingestions, ingestion_id)


def traced_by_poll(connection: Connection, source_id: str, ingestion_id: int | None) -> Traced:
    """The way of a row that a poll wrote."""
    poll = ingestion_of(connection, ingestion_id)
    if poll is None:
        said = BEFORE if ingestion_id is None else CLEARED
        hop = Hop(name="poll", is_known=False, said=said)
        return Traced(
            source_id=source_id,
            snapshot_ids=_newest_snapshots(connection, source_id),
            run_id=None,
            config_version=None,
            is_kept=False,
            steps=[hop],
        )
    facts = {"ingestion": poll["id"], "reader": poll["reader"], "at": poll["ingested_at"]}
    hop = Hop(name="poll", is_known=True, said=poll["outcome"], facts=facts)
    return Traced(
        source_id=source_id,
        snapshot_ids=poll["snapshots"],
        run_id=poll["run_id"],
        config_version=poll["config_version"],
        is_kept=True,
        steps=[hop],
        fetched_at=poll["fetched_at"],
    )


def _newest_snapshots(connection: Connection, source_id: str) -> list[int]:
    """Of a row whose poll is not known: what the source said last may still state it."""
    query = (
        select(tables.snapshots.c.id)
        .where(tables.snapshots.c.source_id == source_id, tables.snapshots.c.failure.is_(None))
        .order_by(tables.snapshots.c.fetched_at.desc(), tables.snapshots.c.id.desc())
        .limit(5)
    )
    return list(connection.execute(query).scalars())


def hops_of(
    connection: Connection, content: ContentStore, traced: Traced, snapshot_id: int | None
) -> list[Hop]:
    """From the snapshot to the configuration."""
    row = snapshot_row(connection, snapshot_id) if snapshot_id is not None else None
    return [
        *traced.steps,
        _snapshot(content, traced, row),
        _fetch(row),
        _run(connection, traced),
        _configuration(connection, traced),
    ]


def _snapshot(content: ContentStore, traced: Traced, row: RowMapping | None) -> Hop:
    if row is None:
        said = CLEARED if traced.snapshot_ids else BEFORE
        return Hop(name="snapshot", is_known=False, said=said)
    facts = {"id": row["id"], "url": row["url"], "content_hash": row["content_hash"]}
    facts |= {"bytes": row["size_bytes"], "type": row["content_type"]}
    return _stored_hop("snapshot", content, row, facts)


def detail_hop(content: ContentStore, row: RowMapping | None) -> Hop:
    """The record's own page, which was read besides the list."""
    if row is None:
        return Hop(name="detail page", is_known=False, said=CLEARED)
    facts = {"id": row["id"], "url": row["url"], "at": row["fetched_at"], "run": row["run_id"]}
    return _stored_hop("detail page", content, row, facts)


def _stored_hop(name: str, content: ContentStore, row: RowMapping, facts: Mapping[str, Any]) -> Hop:
    """Return the hop of a snapshot; it says whether its body is stored, and whole."""
    body_hash = row["body_hash"]
    if body_hash and content.find(body_hash) is not None:
        return Hop(name=name, is_known=True, said=f"snapshot {row['id']}", facts=facts)
    is_damaged = bool(body_hash) and content.has(body_hash)
    return Hop(name=name, is_known=False, said=DAMAGED if is_damaged else MISSING, facts=facts)


def _fetch(row: RowMapping | None) -> Hop:
    if row is None:
        return Hop(name="fetch", is_known=False, said="only its snapshot would tell")
    facts = {"at": row["fetched_at"], "status": row["status_code"], "url": row["final_url"]}
    facts |= {"etag": row["etag"], "run": row["run_id"]}
    how = "shown by a browser" if row["rendered_at"] else "by HTTP"
    return Hop(name="fetch", is_known=True, said=f"last {how}", facts=facts)


def _run(connection: Connection, traced: Traced) -> Hop:
    if traced.run_id is None:
        said = "a command did it, and no run of Dagster" if traced.is_kept else BEFORE
        return Hop(name="run", is_known=traced.is_kept, said=said)
    query = select(tables.runs).where(tables.runs.c.run_id == traced.run_id)
    row = connection.execute(query).mappings().one_or_none()
    facts: dict[str, Any] = {"id": traced.run_id}
    if row is None:
        said = "Dagster may know it; its heartbeat was cleared away"
        return Hop(name="run", is_known=True, said=said, facts=facts)
    facts |= {"job": row["job"], "started": row["started_at"], "ended": row["ended_at"]}
    return Hop(name="run", is_known=True, said=f"a run of {row['job']}", facts=facts)


def _configuration(connection: Connection, traced: Traced) -> Hop:
    versions = tables.source_versions
    current = connection.execute(
        select(tables.sources.c.config_version).where(tables.sources.c.id == traced.source_id)
    ).scalar_one_or_none()
    name = "configuration"
    if traced.config_version is None:
        return Hop(name=name, is_known=False, said=f"{BEFORE}; it is at version {current} now")
    query = select(versions).where(
        versions.c.source_id == traced.source_id, versions.c.version == traced.config_version
    )
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return Hop(
            name=name, is_known=False, said=f"there is no source {traced.source_id} any more"
        )
    facts = {"source": traced.source_id, **{one: row[one] for one in ("version", "since")}}
    facts |= {one: row[one] for one in ("url", "platform", "config")}
    said = "as it is now" if row["version"] == current else f"it is at version {current} now"
    return Hop(name=name, is_known=True, said=f"version {row['version']}; {said}", facts=facts)
