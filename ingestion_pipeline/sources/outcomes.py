"""What a poll comes to, written with its results: source row, task row, dead letter. Set-based.

Every function runs in the caller's transaction and ends with `claims.apply`, so that a lost claim
takes everything back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any

from sqlalchemy import Connection, Integer, String, Text, update

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import polling
from ingestion_pipeline.sources.change_rate import ChangeModel
from ingestion_pipeline.sources.poll_ends import after_strike, log_failures, log_successes
from ingestion_pipeline.sources.polls import ensure_polls, make_due
from ingestion_pipeline.sources.price import PollingBudget, market
from ingestion_pipeline.sources.readers import readers_of
from ingestion_pipeline.sources.source import Source, SourceStatus
from ingestion_pipeline.sources.success_rows import (
    PollSuccess,
    rhythm_after,
    success_row,
    unless_pinned,
    write_successes,
)
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.rows import row_source
from ingestion_pipeline.store.tables import sources
from ingestion_pipeline.store.types import UtcDateTime
from ingestion_pipeline.work import claims
from ingestion_pipeline.work.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.work.errors import WALL_CODES
from ingestion_pipeline.work.retry import (
    DeadLetterTask,
    Decision,
    ReleaseTask,
    Retry,
    after_failure,
)
from ingestion_pipeline.work.task import (
    Move,
    rearmed,
    released,
    retried,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollFailure(DeadLetterEntry):
    """A poll that did not get through."""

    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class PollFailed:
    """What became of failed polls: when each retried source is due again, and how many others."""

    retry_at: Mapping[str, datetime]
    given_back: int
    given_up: int


def succeed(
    connection: Connection,
    polls: Sequence[PollSuccess],
    *,
    now: datetime,
    settings: Settings,
    random: Random,
) -> None:
    """Sources are up to date and due again, as tier and habits have it; the breaker is closed."""
    rows: list[tuple[Any, ...]] = []
    moves: list[Move] = []
    readers = readers_of(connection, [one.source.id for one in polls]) if polls else {}
    prices = market(connection, settings) if polls else PollingBudget({}, settings)
    for one in polls:
        newest = one.newest_at or one.source.last_new_at
        rhythm = rhythm_after(one, now=now)
        standing = polling.after_success(
            one.source,
            last_new_at=newest,
            now=now,
            settings=settings,
            random=random,
            readers=readers.get(one.source.id, 0),
            habits=habits_of(one.source, rhythm, prices),
        )
        rows.append(success_row(one, standing, newest, rhythm))
        moves.append(
            rearmed(one.task, not_before=standing.next_check_at, priority=standing.priority)
        )
    pinned = write_successes(connection, rows, now=now) if rows else []
    claims.apply(connection, moves, now=now)
    log_successes([(one.task, one.changed) for one in polls])
    if pinned:
        ensure_polls(connection, pinned, now=now)
        make_due(connection, pinned, now=now)


def habits_of(source: Source, rhythm: ChangeModel, prices: PollingBudget) -> polling.Habits:
    """What decides the next check of a source that finds its own time."""
    return polling.Habits(
        rhythm=rhythm,
        price=prices.price(source.kind),
        prior_rate=prices.prior_rate(source.kind, source.platform),
    )


def fail(
    connection: Connection,
    polls: Sequence[PollFailure],
    *,
    now: datetime,
    settings: Settings,
    random: Random,
) -> PollFailed:
    """Each failure is retried, given back or given up as its class and its attempts decide."""
    retry_at: dict[str, datetime] = {}
    moves: list[Move] = []
    lost: list[PollFailure] = []
    for one in polls:
        match _decide(one, now=now, settings=settings, random=random):
            case Retry(not_before):
                retry_at[one.source.id] = not_before
                moves.append(retried(one.task, one.error, not_before=not_before))
            case ReleaseTask(not_before):
                moves.append(released(one.task, one.error, not_before=not_before))
            case DeadLetterTask():
                lost.append(one)
    given_back = len(moves) - len(retry_at)
    moves += _give_up(connection, lost, now=now, settings=settings, random=random)
    claims.apply(connection, moves, now=now)
    log_failures([(one.task, one.error) for one in polls])
    return PollFailed(retry_at=retry_at, given_back=given_back, given_up=len(lost))


def _decide(one: PollFailure, *, now: datetime, settings: Settings, random: Random) -> Decision:
    decision = after_failure(one.task, one.error, now=now, policy=settings.work, random=random)
    # An open breaker lets one request through, not one poll with all its retries.
    if isinstance(decision, Retry) and one.source.status is SourceStatus.OPEN:
        return DeadLetterTask()
    return decision


_FAILURE_COLUMNS = {
    "id": String(120),
    "tier": String(4),
    "status": String(20),
    "status_reason": Text(),
    "failure_count": Integer(),
    "next_check_at": UtcDateTime(),
    "outcome": Text(),
    "error_class": String(20),
}


def _give_up(
    connection: Connection,
    polls: Sequence[PollFailure],
    *,
    now: datetime,
    settings: Settings,
    random: Random,
) -> list[Move]:
    """One dead letter each, and one strike or, for a wall, the end; else it waits for its check."""
    rows: list[tuple[Any, ...]] = []
    moves: list[Move] = []
    for one in polls:
        standing = _after_giving_up(one, now=now, settings=settings, random=random)
        rows.append(_failure_row(one, standing))
        moves.append(after_strike(one.task, one.error, standing))
        if standing.status is not one.source.status:
            audit(
                connection,
                actor="system",
                action=f"source.{standing.status.value}",
                subject=one.source.id,
                now=now,
                detail={"reason": standing.status_reason},
            )
    if rows:
        _write_failures(connection, rows, now=now)
        add_dead_letters(connection, polls, now=now)
    return moves


def _after_giving_up(
    one: PollFailure, *, now: datetime, settings: Settings, random: Random
) -> polling.PollState:
    if one.error.code in WALL_CODES:
        why = f"behind a {one.error.code.replace('_', ' ')}: {one.error.text[:300]}"
        return polling.after_wall(one.source, why, now=now, settings=settings)
    return polling.after_failure(one.source, now=now, settings=settings, random=random)


def _failure_row(one: PollFailure, standing: polling.PollState) -> tuple[Any, ...]:
    return (
        one.source.id,
        standing.tier.value,
        standing.status.value,
        standing.status_reason,
        standing.failure_count,
        standing.next_check_at,
        f"failed: {one.error.text}"[:500],
        one.error.error_class.value,
    )


def _write_failures(
    connection: Connection, rows: Sequence[tuple[Any, ...]], *, now: datetime
) -> None:
    given = row_source(connection, _FAILURE_COLUMNS, rows, "given")
    statement = (
        update(sources)
        .where(sources.c.id == given.c.id)
        .values(
            tier=unless_pinned(given.c.tier),
            status=given.c.status,
            status_reason=given.c.status_reason,
            failure_count=given.c.failure_count,
            next_check_at=given.c.next_check_at,
            last_checked_at=now,
            untold_polls=sources.c.untold_polls + 1,
            poll_count=sources.c.poll_count + 1,
            strike_count=sources.c.strike_count + 1,
            last_outcome=given.c.outcome,
            last_error_class=given.c.error_class,
            updated_at=now,
        )
    )
    connection.execute(statement)
