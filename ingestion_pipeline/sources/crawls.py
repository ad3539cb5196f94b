"""Write the start, success or failure of a source's crawl to its row.

A poll that starts a crawl proves nothing about the source: only the end of the crawl closes the
breaker or counts as a strike.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, case, func, null, update

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_results import audit_status, scheduling_inputs
from ingestion_pipeline.sources.poll_tasks import POLL, ensure_polls, lock_polls
from ingestion_pipeline.sources.scheduling import tiers
from ingestion_pipeline.sources.scheduling.budget import current_budget
from ingestion_pipeline.sources.scheduling.change_model import change_model_from_json, changes_found, with_changes
from ingestion_pipeline.sources.source import Source, SourceStatus
from ingestion_pipeline.store.tables import sources, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.task import Task, TaskStatus, rearmed


def begin(
    connection: Connection,
    polls: Sequence[tuple[Task, Source, str]],
    *,
    now: datetime,
    settings: Settings,
    random: Random,
) -> None:
    """Schedule the next poll of each source whose crawl was started, and record the outcome."""
    moves: list[claims.Move] = []
    budget = current_budget(connection, settings)
    for task, source, outcome in polls:
        newest = source.last_new_at
        state = tiers.after_success(
            source,
            last_new_at=newest,
            now=now,
            settings=settings,
            random=random,
            inputs=scheduling_inputs(source, change_model_from_json(source.change_model), budget),
        )
        # While the breaker is open, the next crawl is the next probe and no sooner.
        next_check_at = (
            tiers.after_strike(source, now=now, settings=settings, random=random).next_check_at
            if source.status is SourceStatus.OPEN
            else state.next_check_at
        )
        connection.execute(
            update(sources)
            .where(sources.c.id == source.id)
            .values(
                tier=case((sources.c.tier_pinned, sources.c.tier), else_=state.tier.value),
                next_check_at=next_check_at,
                changes_per_day=state.changes_per_day,
                checks_per_day=state.checks_per_day,
                last_checked_at=now,
                unreported_polls=sources.c.unreported_polls + 1,
                poll_count=sources.c.poll_count + 1,
                last_outcome=outcome,
                updated_at=now,
            )
        )
        moves.append(rearmed(task, not_before=next_check_at, priority=state.priority))
    claims.apply(connection, moves, now=now)


def claim_polls(
    connection: Connection, source_ids: Collection[str], *, now: datetime, settings: Settings
) -> dict[str, Task]:
    """Claim the polls of these sources, due or not, for an operator who starts their crawls.

    Pass them to `begin` in the same transaction, so that the next poll is an interval away. A poll
    that is running, or of a disabled source, is left out.
    """
    polls = claims.claim(
        connection,
        claims.ClaimFilter(kind=POLL, source_ids=source_ids),
        owner=str(uuid4()),
        now=now,
        lease=timedelta(seconds=settings.work.lease_seconds),
        limit=max(len(source_ids), 1),
    )
    return {task.source_id: task for task in polls if task.source_id is not None}


def complete(
    connection: Connection, source_id: str, *, outcome: str, records: int, has_news: bool, now: datetime
) -> None:
    """Record a completed crawl: close the breaker, and store its record count and changes."""
    news = now if has_news else null()
    change_model = _updated_change_model(connection, source_id, now=now) if has_news else sources.c.change_model
    connection.execute(
        update(sources)
        .where(sources.c.id == source_id)
        .values(
            status=case(
                (sources.c.status == SourceStatus.DISABLED.value, sources.c.status), else_=SourceStatus.ACTIVE.value
            ),
            status_reason=case(
                (sources.c.status == SourceStatus.DISABLED.value, sources.c.status_reason), else_=null()
            ),
            failure_count=0,
            last_success_at=now,
            last_changed_at=func.coalesce(news, sources.c.last_changed_at),
            unreported_changes=sources.c.unreported_changes + int(has_news),
            change_count=sources.c.change_count + int(has_news),
            last_new_at=func.coalesce(news, sources.c.last_new_at),
            synced_at=func.coalesce(sources.c.synced_at, now),
            last_outcome=outcome,
            last_error_class=None,
            record_count=records,
            change_model=change_model,
            updated_at=now,
        )
    )


def _updated_change_model(connection: Connection, source_id: str, *, now: datetime) -> dict[str, Any]:
    """Return the change model with the crawl's change; a first crawl counts as no change."""
    source = sources_by_id(connection, [source_id])[source_id]
    changes = changes_found(source, published=(), has_news=True, now=now)
    return with_changes(change_model_from_json(source.change_model), changes).to_json()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCrawl:
    """A failed crawl: a strike if `is_strike` is set; `blocked_reason` disables the source."""

    source_id: str
    outcome: str
    error_class: str
    is_strike: bool = True
    blocked_reason: str | None = None


def fail(connection: Connection, walk: FailedCrawl, *, now: datetime, settings: Settings, random: Random) -> None:
    """Record the failed crawl in the source's row, and delay its next poll accordingly."""
    source_id = walk.source_id
    lock_polls(connection, [source_id])  # tasks before sources, as everywhere (see store.locking)
    source = sources_by_id(connection, [source_id])[source_id]
    values: dict[str, object] = {"last_outcome": walk.outcome[:500], "last_error_class": walk.error_class}
    if walk.is_strike and source.status is not SourceStatus.DISABLED:
        state = (
            tiers.after_strike(source, now=now, settings=settings, random=random)
            if walk.blocked_reason is None
            else tiers.after_blocked_page(source, walk.blocked_reason, now=now, settings=settings)
        )
        values |= {
            "status": state.status.value,
            "status_reason": state.status_reason,
            "failure_count": state.failure_count,
            "next_check_at": state.next_check_at,
            "strike_count": sources.c.strike_count + 1,
        }
        audit_status(connection, source, state, now=now)
        connection.execute(
            update(tasks)
            .where(tasks.c.kind == POLL, tasks.c.source_id == source_id, tasks.c.status == TaskStatus.PENDING.value)
            .values(not_before=state.next_check_at)
        )
    connection.execute(update(sources).where(sources.c.id == source_id).values(**values, updated_at=now))
    ensure_polls(connection, [source_id], now=now)  # none, if it is disabled now
