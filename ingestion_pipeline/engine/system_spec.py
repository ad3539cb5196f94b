"""How a system describes itself: a `SystemSpec` is all that the rest of the program knows of it.

Retention, replay, exports, checks, metrics, sensors, partitions, assets and commands iterate over the
specs in `registry.py`. A system ends in `SYSTEM: SystemSpec`.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Column, Connection, Select, Table

from ingestion_pipeline.engine.asset_events import AssetEvent
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.polling.protocol import DeferredSystem, PolledSystem
from ingestion_pipeline.engine.published import Contract, PublishedTable
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.visits.rendering import Renderer
from ingestion_pipeline.reading.structured.items import SavedBody, SavedBodyResult
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Definition, Kind, Source
from ingestion_pipeline.sources.file_model import BadField
from ingestion_pipeline.sources.health import Finding
from ingestion_pipeline.tasks.dead_letters import Requeue
from ingestion_pipeline.tasks.worker import Worker

Sweep = Callable[[Connection, Settings, datetime], int]  # returns how many rows it changed


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetCheck:
    """A check of an asset: what `find` returns is shown, the first findings in words.

    A failure is a warning, or an error if it `holds_back` new data. `is_cheap` ones are also evaluated by
    runs that poll; the others cost more with every row, and `maintain` evaluates them.
    """

    asset: str
    name: str
    description: str
    find: Callable[[Connection, Settings, datetime], list[Finding]]
    holds_back: bool = False
    is_cheap: bool = False


Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with its help and its values by label; one without values is left out."""

    name: str
    help: str
    samples: tuple[Sample, ...]
    kind: str = "gauge"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageQuery:
    """How much of what exists was obtained: `select` gives source, obtained and expected; `of` is the noun."""

    of: str
    select: Callable[[Sequence[str]], Select[Any, int, int]]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledAsset:
    """The asset of a polled kind, one partition a source: materializing one polls the source now.

    `events` returns what is reported of these sources. The job `ingest_` and the kind materializes it.
    """

    name: str
    description: str
    events: Callable[[Connection, Collection[str]], list[AssetEvent]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTaskRetention:
    """How long failed tasks of these kinds are kept, if not as long as all others."""

    kinds: tuple[str, ...]
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSpec:
    """A kind of source: `polled` by the poll jobs, or `deferred` to other runs.

    A polled kind has an `asset`, which is in the group of the system.
    `platforms` are those of a kind that `sources/platforms.py` does not name; the first is the default.
    `facts` are for `ingest sources show`.
    `read_saved` is for `ingest read`: platform, kind, body and config.
    `problems` yields what is wrong with a declaration; its second argument is the folder of the source
    files.
    """

    name: str
    partitions: str
    polled: PolledSystem | None = None
    asset: PolledAsset | None = None
    deferred: DeferredSystem | None = None
    platforms: tuple[str, ...] = ()
    coverage: CoverageQuery | None = None
    facts: Callable[[Connection, Source, Settings], dict[str, object]] | None = None
    read_saved: Callable[[str, Kind, SavedBody, Mapping[str, Any]], SavedBodyResult] | None = None
    problems: Callable[[Definition, Path | None], Iterable[BadField]] | None = None

    @property
    def kind(self) -> Kind:
        """Return the kind itself."""
        return Kind(self.name)


class Declared(Protocol):
    """Starts what declared or changed sources of the system need.

    With `retries` also where it failed, with `again` in any case.
    """

    def __call__(
        self,
        connection: Connection,
        sources: Iterable[Source],
        *,
        now: datetime,
        again: bool = False,
        retries: bool = False,
    ) -> list[str]:
        """Return the ids of the sources concerned."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSpec:
    """One system: what it stores and publishes, what its tasks are, and how it is operated.

    A poll that a row of `tables` names in its column `ingestion_id` is kept. `sweeps` delete old rows,
    by the name under which maintenance reports them. A snapshot that one of `kept_snapshots` names is
    kept. `published` are the tables that are exported, `contracts` those of the assets that show them.
    `work` is what polls only start, and other runs do.
    `requeue` has the functions for dead letters of tasks that need more than their own row.
    """

    name: str
    kinds: tuple[KindSpec, ...]
    tables: tuple[Table, ...]
    published: tuple[PublishedTable, ...] = ()
    contracts: tuple[Contract, ...] = ()
    work: tuple[WorkSpec, ...] = ()
    checks: tuple[AssetCheck, ...] = ()
    declared: Declared | None = None
    requeue: Mapping[str, Requeue] = field(default_factory=dict[str, Requeue])
    metrics: Callable[[Connection, datetime], Iterable[Metric]] | None = None
    sweeps: Mapping[str, Sweep] = field(default_factory=dict[str, Sweep])
    failed_tasks: FailedTaskRetention | None = None
    kept_snapshots: tuple[Column[int], ...] = ()
