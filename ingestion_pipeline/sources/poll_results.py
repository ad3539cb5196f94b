"""Write the results of polls: source rows, task moves, dead letters and log lines."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Any

from sqlalchemy import Boolean, Connection, Float, Integer, String, Text, case, func, literal, null, update

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.settings.logs import about
from ingestion_pipeline.sources.lookup import follower_counts
from ingestion_pipeline.sources.poll_tasks import ensure_polls, make_due
from ingestion_pipeline.sources.scheduling import tiers
from ingestion_pipeline.sources.scheduling.budget import PollingBudget, current_budget
from ingestion_pipeline.sources.scheduling.change_model import (
    ChangeModel,
    change_model_from_json,
    changes_found,
    with_changes,
)
from ingestion_pipeline.sources.scheduling.tiers import PollState
from ingestion_pipeline.sources.source import Source, SourceStatus
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.tables import sources
from ingestion_pipeline.store.types import Json, UtcDateTime
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.tasks.errors import BLOCKED_CODES, WorkError
from ingestion_pipeline.tasks.retry import DeadLetterTask, Decision, ReleaseTask, Retry
from ingestion_pipeline.tasks.task import Move, Task, TaskStatus, finished, rearmed, released, retried


@dataclass(frozen=True, slots=True, kw_only=True)
class PollSuccess:
    """A successful poll.

    With `is_read` its feed was read and accepted in this transaction, with `changed` it also led to
    a row that is new or different; `updated` and `withdrawn` say how many.
    """

    task: Task
    source: Source
    outcome: str
    etag: str | None
    last_modified: str | None
    is_read: bool = False
    changed: bool = False
    updated: int = 0
    withdrawn: int = 0
    content_hash: str | None = None
    parser_version: str | None = None
    newest_at: datetime | None = None
    published: Sequence[datetime] = ()
    needs_full_read: bool = False
    record_count: int | None = None


_SUCCESS_COLUMNS = {
    "id": String(120),
    "tier": String(4),
    "next_check_at": UtcDateTime(),
    "is_read": Boolean(),
    "changed": Boolean(),
    "updated": Integer(),
    "withdrawn": Integer(),
    "last_new_at": UtcDateTime(),
    "outcome": Text(),
    "content_hash": String(64),
    "parser_version": Text(),
    "etag": Text(),
    "last_modified": Text(),
    "needs_full_read": Boolean(),
    "record_count": Integer(),
    "change_model": Json,
    "changes_per_day": Float(),
    "checks_per_day": Float(),
}


def updated_change_model(poll: PollSuccess, *, now: datetime) -> ChangeModel:
    """Return the source's change model with the changes that this poll found."""
    changes = changes_found(poll.source, published=poll.published, has_news=poll.newest_at is not None, now=now)
    return with_changes(change_model_from_json(poll.source.change_model), changes)


def success_row(
    poll: PollSuccess, state: tiers.PollState, newest: datetime | None, change_model: ChangeModel
) -> tuple[Any, ...]:
    """Return the row of `write_successes` for one poll."""
    source = poll.source
    return (
        source.id,
        state.tier.value,
        state.next_check_at,
        poll.is_read,
        poll.changed,
        poll.updated,
        poll.withdrawn,
        newest,
        poll.outcome,
        poll.content_hash if poll.is_read else source.content_hash,
        poll.parser_version if poll.is_read else source.parser_version,
        poll.etag,
        poll.last_modified,
        poll.needs_full_read,
        source.record_count if poll.record_count is None else poll.record_count,
        change_model.to_json() if change_model.last_at is not None else None,
        state.changes_per_day,
        state.checks_per_day,
    )


