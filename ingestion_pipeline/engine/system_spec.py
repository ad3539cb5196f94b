"""How a system describes itself: a `SystemSpec`, the tables it publishes with their contracts, and its asset events.

Retention, replay, exports, checks, metrics, sensors, partitions, assets and commands iterate over the specs in
`registry.py`: a spec is all that the rest of the program knows of a system, which ends in `SYSTEM: SystemSpec`.

A contract never blocks what it describes: rows that break it are reported with the cure. Bad data is held back before
it becomes rows. Events are plain values, which the orchestration hands to Dagster: numbers become plots, and text of
other sites is escaped before it becomes part of Markdown.
"""

import base64
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from ingestion_pipeline.engine.context import DeferredSystem, PolledSystem, RunContext
from ingestion_pipeline.engine.lineage import ExplainedTable
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.visits.page import Renderer
from ingestion_pipeline.reading.structured.items import SavedBody, SavedBodyResult
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Definition, Kind, Source
from ingestion_pipeline.sources.declarations import BadField
from ingestion_pipeline.sources.status import Finding
from ingestion_pipeline.store.tables import ingestions
from ingestion_pipeline.store.tables.metadata import SHARED_COMMENTS
from ingestion_pipeline.store.types import ExactDecimal, UtcDateTime
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline.tasks.ended_tasks import Requeue

REPORTED_EVENTS = 100  # materializations that a run logs at the most
MAX_TITLE_CHARS = 80
MAX_PICTURE_BYTES = 300_000  # Dagster stores every event
CELL_CHARS = 80
COLUMNS_SHOWN = 8
_PICTURES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG": "image/png"}
# Control characters and bidirectional marks.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
# The UI links bare URLs even when their punctuation is escaped.
_ADDRESS = re.compile(r"(https?:|www(?=\.)|@)", re.IGNORECASE)
_BREAK = "\u2060"  # invisible word joiner, which stops the UI from linking the URL


class Url(str):
    """An address that is shown as a link."""

    __slots__ = ()


class Markdown(str):
    """A text that is shown as Markdown."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    """Rows of plain values; `columns` has the type of each column, as the UI names it."""

    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, str | int | float | None]]


# A number, a text, one of the types above, or what JSON has.
EventValue = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetEvent:
    """A partition of an asset was written: what people see of it. Unknown numbers are left out.

    Without `has_data` the work found nothing, or publishes nothing: the partition is not shown as materialized.
    """

    asset: str
    partition: str
    metadata: Mapping[str, EventValue]
    has_data: bool = True


def plain(text: str | None, *, limit: int = MAX_TITLE_CHARS) -> str:
    """Return the text as one line of Markdown that shows it literally."""
    seen = " ".join(_UNSEEN.sub(" ", text or "").split())
    cut = seen if len(seen) <= limit else seen[: limit - 1] + "…"
    return _PUNCTUATION.sub(r"\\\1", _ADDRESS.sub(rf"\1{_BREAK}", cut))


def moment(at: datetime | None) -> str:
    """Format the time for tables; empty for None."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M}"


def rounded_usd(amount: Decimal | float) -> float:
    """Return the dollars for people: to the cent; less than a dollar with two digits."""
    return round(float(amount), 2) if amount >= 1 else float(f"{amount:.2g}")


def picture(body: bytes, *, name: str = "screenshot") -> Markdown | None:
    """Return an image embedded in Markdown, without any text of the page; None if it is too large, or no image."""
    types = [name for start, name in _PICTURES.items() if body.startswith(start)]
    if not types or len(body) > MAX_PICTURE_BYTES:
        return None
    return Markdown(f"![{name}](data:{types[0]};base64,{base64.b64encode(body).decode()})")


def preview_table(rows: Sequence[Mapping[str, Any]], *, cell_chars: int = CELL_CHARS) -> DataTable:
    """Return the first rows as a table, whose cells show any text without interpreting it."""
    used = [name for name in rows[0] if any(row.get(name) is not None for row in rows)]
    columns = used[:COLUMNS_SHOWN]
    records = [{name: _cell(row.get(name), cell_chars) for name in columns} for row in rows]
    return DataTable(columns=dict.fromkeys(columns, "string"), rows=records)


