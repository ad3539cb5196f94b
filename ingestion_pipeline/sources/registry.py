"""The rows of `sources`: registered from definitions, enabled and disabled by hand."""

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
    keep_versions,
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
from ingestion_pipeline.sources.source import (
    IGNORE_ROBOTS,
    Definition,
    SourceStatus,
    Tier,
    shard_of,
)
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.bulk import making_rows, one_of
from ingestion_pipeline.store.tables import source_versions, sources, tasks
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline.urls import host_of

_PRIORITIES = {tier.value: tier.priority for tier in Tier}
_DISABLED, _PENDING = SourceStatus.DISABLED.value, TaskStatus.PENDING.value
_REVIVED = (TaskStatus.SKIPPED.value, TaskStatus.FAILED.value)


class StoredSource(NamedTuple):
    """What is stored of a source, of its last version and of its poll."""

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
    """Those for which nothing would be written; in doubt a source is none of them."""
    declared = {one.id: one for one in definitions}
    query = _QUERY.where(one_of(connection, sources.c.id, list(declared)))
    with making_rows():
        found = [StoredSource(*row) for row in connection.execute(query)]
    known = {one.id for one in found}
    return known - {one.id for one in found if not is_unchanged(declared[one.id], one)}


def is_unchanged(declared: Definition, standing: StoredSource) -> bool:
    """The row is as it is declared, its version is kept, and its poll follows it."""
    return (
        _is_declared(declared, standing)
        and not _is_switched(declared, standing)
        and standing.version is not None
        and _is_poll_unchanged(standing)
    )


def _is_declared(declared: Definition, standing: StoredSource) -> bool:
    host = host_of(declared.url)
    given = (declared.url, declared.name, declared.platform, declared.series, declared.company)
    return (
        (*given, declared.origin, host, shard_of(host)) == standing[1:9]
        and _is_same(declared.config, standing.config)
        and standing.tier_pinned == (declared.tier is not None)
        and (declared.tier is None or standing.tier == declared.tier.value)
    )


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """As JSON: to Python 1, 1.0 and true are the same."""
    return one == other and (not one or _json(one) == _json(other))


def _json(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True, default=repr)


def _is_switched(declared: Definition, standing: StoredSource) -> bool:
    if declared.enabled:
        return standing.status_reason == BY_FILE
    return standing.status != _DISABLED


def _is_poll_unchanged(standing: StoredSource) -> bool:
    if standing.status in UNPOLLED:
        return standing.poll_status is None or standing.poll_ended_at is not None
    if standing.poll_status is None or standing.poll_status in _REVIVED:
        return False
    follows = (standing.shard, _PRIORITIES.get(standing.tier), standing.url)
    polled = (standing.poll_shard, standing.poll_priority, standing.poll_url)
    return standing.poll_status != _PENDING or polled == follows


