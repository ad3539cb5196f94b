"""Register sources from definitions; add, remove, enable and disable them.

The declaration owns url, platform, config, name, series and company; the store owns tier (unless it
is pinned), status and health, so that an operator's disable survives a re-import.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import CTE, Boolean, Connection, String, and_, case, exists, func, literal, null, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.sources import poll_tasks
from ingestion_pipeline.sources.lookup import UnknownSource, canonical_series_id, named_series, sources_by_id
from ingestion_pipeline.sources.source import IGNORE_ROBOTS, Definition, Kind, SourceStatus, Tier, shard_of
from ingestion_pipeline.store.statements import audit, columns_of, insert_into, lock_rows, one_of, row_source
from ingestion_pipeline.store.tables import chapter_sources, chapters, source_versions, sources, tasks
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline.urls import host_of

BY_FILE = "disabled by its declaration"
Rows = Sequence[tuple[Any, ...]]

# What a declaration owns, beside the tier when it pins one.
_OWNED = (
    *("url", "name", "platform", "config", "series_id", "company_id", "max_delay_seconds"),
    *("origin", "host", "shard"),
)
_DECLARED_COLUMNS = {
    **columns_of(sources, ("id", "kind", *_OWNED, "tier", "tier_pinned", "tracking_id")),
    "enabled": Boolean(),
}
# A change of these means other content: what was fetched before proves nothing about it.
_CONTENT = ("url", "platform", "config")


def rows_of(definitions: Sequence[Definition]) -> Rows:
    """Return the rows that the other functions take; the id comes first."""
    return list(map(_declared_row, definitions, random_ids(len(definitions))))


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
        definition.max_delay_seconds,
        definition.origin,
        host,
        shard_of(host),
        tier.value,
        definition.tier is not None,
        tracking_id,
        definition.enabled,
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
    return {row.id: row.config for row in connection.execute(query.where(is_redirected))}


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


_PRIORITIES = {tier.value: tier.priority for tier in Tier}
_json = partial(json.dumps, sort_keys=True, default=repr)
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
    max_delay_seconds: int | None
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
    stored = [StoredSource(*row) for row in connection.execute(query)]
    return {row.id for row in stored if is_unchanged(declared[row.id], row)}


def is_unchanged(declared: Definition, stored: StoredSource) -> bool:
    """Return whether the row equals the declaration, its version is stored, and its poll agrees."""
    is_switched = stored.status_reason == BY_FILE if declared.enabled else stored.status != _DISABLED
    is_current = _is_declared(declared, stored) and not is_switched and stored.version is not None
    return is_current and _is_poll_unchanged(stored)


def _is_declared(declared: Definition, stored: StoredSource) -> bool:
    host = host_of(declared.url)
    values = (declared.url, declared.name, declared.platform, declared.series, declared.company)
    return (
        (*values, declared.max_delay_seconds, declared.origin, host, shard_of(host)) == stored[1:10]
        and _is_same(declared.config, stored.config)
        and stored.tier_pinned == (declared.tier is not None)
        and (declared.tier is None or stored.tier == declared.tier.value)
    )


def _is_same(config: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Compare as JSON: to Python 1, 1.0 and true are the same."""
    return config == other and (not config or _json(config) == _json(other))


def _is_poll_unchanged(stored: StoredSource) -> bool:
    if stored.status in poll_tasks.UNPOLLED:
        return stored.poll_status is None or stored.poll_ended_at is not None
    if stored.poll_status is None or stored.poll_status in _REQUEUED_STATUSES:
        return False
    follows = (stored.shard, _PRIORITIES.get(stored.tier), stored.url)
    polled = (stored.poll_shard, stored.poll_priority, stored.poll_url)
    return stored.poll_status != _PENDING or polled == follows


_QUERY = (
    select(
        *(sources.c[name] for name in StoredSource._fields[:15]),
        source_versions.c.version,
        *(tasks.c[name] for name in ("status", "ended_at", "shard", "priority", "url")),
    )
    .select_from(sources)
    .outerjoin(
        source_versions,
        and_(source_versions.c.source_id == sources.c.id, source_versions.c.version == sources.c.config_version),
    )
    .outerjoin(tasks, and_(tasks.c.kind == poll_tasks.POLL, tasks.c.source_id == sources.c.id))
)


def audit_overrides(
    connection: Connection,
    definitions: Sequence[Definition],
    *,
    before: Mapping[str, Mapping[str, Any]],
    actor: str,
    now: datetime,
) -> None:
    """Audit each source that starts or stops ignoring robots.txt; `before` holds the configs of changing rows."""
    overriding = {definition.id for definition in definitions if _ignores(definition.config)}
    unclear = overriding - before.keys()
    existing = _existing_ids(connection, sorted(unclear)) if unclear else set[str]()  # declared as before
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
    """Register every definition with its poll task, a new one due now; unchanged ones are not written or locked."""
    added = updated = 0
    changed = _changed(connection, sorted(definitions, key=lambda definition: definition.id))
    poll_tasks.lock_polls(connection, [definition.id for definition in changed])
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
        poll_tasks.restart_polls(connection, list(before), now=now)
        update_changed(connection, others, now=now)
    record_versions(connection, ids, now=now)
    poll_tasks.ensure_polls(connection, ids, now=now)
    return len(changed)


def _add(connection: Connection, batch: Sequence[Definition], *, now: datetime, actor: str) -> int:
    """Insert new sources; return how many."""
    rows = rows_of(batch)
    ids = [row[0] for row in rows]
    audit_overrides(connection, batch, before={}, actor=actor, now=now)
    added = insert_missing(connection, rows, now=now)
    record_versions(connection, ids, now=now)
    poll_tasks.insert_polls(connection, ids, now=now)
    # A discovered board has its poll before its row, for the lineage: it must not run.
    if off := [definition.id for definition in batch if not definition.enabled]:
        poll_tasks.ensure_polls(connection, off, now=now)
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
    poll_tasks.lock_polls(connection, [source_id])
    changed = connection.execute(update(sources).where(sources.c.id == source_id).values(values)).rowcount
    if not changed:
        raise UnknownSource(source_id)
    poll_tasks.ensure_polls(connection, [source_id], now=now)
    if status is SourceStatus.ACTIVE:
        poll_tasks.make_due(connection, [source_id], now=now)
    action = "source.enable" if status is SourceStatus.ACTIVE else "source.disable"
    audit(connection, actor=actor, action=action, subject=source_id, now=now, detail={"reason": reason})