def details_table(details: Mapping[str, str | int | float | None]) -> DataTable:
    """Return what is shown beside the numbers that are worth a plot."""
    rows = [{"detail": name, "value": value} for name, value in details.items()]
    return DataTable(columns={"detail": "string", "value": "string"}, rows=rows)


def _cell(value: object, most: int) -> str:
    text = "" if value is None else " ".join(str(value).split())
    return text if len(text) <= most else text[: most - 1] + "…"


class ColumnType(StrEnum):
    """The type of a column's values; each may be missing."""

    TEXT = "text"
    WHOLE = "whole"
    DECIMAL = "decimal"
    FLOAT = "float"
    FLAG = "flag"
    TIME = "time"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportColumn:
    """A column of an export."""

    name: str
    holds: ColumnType = ColumnType.TEXT


def _held(column: sa.ColumnElement[Any]) -> ColumnType:
    kinds = (
        (ExactDecimal, ColumnType.DECIMAL),
        (UtcDateTime, ColumnType.TIME),
        (sa.Boolean, ColumnType.FLAG),
        (sa.Integer, ColumnType.WHOLE),
        (sa.Float, ColumnType.FLOAT),
        (sa.JSON, ColumnType.JSON),
    )
    matches = (holds for kind, holds in kinds if isinstance(column.type, kind))
    return next(matches, ColumnType.TEXT)


