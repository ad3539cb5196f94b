"""The permanent poll task of every enabled source: create, update, restart, skip; and which polls are due.

What is due is found by indexed queries per tick, and divided into shards of runs by the measured pace and the
ingestion backlog.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.source import SourceStatus, Tier
from ingestion_pipeline.store.statements import lock_rows, one_of
from ingestion_pipeline.store.tables import ACTIVE, FRONTIER, batch_items, sources, tasks
from ingestion_pipeline.store.types import Json
from ingestion_pipeline.tasks.claims import is_free
from ingestion_pipeline.tasks.errors import ErrorClass
from ingestion_pipeline.tasks.task import ASKED, TaskStatus

if TYPE_CHECKING:
    from ingestion_pipeline.settings.groups import Polling

POLL = "poll"
# The poll of a source that waits for approval is skipped too; `enable` requeues it.
UNPOLLED = (SourceStatus.DISABLED.value, SourceStatus.PENDING_VALIDATION.value)


def lock_polls(connection: sa.Connection, ids: Collection[str]) -> None:
    """Lock the polls, tasks before sources as every finishing poll does, to avoid deadlocks."""
    if connection.dialect.name != "postgresql":  # SQLite has one writer anyway
        return
    is_one = one_of(connection, tasks.c.source_id, ids)
    query = sa.select(tasks.c.id).where(tasks.c.kind == POLL, is_one)
    connection.execute(query.order_by(tasks.c.id).with_for_update()).all()


def ensure_polls(connection: sa.Connection, ids: Collection[str], *, now: datetime) -> None:
    """Ensure a poll task for every enabled source of these, and none that may run for others."""
    # Queried first, not in a subquery: without statistics, as after a first import, PostgreSQL
    # compares every task with every id (5.6 s for 5,000 of them, 0.02 s so).
    query = sa.select(sources.c.id, sources.c.status).where(one_of(connection, sources.c.id, ids))
    statuses = {row.id: row.status for row in connection.execute(query)}
    disabled = [source_id for source_id in statuses if statuses[source_id] in UNPOLLED]
    enabled = list(statuses.keys() - disabled)
    _take_back(connection, disabled, ACTIVE, status=TaskStatus.SKIPPED.value, error="source disabled", updated_at=now)
    connection.execute(
        sa.update(tasks)
        .where(
            tasks.c.kind == POLL,
            tasks.c.status.in_([TaskStatus.SKIPPED.value, TaskStatus.FAILED.value]),
            one_of(connection, tasks.c.source_id, enabled),
        )
        .values(_restarted(now))
    )
    _refresh_polls(connection, ids)
    insert_polls(connection, ids, now=now)


def restart_polls(connection: sa.Connection, ids: Collection[str], *, now: datetime) -> None:
    """Restart these polls, due now; a running one loses its claim and its results."""
    _take_back(connection, ids, ACTIVE, **_restarted(now))


def interrupt_polls(connection: sa.Connection, ids: Collection[str], *, now: datetime) -> None:
    """Release the claims of those polls that are running, so that they start again."""
    _take_back(connection, ids, tasks.c.status == TaskStatus.PROCESSING.value, **_restarted(now))


def _restarted(now: datetime) -> dict[str, Any]:
    """Return the values of a poll that starts again now, without attempts and errors."""
    error = dict.fromkeys(("error_class", "error_code", "error"))
    due = {"status": TaskStatus.PENDING.value, "not_before": now, "updated_at": now}
    return {**due, **error, "attempts": 0, "stage": ASKED}


def _take_back(
    connection: sa.Connection,
    ids: Collection[str],
    condition: sa.ColumnExpressionArgument[bool],
    **values: Any,  # noqa: ANN401 - of any column
) -> None:
    """Change these polls; a worker that is polling one now loses its claim, and its results."""
    connection.execute(
        sa.update(tasks)
        .where(condition, tasks.c.kind == POLL, one_of(connection, tasks.c.source_id, ids))
        .values(fence=tasks.c.fence + 1, lease_owner=None, lease_until=None, **values)
    )


def make_due(connection: sa.Connection, source_ids: Collection[str], *, now: datetime) -> int:
    """Make these polls due now; return how many. Running and disabled ones are left alone."""
    lock_polls(connection, source_ids)
    waiting = (
        sa.update(tasks)
        .where(
            tasks.c.kind == POLL,
            tasks.c.status == TaskStatus.PENDING.value,
            one_of(connection, tasks.c.source_id, source_ids),
            sa.exists().where(sources.c.id == tasks.c.source_id, sources.c.status.not_in(UNPOLLED)),
        )
        .values(not_before=sa.case((tasks.c.not_before > now, now), else_=tasks.c.not_before), stage=ASKED)
        .returning(tasks.c.source_id)
    )
    due = list(connection.execute(waiting).scalars())
    lock_rows(connection, sources.c.id, due)
    connection.execute(
        sa.update(sources)
        .where(one_of(connection, sources.c.id, due), sources.c.next_check_at > now)
        .values(next_check_at=now)
    )
    return len(due)


def _refresh_polls(connection: sa.Connection, ids: Collection[str]) -> None:
    """Update waiting polls to their source's tier and address; retries and pauses stay."""
    connection.execute(
        sa.update(tasks)
        .where(
            tasks.c.kind == POLL,
            tasks.c.status == TaskStatus.PENDING.value,
            tasks.c.source_id == sources.c.id,
            one_of(connection, sources.c.id, ids),
            sa.or_(
                tasks.c.shard != sources.c.shard,
                tasks.c.priority != _tier_priority(),
                tasks.c.url.is_distinct_from(sources.c.url),
            ),
        )
        .values(shard=sources.c.shard, priority=_tier_priority(), url=sources.c.url)
    )


