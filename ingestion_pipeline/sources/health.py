"""Health of a source, with its reason, and the alerts that follow from it. Pure.

A `Health` describes a source at this moment, by its row and its poll; it is computed whenever it is
displayed. A `HealthState` is what was reported last: it changes when the health has changed for
good, and only then is an alert sent, however often the health is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from ingestion_pipeline.settings.groups import HealthLimits as Limits
from ingestion_pipeline.sources.scheduling.tiers import is_disabled_by_system
from ingestion_pipeline.sources.source import QUARANTINED, Kind, SourceStatus, Tier
from ingestion_pipeline.tasks.errors import ErrorClass
from ingestion_pipeline.tasks.task import TaskStatus


class Health(StrEnum):
    """The health of a source, the worst first: that is the order in which they are shown."""

    OPEN = "open"
    DISABLED = "disabled"
    DEGRADED = "degraded"
    LATE = "late"
    UNSTEADY = "unsteady"
    WAITING = "waiting"
    HEALTHY = "healthy"
    OFF = "off"


FLAPPING = timedelta(days=1)  # who recovered this lately is degraded by twice as many failures
HEALTH_ORDER = {word: place for place, word in enumerate(Health)}
UNHEALTHY = frozenset({Health.OPEN, Health.DISABLED, Health.DEGRADED})


class HealthState(StrEnum):
    """The last reported state; `undecided` was unwell, and an operator has it tried again."""

    WELL = "well"
    UNDECIDED = "undecided"
    DEGRADED = "degraded"
    OPEN = "open"
    DISABLED = "disabled"


class Alert(StrEnum):
    """The alert of a state change: the kinds that recipients name."""

    DEGRADED = "source_degraded"
    RECOVERED = "source_recovered"
    OPENED = "breaker_opened"
    DISABLED = "source_disabled"


# Codes of released polls that the server caused, not we; they are no failures.
SERVER_PAUSES = frozenset({"rate_limited", "robots_unavailable"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a source; `held_by` is the code of what holds its poll back, if anything.

    `held_back` says which dataset of it is quarantined, and why; `missing` that its last crawl
    lacked pages that stated records; `shown_at` is when a dataset was last published, by its
    extraction or by an operator.
    """

    id: str
    kind: Kind
    tier: Tier
    status: SourceStatus
    status_reason: str | None
    failure_count: int
    error_class: str | None
    last_outcome: str | None
    last_success_at: datetime | None
    created_at: datetime
    interval: timedelta
    patience: timedelta
    poll: TaskStatus | None
    due_at: datetime | None
    lease_until: datetime | None
    held_by: str | None
    held_back: str | None = None
    missing: str | None = None
    shown_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedHealth:
    """The last reported state of a source; `changes` counts the states it has had."""

    state: HealthState = HealthState.WELL
    since: datetime | None = None
    changes: int = 0
    success_before: datetime | None = None


NEVER_REPORTED = ReportedHealth()


@dataclass(frozen=True, slots=True)
class HealthStatus:
    """A health and its reason, for people."""

    health: Health
    reason: str


def health_of(
    facts: Facts, *, reported: ReportedHealth = NEVER_REPORTED, now: datetime, limits: Limits
) -> HealthStatus:
    """Return the health of the source, with its reason."""
    match facts.status:
        case SourceStatus.DISABLED:
            health = Health.DISABLED if is_disabled_by_system(facts.status_reason) else Health.OFF
            return HealthStatus(health, facts.status_reason or "disabled, no reason given")
        case SourceStatus.PENDING_VALIDATION:
            return HealthStatus(Health.WAITING, "waits for approval")
        case SourceStatus.OPEN:
            return HealthStatus(Health.OPEN, f"breaker open: {_failures(facts)}")
        case SourceStatus.ACTIVE:
            return _of_polled(facts, reported, now, limits)


def _of_polled(facts: Facts, reported: ReportedHealth, now: datetime, limits: Limits) -> HealthStatus:
    if facts.failure_count:
        needed = failures_needed(facts.error_class, reported, now=now, limits=limits)
        health = Health.DEGRADED if facts.failure_count >= needed else Health.UNSTEADY
        return HealthStatus(health, _failures(facts))
    age = overdue(facts, now)
    if (why := _held_back(facts, age, now)) is not None:
        return HealthStatus(Health.DEGRADED, why)
    if is_late(facts, now, limits):
        held = f" ({facts.held_by})" if facts.held_by else ""
        return HealthStatus(Health.LATE, f"due for {_span(age)} and not polled{held}")
    if reported.state is not HealthState.WELL and not _is_decided(facts, reported):
        return HealthStatus(Health.WAITING, "tried again: its next poll decides")
    if facts.last_success_at is None:
        return HealthStatus(Health.WAITING, "not read yet")
    return HealthStatus(Health.HEALTHY, "its last poll succeeded")


