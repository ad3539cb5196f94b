"""What detections came to, in one transaction: recipes, notices, first extractions, tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Any

from sqlalchemy import Connection, null

from ingestion_pipeline.catalogs.detection.finding import FoundRecipe
from ingestion_pipeline.catalogs.recipes.stored import (
    MESSAGE_LENGTH,
    DetectedRecipe,
    RecipeStatus,
    detected,
    fingerprint,
    mark,
)
from ingestion_pipeline.notices.subjects import RECIPE, write_notice
from ingestion_pipeline.settings import Work
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.polls import lock_polls, make_due
from ingestion_pipeline.store.locking import lock_rows
from ingestion_pipeline.store.tables import recipes
from ingestion_pipeline.work import claims
from ingestion_pipeline.work.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.work.errors import FORBIDDEN, Resource, WorkError, storable
from ingestion_pipeline.work.retry import DeadLetterTask, ReleaseTask, Retry, after_failure
from ingestion_pipeline.work.task import Move, Task, TaskStatus, failed, finished, released, retried


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeDetected:
    """A detection that found a recipe."""

    task: Task
    source: Source
    found: FoundRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionNotNeeded:
    """A detection that nobody needs any more: a person has written the recipe."""

    task: Task
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionFailed:
    """A detection that did not."""

    task: Task
    source: Source
    error: WorkError
    stack: str | None = None


Result = RecipeDetected | DetectionNotNeeded | DetectionFailed


def write_results(
    connection: Connection,
    results: Sequence[Result],
    *,
    now: datetime,
    policy: Work,
    random: Random,
) -> tuple[dict[str, int], list[datetime]]:
    """Everything that is still ours takes effect; the counts, and when what is retried is due.

    A failure is told only when it is final; a success always. What was looked at under an address
    or a configuration that the source no longer has says nothing: it is looked at again.
    """
    mine = claims.held(connection, [(one.task.id, one.task.fence) for one in results])
    kept = [one for one in results if one.task.id in mine]
    counts = {"found": 0, "failed": 0, "retried": 0, "given_back": 0}
    moves: list[Move] = []
    new: list[str] = []
    again_at: list[datetime] = []
    ids = [one.source.id for one in kept]
    lock_polls(connection, ids)  # before recipes: so has whoever polls and looks for one again
    lock_rows(connection, recipes.c.source_id, ids)
    known, current = detected(connection, ids), sources_by_id(connection, ids)
    for one in kept:
        if isinstance(one, DetectionNotNeeded):
            _stand_aside(connection, one, now=now)
            moves.append(finished(one.task, status=TaskStatus.SKIPPED))
            continue
        if fingerprint(one.source) != fingerprint(current[one.source.id]):
            changed = Resource("the source was changed meanwhile", until=now, code="outdated")
            mark(connection, [one.source.id], RecipeStatus.WAITING, now=now)
            moves.append(released(one.task, changed, not_before=now))
            again_at.append(now)
            counts["given_back"] += 1
            continue
        if isinstance(one, RecipeDetected):
            new += _succeed(connection, one, known.get(one.source.id), now=now)
            moves.append(finished(one.task))
            counts["found"] += 1
            continue
        match after_failure(one.task, one.error, now=now, policy=policy, random=random):
            case Retry(not_before):
                _wait(connection, one, now=now)
                moves.append(retried(one.task, one.error, not_before=not_before))
                again_at.append(not_before)
                counts["retried"] += 1
            case ReleaseTask(not_before):
                _wait(connection, one, now=now)
                moves.append(released(one.task, one.error, not_before=not_before))
                counts["given_back"] += 1
            case DeadLetterTask():
                _give_up(connection, one, now=now)
                moves.append(_given_up(one))
                counts["failed"] += 1
    make_due(connection, new, now=now)
    claims.apply(connection, moves, now=now)
    return counts | {"lost": len(results) - len(kept)}, again_at


def _stand_aside(connection: Connection, one: DetectionNotNeeded, *, now: datetime) -> None:
    """Nothing is told, and nothing failed; it would be looked for if the recipe were taken away."""
    said = "a recipe was written by hand meanwhile: nothing is to be detected"
    mark(
        connection,
        [one.source.id],
        RecipeStatus.WAITING,
        now=now,
        message=said,
        detected_for=null(),
    )


def _succeed(
    connection: Connection, one: RecipeDetected, before: DetectedRecipe | None, *, now: datetime
) -> list[str]:
    """The recipe is followed from now on: a new one at once, by the source that is named then."""
    source, found = one.source, one.found
    mark(
        connection,
        [source.id],
        RecipeStatus.SUCCESS,
        now=now,
        recipe=dict(found.recipe),
        message=_said(found.message),
        evidence=dict(found.evidence),
        detected_for=fingerprint(source),
        notified_at=now,
    )
    _tell(connection, one, RecipeStatus.SUCCESS, found.message, now=now)
    return [source.id] if before is None or before.recipe != found.recipe else []


def _wait(connection: Connection, one: DetectionFailed, *, now: datetime) -> None:
    said = f"attempt {one.task.attempts} came to nothing: {one.error.text}; it is tried again"
    mark(connection, [one.source.id], RecipeStatus.WAITING, now=now, message=_said(said))


def _give_up(connection: Connection, one: DetectionFailed, *, now: datetime) -> None:
    message = _said(one.error.text)
    mark(
        connection,
        [one.source.id],
        RecipeStatus.ERROR,
        now=now,
        message=message,
        evidence={"code": one.error.code, "class": one.error.error_class.value},
        notified_at=now,
    )
    _tell(connection, one, RecipeStatus.ERROR, message, now=now)
    if one.error.code != FORBIDDEN:  # by robots.txt: nobody's fault, and no replay helps
        add_dead_letters(
            connection, [DeadLetterEntry(task=one.task, error=one.error, stack=one.stack)], now=now
        )


def _given_up(one: DetectionFailed) -> Move:
    move = failed(one.task, one.error)
    return replace(move, status=TaskStatus.SKIPPED) if one.error.code == FORBIDDEN else move


def _tell(
    connection: Connection,
    one: RecipeDetected | DetectionFailed,
    status: RecipeStatus,
    message: str,
    *,
    now: datetime,
) -> None:
    """Notify whoever wants recipes of the end of a detection, once."""
    result = "recipe detected" if status is RecipeStatus.SUCCESS else "no recipe detected"
    payload: dict[str, Any] = {
        "source_id": one.source.id,
        "title": f"{one.source.id}: {result}",
        "text": _said(message) or result,
        "name": one.source.name,
        "url": one.source.url,
        "status": status.value,
        "message": _said(message),
    }
    subject_id = f"{one.source.id}:{one.task.id}:{one.task.fence}"
    write_notice(connection, RECIPE, subject_id, payload, now=now)


def _said(message: str) -> str:
    return storable(message[:MESSAGE_LENGTH])
