"""The decision after a failure, from the class of the error and the attempts made."""

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
    """Try again at `not_before`; the attempt counts."""

    not_before: datetime


@dataclass(frozen=True, slots=True)
class ReleaseTask:
    """Wait until `not_before` through no fault of the work; the attempt does not count."""

    not_before: datetime


@dataclass(frozen=True, slots=True)
class DeadLetterTask:
    """Write a dead letter now."""


BACKOFF_CAP_SECONDS = 3_600
Decision = Retry | ReleaseTask | DeadLetterTask


def after_failure(task: Task, error: WorkError, *, now: datetime, policy: Work, random: Random) -> Decision:
    """Decide to retry, release or dead-letter; the last allowed attempt is dead-lettered."""
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
            retry_after = error.retry_after if isinstance(error, Transient) else None
            return Retry(now + max(backoff(task.attempts, policy, random), retry_after or timedelta(0)))
        case _:
            assert_never(error.error_class)


def backoff(attempts: int, policy: Work, random: Random) -> timedelta:
    """Return the delay after that many attempts: base x 2^(n-1), capped, plus jitter."""
    exponent = min(max(attempts - 1, 0), 62)
    seconds = min(policy.backoff_base_seconds * 2**exponent, BACKOFF_CAP_SECONDS)
    return timedelta(seconds=seconds * (1 + random.random() * policy.backoff_jitter_share))


LONGEST = timedelta(hours=24)


def retry_after(value: str | None, *, now: datetime | None) -> timedelta | None:
    """Return the bounded delay that a Retry-After header asks for, if any; a date needs the server's clock, `now`."""
    text = (value or "").strip()
    if match := re.fullmatch(r"([0-9]+)(\.[0-9]{1,9})?", text):
        seconds = float(match[1][:18] + (match[2] or ""))
        return timedelta(seconds=min(seconds, LONGEST.total_seconds()))
    moment = http_date(text)
    if moment is None or now is None:
        return None
    return min(max(moment - now, timedelta(0)), LONGEST)


def http_date(text: str) -> datetime | None:
    """Return the time that an HTTP header names; None if it is not a date."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):  # the parser's own ways to fail
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
