"""The permanent poll task of every enabled source: create, update, restart, skip."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnExpressionArgument, Connection, case, exists, func, insert, literal, or_, select, update

from ingestion_pipeline.sources.source import SourceStatus, Tier
from ingestion_pipeline.store.bulk import one_of
from ingestion_pipeline.store.locking import lock_rows
from ingestion_pipeline.store.tables import ACTIVE, sources, tasks
from ingestion_pipeline.store.types import Json
from ingestion_pipeline.tasks.task import ASKED, TaskStatus

POLL = "poll"
# The poll of a source that waits for approval is skipped too; `enable` requeues it.
UNPOLLED = (SourceStatus.DISABLED.value, SourceStatus.PENDING_VALIDATION.value)


def lock_polls(connection: Connection, ids: Collection[str]) -> None:
    """Lock the polls, tasks before sources as every finishing poll does, to avoid deadlocks."""
    if connection.dialect.name != "postgresql":  # SQLite has one writer anyway
        return
    is_one = one_of(connection, tasks.c.source_id, ids)
    query = select(tasks.c.id).where(tasks.c.kind == POLL, is_one)
    connection.execute(query.order_by(tasks.c.id).with_for_update()).all()


def ensure_polls(connection: Connection, ids: Collection[str], *, now: datetime) -> None:
    """Ensure a poll task for every enabled source of these, and none that may run for others."""
    # Queried first, not in a subquery: without statistics, as after a first import, PostgreSQL
    # compares every task with every id (5.6 s for 5,000 of them, 0.02 s so).
    query = select(sources.c.id, sources.c.status).where(one_of(connection, sources.c.id, ids))
    statuses = {row.id: row.status for row in connection.execute(query)}
    disabled = [source_id for source_id in statuses if statuses[source_id] in UNPOLLED]
    enabled = list(statuses.keys() - disabled)
    _take_back(connection, disabled, ACTIVE, status=TaskStatus.SKIPPED.value, error="source disabled", updated_at=now)
    requeued = (
        update(tasks)
        .where(
            tasks.c.kind == POLL,
            tasks.c.status.in_([TaskStatus.SKIPPED.value, TaskStatus.FAILED.value]),
            one_of(connection, tasks.c.source_id, enabled),
        )
        .values(status=TaskStatus.PENDING.value, not_before=now, updated_at=now, **_RESET_VALUES)
    )
    connection.execute(requeued)
    _refresh_polls(connection, ids)
    insert_polls(connection, ids, now=now)


# Values of a poll that starts again, without attempts and errors.
_RESET_VALUES: dict[str, Any] = {"attempts": 0, "stage": ASKED, "error_class": None, "error_code": None, "error": None}


def restart_polls(connection: Connection, ids: Collection[str], *, now: datetime) -> None:
    """Restart these polls, due now; a running one loses its claim and its results."""
    _take_back(
        connection, ids, ACTIVE, status=TaskStatus.PENDING.value, not_before=now, updated_at=now, **_RESET_VALUES
    )


def interrupt_polls(connection: Connection, ids: Collection[str], *, now: datetime) -> None:
    """Release the claims of those polls that are running, so that they start again."""
    running = tasks.c.status == TaskStatus.PROCESSING.value
    _take_back(
        connection, ids, running, status=TaskStatus.PENDING.value, not_before=now, updated_at=now, **_RESET_VALUES
    )


def _take_back(
    connection: Connection,
    ids: Collection[str],
    condition: ColumnExpressionArgument[bool],
    **values: Any,  # noqa: ANN401 - of any column
) -> None:
    """Change these polls; a worker that is polling one now loses its claim, and its results."""
    connection.execute(
        update(tasks)
        .where(condition, tasks.c.kind == POLL, one_of(connection, tasks.c.source_id, ids))
        .values(fence=tasks.c.fence + 1, lease_owner=None, lease_until=None, **values)
    )


def make_due(connection: Connection, source_ids: Collection[str], *, now: datetime) -> int:
    """Make these polls due now; return how many. Running and disabled ones are left alone."""
    lock_polls(connection, source_ids)
    waiting = (
        update(tasks)
        .where(
            tasks.c.kind == POLL,
            tasks.c.status == TaskStatus.PENDING.value,
            one_of(connection, tasks.c.source_id, source_ids),
            exists().where(sources.c.id == tasks.c.source_id, sources.c.status.not_in(UNPOLLED)),
        )
        .values(not_before=case((tasks.c.not_before > now, now), else_=tasks.c.not_before), stage=ASKED)
        .returning(tasks.c.source_id)
    )
    due = list(connection.execute(waiting).scalars())
    lock_rows(connection, sources.c.id, due)
    connection.execute(
        update(sources)
        .where(one_of(connection, sources.c.id, due), sources.c.next_check_at > now)
        .values(next_check_at=now)
    )
    return len(due)


def _refresh_polls(connection: Connection, ids: Collection[str]) -> None:
    """Update waiting polls to their source's tier and address; retries and pauses stay."""
    statement = (
        update(tasks)
        .where(
            tasks.c.kind == POLL,
            tasks.c.status == TaskStatus.PENDING.value,
            tasks.c.source_id == sources.c.id,
            one_of(connection, sources.c.id, ids),
            or_(
                tasks.c.shard != sources.c.shard,
                tasks.c.priority != _tier_priority(),
                tasks.c.url.is_distinct_from(sources.c.url),
            ),
        )
        .values(shard=sources.c.shard, priority=_tier_priority(), url=sources.c.url)
    )
    connection.execute(statement)


def insert_polls(connection: Connection, ids: Collection[str], *, now: datetime) -> None:
    """Insert a poll for each of these sources that is enabled and has none."""
    moment = literal(now, tasks.c.created_at.type)
    empty = literal({}, Json)
    columns = {
        "kind": literal(POLL),
        "dedupe_key": sources.c.id,
        "source_id": sources.c.id,
        "url": sources.c.url,
        "payload": empty,
        "status": literal(TaskStatus.PENDING.value),
        "priority": _tier_priority(),
        "shard": sources.c.shard,
        "not_before": func.coalesce(sources.c.next_check_at, moment),
        "tracking_id": sources.c.tracking_id,
        "ancestry": literal([], Json),
        "created_at": moment,
        "updated_at": moment,
    }
    missing = select(*(value.label(name) for name, value in columns.items())).where(
        one_of(connection, sources.c.id, ids),
        sources.c.status.not_in(UNPOLLED),
        ~exists().where(tasks.c.kind == POLL, tasks.c.source_id == sources.c.id),
    )
    connection.execute(insert(tasks).from_select(list(columns), missing))


def _tier_priority() -> Any:  # noqa: ANN401 - a SQL expression
    return case(*((sources.c.tier == tier.value, tier.priority) for tier in Tier), else_=Tier.COLD.priority)
