"""Which sources are as they are declared already, so that registering them again writes nothing.

Files are read again whenever one of them changes, and then most of a hundred thousand declarations
are the old ones: to look costs a fraction of what the statements cost that would change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, select

from ingestion_pipeline.sources.declared_rows import BY_FILE
from ingestion_pipeline.sources.polls import POLL, UNPOLLED
from ingestion_pipeline.sources.source import Definition, SourceStatus, Tier, shard_of
from ingestion_pipeline.store.rows import making_rows, one_of
from ingestion_pipeline.store.tables import source_versions, sources, tasks
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.work.task import TaskStatus

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