Origin = Sequence[sa.ColumnElement[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """A table that is exported under its own name: the columns left out, the lineage of a row, its source.

    `rows` is what is selected from, if not the table alone; `origin` are the columns that it adds, and
    `meanings` describe those that no comment of a column describes. Rows that belong to no single
    source have no `source_id`. What is not exported is only shown by an asset. `own` are the columns of
    rows that are computed, not selected. A shadow compares tables that say only what pages say (`is_compared`).
    """

    table: sa.Table
    without: frozenset[str] = frozenset()
    source_id: sa.ColumnElement[Any] | None = None
    rows: sa.FromClause | None = None
    origin: Origin = ()
    meanings: Mapping[str, str] = field(default_factory=dict[str, str])
    is_exported: bool = True
    own: Sequence[ExportColumn] = ()
    is_compared: bool = False

    @property
    def name(self) -> str:
        """Return the name of the table, which is that of the export."""
        return self.table.name

    def columns(self) -> list[sa.ColumnElement[Any]]:
        """Return the columns as they are selected."""
        own = [column for column in self.table.columns if column.name not in self.without]
        return [*(_plain(column) for column in own), *self.origin]

    def export_columns(self) -> list[ExportColumn]:
        """Return the columns as they are exported."""
        selected = [ExportColumn(name=column.key or "", holds=_held(column)) for column in self.columns()]
        return list(self.own) or selected

    def meaning(self, column: str) -> str:
        """Return what the column means; raise LookupError if nothing describes it."""
        stored = self.table.columns.get(column)
        comment = None if stored is None else stored.comment
        text = self.meanings.get(column) or comment or SHARED_COMMENTS.get(column)
        if text is None:
            raise LookupError(f"no meaning of {self.name}.{column}: add a comment to its column")
        return text


def _plain(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return a date column as ISO 8601 text, in every format."""
    is_day = isinstance(column.type, sa.Date)
    return sa.cast(column, sa.String(10)).label(column.key or "") if is_day else column


# The lineage of a row that a poll wrote; `joined_to_poll` is what it is selected from.
POLL_ORIGIN: Origin = (
    ingestions.c.snapshots.label("snapshot_ids"),
    ingestions.c.run_id,
    ingestions.c.config_version,
    ingestions.c.fetched_at,
)


def joined_to_poll(table: sa.Table) -> sa.FromClause:
    """Return the rows of the table with the poll that wrote each of them."""
    return table.outerjoin(ingestions, ingestions.c.id == table.c.ingestion_id)


Written = tuple[sa.FromClause, Sequence[sa.ColumnElement[bool]]]  # the rows, and conditions


def polls_of_run(source_ids: Sequence[str], run_id: str) -> sa.Select[int]:
    """Select the polls of these sources that the run ingested."""
    return sa.select(ingestions.c.id).where(ingestions.c.source_id.in_(source_ids), ingestions.c.run_id == run_id)


def newest_of(table: sa.Table, source_ids: Sequence[str]) -> sa.Select[Any]:
    """Select the newest row of each of these sources."""
    newest = sa.select(sa.func.max(table.c.id)).where(table.c.source_id.in_(source_ids))
    return newest.group_by(table.c.source_id)


def written_by_polls(table: sa.Table) -> Callable[[Sequence[str], str], Written]:
    """Return the selection of rows that a run's polls wrote; the table has `source_id` and `ingestion_id`."""

    def written(source_ids: Sequence[str], run_id: str) -> Written:
        is_written = table.c.ingestion_id.in_(polls_of_run(source_ids, run_id))
        return table, [table.c.source_id.in_(source_ids), is_written]

    return written


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractRule:
    """A rule for every value of a column; breaking it is an error unless it is a warning."""

    requirement: str
    cure: str
    matches: str | None = None
    among: tuple[str, ...] = ()
    between: tuple[float, float] | None = None
    is_required: bool = False
    is_warning: bool = False

    @property
    def pattern(self) -> str:
        """Return the pattern that the whole text must match."""
        return rf"^(?:{self.matches})$"

    def holds(self, value: object) -> bool:
        """Return whether the value keeps the rule; a missing one does unless it is required."""
        if value is None:
            return not self.is_required
        if self.matches is not None:
            return re.match(self.pattern, str(value)) is not None
        if self.between is not None:
            low, high = self.between
            return isinstance(value, int | float | Decimal) and low <= value <= high
        return not self.among or value in self.among


KEY = ContractRule(
    requirement="unique and never missing",
    cure="the database should refuse it: `ingest doctor` checks its integrity",
    is_required=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The rows of an export that an asset publishes, and the rules of their columns.

    `written` selects the rows that a run wrote of these sources; without it they name no run. The asset's page
    lists the columns `first` before the others.
    """

    asset: str
    table: PublishedTable
    rules: Mapping[str, Sequence[ContractRule]] = field(default_factory=dict[str, Sequence[ContractRule]])
    written: Callable[[Sequence[str], str], Written] | None = None
    first: tuple[str, ...] = ()

    @property
    def export(self) -> str:
        """Return the name of the export."""
        return self.table.name

    def columns(self) -> list[ExportColumn]:
        """Return the published columns."""
        return self.table.export_columns()

    def describe(self, column: str) -> str:
        """Return what the column means, and its rules."""
        parts = [self.table.meaning(column), *(rule.requirement for rule in self.rules.get(column, ()))]
        return "; ".join(parts)

    def all_rules(self) -> dict[str, Sequence[ContractRule]]:
        """Return the rules by column; ids are unique besides."""
        has_id = any(column.name == "id" for column in self.columns())
        return {**({"id": [KEY]} if has_id else {}), **self.rules}


def required(cure: str) -> ContractRule:
    """Return the rule that a value is never missing."""
    return ContractRule(requirement="never missing", cure=cure, is_required=True)


def one_of(*words: str) -> ContractRule:
    """Return the rule that a value is one of these words."""
    cure = "a newer version may have written it: upgrade, or correct the row"
    return ContractRule(requirement=f"one of {', '.join(words)}", cure=cure, among=words)


ADDRESS = ContractRule(
    requirement="an http or https address",
    cure="`ingest explain` shows what the source states; correct its config",
    matches=r"https?://.+",
    is_warning=True,
)
COUNT = ContractRule(
    requirement="0 and up", cure="`ingest sources show ID` shows the data behind it", between=(0, float("inf"))
)


Sweep = Callable[[sa.Connection, Settings, datetime], int]  # returns how many rows it changed


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetCheck:
    """A check of an asset: what `find` returns is shown, the first findings in words; `cure` is what to do then.

    A failure is a warning, or an error if it `holds_back` new data. `is_cheap` ones are also evaluated by
    runs that poll; the others cost more with every row, and `maintain` evaluates them.
    """

    asset: str
    name: str
    description: str
    cure: str
    find: Callable[[sa.Connection, Settings, datetime], list[Finding]]
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
    select: Callable[[Sequence[str]], sa.Select[Any, int, int]]


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

    `failure` is why the whole run has failed; `message` and `warning` are logged.
    """

    numbers: Mapping[str, Any]
    events: Sequence[AssetEvent] = ()
    written: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    failure: str | None = None
    message: str | None = None
    warning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkAsset:
    """An asset that the work writes, one partition a source; `after` is the asset that it is made from.

    `code_version` names the versions of all that makes its rows. No event in `quiet_days` is a sign of trouble.
    """

    name: str
    description: str
    code_version: str = "1"
    quiet_days: int = 35
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
    pending: Callable[[sa.Connection, Settings, datetime], bool | Sequence[int]]
    is_sharded: bool = False
    start_new: Callable[[RunContext], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSpec:
    """Work for sources of a kind: of all that wait by a job, of some by materializing their partitions.

    `request` starts the work of requested sources, due or not, and returns a message for each.
    `after_cancel` returns what a cancelled run leaves behind, and how to end that.
    """

    name: str
    kind: str
    work: Callable[[WorkRun], Awaitable[WorkReport]]
    job: WorkJob | None = None
    assets: tuple[WorkAsset, ...] = ()
    request: Callable[[RunContext, list[str]], Mapping[str, str]] | None = None
    after_cancel: Callable[[RunContext, WorkScope], str] | None = None


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

    `events` returns what is reported of these sources. The job `ingest_` and the kind materializes it. `after` are
    the assets that it is made from. `code_version` names the versions of all that makes its rows. No event in
    `quiet_days` is a sign of trouble.
    """

    name: str
    description: str
    events: Callable[[sa.Connection, Collection[str]], list[AssetEvent]]
    code_version: str = "1"
    quiet_days: int = 7
    after: tuple[str, ...] = ("sources",)


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
    `changes` selects the source of every record with when it was detected and published, if its kind is
    replayed by `ingest simulate polling`.
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
    changes: sa.Select[Any, Any, Any] | None = None
    facts: Callable[[sa.Connection, Source, Settings], dict[str, object]] | None = None
    read_saved: Callable[[str, Kind, SavedBody, Mapping[str, Any]], SavedBodyResult] | None = None
    problems: Callable[[Definition, Path | None], Iterable[BadField]] | None = None

    @property
    def kind(self) -> Kind:
        """Return the kind itself."""
        return Kind(self.name)


class Declared(Protocol):
    """Starts what declared or changed sources need; with `retries` also where it failed, with `again` always."""

    def __call__(
        self,
        connection: sa.Connection,
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
    `requeue` has the functions for dead letters of tasks that need more than their own row. `ingesting` are the
    kinds of tasks that ingest what was fetched: polling pauses while too many of them wait. `explained` are the
    tables whose rows `ingest explain` explains. `notices` are the kinds that `write_notice` is called with, to which
    recipients may subscribe. `held_back` returns why older data of a source is shown though its polls succeed: its
    health is degraded. `accepted_at` returns when new data of the selected sources was last shown. `learned` are
    the tables of what was learned about reading each source, which a shadow takes over.
    """

    name: str
    kinds: tuple[KindSpec, ...]
    tables: tuple[sa.Table, ...]
    published: tuple[PublishedTable, ...] = ()
    contracts: tuple[Contract, ...] = ()
    work: tuple[WorkSpec, ...] = ()
    checks: tuple[AssetCheck, ...] = ()
    declared: Declared | None = None
    requeue: Mapping[str, Requeue] = field(default_factory=dict[str, Requeue])
    metrics: Callable[[sa.Connection, datetime], Iterable[Metric]] | None = None
    sweeps: Mapping[str, Sweep] = field(default_factory=dict[str, Sweep])
    failed_tasks: FailedTaskRetention | None = None
    kept_snapshots: tuple[sa.Column[int], ...] = ()
    ingesting: tuple[str, ...] = ()
    explained: tuple[ExplainedTable, ...] = ()
    notices: tuple[str, ...] = ()
    learned: tuple[sa.Table, ...] = ()
    held_back: Callable[[sa.Connection], Mapping[str, str]] | None = None
    accepted_at: Callable[[sa.Connection, sa.Select[str]], Mapping[str, datetime]] | None = None
