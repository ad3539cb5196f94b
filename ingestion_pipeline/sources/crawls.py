"""What a source's walk comes to, written to its row: begun by a poll, ended by its last page.

A poll that begins a walk proves nothing about the source: only the end closes the breaker, or is
one strike.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, case, func, null, update

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_results import habits_of
from ingestion_pipeline.sources.poll_tasks import POLL, ensure_polls, lock_polls
from ingestion_pipeline.sources.scheduling import tiers
from ingestion_pipeline.sources.scheduling.budget import market
from ingestion_pipeline.sources.scheduling.change_model import changes_found, learned, rhythm_of
from ingestion_pipeline.sources.source import Source, SourceStatus
from ingestion_pipeline.store.audit import audit
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
    """The polls wait for their next time; each source says what was begun."""
    moves: list[claims.Move] = []
    prices = market(connection, settings)
    for task, source, said in polls:
        newest = source.last_new_at
        standing = tiers.after_success(
            source,
            last_new_at=newest,
            now=now,
            settings=settings,
            random=random,
            habits=habits_of(source, rhythm_of(source.rhythm), prices),
        )
        # While the breaker is open, the next walk is the next probe and no sooner.
        next_check_at = (
            tiers.after_failure(source, now=now, settings=settings, random=random).next_check_at
            if source.status is SourceStatus.OPEN
            else standing.next_check_at
        )
        connection.execute(
            update(sources)
            .where(sources.c.id == source.id)
            .values(
                tier=case((sources.c.tier_pinned, sources.c.tier), else_=standing.tier.value),
                next_check_at=next_check_at,
                changes_per_day=standing.changes_per_day,
                checks_per_day=standing.checks_per_day,
                last_checked_at=now,
                untold_polls=sources.c.untold_polls + 1,
                poll_count=sources.c.poll_count + 1,
                last_outcome=said,
                updated_at=now,
            )
        )
        moves.append(rearmed(task, not_before=next_check_at, priority=standing.priority))
    claims.apply(connection, moves, now=now)


def claim_polls(
    connection: Connection, source_ids: Collection[str], *, now: datetime, settings: Settings
) -> dict[str, Task]:
    """Claim the polls of these sources, due or not, for whoever begins by hand what they begin.

    Handed to `begin` in the same transaction, so that the next poll is an interval away. A poll
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
    connection: Connection,
    source_id: str,
    *,
    outcome: str,
    records: int,
    has_news: bool,
    now: datetime,
) -> None:
    """The walk got through: the breaker is closed, and the source is as it was found."""
    news = now if has_news else null()
    rhythm = _rhythm(connection, source_id, now=now) if has_news else sources.c.rhythm
    connection.execute(
        update(sources)
        .where(sources.c.id == source_id)
        .values(
            status=case(
                (sources.c.status == SourceStatus.DISABLED.value, sources.c.status),
                else_=SourceStatus.ACTIVE.value,
            ),
            status_reason=case(
                (sources.c.status == SourceStatus.DISABLED.value, sources.c.status_reason),
                else_=null(),
            ),
            failure_count=0,
            last_success_at=now,
            last_changed_at=func.coalesce(news, sources.c.last_changed_at),
            untold_changes=sources.c.untold_changes + int(has_news),
            change_count=sources.c.change_count + int(has_news),
            last_new_at=func.coalesce(news, sources.c.last_new_at),
            synced_at=func.coalesce(sources.c.synced_at, now),
            last_outcome=outcome,
            last_error_class=None,
            record_count=records,
            rhythm=rhythm,
            updated_at=now,
        )
    )


def _rhythm(connection: Connection, source_id: str, *, now: datetime) -> dict[str, Any]:
    """With the change that a walk has found; a first one found all there is, which is none."""
    source = sources_by_id(connection, [source_id])[source_id]
    found = changes_found(source, published=(), has_news=True, now=now)
    return learned(rhythm_of(source.rhythm), found).to_json()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedWalk:
    """A walk that did not get through: one strike, unless nobody is to blame; a `wall` disables."""

    source_id: str
    outcome: str
    error_class: str
    is_strike: bool = True
    wall: str | None = None


def fail(
    connection: Connection, walk: FailedWalk, *, now: datetime, settings: Settings, random: Random
) -> None:
    """The source's row says so, and its next poll waits accordingly."""
    source_id = walk.source_id
    lock_polls(connection, [source_id])  # tasks before sources, as all do it
    source = sources_by_id(connection, [source_id])[source_id]
    values: dict[str, object] = {
        "last_outcome": walk.outcome[:500],
        "last_error_class": walk.error_class,
    }
    if walk.is_strike and source.status is not SourceStatus.DISABLED:
        standing = (
            tiers.after_failure(source, now=now, settings=settings, random=random)
            if walk.wall is None
            else tiers.after_wall(source, walk.wall, now=now, settings=settings)
        )
        values |= {
            "status": standing.status.value,
            "status_reason": standing.status_reason,
            "failure_count": standing.failure_count,
            "next_check_at": standing.next_check_at,
            "strike_count": sources.c.strike_count + 1,
        }
        if standing.status is not source.status:
            audit(
                connection,
                actor="system",
                action=f"source.{standing.status.value}",
                subject=source_id,
                now=now,
                detail={"reason": standing.status_reason},
            )
        connection.execute(
            update(tasks)
            .where(
                tasks.c.kind == POLL,
                tasks.c.source_id == source_id,
                tasks.c.status == TaskStatus.PENDING.value,
            )
            .values(not_before=standing.next_check_at)
        )
    connection.execute(
        update(sources).where(sources.c.id == source_id).values(**values, updated_at=now)
    )
    ensure_polls(connection, [source_id], now=now)  # none, if it is disabled now