def insert_polls(connection: sa.Connection, ids: Collection[str], *, now: datetime) -> None:
    """Insert a poll for each of these sources that is enabled and has none."""
    moment = sa.literal(now, tasks.c.created_at.type)
    columns = {
        "kind": sa.literal(POLL),
        "dedupe_key": sources.c.id,
        "source_id": sources.c.id,
        "url": sources.c.url,
        "payload": sa.literal({}, Json),
        "status": sa.literal(TaskStatus.PENDING.value),
        "priority": _tier_priority(),
        "shard": sources.c.shard,
        "not_before": sa.func.coalesce(sources.c.next_check_at, moment),
        "tracking_id": sources.c.tracking_id,
        "ancestry": sa.literal([], Json),
        "created_at": moment,
        "updated_at": moment,
    }
    missing = sa.select(*(value.label(name) for name, value in columns.items())).where(
        one_of(connection, sources.c.id, ids),
        sources.c.status.not_in(UNPOLLED),
        ~sa.exists().where(tasks.c.kind == POLL, tasks.c.source_id == sources.c.id),
    )
    connection.execute(sa.insert(tasks).from_select(list(columns), missing))


def _tier_priority() -> Any:  # noqa: ANN401 - a SQL expression
    return sa.case(*((sources.c.tier == tier.value, tier.priority) for tier in Tier), else_=Tier.COLD.priority)


def due_counts(connection: sa.Connection, tier: Tier, *, now: datetime) -> dict[int, int]:
    """Return how many sources of the tier are due, by the hash of their host."""
    due = sa.select(tasks.c.shard, sa.func.count()).where(_is_due(now), tasks.c.priority == tier.priority)
    return {hashed: count for hashed, count in connection.execute(due.group_by(tasks.c.shard))}  # noqa: C416 - rows


def age_polls(connection: sa.Connection, settings: Settings, now: datetime) -> int:
    """Raise the priority of polls long due, one tier each such time, so that none starves; return how many."""
    patience = timedelta(seconds=settings.polling.aged_seconds)
    is_cold = sa.and_(tasks.c.priority == Tier.COLD.priority, tasks.c.not_before < now - patience)
    is_warm = sa.and_(tasks.c.priority == Tier.WARM.priority, tasks.c.not_before < now - 2 * patience)
    aged = (
        sa.select(tasks.c.id)
        .where(ACTIVE, tasks.c.kind == POLL, sa.or_(is_cold, is_warm), tasks.c.status == TaskStatus.PENDING.value)
        .with_for_update(skip_locked=True)  # a locked one is about to be polled or moved
        .cte("aged")
    )
    statement = sa.update(tasks).where(tasks.c.id.in_(sa.select(aged.c.id)))
    return connection.execute(statement.values(priority=tasks.c.priority - 1)).rowcount


def unscheduled_shards(connection: sa.Connection, *, now: datetime, shards: int) -> list[tuple[Tier, int]]:
    """Return the shards with due polls that should not wait for their tier's tick.

    Retries and claims of lost workers, released polls (a busy host, a pause that is over), and
    polls that an operator requested. Others become due all the time, a few every minute: for them
    the tick is soon enough.
    """
    is_waited_for = sa.or_(
        tasks.c.attempts > 0, tasks.c.error_class == ErrorClass.RESOURCE.value, tasks.c.stage == ASKED
    )
    query = sa.select(tasks.c.priority, tasks.c.shard % shards).where(_is_due(now), is_waited_for)
    return _shards(connection, query.distinct())


def new_shards(connection: sa.Connection, *, now: datetime, shards: int) -> list[tuple[Tier, int]]:
    """Return the shards of sources that wait for their first poll."""
    query = (
        sa.select(tasks.c.priority, tasks.c.shard % shards)
        .join(sources, sources.c.id == tasks.c.source_id)
        .where(
            ACTIVE,
            tasks.c.kind == POLL,
            tasks.c.status == TaskStatus.PENDING.value,
            tasks.c.not_before <= now,
            sources.c.last_checked_at.is_(None),
        )
        .distinct()
    )
    return _shards(connection, query)


