"""What a failure leads to: a pure decision from the error's class and the attempts made."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import assert_never

from ingestion_pipeline.settings import Work
from ingestion_pipeline.work.errors import ErrorClass, Resource, Transient, WorkError
from ingestion_pipeline.work.task import Task


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again then; the attempt counts."""

    not_before: datetime


@dataclass(frozen=True, slots=True)
class ReleaseTask:
    """Not the work's fault: wait until then; the attempt does not count."""

    not_before: datetime


@dataclass(frozen=True, slots=True)
class DeadLetterTask:
    """A dead letter, now."""


Decision = Retry | ReleaseTask | DeadLetterTask


def after_failure(
    task: Task, error: WorkError, *, now: datetime, policy: Work, random: Random
) -> Decision:
    """Retry, give back or give up; the last allowed attempt that fails is given up at once."""
    match error.error_class:
        case ErrorClass.FATAL:
            return ReleaseTask(now)
        case ErrorClass.RESOURCE:
            return ReleaseTask(error.until if isinstance(error, Resource) else now)
        case ErrorClass.PERMANENT:
            return DeadLetterTask()
        case ErrorClass.TRANSIENT:
            if task.attempts >= policy.max_attempts:
                return DeadLetterTask()
            wished = error.retry_after if isinstance(error, Transient) else None
            return Retry(now + max(backoff(task.attempts, policy, random), wished or timedelta(0)))
        case _:
            assert_never(error.error_class)


def backoff(attempts: int, policy: Work, random: Random) -> timedelta:
    """The delay after that many attempts: base x 2^(n-1), capped, plus jitter."""
    exponent = min(max(attempts - 1, 0), 62)
    seconds = min(policy.backoff_base_seconds * 2**exponent, policy.backoff_cap_seconds)
    return timedelta(seconds=seconds * (1 + random.random() * policy.backoff_jitter_share))
