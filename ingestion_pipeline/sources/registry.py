"""Register sources from definitions; add, remove, enable and disable them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, select, update

from ingestion_pipeline.sources.declared_rows import (
    BY_FILE,
    changed_ids,
    insert_missing,
    record_versions,
    redirected,
    rows_of,
    update_changed,
)
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.sources.poll_tasks import (
    POLL,
    UNPOLLED,
    ensure_polls,
    insert_polls,
    lock_polls,
    make_due,
    restart_polls,
)
from ingestion_pipeline.sources.source import IGNORE_ROBOTS, Definition, SourceStatus, Tier, shard_of
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.bulk import making_rows, one_of
from ingestion_pipeline.store.tables import source_versions, sources, tasks
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline.urls import host_of

_PRIORITIES = {tier.value: tier.priority for tier in Tier}
_DISABLED, _PENDING = SourceStatus.DISABLED.value, TaskStatus.PENDING.value
_REQUEUED_STATUSES = (TaskStatus.SKIPPED.value, TaskStatus.FAILED.value)


class StoredSource(NamedTuple):
    """The stored state of a source, of its last version and of its poll."""

    id: str
    url: str
    name: str | None
    platform: str | None
    series_id: str | None
    company_id: str | None
    origin: str
    host: str
    shard: int
    config: Mapping[str, Any]
    tier: str
    tier_pinned: bool
    status: str
    status_reason: str | None
    version: int | None
    poll_status: str | None
    poll_ended_at: object
    poll_shard: int | None
    poll_priority: int | None
    poll_url: str | None


def unchanged_ids(connection: Connection, definitions: Sequence[Definition]) -> set[str]:
    """Return those for which nothing would be written; a doubtful source is left out."""
    declared = {definition.id: definition for definition in definitions}
    query = _QUERY.where(one_of(connection, sources.c.id, list(declared)))
    with making_rows():
        stored = [StoredSource(*row) for row in connection.execute(query)]
    return {row.id for row in stored if is_unchanged(declared[row.id], row)}


def is_unchanged(declared: Definition, stored: StoredSource) -> bool:
    """Return whether the row equals the declaration, its version is stored, and its poll agrees."""
    return (
        _is_declared(declared, stored)
        and not _is_switched(declared, stored)
        and stored.version is not None
        and _is_poll_unchanged(stored)
    )


def _is_declared(declared: Definition, stored: StoredSource) -> bool:
    host = host_of(declared.url)
    values = (declared.url, declared.name, declared.platform, declared.series, declared.company)
    return (
        (*values, declared.origin, host, shard_of(host)) == stored[1:9]
        and _is_same(declared.config, stored.config)
        and stored.tier_pinned == (declared.tier is not None)
        and (declared.tier is None or stored.tier == declared.tier.value)
    )


def _is_same(config: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Compare as JSON: to Python 1, 1.0 and true are the same."""
    return config == other and (not config or _json(config) == _json(other))


def _json(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True, default=repr)


def _is_switched(declared: Definition, stored: StoredSource) -> bool:
    if declared.enabled:
        return stored.status_reason == BY_FILE
    return stored.status != _DISABLED


def _is_poll_unchanged(stored: StoredSource) -> bool:
    if stored.status in UNPOLLED:
        return stored.poll_status is None or stored.poll_ended_at is not None
    if stored.poll_status is None or stored.poll_status in _REQUEUED_STATUSES:
        return False
    follows = (stored.shard, _PRIORITIES.get(stored.tier), stored.url)
    polled = (stored.poll_shard, stored.poll_priority, stored.poll_url)
    return stored.poll_status != _PENDING or polled == follows


_QUERY = (
    select(
        *(sources.c[name] for name in StoredSource._fields[:14]),
        source_versions.c.version,
        *(tasks.c[name] for name in ("status", "ended_at", "shard", "priority", "url")),
    )
    .select_from(sources)
    .outerjoin(
        source_versions,
        and_(source_versions.c.source_id == sources.c.id, source_versions.c.version == sources.c.config_version),
    )
    .outerjoin(tasks, and_(tasks.c.kind == POLL, tasks.c.source_id == sources.c.id))
)


def audit_overrides(
    connection: Connection,
    definitions: Sequence[Definition],
    *,
    before: Mapping[str, Mapping[str, Any]],
    actor: str,
    now: datetime,
) -> None:
    """Write an audit line for each source that starts or stops ignoring robots.txt.

    `before` holds the configs of the rows that are about to change.
    """
    overriding = {definition.id for definition in definitions if _ignores(definition.config)}
    existing = _ids_with_row(connection, overriding - before.keys())
    for definition in definitions:
        if definition.id in existing:
            continue
        did, does = _ignores(before.get(definition.id, {})), definition.id in overriding
        if did is not does:
            audit(
                connection,
                actor=actor,
                action="source.ignore_robots" if does else "source.honour_robots",
                subject=definition.id,
                now=now,
                detail={"url": definition.url, "origin": definition.origin},
            )


def _ignores(config: Mapping[str, Any]) -> bool:
    return config.get(IGNORE_ROBOTS) is True


def _ids_with_row(connection: Connection, ids: set[str]) -> set[str]:
    """Return those of these sources that have a row: they are declared as before."""
    if not ids:
        return set()
    query = select(sources.c.id).where(sources.c.id.in_(ids))
    return set(connection.execute(query).scalars())


