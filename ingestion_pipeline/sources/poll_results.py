"""The source rows of polls that got through: what each says, by one statement."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Any

from sqlalchemy import (
    Boolean,
    Connection,
    Float,
    Integer,
    String,
    Text,
    case,
    func,
    literal,
    null,
    update,
)

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.settings.logs import about
from ingestion_pipeline.sources.lookup import readers_of
from ingestion_pipeline.sources.poll_tasks import ensure_polls, make_due
from ingestion_pipeline.sources.scheduling import tiers
from ingestion_pipeline.sources.scheduling.budget import PollingBudget, market
from ingestion_pipeline.sources.scheduling.change_model import (
    ChangeModel,
    changes_found,
    learned,
    rhythm_of,
)
from ingestion_pipeline.sources.scheduling.tiers import PollState
from ingestion_pipeline.sources.source import Source, SourceStatus
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.tables import sources
from ingestion_pipeline.store.types import Json, UtcDateTime
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.tasks.errors import WALL_CODES, WorkError
from ingestion_pipeline.tasks.retry import (
    DeadLetterTask,
    Decision,
    ReleaseTask,
    Retry,
    after_failure,
)
from ingestion_pipeline.tasks.task import (
    Move,
    Task,
    TaskStatus,
    finished,
    rearmed,
    released,
    retried,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollSuccess:
    """A poll that got through.

    With `is_read` its listing was read and believed in this transaction, with `changed` it also led
    to a row that is new or different; `updated` and `withdrawn` say how many.
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
    reader: str | None = None
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
    "reader": Text(),
    "etag": Text(),
    "last_modified": Text(),
    "needs_full_read": Boolean(),
    "record_count": Integer(),
    "rhythm": Json,
    "changes_per_day": Float(),
    "checks_per_day": Float(),
}


def rhythm_after(one: PollSuccess, *, now: datetime) -> ChangeModel:
    """What was known of the source's changes, and what this poll found."""
    found = changes_found(
        one.source, published=one.published, has_news=one.newest_at is not None, now=now
    )
    return learned(rhythm_of(one.source.rhythm), found)


def success_row(
    one: PollSuccess, standing: tiers.PollState, newest: datetime | None, rhythm: ChangeModel
) -> tuple[Any, ...]:
    """The row of `write_successes` for one poll."""
    kept = one.source
    return (
        kept.id,
        standing.tier.value,
        standing.next_check_at,
        one.is_read,
        one.changed,
        one.updated,
        one.withdrawn,
        newest,
        one.outcome,
        one.content_hash if one.is_read else kept.content_hash,
        one.reader if one.is_read else kept.reader,
        one.etag,
        one.last_modified,
        one.needs_full_read,
        kept.record_count if one.record_count is None else one.record_count,
        rhythm.to_json() if rhythm.last_at is not None else None,
        standing.changes_per_day,
        standing.checks_per_day,
    )


