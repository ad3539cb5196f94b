"""How a phase ends: one transaction that checks the claim, moves the analysis on, and its task.

```
 done ──> analysis: next status ─> task SUCCESS ─> task of the next phase, claimable at once
 not  ──> retried after a backoff │ given back, uncounted │ given up: analysis failed, dead letter
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Any

from sqlalchemy import Connection, select, update

from ingestion_pipeline.settings import Settings, Work
from ingestion_pipeline.sources import crawls
from ingestion_pipeline.sources.crawls import FailedWalk
from ingestion_pipeline.sources.poll_tasks import lock_polls
from ingestion_pipeline.store.tables import website_analyses, website_rankings
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import LostClaim
from ingestion_pipeline.tasks.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.tasks.errors import FORBIDDEN, WALL_CODES, WorkError, storable
from ingestion_pipeline.tasks.queue import Spawning, continue_all
from ingestion_pipeline.tasks.retry import DeadLetterTask, ReleaseTask, Retry, after_failure
from ingestion_pipeline.tasks.task import (
    Move,
    NewTask,
    TaskStatus,
    failed,
    finished,
    released,
    retried,
)
from ingestion_pipeline.websites.analysis import WebsiteAnalysed
from ingestion_pipeline.websites.rows import (
    RankedAnalysis,
    keep_mentions,
    upsert_business,
    upsert_ranking,
)
from ingestion_pipeline.websites.runs.tasks import (
    ClaimedPhase,
    NoLongerNeeded,
    PhaseDone,
    PhaseNotDone,
    PhaseResult,
    PutOff,
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasesPersisted:
    """What became of the task, in a word that is counted; when it is due again, if it is."""

    word: str
    again_at: datetime | None = None


def write_result(
    connection: Connection,
    result: PhaseResult,
    *,
    now: datetime,
    settings: Settings,
    random: Random,
) -> PhasesPersisted:
    """Everything that the result means is written, or `LostClaim` and nothing is."""
    task = result.task
    if not claims.held(connection, [(task.id, task.fence)]):
        raise LostClaim(f"task {task.id} is another worker's now; nothing is kept")
    if isinstance(result, PhaseDone | PhaseNotDone):
        lock_polls(connection, [result.item.source.id])  # before the analysis, as who polls it
    match result:
        case PhaseDone():
            return _done(connection, result, now=now)
        case PhaseNotDone():
            return _not_done(connection, result, now=now, settings=settings, random=random)
        case NoLongerNeeded():
            return _unwanted(connection, result, now=now)
        case PutOff():
            claims.apply(connection, [released(task, None, not_before=now)], now=now)
            return PhasesPersisted(word="put_off")


def set_progress(
    connection: Connection, item: ClaimedPhase, percent: int, message: str, *, now: datetime
) -> None:
    """The analysis says how far it is; `LostClaim` if it is another worker's now."""
    if not claims.held(connection, [(item.task.id, item.task.fence)]):
        raise LostClaim(f"task {item.task.id} is another worker's now; nothing is kept")
    connection.execute(
        update(website_analyses)
        .where(website_analyses.c.id == item.analysis_id)
        .values(progress_percent=percent, progress_message=message, updated_at=now)
    )


def phase_policy(settings: Settings) -> Work:
    """How phases are retried: as all work is, with a longer first wait."""
    base = settings.website.backoff_base_seconds
    return settings.work.model_copy(update={"backoff_base_seconds": base})


# --- it came to something


def _done(connection: Connection, done: PhaseDone, *, now: datetime) -> PhasesPersisted:
    item = done.item
    phase, after = item.phase, BY_STATUS.get(item.phase.after)
    kept = _kept(connection, done, now=now)
    moved = connection.execute(
        update(website_analyses)
        .where(
            website_analyses.c.id == item.analysis_id,
            website_analyses.c.status == phase.status.value,
        )
        .values(
            status=phase.after.value,
            current_step=phase.after.value,
            progress_percent=phase.progress_percent,
            progress_message="waits" if after else "completed",
            phase_times=_ended_times(item, now),
            finished_at=None if after else now,
            failure=None,
            updated_at=now,
            **kept,
        )
    ).rowcount
    if not moved:
        raise LostClaim(f"analysis {item.analysis_id} is no longer {phase.status.value}")
    claims.apply(connection, [finished(item.task)], now=now)
    if after is not None:
        continue_all(connection, [_next_task(item, after, now=now)], now=now)
    return PhasesPersisted(word=f"{phase.kind}_done")


def _kept(connection: Connection, done: PhaseDone, *, now: datetime) -> dict[str, Any]:
    """The columns that the phase fills, its other rows being written."""
    item = done.item
    match done.outcome:
        case Informed() as found:
            kept = {
                **found.business.as_json(),
                "pages": list(found.pages),
                "problems": [
                    {"where": one.where, "code": one.code, "message": one.message}
                    for one in found.problems
                ],
            }
            return {
                "info": kept,
                "business_id": upsert_business(connection, found.business, now=now),
            }
        case Prompted() as formed:
            return {"prompts": formed.as_json()}
        case WebsiteAnalysed() as analysed:
            _rank(connection, item, analysed, now=now)
            return {"analysis": _in_numbers(analysed)}


