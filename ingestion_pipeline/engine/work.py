"""The work of a system that its polls only start: jobs that drain tasks, and the assets they write.

Orchestration turns each `WorkSpec` into a job, an asset and a question of the sensor; what is done, what
waits and what is reported is the system's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from ingestion_pipeline.engine.asset_events import AssetEvent
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.visits.rendering import Renderer
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.tasks.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkScope:
    """Which work a run does: that of the requested sources, of one shard, or all there is."""

    source_ids: list[str] | None = None
    shard: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRun:
    """What a run works with; it starts no browser before the first page that needs one."""

    ctx: RunContext
    worker: Worker
    fetcher: HttpFetcher
    renderer: Renderer | None
    scope: WorkScope


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkReport:
    """What a run did: numbers, events, and the sources whose rows it wrote, by asset.

    `failure` is why the whole run has failed; `warning` is logged.
    """

    numbers: Mapping[str, Any]
    events: Sequence[AssetEvent] = ()
    written: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    failure: str | None = None
    warning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkAsset:
    """An asset that the work writes, one partition a source; `after` is the asset that it is made from."""

    name: str
    description: str
    after: str = "sources"
    technologies: frozenset[str] = frozenset({"http", "sql"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkJob:
    """The job that drains the tasks: one run at a time, which also takes what arrives meanwhile.

    `pending` is whether there is something to do; with `is_sharded` the shards in which there is, and
    each has its own runs. `start_new` starts what new sources need, and returns how many it started.
    """

    name: str
    description: str
    pending: Callable[[Connection, Settings, datetime], bool | Sequence[int]]
    is_sharded: bool = False
    start_new: Callable[[RunContext], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSpec:
    """Work for sources of a kind: of all that wait by a job, of some by materializing their partitions.

    `request` starts the work of requested sources, due or not, and returns a message for each.
    """

    name: str
    kind: str
    work: Callable[[WorkRun], Awaitable[WorkReport]]
    job: WorkJob | None = None
    assets: tuple[WorkAsset, ...] = ()
    request: Callable[[RunContext, list[str]], Mapping[str, str]] | None = None


# Counts of a run that are neither a success nor a failure.
_NEUTRAL = frozenset({"given_back", "lost", "needless", "put_off", "skipped", "unwanted"})


def all_failed(counts: Mapping[str, int], noun: str) -> str | None:
    """Return why the run failed: something did and nothing succeeded; a retry is no success."""
    failed, retried = counts.get("failed", 0), counts.get("retried", 0)
    succeeded = [n for name, n in counts.items() if name not in _NEUTRAL | {"failed", "retried"}]
    if any(succeeded) or not failed + retried:
        return None
    if not failed:
        return f"no {noun} succeeded; they are retried, `ingest status` shows why"
    return f"all {failed} {noun} failed; `ingest dead-letters list` shows why"