def tier_counts(connection: sa.Connection) -> dict[str, int]:
    """Return the number of active sources in each tier."""
    query = sa.select(sources.c.tier, sa.func.count()).where(sources.c.status == SourceStatus.ACTIVE.value)
    counts = {row[0]: row[1] for row in connection.execute(query.group_by(sources.c.tier))}
    return {tier.value: counts.get(tier.value, 0) for tier in Tier}


def source_counts(connection: sa.Connection) -> tuple[int, int, datetime | None]:
    """Return the number of sources, of disabled ones, and when the newest was added."""
    query = sa.select(
        sa.func.count(),
        sa.func.count().filter(sources.c.status == SourceStatus.DISABLED.value),
        sa.func.max(sources.c.created_at),
    ).select_from(sources)
    total, disabled, newest = connection.execute(query).one()
    return total, disabled, newest


def _is_due(now: datetime) -> sa.ColumnElement[bool]:
    return sa.and_(ACTIVE, tasks.c.kind == POLL, tasks.c.not_before <= now, is_free(now))


def _shards(connection: sa.Connection, query: sa.Select[Any, Any]) -> list[tuple[Tier, int]]:
    by_priority = {tier.priority: tier for tier in Tier}
    rows: list[tuple[int, int]] = [(row[0], row[1]) for row in connection.execute(query)]
    return [(by_priority[priority], shard) for priority, shard in sorted(rows)]


FIRST_PACE = 20.0  # sources a second, before one was measured: half of what a small machine does
FEWEST = 50  # fewest sources of a run; fewer do not justify its start
MEMORY = 0.7  # weight of the previous pace against a new measurement
PACE = "pace:"
MEASURED_FROM = 20  # sources; a run of fewer measures its own start


def run_size(pace: float | None, limits: "Polling") -> int:
    """Return how many sources a run can poll in its time, at the measured pace."""
    return max(ceil((pace or FIRST_PACE) * limits.run_seconds), FEWEST)


def known_pace(measurements: Mapping[str, float], tier: str | None) -> float | None:
    """Return the pace of the tier's last runs; without a tier or measurement, the best of all."""
    own = None if tier is None else measurements.get(pace_name(tier))
    paces = (value for name, value in measurements.items() if name.startswith(PACE))
    return max(paces, default=None) if own is None else own


def claim_size(pace: float | None, limits: "Polling") -> int:
    """Return how many polls a run claims at a time: no more than it can finish in its time."""
    return min(run_size(pace, limits), limits.batch_size)


def shard_count(due: int, *, pace: float | None, limits: "Polling") -> int:
    """Return how many runs share the due polls, so that each ends in time, within the settings."""
    needed = ceil(due / run_size(pace, limits))
    return min(max(needed, limits.shards), max(limits.most_shards, limits.shards))


def shards_of(due: Mapping[int, int], shards: int) -> list[int]:
    """Return the shards that have work, of the due sources counted by the hash of their host."""
    return sorted({hashed % shards for hashed in due})


def measured_pace(before: float | None, *, polls: int, seconds: float) -> float | None:
    """Return the pace updated by a run; a run that is too small leaves it unchanged."""
    if polls < MEASURED_FROM or seconds <= 0:
        return before
    now = polls / seconds
    return now if before is None else MEMORY * before + (1 - MEMORY) * now


def pace_name(tier: str) -> str:
    """Return the name under which a tier's pace is stored."""
    return f"{PACE}{tier}"


def backlog(connection: sa.Connection, *, now: datetime, limit: int, kinds: Sequence[str]) -> str | None:
    """Return why a backlog pauses polling, or None; tasks that wait for a model or a budget do not count.

    `kinds` are the tasks that ingest what was fetched; pages that wait to be fetched do not count.
    """
    fetched = sa.select(batch_items.c.task_id).limit(limit + 1).subquery()
    waiting = connection.execute(sa.select(sa.func.count()).select_from(fetched)).scalar_one()
    for kind in kinds:
        if waiting > limit:
            break
        due = sa.select(tasks.c.id).where(FRONTIER, tasks.c.kind == kind, tasks.c.not_before <= now)
        rest = due.limit(limit + 1 - waiting).subquery()
        waiting += connection.execute(sa.select(sa.func.count()).select_from(rest)).scalar_one()
    if waiting <= limit:
        return None
    return (
        f"polling is paused: {waiting:,} or more readings wait to be ingested"
        f" (polling.backlog_limit {limit:,}); it resumes when there are fewer"
    )
