"""Outcomes of phases: the analysis moves to its next status, waits or fails, in the transaction that ends the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, update

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.outcomes import Completed, EndedTask, Failed, Skipped, completed, not_done, skipped
from ingestion_pipeline.settings import Settings, Work
from ingestion_pipeline.sources import crawls
from ingestion_pipeline.sources.crawls import FailedCrawl
from ingestion_pipeline.store.tables import website_analyses, website_rankings
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import LostClaim
from ingestion_pipeline.tasks.errors import BLOCKED_CODES, FORBIDDEN, WorkError, storable
from ingestion_pipeline.tasks.queue import SpawnRequest, continue_all
from ingestion_pipeline.tasks.retry import ReleaseTask, Retry
from ingestion_pipeline.tasks.task import NewTask, TaskStatus
from ingestion_pipeline.websites.analysis import WebsiteAnalysed
from ingestion_pipeline.websites.rows import RankedAnalysis, store_mentions, upsert_business, upsert_ranking
from ingestion_pipeline.websites.runs.tasks import ClaimedPhase, PhaseOutcome, PhaseResult
from ingestion_pipeline.websites.states import (
    BY_KIND,
    BY_STATUS,
    WEBSITE_INFO,
    AnalysisStatus,
    Informed,
    Phase,
    Prompted,
    analysis_priority,
    dedupe_key,
    task_priority,
)

LOWEST = task_priority(0)


def write_outcome(connection: Connection, outcome: PhaseOutcome, ctx: RunContext, *, now: datetime) -> EndedTask:
    """Write everything that follows from the outcome, and return the end of its task."""
    if isinstance(outcome, Skipped):
        return _skip(connection, outcome, now=now)
    if isinstance(outcome, Failed):
        return _failed(connection, outcome, ctx, now=now)
    return _done(connection, outcome, now=now)


def set_progress(connection: Connection, item: ClaimedPhase, percent: int, message: str, *, now: datetime) -> None:
    """Write the progress of the analysis; raise `LostClaim` if another worker has it."""
    if not claims.held(connection, [(item.task.id, item.task.fence)]):
        raise LostClaim(f"task {item.task.id} is another worker's now; nothing was stored")
    connection.execute(
        update(website_analyses)
        .where(website_analyses.c.id == item.analysis_id)
        .values(progress_percent=percent, progress_message=message, updated_at=now)
    )


def phase_policy(settings: Settings) -> Work:
    """Return the retry policy of phases: the common one, with a longer first wait."""
    base = settings.website.backoff_base_seconds
    return settings.work.model_copy(update={"backoff_base_seconds": base})


# --- success


def _done(connection: Connection, done: Completed[ClaimedPhase, PhaseResult], *, now: datetime) -> EndedTask:
    item = done.item
    phase, after = item.phase, BY_STATUS.get(item.phase.after)
    columns = _phase_columns(connection, item, done.value, now=now)
    moved = connection.execute(
        update(website_analyses)
        .where(website_analyses.c.id == item.analysis_id, website_analyses.c.status == phase.status.value)
        .values(
            status=phase.after.value,
            current_step=phase.after.value,
            progress_percent=phase.progress_percent,
            progress_message="waits" if after else "completed",
            phase_times=_ended_times(item, now),
            finished_at=None if after else now,
            failure=None,
            updated_at=now,
            **columns,
        )
    ).rowcount
    if not moved:
        raise LostClaim(f"analysis {item.analysis_id} is no longer {phase.status.value}")
    if after is not None:
        continue_all(connection, [_next_task(item, after, now=now)], now=now)
    return completed(item.task, f"{phase.kind}_done")


def _phase_columns(connection: Connection, item: ClaimedPhase, result: PhaseResult, *, now: datetime) -> dict[str, Any]:
    """Write the phase's rows; return the columns of the analysis that it fills."""
    match result:
        case Informed() as informed:
            info = {
                **informed.business.as_json(),
                "pages": list(informed.pages),
                "problems": [
                    {"where": problem.where, "code": problem.code, "message": problem.message}
                    for problem in informed.problems
                ],
            }
            return {"info": info, "business_id": upsert_business(connection, informed.business, now=now)}
        case Prompted() as formed:
            return {"prompts": formed.as_json()}
        case WebsiteAnalysed() as analysed:
            _rank(connection, item, analysed, now=now)
            return {"analysis": _analysis_json(analysed)}


def _rank(connection: Connection, item: ClaimedPhase, analysed: WebsiteAnalysed, *, now: datetime) -> None:
    """Write the mentions, the ranking of the day and the source's result."""
    if item.business_id is None:
        raise ValueError(f"analysis {item.analysis_id} has no business")
    store_mentions(connection, item.analysis_id, analysed)
    overall = analysed.ranking.overall
    before = _last_ranking(connection, item.business_id)
    ranked = RankedAnalysis(business_id=item.business_id, analysis_id=item.analysis_id)
    upsert_ranking(connection, ranked, analysed, now=now)
    crawls.complete(
        connection,
        item.source.id,
        outcome=f"visible in {overall.visibility:.0%} of {overall.answers} answers, score {overall.score}",
        records=overall.answers,
        has_news=before != (overall.visibility, overall.score),
        now=now,
    )


