"""Maintenance: delete old rows and content, adjust tiers, record health and alerts.

Each sweep has its own transaction and error handling: one that fails does not stop the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, and_, case, exists, func, literal, or_, select, union, update
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.system_spec import Sweep
from ingestion_pipeline.notices.expansion import expand
from ingestion_pipeline.operations.alerts import measure_freshness, notify_budget, record_health_changes
from ingestion_pipeline.pages.content.snapshots import objects_of_snapshots
from ingestion_pipeline.reading.llm.batch_lines import old_batches, wake_waiting
from ingestion_pipeline.registry import systems
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.lookup import popular_sources
from ingestion_pipeline.sources.poll_tasks import POLL, age_polls, ensure_polls, lock_polls, make_due
from ingestion_pipeline.sources.scheduling.tiers import HOT_FOR, WARM_FOR, adjust_request_costs
from ingestion_pipeline.sources.source import ALERTS, SourceStatus, Tier
from ingestion_pipeline.store.changes import Cause, Origin, set_origins
from ingestion_pipeline.store.history import compact
from ingestion_pipeline.store.statements import delete_unlocked, lock_rows, sweep
from ingestion_pipeline.store.tables import (
    ACTIVE,
    ENDED,
    batch_items,
    dead_letters,
    ingestions,
    notices,
    outbox,
    runs,
    snapshots,
    sources,
    tasks,
)
from ingestion_pipeline.tasks.ended_tasks import add_deleted
from ingestion_pipeline.tasks.task import TaskStatus

# How long rows and content are kept that no setting names, and how many tasks at the most.
FINISHED_ROWS = 1_000
FAILED_ROWS = 5_000
FINISHED_SECONDS = 3_600
FAILED_SECONDS = 7 * 86_400
DECIDED_DEAD_LETTERS = timedelta(days=30)
ENDED_RUNS = timedelta(days=7)
ENDED_MODEL_BATCHES = timedelta(days=30)  # as long as a server's refusal of batches is remembered
HANDLED_OUTBOX = timedelta(days=7)
UNREFERENCED_CONTENT_SECONDS = 6 * 3_600
INGESTIONS_AT_ONCE = 20_000  # the rest follows at the next sweep
COOLED_AT_ONCE = 5_000  # SQLite takes 32,766 parameters; the rest follows at the next sweep

FINISHED = [
    status.value for status in (TaskStatus.SUCCESS, TaskStatus.FILTERED, TaskStatus.SKIPPED, TaskStatus.CANCELLED)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """How many rows each sweep touched, and which sweeps failed."""

    counts: Mapping[str, int]
    errors: Sequence[str]


def maintain(ctx: RunContext, *, dry_run: bool = False) -> SweepResult:
    """Run every sweep once; a dry run counts what each would do, and rolls it back."""
    counts: dict[str, int] = {}
    errors: list[str] = []
    for name, own_sweep in SWEEPS.items():
        try:
            counts[name] = _run_sweep(ctx, own_sweep, dry_run=dry_run)
            while name in REPEATED and not dry_run and (more := _run_sweep(ctx, own_sweep)):
                counts[name] += more
        except SQLAlchemyError as error:
            errors.append(f"{name}: {error}")
    try:
        counts["content"] = _prune_content(ctx, dry_run=dry_run)
    except (SQLAlchemyError, OSError) as error:
        errors.append(f"content: {error}")
    return SweepResult(counts=counts, errors=errors)


def _run_sweep(ctx: RunContext, run: Sweep, *, dry_run: bool = False) -> int:
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        set_origins(connection, {}, now=now, default=Origin(cause=Cause.RETENTION, run_id=ctx.run_id))
        count = run(connection, ctx.settings, now)
        if dry_run:
            connection.rollback()
    return count


def _prune_content(ctx: RunContext, *, dry_run: bool) -> int:
    """Delete stored content that no snapshot and no batch refers to, once it is old enough."""
    with ctx.store.read() as connection:
        referenced = objects_of_snapshots(connection)
        for fetched, parsed_hash in connection.execute(select(batch_items.c.fetched, batch_items.c.parsed_hash)):
            referenced |= {parsed_hash, *(page["content_hash"] for page in fetched.get("pages", ()))}
    return ctx.content.prune(referenced, older_than_seconds=UNREFERENCED_CONTENT_SECONDS, dry_run=dry_run)


def _finished_tasks(connection: Connection, _settings: Settings, now: datetime) -> int:
    return _old_tasks(connection, FINISHED, FINISHED_SECONDS, FINISHED_ROWS, now)


def _failed_tasks(connection: Connection, _settings: Settings, now: datetime) -> int:
    rules = [rule for system in systems() if (rule := system.failed_tasks)]
    others = tasks.c.kind.not_in([kind for rule in rules for kind in rule.kinds])
    groups = [(others, FAILED_SECONDS)]
    groups += [(tasks.c.kind.in_(rule.kinds), rule.seconds) for rule in rules]
    failed, rows = [TaskStatus.FAILED.value], FAILED_ROWS
    return sum(_old_tasks(connection, failed, seconds, rows, now, those) for those, seconds in groups)


def _old_tasks(
    connection: Connection, statuses: Sequence[str], seconds: int, rows: int, now: datetime, *those: ColumnElement[bool]
) -> int:
    """Delete tasks that are too old, or beyond the newest `rows`; never polls or active work.

    They stay in the totals, which success rates are computed from. A poll is always active: it does
    not keep what it spawned, whose results are rows.
    """
    ended = (ENDED, tasks.c.status.in_(statuses), tasks.c.kind != POLL, *those)
    newest = select(tasks.c.id).where(*ended).order_by(tasks.c.ended_at.desc(), tasks.c.id.desc()).limit(rows)
    before = now - timedelta(seconds=seconds)
    # A join, not a lookup each: most tasks are in no index of tracking ids.
    working = (ACTIVE, tasks.c.kind != POLL)
    at_work = select(tasks.c.tracking_id).where(*working).distinct().cte("at_work")
    old = (
        select(tasks.c.id)
        .outerjoin(at_work, at_work.c.tracking_id == tasks.c.tracking_id)
        .where(*ended, or_(tasks.c.ended_at < before, tasks.c.id.not_in(newest)))
        .where(at_work.c.tracking_id.is_(None))
        .correlate(None)
    )
    counted = (tasks.c.kind, tasks.c.status, tasks.c.error_class, tasks.c.attempts)
    statement = delete_unlocked(tasks, tasks.c.id.in_(old)).returning(*counted)
    deleted = connection.execute(statement).all()
    add_deleted(connection, [(kind, status, error, n) for kind, status, error, n in deleted])
    return len(deleted)


def _sweep_dead_letters(connection: Connection, _settings: Settings, now: datetime) -> int:
    """Delete replayed or discarded dead letters; open ones stay however old."""
    before = now - DECIDED_DEAD_LETTERS
    is_decided = or_(dead_letters.c.replayed_at.is_not(None), dead_letters.c.discarded_at.is_not(None))
    return sweep(connection, dead_letters, is_decided, dead_letters.c.failed_at < before)


def _snapshots(connection: Connection, settings: Settings, now: datetime) -> int:
    """Delete old snapshots and surplus ones of a page, but not its last good one, nor what a system needs."""
    keep = settings.retention
    before = now - timedelta(seconds=keep.snapshots_seconds)
    page = (snapshots.c.source_id, snapshots.c.url)
    is_good = snapshots.c.failure.is_(None)
    newest_first = (snapshots.c.fetched_at.desc(), snapshots.c.id.desc())
    ranked = select(
        snapshots.c.id,
        snapshots.c.fetched_at,
        is_good.label("is_good"),
        func.row_number().over(partition_by=page, order_by=newest_first).label("place"),
        func.row_number().over(partition_by=(*page, is_good), order_by=newest_first).label("place_among_its_like"),
    ).subquery()
    surplus = select(ranked.c.id).where(
        or_(ranked.c.fetched_at < before, ranked.c.place > keep.snapshots_per_page),
        ~and_(ranked.c.is_good, ranked.c.place_among_its_like == 1),
        *(~exists().where(column == ranked.c.id) for system in systems() for column in system.kept_snapshots),
    )
    return sweep(connection, snapshots, snapshots.c.id.in_(surplus))


def _ingestions(connection: Connection, settings: Settings, now: datetime) -> int:
    """Delete old polls that no row names; one that a row names is its lineage, and stays."""
    before = now - timedelta(seconds=settings.retention.ingestions_seconds)
    columns = [table.c.ingestion_id for system in systems() for table in system.tables if "ingestion_id" in table.c]
    named = union(*(select(column.label("id")) for column in columns)).subquery()
    # A join, not a lookup each: no index has the polls that rows name.
    old = (
        select(ingestions.c.id)
        .outerjoin(named, named.c.id == ingestions.c.id)
        .where(ingestions.c.ingested_at < before, named.c.id.is_(None))
        .order_by(ingestions.c.ingested_at)
        .limit(INGESTIONS_AT_ONCE)
    )
    return sweep(connection, ingestions, ingestions.c.id.in_(old))


def _batches(connection: Connection, settings: Settings, now: datetime) -> int:
    """Delete batches of dead runs; their polls have long been claimed again."""
    before = now - timedelta(seconds=10 * settings.work.lease_seconds)
    return sweep(
        connection,
        batch_items,
        batch_items.c.fetched_at < before,
        ~exists().where(
            tasks.c.id == batch_items.c.task_id,
            tasks.c.fence == batch_items.c.fence,
            tasks.c.status == TaskStatus.PROCESSING.value,
            tasks.c.lease_until > now,
        ),
    )


def _model_batches(connection: Connection, _settings: Settings, now: datetime) -> int:
    """Delete ended batches of questions; answers that waited for one are due if they were missed."""
    wake_waiting(connection, now=now)
    return old_batches(connection, now - ENDED_MODEL_BATCHES)


def _runs(connection: Connection, _settings: Settings, now: datetime) -> int:
    return sweep(connection, runs, runs.c.ended_at < now - ENDED_RUNS)


def _cool(connection: Connection, settings: Settings, now: datetime) -> int:
    """Move auto sources without a new record for long enough one tier down."""
    newest = func.coalesce(sources.c.last_new_at, sources.c.created_at)
    is_hot, is_warm = sources.c.tier == Tier.HOT.value, sources.c.tier == Tier.WARM.value
    is_quiet = or_(and_(is_hot, newest < now - HOT_FOR), and_(is_warm, newest < now - HOT_FOR - WARM_FOR))
    is_popular = sources.c.id.in_(popular_sources(more_than=settings.tiers.hot_readers))
    colder = case((is_hot, Tier.WARM.value), else_=Tier.COLD.value)
    return _move(connection, colder, is_quiet, ~is_popular, now=now)[1]


def _heat(connection: Connection, settings: Settings, now: datetime) -> int:
    """Move auto sources that many follow to HOT, and poll them at once."""
    is_popular = sources.c.id.in_(popular_sources(more_than=settings.tiers.hot_readers))
    hot = literal(Tier.HOT.value)
    ids, heated = _move(connection, hot, sources.c.tier != Tier.HOT.value, is_popular, now=now)
    make_due(connection, ids, now=now)
    return heated


def _move(
    connection: Connection, tier: ColumnElement[str], *those: ColumnElement[bool], now: datetime
) -> tuple[list[str], int]:
    """Move those of the active auto sources to the tier; return the sources considered, and how many were moved."""
    is_moved = and_(~sources.c.tier_pinned, sources.c.status == SourceStatus.ACTIVE.value, *those)
    query = select(sources.c.id).where(is_moved).order_by(sources.c.id).limit(COOLED_AT_ONCE)
    ids = list(connection.execute(query).scalars())
    lock_polls(connection, ids)
    lock_rows(connection, sources.c.id, ids)
    moved = connection.execute(update(sources).where(sources.c.id.in_(ids), is_moved).values(tier=tier)).rowcount
    ensure_polls(connection, ids, now=now)
    return ids, moved


def _expanded(connection: Connection, settings: Settings, now: datetime) -> int:
    """Handle outbox rows that nobody follows; no delivery run is started for them alone."""
    grouping = timedelta(seconds=settings.notices.grouping_seconds)
    return expand(connection, now=now, grouping=grouping).handled


def _outbox(connection: Connection, _settings: Settings, now: datetime) -> int:
    """Delete outbox rows that became notices; notices stay, so that nobody is notified twice."""
    return sweep(connection, outbox, outbox.c.handled_at < now - HANDLED_OUTBOX)


def _changes(connection: Connection, settings: Settings, now: datetime) -> int:
    """Merge old changes of a row into its first, so that folding them gives the same."""
    return compact(connection, before=now - timedelta(seconds=settings.retention.changes_seconds))


def _alerts(connection: Connection, settings: Settings, now: datetime) -> int:
    """Delete old alerts about sources and operations: their subjects never recur.

    Notices about records stay for ever, so that nobody is notified of one twice.
    """
    before = now - timedelta(seconds=settings.retention.alerts_seconds)
    is_over = notices.c.status.in_(["sent", "muted"]) & (notices.c.created_at < before)
    return sweep(connection, notices, notices.c.subject_kind.in_(ALERTS), is_over)


SWEEPS: dict[str, Sweep] = {
    "finished_tasks": _finished_tasks,
    "failed_tasks": _failed_tasks,
    "dead_letters": _sweep_dead_letters,
    **{name: own_sweep for system in systems() for name, own_sweep in system.sweeps.items()},
    "snapshots": _snapshots,
    "ingestions": _ingestions,
    "batches": _batches,
    "model_batches": _model_batches,
    "runs": _runs,
    "cooled": _cool,
    "heated": _heat,
    "health": record_health_changes,
    "freshness": measure_freshness,
    "budget": notify_budget,
    "aged": age_polls,
    "prices": adjust_request_costs,
    "expanded": _expanded,
    "outbox": _outbox,
    "alerts": _alerts,
    "changes": _changes,
}
REPEATED = {"expanded", "changes"}  # until nothing is left, each time in its own transaction