def write_successes(
    connection: Connection, rows: Sequence[tuple[Any, ...]], *, now: datetime
) -> list[str]:
    """The sources whose tier an operator pinned while they were polled: their poll must follow."""
    given = row_source(connection, _SUCCESS_COLUMNS, rows, "given")
    changed_at = func.coalesce(_if(given.c.changed, now), sources.c.last_changed_at)
    statement = (
        update(sources)
        .where(sources.c.id == given.c.id)
        .values(
            tier=unless_pinned(given.c.tier),
            status=SourceStatus.ACTIVE.value,
            status_reason=None,
            failure_count=0,
            next_check_at=given.c.next_check_at,
            last_checked_at=now,
            last_success_at=now,
            last_changed_at=changed_at,
            untold_polls=sources.c.untold_polls + 1,
            poll_count=sources.c.poll_count + 1,
            untold_changes=sources.c.untold_changes + case((given.c.changed, 1), else_=0),
            change_count=sources.c.change_count + case((given.c.changed, 1), else_=0),
            untold_updated=sources.c.untold_updated + given.c.updated,
            untold_withdrawn=sources.c.untold_withdrawn + given.c.withdrawn,
            last_new_at=given.c.last_new_at,
            # An empty listing is no sync: the backlog that follows it must not be told either.
            synced_at=func.coalesce(
                sources.c.synced_at, _if(given.c.is_read & (given.c.record_count > 0), now)
            ),
            synced_version=case(
                (given.c.is_read & (given.c.record_count > 0), sources.c.config_version),
                else_=sources.c.synced_version,
            ),
            last_outcome=given.c.outcome,
            last_error_class=None,
            content_hash=given.c.content_hash,
            reader=given.c.reader,
            etag=given.c.etag,
            last_modified=given.c.last_modified,
            needs_full_read=given.c.needs_full_read,
            accepts_drop=sources.c.accepts_drop & ~given.c.is_read,
            record_count=given.c.record_count,
            rhythm=given.c.rhythm,
            changes_per_day=given.c.changes_per_day,
            checks_per_day=given.c.checks_per_day,
            updated_at=now,
        )
        .returning(sources.c.id, sources.c.tier)
    )
    decided = {row[0]: row[1] for row in rows}
    return [id_ for id_, tier in connection.execute(statement) if tier != decided[id_]]


def unless_pinned(tier: Any) -> Any:  # noqa: ANN401 - SQL expressions
    """The tier, unless an operator has pinned one while the poll was running."""
    return case((sources.c.tier_pinned, sources.c.tier), else_=tier)


def _if(condition: Any, moment: datetime) -> Any:  # noqa: ANN401 - SQL expressions
    return case((condition, literal(moment, UtcDateTime())), else_=null())


log = logging.getLogger(__name__)


def log_successes(polls: Iterable[tuple[Task, bool]]) -> None:
    """A line for each that found news; one that did not is for those who debug."""
    for task, is_changed in polls:
        _log(task, logging.INFO if is_changed else logging.DEBUG, "succeeded", None)


def log_failures(polls: Iterable[tuple[Task, WorkError]]) -> None:
    """A line for each, with class and code: never what a page or a server said.

    No warning: sources fail every day, and whether anybody has to look is for their health to say.
    """
    for task, error in polls:
        _log(task, logging.INFO, "failed", error)


def _log(task: Task, level: int, how: str, error: WorkError | None) -> None:
    if not log.isEnabledFor(level):
        return
    code = error.code if error is not None else None
    said = about(
        source=task.source_id,
        tracking_id=task.tracking_id,
        attempt=task.attempts,
        error_class=error.error_class.value if error is not None else None,
        error_code=code,
    )
    why = f" ({code})" if code else ""
    log.log(level, "the poll of %s %s%s", task.source_id, how, why, extra=said)


def after_strike(task: Task, error: WorkError, standing: PollState) -> Move:
    """What becomes of the poll task: it waits for its next check, or ends with its source."""
    if standing.status is SourceStatus.DISABLED:
        skipped = finished(task, status=TaskStatus.SKIPPED)
        return replace(
            skipped,
            error_class=error.error_class.value,
            error_code=error.code,
            error=f"{standing.status_reason}: {error.text}",
        )
    return rearmed(
        task,
        not_before=standing.next_check_at,
        priority=standing.tier.priority,
        error=error,
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
        standing = tiers.after_success(
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


def habits_of(source: Source, rhythm: ChangeModel, prices: PollingBudget) -> tiers.Habits:
    """What decides the next check of a source that finds its own time."""
    return tiers.Habits(
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
) -> tiers.PollState:
    if one.error.code in WALL_CODES:
        why = f"behind a {one.error.code.replace('_', ' ')}: {one.error.text[:300]}"
        return tiers.after_wall(one.source, why, now=now, settings=settings)
    return tiers.after_failure(one.source, now=now, settings=settings, random=random)


def _failure_row(one: PollFailure, standing: tiers.PollState) -> tuple[Any, ...]:
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