def write_successes(connection: Connection, rows: Sequence[tuple[Any, ...]], *, now: datetime) -> list[str]:
    """Write the rows; return the sources whose tier an operator pinned during the poll."""
    results = row_source(connection, _SUCCESS_COLUMNS, rows, "given")
    changed_at = func.coalesce(_if(results.c.changed, now), sources.c.last_changed_at)
    statement = (
        update(sources)
        .where(sources.c.id == results.c.id)
        .values(
            tier=unless_pinned(results.c.tier),
            status=SourceStatus.ACTIVE.value,
            status_reason=None,
            failure_count=0,
            next_check_at=results.c.next_check_at,
            last_checked_at=now,
            last_success_at=now,
            last_changed_at=changed_at,
            unreported_polls=sources.c.unreported_polls + 1,
            poll_count=sources.c.poll_count + 1,
            unreported_changes=sources.c.unreported_changes + case((results.c.changed, 1), else_=0),
            change_count=sources.c.change_count + case((results.c.changed, 1), else_=0),
            unreported_updated=sources.c.unreported_updated + results.c.updated,
            unreported_withdrawn=sources.c.unreported_withdrawn + results.c.withdrawn,
            last_new_at=results.c.last_new_at,
            # An empty feed is no sync: the backlog that follows it must not notify either.
            synced_at=func.coalesce(sources.c.synced_at, _if(results.c.is_read & (results.c.record_count > 0), now)),
            synced_version=case(
                (results.c.is_read & (results.c.record_count > 0), sources.c.config_version),
                else_=sources.c.synced_version,
            ),
            last_outcome=results.c.outcome,
            last_error_class=None,
            content_hash=results.c.content_hash,
            parser_version=results.c.parser_version,
            etag=results.c.etag,
            last_modified=results.c.last_modified,
            needs_full_read=results.c.needs_full_read,
            accepts_drop=sources.c.accepts_drop & ~results.c.is_read,
            record_count=results.c.record_count,
            change_model=results.c.change_model,
            changes_per_day=results.c.changes_per_day,
            checks_per_day=results.c.checks_per_day,
            updated_at=now,
        )
        .returning(sources.c.id, sources.c.tier)
    )
    decided = {row[0]: row[1] for row in rows}
    return [id_ for id_, tier in connection.execute(statement) if tier != decided[id_]]


def unless_pinned(tier: Any) -> Any:  # noqa: ANN401 - SQL expressions
    """Return the tier, unless an operator has pinned one while the poll was running."""
    return case((sources.c.tier_pinned, sources.c.tier), else_=tier)


def _if(condition: Any, moment: datetime) -> Any:  # noqa: ANN401 - SQL expressions
    return case((condition, literal(moment, UtcDateTime())), else_=null())


log = logging.getLogger(__name__)


def log_poll(task: Task, level: int, result: str, error: WorkError | None) -> None:
    """Log the poll, a failed one only at INFO (sources fail every day), never with what a page or a server sent."""
    if not log.isEnabledFor(level):
        return
    code = error.code if error is not None else None
    fields = about(
        source=task.source_id,
        tracking_id=task.tracking_id,
        attempt=task.attempts,
        error_class=error.error_class.value if error is not None else None,
        error_code=code,
    )
    suffix = f" code={code}" if code else ""
    log.log(level, "poll %s source=%s%s", result, task.source_id, suffix, extra=fields)


