"""How a task of a company or a board ends, in one transaction that checks its claim."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Any

from sqlalchemy import Connection, update

from ingestion_pipeline.companies.analysis.saving import save_company, summary
from ingestion_pipeline.companies.analysis.scoring import Completeness
from ingestion_pipeline.companies.discovery.saving import change_board, save_board
from ingestion_pipeline.companies.outcomes import (
    CompanyAnalysed,
    NotDone,
    NotNeeded,
    Outcome,
    Probed,
)
from ingestion_pipeline.companies.records import company
from ingestion_pipeline.companies.states import COMPANY, SOURCE_DISCOVERY, CompanyStatus, Confidence
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import crawls
from ingestion_pipeline.sources.crawls import FailedWalk
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.polls import lock_polls
from ingestion_pipeline.store.tables import companies
from ingestion_pipeline.work import claims
from ingestion_pipeline.work.claims import LostClaim
from ingestion_pipeline.work.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.work.errors import FORBIDDEN, WALL_CODES
from ingestion_pipeline.work.retry import DeadLetterTask, ReleaseTask, Retry, after_failure
from ingestion_pipeline.work.task import Move, Task, TaskStatus, failed, finished, released, retried


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksPersisted:
    """What became of the task, in a word that is counted; when it is due again, if it is."""

    word: str
    again_at: datetime | None = None


def write_outcome(
    connection: Connection, outcome: Outcome, *, now: datetime, settings: Settings, random: Random
) -> TasksPersisted:
    """Everything that the outcome means is written, or `LostClaim` and nothing is."""
    task = outcome.task
    if not claims.held(connection, [(task.id, task.fence)]):
        raise LostClaim(f"task {task.id} is another worker's now; nothing is kept")
    match outcome:
        case CompanyAnalysed():
            move, written = _analysed(connection, outcome, now=now, settings=settings)
        case Probed():
            move, written = _probed(connection, outcome, now=now, settings=settings)
        case NotNeeded():
            move, written = _needless(connection, outcome, now=now)
        case NotDone():
            move, written = _not_done(
                connection, outcome, now=now, settings=settings, random=random
            )
    claims.apply(connection, [move], now=now)
    return written


def _analysed(
    connection: Connection, done: CompanyAnalysed, *, now: datetime, settings: Settings
) -> tuple[Move, TasksPersisted]:
    save_company(connection, done, now=now, settings=settings)
    is_thin = done.judgement.completeness is Completeness.THIN
    status = TaskStatus.SKIPPED if is_thin else TaskStatus.SUCCESS
    move = _ended(done.task, status, summary(done), code="thin" if is_thin else None)
    return move, TasksPersisted(word="thin" if is_thin else "analysed")


def _probed(
    connection: Connection, probed: Probed, *, now: datetime, settings: Settings
) -> tuple[Move, TasksPersisted]:
    source_id = save_board(connection, probed, now=now, settings=settings)
    if source_id is None:
        said = "the board has a source, or its lineage refuses its poll"
        return _ended(probed.task, TaskStatus.SKIPPED, said), TasksPersisted(word="needless")
    is_sure = probed.confidence is Confidence.HIGH
    said = f"{source_id}: {probed.said}"
    word = "boards_active" if is_sure else "boards_pending"
    return _ended(probed.task, TaskStatus.SUCCESS, said), TasksPersisted(word=word)


def _needless(
    connection: Connection, one: NotNeeded, *, now: datetime
) -> tuple[Move, TasksPersisted]:
    """Nothing was asked; a company that is known well counts as a success of its source."""
    if one.task.kind == COMPANY and one.source_id is not None:
        known = sources_by_id(connection, [one.source_id])[one.source_id]
        lock_polls(connection, [one.source_id])
        crawls.complete(
            connection,
            one.source_id,
            outcome=one.why,
            records=known.record_count,
            has_news=False,
            now=now,
        )
    if one.task.kind == SOURCE_DISCOVERY:
        company_id = one.task.payload.get("company_id")
        change_board(connection, company_id, one.task, {"source_id": one.source_id}, now=now)
    return _ended(one.task, TaskStatus.SKIPPED, one.why), TasksPersisted(word="needless")


def _not_done(
    connection: Connection, one: NotDone, *, now: datetime, settings: Settings, random: Random
) -> tuple[Move, TasksPersisted]:
    match after_failure(one.task, one.error, now=now, policy=settings.work, random=random):
        case Retry(not_before):
            _wait(connection, one, now=now)
            move = retried(one.task, one.error, not_before=not_before)
            return move, TasksPersisted(word="retried", again_at=not_before)
        case ReleaseTask(not_before):
            _wait(connection, one, now=now)
            return released(one.task, one.error, not_before=not_before), TasksPersisted(
                word="given_back"
            )
        case DeadLetterTask():
            _give_up(connection, one, now=now, settings=settings, random=random)
            move = failed(one.task, one.error)
            if one.error.code == FORBIDDEN:
                return replace(move, status=TaskStatus.SKIPPED), TasksPersisted(word="forbidden")
            return move, TasksPersisted(word="failed")


def _wait(connection: Connection, one: NotDone, *, now: datetime) -> None:
    """The company's record says why it waits, and is as complete as it was."""
    if one.task.kind == COMPANY:
        _mark(connection, one, now=now, is_final=False)


