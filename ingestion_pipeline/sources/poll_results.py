"""Write the results of polls and crawls: source rows, task moves, dead letters and log lines.

A poll that starts a crawl proves nothing about the source: only the end of the crawl closes the
breaker or counts as a strike.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import uuid4

from sqlalchemy import Boolean, Connection, Integer, case, func, literal, null, update

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.settings.logs import about
from ingestion_pipeline.sources.lookup import follower_counts, sources_by_id
from ingestion_pipeline.sources.poll_tasks import POLL, ensure_polls, lock_polls, make_due
from ingestion_pipeline.sources.scheduling import tiers
from ingestion_pipeline.sources.scheduling.change_model import (
    ChangeModel,
    change_model_from_json,
    changes_found,
    with_changes,
)
from ingestion_pipeline.sources.scheduling.tiers import PollingBudget, PollState, current_budget
from ingestion_pipeline.sources.source import Source, SourceStatus
from ingestion_pipeline.store.statements import audit, columns_of, row_source
from ingestion_pipeline.store.tables import sources, tasks
from ingestion_pipeline.store.types import UtcDateTime
from ingestion_pipeline.tasks import claims, ended_tasks
from ingestion_pipeline.tasks.errors import BLOCKED_CODES, WorkError
from ingestion_pipeline.tasks.task import Move, Task, TaskStatus, finished, rearmed, released, retried


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestResult:
    """The result of ingesting one source; a quarantined one has changed nothing.

    `published` are the dates of its new records. If `is_dead_lettered`, a dead letter with the body
    waits for an operator.
    """

    source_id: str
    outcome: str
    new: int = 0
    updated: int = 0
    withdrawn: int = 0
    quarantined: bool = False
    newest_at: datetime | None = None
    published: Sequence[datetime] = ()
    needs_full_read: bool = False
    record_count: int = 0
    is_dead_lettered: bool = False
    has_touched: bool = False

    @property
    def has_changes(self) -> bool:
        """Whether the records differed, and not only the bytes."""
        changes = self.new or self.updated or self.withdrawn
        return bool(changes) or self.needs_full_read or self.quarantined

    @property
    def has_written(self) -> bool:
        """Whether rows may refer to the poll: it has changes, or touched rows that are no news."""
        return self.has_changes or self.has_touched


@dataclass(frozen=True, slots=True, kw_only=True)
class PollSuccess:
    """A successful poll and its result; with `is_read` its feed was read and accepted in this transaction."""

    task: Task
    source: Source
    result: IngestResult
    etag: str | None = None
    last_modified: str | None = None
    is_read: bool = False
    content_hash: str | None = None
    parser_version: str | None = None

    @property
    def is_changed(self) -> bool:
        """Whether it led to a row that is new or different."""
        return self.is_read and self.result.has_changes


def unchanged(task: Task, source: Source, *, etag: str | None, last_modified: str | None) -> PollSuccess:
    """Return the success of a poll that found the feed unchanged."""
    result = IngestResult(source_id=source.id, outcome="unchanged", record_count=source.record_count)
    return PollSuccess(task=task, source=source, result=result, etag=etag, last_modified=last_modified)


# What a success writes as it is; the other columns of its row lead to several of the source's.
_WRITTEN_BY_SUCCESS = (
    *("next_check_at", "last_new_at", "last_outcome", "content_hash", "parser_version", "etag", "last_modified"),
    *("needs_full_read", "record_count", "change_model", "changes_per_day", "checks_per_day"),
)
_SUCCESS_COLUMNS = {
    **columns_of(sources, ("id", "tier")),
    "is_read": Boolean(),
    "changed": Boolean(),
    "updated": Integer(),
    "withdrawn": Integer(),
    **columns_of(sources, _WRITTEN_BY_SUCCESS),
}


def success_row(
    poll: PollSuccess, state: tiers.PollState, newest: datetime | None, change_model: ChangeModel
) -> tuple[Any, ...]:
    """Return the row of `write_successes` for one poll."""
    source, result = poll.source, poll.result
    return (
        source.id,
        state.tier.value,
        poll.is_read,
        poll.is_changed,
        result.updated,
        result.withdrawn,
        state.next_check_at,
        newest,
        result.outcome,
        poll.content_hash if poll.is_read else source.content_hash,
        poll.parser_version if poll.is_read else source.parser_version,
        poll.etag,
        poll.last_modified,
        # a quarantined feed does not replace the full read that the last good one asked for
        result.needs_full_read or (result.quarantined and source.needs_full_read),
        result.record_count,
        change_model.to_json() if change_model.last_at is not None else None,
        state.changes_per_day,
        state.checks_per_day,
    )


def write_successes(connection: Connection, rows: Sequence[tuple[Any, ...]], *, now: datetime) -> list[str]:
    """Write the rows; return the sources whose tier an operator pinned during the poll."""
    results = row_source(connection, _SUCCESS_COLUMNS, rows, "given")
    is_synced = results.c.is_read & (results.c.record_count > 0)
    changed_at = func.coalesce(_if(results.c.changed, now), sources.c.last_changed_at)
    statement = (
        update(sources)
        .where(sources.c.id == results.c.id)
        .values(
            tier=unless_pinned(results.c.tier),
            status=SourceStatus.ACTIVE.value,
            status_reason=None,
            failure_count=0,
            last_checked_at=now,
            last_success_at=now,
            last_changed_at=changed_at,
            unreported_polls=sources.c.unreported_polls + 1,
            poll_count=sources.c.poll_count + 1,
            unreported_changes=sources.c.unreported_changes + case((results.c.changed, 1), else_=0),
            change_count=sources.c.change_count + case((results.c.changed, 1), else_=0),
            unreported_updated=sources.c.unreported_updated + results.c.updated,
            unreported_withdrawn=sources.c.unreported_withdrawn + results.c.withdrawn,
            # An empty feed is no sync: the backlog that follows it must not notify either.
            synced_at=func.coalesce(sources.c.synced_at, _if(is_synced, now)),
            synced_version=case((is_synced, sources.c.config_version), else_=sources.c.synced_version),
            last_error_class=None,
            accepts_drop=sources.c.accepts_drop & ~results.c.is_read,
            **{name: results.c[name] for name in _WRITTEN_BY_SUCCESS},
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
class PollFailure(ended_tasks.DeadLetterEntry):
    """A failed poll, and what is decided about it."""

    source: Source
    decision: ended_tasks.Decision


def succeed(
    connection: Connection, polls: Sequence[PollSuccess], *, now: datetime, settings: Settings, random: Random
) -> None:
    """Write the successes: sources are due again by tier and change model, breakers closed."""
    rows: list[tuple[Any, ...]] = []
    moves: list[Move] = []
    followers = follower_counts(connection, [poll.source.id for poll in polls]) if polls else {}
    budget = current_budget(connection, settings) if polls else PollingBudget({}, settings)
    for poll in polls:
        result = poll.result
        newest = result.newest_at or poll.source.last_new_at
        changes = changes_found(poll.source, published=result.published, has_news=result.newest_at is not None, now=now)
        prior_rate = budget.prior_rate(poll.source.kind, poll.source.platform)
        change_model = with_changes(change_model_from_json(poll.source.change_model), changes, prior_rate=prior_rate)
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
        log_poll(poll.task, logging.INFO if poll.is_changed else logging.DEBUG, "succeeded", None)
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
) -> list[ended_tasks.Decision]:
    """Retry, release or dead-letter each failure, and return which of these."""
    decisions = [_final_decision(poll) for poll in polls]
    moves: list[Move] = []
    lost: list[PollFailure] = []
    for poll, decision in zip(polls, decisions, strict=True):
        match decision:
            case ended_tasks.Retry(not_before):
                moves.append(retried(poll.task, poll.error, not_before=not_before))
            case ended_tasks.ReleaseTask(not_before):
                moves.append(released(poll.task, poll.error, not_before=not_before))
            case ended_tasks.DeadLetterTask():
                lost.append(poll)
    moves += _dead_letter(connection, lost, now=now, settings=settings, random=random)
    claims.apply(connection, moves, now=now)
    for poll in polls:
        log_poll(poll.task, logging.INFO, "failed", poll.error)
    return decisions


def _final_decision(poll: PollFailure) -> ended_tasks.Decision:
    # An open breaker lets one request through, not one poll with all its retries.
    if isinstance(poll.decision, ended_tasks.Retry) and poll.source.status is SourceStatus.OPEN:
        return ended_tasks.DeadLetterTask()
    return poll.decision


_WRITTEN_BY_FAILURE = ("status", "status_reason", "failure_count", "next_check_at", "last_outcome", "last_error_class")


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
        ended_tasks.add_dead_letters(connection, polls, now=now)
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
    results = row_source(connection, columns_of(sources, ("id", "tier", *_WRITTEN_BY_FAILURE)), rows, "given")
    statement = (
        update(sources)
        .where(sources.c.id == results.c.id)
        .values(
            tier=unless_pinned(results.c.tier),
            last_checked_at=now,
            unreported_polls=sources.c.unreported_polls + 1,
            poll_count=sources.c.poll_count + 1,
            strike_count=sources.c.strike_count + 1,
            updated_at=now,
            **{name: results.c[name] for name in _WRITTEN_BY_FAILURE},
        )
    )
    connection.execute(statement)


StartedCrawl = tuple[Task, Source, str]  # its poll, and the message about it


def begin_crawls(
    connection: Connection, polls: Sequence[StartedCrawl], *, now: datetime, settings: Settings, random: Random
) -> None:
    """Schedule the next poll of each source whose crawl was started, and record the outcome."""
    moves: list[claims.Move] = []
    budget = current_budget(connection, settings)
    for task, source, outcome in polls:
        state = tiers.after_success(
            source,
            last_new_at=source.last_new_at,
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
                tier=unless_pinned(state.tier.value),
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

    Pass them to `begin_crawls` in the same transaction, so that the next poll is an interval away. A poll
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


def complete_crawl(
    connection: Connection, source_id: str, *, outcome: str, records: int | None, has_news: bool, now: datetime
) -> None:
    """Record a completed crawl: close the breaker, and store its changes and its record count, unless it is None."""
    news = now if has_news else null()
    change_model = _updated_change_model(connection, source_id, now=now) if has_news else sources.c.change_model
    is_disabled = sources.c.status == SourceStatus.DISABLED.value
    connection.execute(
        update(sources)
        .where(sources.c.id == source_id)
        .values(
            status=case((is_disabled, sources.c.status), else_=SourceStatus.ACTIVE.value),
            status_reason=case((is_disabled, sources.c.status_reason), else_=null()),
            failure_count=0,
            last_success_at=now,
            last_changed_at=func.coalesce(news, sources.c.last_changed_at),
            unreported_changes=sources.c.unreported_changes + int(has_news),
            change_count=sources.c.change_count + int(has_news),
            last_new_at=func.coalesce(news, sources.c.last_new_at),
            synced_at=func.coalesce(sources.c.synced_at, now),
            last_outcome=outcome,
            last_error_class=None,
            record_count=sources.c.record_count if records is None else records,
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


def fail_crawl(connection: Connection, walk: FailedCrawl, *, now: datetime, settings: Settings, random: Random) -> None:
    """Record the failed crawl in the source's row, and delay its next poll accordingly."""
    source_id = walk.source_id
    lock_polls(connection, [source_id])  # tasks before sources, as everywhere (see store.statements)
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