def failures_needed(error_class: str | None, reported: ReportedHealth, *, now: datetime, limits: Limits) -> int:
    """Return how many failed polls in a row degrade a source.

    One is enough where waiting cannot help; a source that has just recovered gets more time, so
    that a flapping source does not alert at every turn.
    """
    is_back = reported.state is HealthState.WELL
    if is_back and reported.since is not None and now - reported.since < FLAPPING:
        return 2 * limits.degraded_failures
    is_final = error_class == ErrorClass.PERMANENT.value
    return 1 if is_final or reported.state is HealthState.DEGRADED else limits.degraded_failures


def is_late(facts: Facts, now: datetime, limits: Limits) -> bool:
    """Return whether its poll has been due for longer than usual."""
    return overdue(facts, now) > min(facts.interval, timedelta(seconds=limits.late_seconds))


def overdue(facts: Facts, now: datetime) -> timedelta:
    """Return how long a due poll has not been claimed; negative or zero while it is claimed."""
    match facts.poll:
        case TaskStatus.PENDING if facts.due_at is not None:
            return now - facts.due_at
        case TaskStatus.PROCESSING if facts.lease_until is not None:
            return now - facts.lease_until
        case _:
            return facts.interval + (now - (facts.last_success_at or facts.created_at))


def _is_decided(facts: Facts, reported: ReportedHealth) -> bool:
    """Return whether it was read since the report, or a quarantined dataset was published."""
    if facts.last_success_at != reported.success_before:
        return True
    if facts.shown_at is None or reported.since is None:
        return False
    return reported.state is HealthState.DEGRADED and facts.shown_at >= reported.since


def _held_back(facts: Facts, age: timedelta, now: datetime) -> str | None:
    """Return why its data may be stale though no poll has failed; None if it is current."""
    if facts.last_outcome is not None and facts.last_outcome.startswith(QUARANTINED):
        return facts.last_outcome
    if facts.held_back is not None:
        return f"{QUARANTINED}: {facts.held_back}; the last good data stays"
    if facts.missing is not None:
        return facts.missing
    # Its server keeps asking for pauses, without success for several intervals.
    is_without_success = now - (facts.last_success_at or facts.created_at) > facts.patience
    if facts.held_by in SERVER_PAUSES and is_without_success and age <= facts.interval:
        return f"held back by its server ({facts.held_by}) for too long"
    return None


def next_state(reported: HealthState, health: Health) -> tuple[HealthState, Alert | None]:
    """Return the state after this health, and the alert; an unchanged state has none."""
    match health:
        case Health.OPEN | Health.DISABLED | Health.DEGRADED:
            state = HealthState(health.value)
            return state, None if state is reported else _ALERTS[state]
        case Health.HEALTHY:
            return HealthState.WELL, None if reported is HealthState.WELL else Alert.RECOVERED
        case Health.OFF:
            return HealthState.WELL, None  # the operator who disabled it knows
        case Health.WAITING:
            return reported if reported is HealthState.WELL else HealthState.UNDECIDED, None
        case Health.LATE | Health.UNSTEADY:
            return reported, None


_ALERTS = {HealthState.OPEN: Alert.OPENED, HealthState.DISABLED: Alert.DISABLED, HealthState.DEGRADED: Alert.DEGRADED}


def _failures(facts: Facts) -> str:
    count = facts.failure_count
    polls = "1 failed poll" if count == 1 else f"{count} failed polls in a row"
    last = f", last success {facts.last_success_at:%Y-%m-%d %H:%M} UTC" if facts.last_success_at else ""
    return f"{polls}{last or ', never a success'}; {facts.last_outcome or 'no outcome'}"


def _span(length: timedelta) -> str:
    hours, minutes = divmod(int(length.total_seconds() // 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


MAX_SUMMARY_FINDINGS = 20  # the others are only counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem of the system; a warning, unless `is_error`."""

    subject: str
    message: str
    is_error: bool = False


def summary(findings: Sequence[Finding]) -> str:
    """Return the first findings, one per line."""
    lines = [f"{finding.subject}: {finding.message}" for finding in findings[:MAX_SUMMARY_FINDINGS]]
    more = len(findings) - MAX_SUMMARY_FINDINGS
    return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])])