_QUERY = (
    select(
        *(sources.c[name] for name in StoredSource._fields[:14]),
        source_versions.c.version,
        *(tasks.c[name] for name in ("status", "ended_at", "shard", "priority", "url")),
    )
    .select_from(sources)
    .outerjoin(
        source_versions,
        and_(
            source_versions.c.source_id == sources.c.id,
            source_versions.c.version == sources.c.config_version,
        ),
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
    """An audit line for each source that ignores robots.txt from now on, or no longer.

    `before` holds the configs of the rows that are about to change.
    """
    overriding = {one.id for one in definitions if _ignores(one.config)}
    standing = _standing(connection, overriding - before.keys())
    for one in definitions:
        if one.id in standing:
            continue
        did, does = _ignores(before.get(one.id, {})), one.id in overriding
        if did is not does:
            audit(
                connection,
                actor=actor,
                action="source.ignore_robots" if does else "source.honour_robots",
                subject=one.id,
                now=now,
                detail={"url": one.url, "origin": one.origin},
            )


def _ignores(config: Mapping[str, Any]) -> bool:
    return config.get(IGNORE_ROBOTS) is True


def _standing(connection: Connection, ids: set[str]) -> set[str]:
    """Of these sources the ones that have a row: those are declared as before."""
    if not ids:
        return set()
    query = select(sources.c.id).where(sources.c.id.in_(ids))
    return set(connection.execute(query).scalars())


REMOVED = "removed by an operator"
REGISTER_BATCH = 5_000
LOOK_BATCH = 25_000  # PostgreSQL would rather read whole tables for each, however few they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """What registering came to."""

    added: int
    updated: int
    unchanged: int


def register(
    connection: Connection,
    definitions: Sequence[Definition],
    *,
    now: datetime,
    actor: str = "system",
) -> Registered:
    """Every definition has its row and, if enabled, its poll task; a new one is due now.

    For those that have them already nothing is written, and nothing locked.
    """
    added = updated = 0
    unsettled = _changed(connection, sorted(definitions, key=lambda one: one.id))
    lock_polls(connection, [one.id for one in unsettled])
    for batch in _batches(unsettled, REGISTER_BATCH):
        known = _known(connection, [one.id for one in batch])
        standing = [one for one in batch if one.id in known]
        if standing:
            updated += _redeclare(connection, standing, now=now, actor=actor)
        # Most are unknown when there are many, and to them nothing can have happened yet.
        unknown = [one for one in batch if one.id not in known]
        if unknown:
            added += _add(connection, unknown, now=now, actor=actor)
    return Registered(added=added, updated=updated, unchanged=len(definitions) - added - updated)


def _changed(connection: Connection, definitions: Sequence[Definition]) -> Sequence[Definition]:
    left: list[Definition] = []
    for batch in _batches(definitions, LOOK_BATCH):
        settled = unchanged_ids(connection, batch)
        left += [one for one in batch if one.id not in settled]
    return left


def _batches(definitions: Sequence[Definition], size: int) -> Iterator[Sequence[Definition]]:
    for start in range(0, len(definitions), size):
        yield definitions[start : start + size]


def _known(connection: Connection, ids: Sequence[str]) -> set[str]:
    query = select(sources.c.id).where(one_of(connection, sources.c.id, ids))
    return set(connection.execute(query).scalars())


def _redeclare(
    connection: Connection, batch: Sequence[Definition], *, now: datetime, actor: str
) -> int:
    """Sources that stand are as they are declared now; how many of them changed."""
    rows = rows_of(batch)
    ids = [row[0] for row in rows]
    changed = changed_ids(connection, rows)
    if changed:
        others = [row for row in rows if row[0] in changed]
        before = redirected(connection, others)
        redeclared = [one for one in batch if one.id in changed]
        audit_overrides(connection, redeclared, before=before, actor=actor, now=now)
        restart_polls(connection, list(before), now=now)
        update_changed(connection, others, now=now)
    keep_versions(connection, ids, now=now)
    ensure_polls(connection, ids, now=now)
    return len(changed)


def _add(connection: Connection, batch: Sequence[Definition], *, now: datetime, actor: str) -> int:
    """Sources that nobody knew; how many are there from now on."""
    rows = rows_of(batch)
    ids = [row[0] for row in rows]
    audit_overrides(connection, batch, before={}, actor=actor, now=now)
    added = insert_missing(connection, rows, now=now)
    keep_versions(connection, ids, now=now)
    insert_polls(connection, ids, now=now)
    # A discovered board has its poll before its row, to be of the lineage: it must not run.
    if off := [one.id for one in batch if not one.enabled]:
        ensure_polls(connection, off, now=now)
    return added


class SourceExists(ValueError):
    """A source with this id stands already."""


def add(connection: Connection, definition: Definition, *, actor: str, now: datetime) -> None:
    """One new source, audited; an id that is taken is refused."""
    taken = bool(sources_by_id(connection, [definition.id]))
    if taken or register(connection, [definition], now=now, actor=actor).added == 0:
        raise SourceExists(
            f"{definition.id!r} exists already; `ingest sources update` changes it,"
            " `ingest sources show` shows it"
        )
    detail = {"url": definition.url, "platform": definition.platform}
    audit(
        connection,
        actor=actor,
        action="source.add",
        subject=definition.id,
        now=now,
        detail=detail,
    )


def remove(connection: Connection, source_id: str, *, actor: str, now: datetime) -> None:
    """Polled no more and without a partition; its records stay."""
    _set_status(connection, source_id, SourceStatus.DISABLED, reason=REMOVED, actor=actor, now=now)


def disable(
    connection: Connection, source_id: str, *, actor: str, reason: str, now: datetime
) -> None:
    """Polled no more, whatever its file says, until an operator enables it."""
    _set_status(
        connection,
        source_id,
        SourceStatus.DISABLED,
        reason=f"{actor}: {reason}",
        actor=actor,
        now=now,
    )


def enable(
    connection: Connection,
    source_id: str,
    *,
    actor: str,
    now: datetime,
    reason: str | None = None,
) -> None:
    """Polled again, now, with its failures forgotten; the reason goes to the audit log."""
    _set_status(connection, source_id, SourceStatus.ACTIVE, reason=reason, actor=actor, now=now)


def _set_status(
    connection: Connection,
    source_id: str,
    status: SourceStatus,
    *,
    reason: str | None,
    actor: str,
    now: datetime,
) -> None:
    values: dict[str, Any] = {"status": status.value, "status_reason": reason, "updated_at": now}
    if status is SourceStatus.ACTIVE:
        values |= {"status_reason": None, "failure_count": 0, "next_check_at": now}
    lock_polls(connection, [source_id])
    changed = connection.execute(
        update(sources).where(sources.c.id == source_id).values(values)
    ).rowcount
    if not changed:
        raise UnknownSource(source_id)
    ensure_polls(connection, [source_id], now=now)
    if status is SourceStatus.ACTIVE:
        make_due(connection, [source_id], now=now)
    action = "source.enable" if status is SourceStatus.ACTIVE else "source.disable"
    audit(
        connection,
        actor=actor,
        action=action,
        subject=source_id,
        now=now,
        detail={"reason": reason},
    )