def move_after_strike(task: Task, error: WorkError, state: PollState) -> Move:
    """Return the move of the poll task: it waits for its next check, or is skipped if disabled."""
    if state.status is SourceStatus.DISABLED:
        return replace(
            finished(task, status=TaskStatus.SKIPPED),
            error_class=error.error_class.value,
            error_code=error.code,
            error=f"{state.status_reason}: {error.text}",
        )
    return rearmed(task, not_before=state.next_check_at, priority=state.tier.priority, error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollFailure(DeadLetterEntry):
    """A failed poll, and what is decided about it."""

    source: Source
    decision: Decision


def succeed(
    connection: Connection, polls: Sequence[PollSuccess], *, now: datetime, settings: Settings, random: Random
) -> None:
    """Write the successes: sources are due again by tier and change model, breakers closed."""
    rows: list[tuple[Any, ...]] = []
    moves: list[Move] = []
    followers = follower_counts(connection, [poll.source.id for poll in polls]) if polls else {}
    budget = current_budget(connection, settings) if polls else PollingBudget({}, settings)
    for poll in polls:
        newest = poll.newest_at or poll.source.last_new_at
        change_model = updated_change_model(poll, now=now)
        state = tiers.after_success(
            poll.source,
            last_new_at=newest,
            now=now,
            settings=settings,
            random=random,
            followers=followers.get(poll.source.id, 0),
            inputs=scheduling_inputs(poll.source, change_model, budget),
        )
        rows.append(success_row(poll, state, newest, change_model))
        moves.append(rearmed(poll.task, not_before=state.next_check_at, priority=state.priority))
    pinned = write_successes(connection, rows, now=now) if rows else []
    claims.apply(connection, moves, now=now)
    for poll in polls:
        log_poll(poll.task, logging.INFO if poll.changed else logging.DEBUG, "succeeded", None)
    if pinned:
        ensure_polls(connection, pinned, now=now)
        make_due(connection, pinned, now=now)


def scheduling_inputs(source: Source, change_model: ChangeModel, budget: PollingBudget) -> tiers.SchedulingInputs:
    """Return what decides the next check of a source without a pinned tier."""
    return tiers.SchedulingInputs(
        change_model=change_model,
        request_cost=budget.request_cost(source.kind),
        prior_rate=budget.prior_rate(source.kind, source.platform),
    )


def fail(
    connection: Connection, polls: Sequence[PollFailure], *, now: datetime, settings: Settings, random: Random
) -> list[Decision]:
    """Retry, release or dead-letter each failure, and return which of these."""
    decisions = [_final_decision(poll) for poll in polls]
    moves: list[Move] = []
    lost: list[PollFailure] = []
    for poll, decision in zip(polls, decisions, strict=True):
        match decision:
            case Retry(not_before):
                moves.append(retried(poll.task, poll.error, not_before=not_before))
            case ReleaseTask(not_before):
                moves.append(released(poll.task, poll.error, not_before=not_before))
            case DeadLetterTask():
                lost.append(poll)
    moves += _dead_letter(connection, lost, now=now, settings=settings, random=random)
    claims.apply(connection, moves, now=now)
    for poll in polls:
        log_poll(poll.task, logging.INFO, "failed", poll.error)
    return decisions


def _final_decision(poll: PollFailure) -> Decision:
    # An open breaker lets one request through, not one poll with all its retries.
    if isinstance(poll.decision, Retry) and poll.source.status is SourceStatus.OPEN:
        return DeadLetterTask()
    return poll.decision


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


def _dead_letter(
    connection: Connection, polls: Sequence[PollFailure], *, now: datetime, settings: Settings, random: Random
) -> list[Move]:
    """Write a dead letter and a strike for each, or disable it if blocked; return the moves."""
    rows: list[tuple[Any, ...]] = []
    moves: list[Move] = []
    for poll in polls:
        if poll.error.code in BLOCKED_CODES:
            why = f"behind a {poll.error.code.replace('_', ' ')}: {poll.error.text[:300]}"
            state = tiers.after_blocked_page(poll.source, why, now=now, settings=settings)
        else:
            state = tiers.after_strike(poll.source, now=now, settings=settings, random=random)
        rows.append(_failure_row(poll, state))
        moves.append(move_after_strike(poll.task, poll.error, state))
        audit_status(connection, poll.source, state, now=now)
    if rows:
        _write_failures(connection, rows, now=now)
        add_dead_letters(connection, polls, now=now)
    return moves


def audit_status(connection: Connection, source: Source, state: PollState, *, now: datetime) -> None:
    """Write an audit line if the source's status changes."""
    if state.status is not source.status:
        action, detail = f"source.{state.status.value}", {"reason": state.status_reason}
        audit(connection, actor="system", action=action, subject=source.id, now=now, detail=detail)


def _failure_row(poll: PollFailure, state: tiers.PollState) -> tuple[Any, ...]:
    return (
        poll.source.id,
        state.tier.value,
        state.status.value,
        state.status_reason,
        state.failure_count,
        state.next_check_at,
        f"failed: {poll.error.text}"[:500],
        poll.error.error_class.value,
    )


def _write_failures(connection: Connection, rows: Sequence[tuple[Any, ...]], *, now: datetime) -> None:
    results = row_source(connection, _FAILURE_COLUMNS, rows, "given")
    statement = (
        update(sources)
        .where(sources.c.id == results.c.id)
        .values(
            tier=unless_pinned(results.c.tier),
            status=results.c.status,
            status_reason=results.c.status_reason,
            failure_count=results.c.failure_count,
            next_check_at=results.c.next_check_at,
            last_checked_at=now,
            unreported_polls=sources.c.unreported_polls + 1,
            poll_count=sources.c.poll_count + 1,
            strike_count=sources.c.strike_count + 1,
            last_outcome=results.c.outcome,
            last_error_class=results.c.error_class,
            updated_at=now,
        )
    )
    connection.execute(statement)
