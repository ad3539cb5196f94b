"""Statements that write declared sources: new rows, changed rows, their versions.

The declaration owns url, platform, config, name, series and company; the store owns tier (unless it
is pinned), status and health, so that an operator's disable survives a re-import.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Boolean,
    Connection,
    Integer,
    String,
    Text,
    and_,
    case,
    exists,
    func,
    literal,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import CTE

from ingestion_pipeline.sources.canonical_series import canonical_series_id, named_series
from ingestion_pipeline.sources.source import Definition, Kind, SourceStatus, Tier, shard_of
from ingestion_pipeline.store.bulk import making_rows, row_source
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.locking import lock_rows
from ingestion_pipeline.store.tables import chapter_sources, chapters, source_versions, sources
from ingestion_pipeline.store.types import Json
from ingestion_pipeline.urls import host_of

BY_FILE = "disabled by its declaration"
Rows = Sequence[tuple[Any, ...]]

_DECLARED_COLUMNS = {
    "id": String(120),
    "kind": String(20),
    "url": Text(),
    "name": Text(),
    "platform": String(40),
    "config": Json,
    "series_id": String(120),
    "company_id": String(120),
    "origin": Text(),
    "host": Text(),
    "shard": Integer(),
    "tier": String(4),
    "tier_pinned": Boolean(),
    "enabled": Boolean(),
    "tracking_id": String(36),
}
# What a declaration owns, beside the tier when it pins one.
_OWNED = ("url", "name", "platform", "config", "series_id", "company_id", "origin", "host", "shard")
# A change of these means other content: what was fetched before proves nothing about it.
_CONTENT = ("url", "platform", "config")


def rows_of(definitions: Sequence[Definition]) -> Rows:
    """Return the rows that the other functions take; the id comes first."""
    with making_rows():
        tracking_ids = random_ids(len(definitions))
        return [_declared_row(*pair) for pair in zip(definitions, tracking_ids, strict=True)]


def random_ids(count: int) -> list[str]:
    """Return UUIDs of version 4 from one system call: one by one took half of a row's time."""
    digits = os.urandom(16 * count).hex()
    each = (digits[at : at + 32] for at in range(0, len(digits), 32))
    return [f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{_VARIANT[h[16]]}{h[17:20]}-{h[20:]}" for h in each]


_VARIANT = {f"{n:x}": "89ab"[n % 4] for n in range(16)}


def _declared_row(definition: Definition, tracking_id: str) -> tuple[Any, ...]:
    host = host_of(definition.url)
    tier = definition.tier or Tier.WARM
    return (
        definition.id,
        definition.kind.value,
        definition.url,
        definition.name,
        definition.platform,
        dict(definition.config),
        definition.series,
        definition.company,
        definition.origin,
        host,
        shard_of(host),
        tier.value,
        definition.tier is not None,
        definition.enabled,
        tracking_id,
    )


def insert_missing(connection: Connection, rows: Rows, *, now: datetime) -> int:
    """Insert the sources that have no row, due now; return how many."""
    declared = row_source(connection, _DECLARED_COLUMNS, rows, "given")
    columns = [name for name in _DECLARED_COLUMNS if name != "enabled"]
    status = case((declared.c.enabled, SourceStatus.ACTIVE.value), else_=SourceStatus.DISABLED.value)
    reason = case((declared.c.enabled, null()), else_=literal(BY_FILE))
    moment = literal(now, sources.c.created_at.type)
    missing = select(*(declared.c[name] for name in columns), status, reason, moment, moment, moment).where(
        ~exists().where(sources.c.id == declared.c.id)
    )
    extra = ["status", "status_reason", "next_check_at", "created_at", "updated_at"]
    statement = (
        insert_into(connection, sources)
        .from_select([*columns, *extra], missing.order_by(declared.c.id))
        .on_conflict_do_nothing(index_elements=["id"])
    )
    return connection.execute(statement).rowcount


def redirected(connection: Connection, rows: Rows) -> dict[str, dict[str, Any]]:
    """Return the existing sources whose content will be another, with their current configs."""
    declared = row_source(connection, _DECLARED_COLUMNS, rows, "given")
    query = select(sources.c.id, sources.c.config).join(declared, sources.c.id == declared.c.id)
    is_redirected = or_(_differs(declared, _CONTENT), _changes_series(declared))
    rows_found = connection.execute(query.where(is_redirected))
    return {source_id: config for source_id, config in rows_found}  # noqa: C416 - rows to a dict


def _changes_series(declared: CTE) -> ColumnElement[bool]:
    """Return whether the canonical series changes; another alias of the same one is no change."""
    return canonical_series_id(named_series()) != canonical_series_id(named_series(declared.c.series_id))


def _linked_chapter_count(declared: CTE) -> ColumnElement[int]:
    """Return how many chapters the source has in its newly declared series."""
    count = (
        select(func.count())
        .select_from(chapter_sources)
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .where(
            chapter_sources.c.source_id == sources.c.id,
            chapter_sources.c.available,
            chapters.c.series_id == canonical_series_id(named_series(declared.c.series_id)),
        )
    )
    return count.correlate_except(chapter_sources, chapters).scalar_subquery()


def _differs(declared: CTE, names: Sequence[str]) -> ColumnElement[bool]:
    return or_(*(sources.c[name].is_distinct_from(declared.c[name]) for name in names))


def _is_switched_on(declared: CTE) -> ColumnElement[bool]:
    return and_(declared.c.enabled, sources.c.status_reason == BY_FILE)


def _is_switched_off(declared: CTE) -> ColumnElement[bool]:
    return and_(~declared.c.enabled, sources.c.status != SourceStatus.DISABLED.value)


def changed_ids(connection: Connection, rows: Rows) -> set[str]:
    """Return the existing sources whose declaration differs from their row."""
    declared = row_source(connection, _DECLARED_COLUMNS, rows, "given")
    tier_differs = or_(
        sources.c.tier_pinned != declared.c.tier_pinned, and_(declared.c.tier_pinned, sources.c.tier != declared.c.tier)
    )
    query = (
        select(sources.c.id)
        .join(declared, declared.c.id == sources.c.id)
        .where(or_(_differs(declared, _OWNED), tier_differs, _is_switched_on(declared), _is_switched_off(declared)))
    )
    return set(connection.execute(query).scalars())


def update_changed(connection: Connection, rows: Rows, *, now: datetime) -> None:
    """Update these rows to their declarations."""
    declared = row_source(connection, _DECLARED_COLUMNS, rows, "given")
    is_moved = _changes_series(declared)
    content_differs = or_(_differs(declared, _CONTENT), is_moved)
    # A board's jobs have no order that would tell which ones of another address are new.
    is_unsynced = or_(is_moved, and_(content_differs, sources.c.kind == Kind.JOB_BOARD.value))
    switched_on, switched_off = _is_switched_on(declared), _is_switched_off(declared)
    forget = {
        name: case((content_differs, null()), else_=sources.c[name])
        for name in ("etag", "last_modified", "content_hash")
    }
    lock_rows(connection, sources.c.id, [row[0] for row in rows])
    statement = (
        update(sources)
        .where(sources.c.id == declared.c.id)
        .values(
            {name: declared.c[name] for name in _OWNED}
            | forget
            | {
                "tier_pinned": declared.c.tier_pinned,
                "tier": case((declared.c.tier_pinned, declared.c.tier), else_=sources.c.tier),
                "status": case(
                    (switched_on, SourceStatus.ACTIVE.value),
                    (switched_off, SourceStatus.DISABLED.value),
                    else_=sources.c.status,
                ),
                "status_reason": case(
                    (switched_on, null()), (switched_off, literal(BY_FILE)), else_=sources.c.status_reason
                ),
                "next_check_at": case((content_differs, now), else_=sources.c.next_check_at),
                # For another series everything is a backlog, and its change model starts empty.
                "change_model": case((is_moved, null()), else_=sources.c.change_model),
                "synced_at": case((is_unsynced, null()), else_=sources.c.synced_at),
                "synced_version": func.coalesce(sources.c.synced_version, sources.c.config_version),
                "record_count": case((is_moved, _linked_chapter_count(declared)), else_=sources.c.record_count),
                "config_version": case(
                    (_differs(declared, _CONTENT), sources.c.config_version + 1), else_=sources.c.config_version
                ),
                "updated_at": now,
            }
        )
    )
    connection.execute(statement)


def record_versions(connection: Connection, ids: Sequence[str], *, now: datetime) -> None:
    """Store the current URL, platform and config of each source as a version, for later lookup."""
    declared = row_source(connection, {"id": String(120)}, [(source_id,) for source_id in ids], "given")
    is_kept = exists().where(
        source_versions.c.source_id == sources.c.id, source_versions.c.version == sources.c.config_version
    )
    names = [sources.c.id, sources.c.config_version, *(sources.c[name] for name in _CONTENT)]
    missing = (
        select(*names, literal(now, sources.c.created_at.type))
        .join(declared, declared.c.id == sources.c.id)
        .where(~is_kept)
        .order_by(sources.c.id)
    )
    connection.execute(
        insert_into(connection, source_versions)
        .from_select(["source_id", "version", *_CONTENT, "since"], missing)
        .on_conflict_do_nothing(index_elements=["source_id", "version"])
    )
