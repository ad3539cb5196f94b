"""The rows of `sources`: registered from definitions, enabled and disabled by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, update

from ingestion_pipeline.sources.declared_rows import (
    changed_ids,
    insert_missing,
    keep_versions,
    redirected,
    rows_of,
    update_changed,
)
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.sources.polls import (
    ensure_polls,
    insert_polls,
    lock_polls,
    make_due,
    restart_polls,
)
from ingestion_pipeline.sources.robots_override import audit_overrides
from ingestion_pipeline.sources.settled import unchanged_ids
from ingestion_pipeline.sources.source import Definition, SourceStatus
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.rows import one_of
from ingestion_pipeline.store.tables import sources

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