def _rank(
    connection: Connection, item: ClaimedPhase, analysed: WebsiteAnalysed, *, now: datetime
) -> None:
    """Answers, the ranking of the day and the source say what was found."""
    if item.business_id is None:
        raise ValueError(f"analysis {item.analysis_id} has no business")
    keep_mentions(connection, item.analysis_id, analysed)
    overall = analysed.ranking.overall
    before = _last_ranking(connection, item.business_id)
    ranked = RankedAnalysis(business_id=item.business_id, analysis_id=item.analysis_id)
    upsert_ranking(connection, ranked, analysed, now=now)
    crawls.complete(
        connection,
        item.source.id,
        outcome=f"visible in {overall.visibility:.0%} of {overall.answers} answers,"
        f" score {overall.score}",
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


def _in_numbers(analysed: WebsiteAnalysed) -> dict[str, Any]:
    ranking = analysed.ranking
    return {
        "overall": ranking.overall.as_json(),
        "by_provider": ranking.providers_as_json(),
        "competitors": ranking.competitors_as_json(),
        "sentiments": dict(ranking.sentiments),
        "failures": dict(analysed.failures),
        "cost_usd": None if ranking.cost_usd is None else str(ranking.cost_usd),
    }


def _next_task(item: ClaimedPhase, phase: Phase, *, now: datetime) -> Spawning:
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
    return Spawning(parent=item.task, child=child)


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


# --- it did not


def _not_done(
    connection: Connection, one: PhaseNotDone, *, now: datetime, settings: Settings, random: Random
) -> PhasesPersisted:
    item, policy = one.item, phase_policy(settings)
    match after_failure(one.task, one.error, now=now, policy=policy, random=random):
        case Retry(not_before):
            attempts = f"attempt {one.task.attempts} of {policy.max_attempts}"
            _wait(connection, one, f"{attempts} failed: {one.error.text}", now=now)
            lower = _priority(item, retries=one.task.attempts, now=now)
            move = replace(retried(one.task, one.error, not_before=not_before), priority=lower)
            written = PhasesPersisted(word="retried", again_at=not_before)
        case ReleaseTask(not_before):
            _wait(connection, one, f"waits: {one.error.text}", now=now)
            move = released(one.task, one.error, not_before=not_before)
            move = replace(move, priority=min(one.task.priority + 1, LOWEST))
            written = PhasesPersisted(word="given_back", again_at=not_before)
        case DeadLetterTask():
            _give_up(connection, one, now=now, settings=settings, random=random)
            move, written = _given_up(one)
    claims.apply(connection, [replace(move, stage=None)], now=now)  # its worker has not died
    return written


def _wait(connection: Connection, one: PhaseNotDone, message: str, *, now: datetime) -> None:
    connection.execute(
        update(website_analyses)
        .where(website_analyses.c.id == one.item.analysis_id)
        .values(progress_message=storable(message[:2_000]), updated_at=now)
    )


def _give_up(
    connection: Connection, one: PhaseNotDone, *, now: datetime, settings: Settings, random: Random
) -> None:
    """The analysis has failed, with the reason; its source bears a strike if its site is why.

    What robots.txt forbids is no failure of anybody: no dead letter, no strike.
    """
    item, error = one.item, one.error
    why = f"{item.phase.queue}: {error.text}"
    _fail(connection, item.analysis_id, why, now=now, phase=item.phase)
    is_forbidden = error.code == FORBIDDEN
    if not is_forbidden:
        add_dead_letters(
            connection, [DeadLetterEntry(task=one.task, error=error, stack=one.stack)], now=now
        )
    walk = FailedWalk(
        source_id=item.source.id,
        outcome=f"{item.phase.queue} failed ({error.code}): {error.text}",
        error_class=error.error_class.value,
        is_strike=item.task.kind == WEBSITE_INFO and not is_forbidden,
        wall=_wall(error),
    )
    crawls.fail(connection, walk, now=now, settings=settings, random=random)


def _given_up(one: PhaseNotDone) -> tuple[Move, PhasesPersisted]:
    move = failed(one.task, one.error)
    if one.error.code == FORBIDDEN:
        return replace(move, status=TaskStatus.SKIPPED), PhasesPersisted(word="forbidden")
    return move, PhasesPersisted(word="failed")


def _wall(error: WorkError) -> str | None:
    if error.code not in WALL_CODES:
        return None
    return f"behind a {error.code.replace('_', ' ')}: {error.text}"


def _fail(
    connection: Connection, analysis_id: int, why: str, *, now: datetime, phase: Phase
) -> None:
    connection.execute(
        update(website_analyses)
        .where(
            website_analyses.c.id == analysis_id,
            website_analyses.c.status == phase.status.value,
        )
        .values(
            status=AnalysisStatus.FAILED.value,
            current_step=AnalysisStatus.FAILED.value,
            failure=storable(why[:2_000]),
            progress_message="failed",
            finished_at=now,
            updated_at=now,
        )
    )


def _unwanted(connection: Connection, one: NoLongerNeeded, *, now: datetime) -> PhasesPersisted:
    """The task is skipped; an analysis in its phase, which has no other, does not wait for ever."""
    analysis_id: int = one.task.payload.get("analysis", 0)
    _fail(connection, analysis_id, one.why, now=now, phase=BY_KIND[one.task.kind])
    move: Move = replace(
        finished(one.task, status=TaskStatus.SKIPPED), error_code="unwanted", error=one.why[:500]
    )
    claims.apply(connection, [move], now=now)
    return PhasesPersisted(word="unwanted")