def _give_up(
    connection: Connection, one: NotDone, *, now: datetime, settings: Settings, random: Random
) -> None:
    is_forbidden = one.error.code == FORBIDDEN  # by robots.txt: no dead letter, no strike
    if not is_forbidden:
        add_dead_letters(
            connection, [DeadLetterEntry(task=one.task, error=one.error, stack=one.stack)], now=now
        )
    if one.task.kind != COMPANY:
        said = {"note": f"its discovery failed ({one.error.code}): {one.error.text[:300]}"}
        company_id = one.task.payload.get("company_id")
        change_board(connection, company_id, one.task, said, now=now)
        return
    source_id = _source_id(connection, one)
    lock_polls(connection, [source_id] if source_id else [])  # before the company, as all do it
    _mark(connection, one, now=now, is_final=True)
    if source_id is None:
        return
    is_wall = one.error.code in WALL_CODES
    walk = FailedWalk(
        source_id=source_id,
        outcome=f"{one.error.code}: {one.error.text}",
        error_class=one.error.error_class.value,
        is_strike=not is_forbidden,
        wall=f"behind a {one.error.code.replace('_', ' ')}: {one.error.text}" if is_wall else None,
    )
    crawls.fail(connection, walk, now=now, settings=settings, random=random)


def _source_id(connection: Connection, one: NotDone) -> str | None:
    """The company's source, which bears the strike."""
    if one.source is not None:
        return one.source.id
    row = company(connection, one.company_id) if one.company_id else None
    source_id = row["source_id"] if row is not None else None
    return source_id if source_id and sources_by_id(connection, [source_id]) else None


def _mark(connection: Connection, one: NotDone, *, now: datetime, is_final: bool) -> None:
    company_id = one.company_id or one.task.payload.get("company_id")
    row = company(connection, company_id) if company_id else None
    if row is None:
        return
    is_known = row["score"] is not None and row["quality"].get("level") != Completeness.THIN.value
    was = CompanyStatus.ACTIVE if is_known else CompanyStatus.PENDING
    status = CompanyStatus.FAILED if is_final and row["score"] is None else was
    values: dict[str, Any] = {"status": status.value, "failure": one.error.text}
    connection.execute(
        update(companies).where(companies.c.id == row["id"]).values(**values, updated_at=now)
    )


def _ended(task: Task, status: TaskStatus, said: str, *, code: str | None = None) -> Move:
    """Done, with what it came to in its row; how it got there is no longer needed."""
    move = finished(task, status=status)
    is_skipped = status is TaskStatus.SKIPPED
    state = {**(task.state or {}), "said": said[:500]}
    return replace(
        move,
        state=state,
        error_code=(code or "needless") if is_skipped else None,
        error=said[:500] if is_skipped else None,
    )