REMOVED = "removed by an operator"
REGISTER_BATCH = 5_000
COMPARE_BATCH = 25_000  # PostgreSQL would scan whole tables for each batch, however small


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The counts of a registration."""

    added: int
    updated: int
    unchanged: int


def register(
    connection: Connection, definitions: Sequence[Definition], *, now: datetime, actor: str = "system"
) -> Registered:
    """Register every definition: its row and, if enabled, its poll task; a new one is due now.

    For unchanged ones nothing is written and nothing is locked.
    """
    added = updated = 0
    changed = _changed(connection, sorted(definitions, key=lambda definition: definition.id))
    lock_polls(connection, [definition.id for definition in changed])
    for batch in _batches(changed, REGISTER_BATCH):
        existing_ids = _existing_ids(connection, [definition.id for definition in batch])
        existing = [definition for definition in batch if definition.id in existing_ids]
        if existing:
            updated += _redeclare(connection, existing, now=now, actor=actor)
        # In large imports most are new, and need none of the comparisons.
        unknown = [definition for definition in batch if definition.id not in existing_ids]
        if unknown:
            added += _add(connection, unknown, now=now, actor=actor)
    return Registered(added=added, updated=updated, unchanged=len(definitions) - added - updated)


def _changed(connection: Connection, definitions: Sequence[Definition]) -> Sequence[Definition]:
    left: list[Definition] = []
    for batch in _batches(definitions, COMPARE_BATCH):
        unchanged = unchanged_ids(connection, batch)
        left += [definition for definition in batch if definition.id not in unchanged]
    return left


def _batches(definitions: Sequence[Definition], size: int) -> Iterator[Sequence[Definition]]:
    for start in range(0, len(definitions), size):
        yield definitions[start : start + size]


def _existing_ids(connection: Connection, ids: Sequence[str]) -> set[str]:
    query = select(sources.c.id).where(one_of(connection, sources.c.id, ids))
    return set(connection.execute(query).scalars())


def _redeclare(connection: Connection, batch: Sequence[Definition], *, now: datetime, actor: str) -> int:
    """Update existing sources to their declarations; return how many changed."""
    rows = rows_of(batch)
    ids = [row[0] for row in rows]
    changed = changed_ids(connection, rows)
    if changed:
        others = [row for row in rows if row[0] in changed]
        before = redirected(connection, others)
        redeclared = [definition for definition in batch if definition.id in changed]
        audit_overrides(connection, redeclared, before=before, actor=actor, now=now)
        restart_polls(connection, list(before), now=now)
        update_changed(connection, others, now=now)
    record_versions(connection, ids, now=now)
    ensure_polls(connection, ids, now=now)
    return len(changed)


def _add(connection: Connection, batch: Sequence[Definition], *, now: datetime, actor: str) -> int:
    """Insert new sources; return how many."""
    rows = rows_of(batch)
    ids = [row[0] for row in rows]
    audit_overrides(connection, batch, before={}, actor=actor, now=now)
    added = insert_missing(connection, rows, now=now)
    record_versions(connection, ids, now=now)
    insert_polls(connection, ids, now=now)
    # A discovered board has its poll before its row, for the lineage: it must not run.
    if off := [definition.id for definition in batch if not definition.enabled]:
        ensure_polls(connection, off, now=now)
    return added


class SourceExists(ValueError):
    """A source with this id exists already."""


def add(connection: Connection, definition: Definition, *, actor: str, now: datetime) -> None:
    """Add one new source, with an audit line; an id that is taken is refused."""
    taken = bool(sources_by_id(connection, [definition.id]))
    if taken or register(connection, [definition], now=now, actor=actor).added == 0:
        raise SourceExists(
            f"{definition.id!r} exists already; `ingest sources update` changes it, `ingest sources show` shows it"
        )
    detail = {"url": definition.url, "platform": definition.platform}
    audit(connection, actor=actor, action="source.add", subject=definition.id, now=now, detail=detail)


def remove(connection: Connection, source_id: str, *, actor: str, now: datetime) -> None:
    """Remove the source from polling and partitions; its records stay."""
    _set_status(connection, source_id, SourceStatus.DISABLED, reason=REMOVED, actor=actor, now=now)


def disable(connection: Connection, source_id: str, *, actor: str, reason: str, now: datetime) -> None:
    """Stop polling the source, whatever its file says, until an operator enables it."""
    _set_status(connection, source_id, SourceStatus.DISABLED, reason=f"{actor}: {reason}", actor=actor, now=now)


def enable(connection: Connection, source_id: str, *, actor: str, now: datetime, reason: str | None = None) -> None:
    """Poll the source again, due now, and reset its failures; the reason goes to the audit log."""
    _set_status(connection, source_id, SourceStatus.ACTIVE, reason=reason, actor=actor, now=now)


def _set_status(
    connection: Connection, source_id: str, status: SourceStatus, *, reason: str | None, actor: str, now: datetime
) -> None:
    values: dict[str, Any] = {"status": status.value, "status_reason": reason, "updated_at": now}
    if status is SourceStatus.ACTIVE:
        values |= {"status_reason": None, "failure_count": 0, "next_check_at": now}
    lock_polls(connection, [source_id])
    changed = connection.execute(update(sources).where(sources.c.id == source_id).values(values)).rowcount
    if not changed:
        raise UnknownSource(source_id)
    ensure_polls(connection, [source_id], now=now)
    if status is SourceStatus.ACTIVE:
        make_due(connection, [source_id], now=now)
    action = "source.enable" if status is SourceStatus.ACTIVE else "source.disable"
    audit(connection, actor=actor, action=action, subject=source_id, now=now, detail={"reason": reason})