def _last_ranking(connection: Connection, business_id: int) -> tuple[float, int] | None:
    query = (
        select(website_rankings.c.visibility, website_rankings.c.score)
        .where(website_rankings.c.business_id == business_id)
        .order_by(website_rankings.c.day.desc())
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else (row.visibility, row.score)


def _analysis_json(analysed: WebsiteAnalysed) -> dict[str, Any]:
    ranking = analysed.ranking
    return {
        "overall": ranking.overall.as_json(),
        "by_provider": ranking.providers_as_json(),
        "competitors": ranking.competitors_as_json(),
        "sentiments": dict(ranking.sentiments),
        "failures": dict(analysed.failures),
        "cost_usd": None if ranking.cost_usd is None else str(ranking.cost_usd),
    }


def _next_task(item: ClaimedPhase, phase: Phase, *, now: datetime) -> SpawnRequest:
    child = NewTask(
        kind=phase.kind,
        dedupe_key=dedupe_key(item.analysis_id),
        not_before=now,
        priority=_priority(item, retries=0, now=now),
        shard=item.source.shard,
        source_id=item.source.id,
        url=item.url,
        payload={"analysis": item.analysis_id},
    )
    return SpawnRequest(parent=item.task, child=child)


def _priority(item: ClaimedPhase, *, retries: int, now: datetime) -> int:
    return task_priority(
        analysis_priority(
            created_at=item.created_at,
            now=now,
            retries=retries,
            is_recurring=item.is_recurring,
            is_manual=item.is_manual,
        )
    )


def _ended_times(item: ClaimedPhase, now: datetime) -> dict[str, Any]:
    times: Mapping[str, Any] = item.times[item.phase.queue]
    return {**item.times, item.phase.queue: {**times, "ended": now.isoformat()}}


# --- failure


def _failed(connection: Connection, failure: Failed[ClaimedPhase], ctx: RunContext, *, now: datetime) -> EndedTask:
    ended, item = not_done(failure), failure.item
    if item is None or ended.move is None:
        return ended
    error, task = failure.error, failure.task
    match failure.decision:
        case Retry():
            attempts = f"attempt {task.attempts} of {ctx.settings.work.max_attempts}"
            _wait(connection, item, f"{attempts} failed: {error.text}", now)
            return ended.with_move(priority=_priority(item, retries=task.attempts, now=now))
        case ReleaseTask(not_before):
            _wait(connection, item, f"waits: {error.text}", now)
            return replace(ended.with_move(priority=min(task.priority + 1, LOWEST)), again_at=not_before)
        case _:
            _give_up(connection, item, error, ctx, now=now)
    if error.code == FORBIDDEN:
        return replace(ended.with_move(status=TaskStatus.SKIPPED), count="forbidden", dead_letter=None)
    return ended


def _wait(connection: Connection, item: ClaimedPhase, message: str, now: datetime) -> None:
    connection.execute(
        update(website_analyses)
        .where(website_analyses.c.id == item.analysis_id)
        .values(progress_message=storable(message[:2_000]), updated_at=now)
    )


def _give_up(connection: Connection, item: ClaimedPhase, error: WorkError, ctx: RunContext, *, now: datetime) -> None:
    """Fail the analysis with the reason; the source gets a strike if its site is the cause.

    What robots.txt forbids is not a failure: no dead letter, no strike.
    """
    _fail(connection, item.analysis_id, f"{item.phase.queue}: {error.text}", now=now, phase=item.phase)
    failure = FailedCrawl(
        source_id=item.source.id,
        outcome=f"{item.phase.queue} failed ({error.code}): {error.text}",
        error_class=error.error_class.value,
        is_strike=item.task.kind == WEBSITE_INFO and error.code != FORBIDDEN,
        blocked_reason=_block_reason(error),
    )
    crawls.fail(connection, failure, now=now, settings=ctx.settings, random=ctx.random)


def _block_reason(error: WorkError) -> str | None:
    if error.code not in BLOCKED_CODES:
        return None
    return f"behind a {error.code.replace('_', ' ')}: {error.text}"


def _fail(connection: Connection, analysis_id: int, why: str, *, now: datetime, phase: Phase) -> None:
    connection.execute(
        update(website_analyses)
        .where(website_analyses.c.id == analysis_id, website_analyses.c.status == phase.status.value)
        .values(
            status=AnalysisStatus.FAILED.value,
            current_step=AnalysisStatus.FAILED.value,
            failure=storable(why[:2_000]),
            progress_message="failed",
            finished_at=now,
            updated_at=now,
        )
    )


def _skip(connection: Connection, outcome: Skipped[ClaimedPhase], *, now: datetime) -> EndedTask:
    """Skip the task; fail an analysis that is in its phase, since it has no other task."""
    analysis_id: int = outcome.task.payload.get("analysis", 0)
    _fail(connection, analysis_id, outcome.reason, now=now, phase=BY_KIND[outcome.task.kind])
    return skipped(outcome, "unwanted")
