"""What a failure leads to: a pure decision from the error's class and the attempts made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from random import Random
from typing import assert_never

from ingestion_pipeline.settings import Work
from ingestion_pipeline.tasks.errors import ErrorClass, Resource, Transient, WorkError
from ingestion_pipeline.tasks.task import Task


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


LONGEST = timedelta(hours=24)


def retry_after(
    value: str | None, *, now: datetime | None, longest: timedelta = LONGEST
) -> timedelta | None:
    """How long the other side wants to be left alone, within bounds; None when it is silent.

    Without `now`, which is their clock where they tell it, a date says nothing.
    """
    text = (value or "").strip()
    if found := re.fullmatch(r"([0-9]+)(\.[0-9]{1,9})?", text):
        seconds = float(found[1][:18] + (found[2] or ""))
        return min(timedelta(seconds=min(seconds, longest.total_seconds())), longest)
    moment = http_date(text)
    if moment is None or now is None:
        return None
    return min(max(moment - now, timedelta(0)), longest)


def http_date(text: str) -> datetime | None:
    """The moment that an HTTP header names; None if it names none."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):  # the parser's own ways to fail
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
