"""How polls end: their task after a strike, and a line of the log for each."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from ingestion_pipeline.settings.logs import about
from ingestion_pipeline.sources.polling import PollState
from ingestion_pipeline.sources.source import SourceStatus
from ingestion_pipeline.work.errors import WorkError
from ingestion_pipeline.work.task import Move, Task, TaskStatus, finished, rearmed

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
