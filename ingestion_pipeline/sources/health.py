"""How well a source is, in a word with its reason, and what of that is told to whom. Pure.

A word is what a source is at this moment, by its row and its poll; it is computed whenever somebody
looks. A state is what was told last: it changes when a word says something else for good, and only
then is anybody told, however often and by however many it is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from ingestion_pipeline.settings.polling import Health as Limits
from ingestion_pipeline.sources.scheduling.tiers import is_disabled_by_us
from ingestion_pipeline.sources.source import QUARANTINED, Kind, SourceStatus, Tier
from ingestion_pipeline.tasks.errors import ErrorClass
from ingestion_pipeline.tasks.task import TaskStatus


class Health(StrEnum):
    """The words, the worst first: that is the order in which they are shown."""

    OPEN = "open"
    DISABLED = "disabled"
    DEGRADED = "degraded"
    LATE = "late"
    UNSTEADY = "unsteady"
    WAITING = "waiting"
    HEALTHY = "healthy"
    OFF = "off"


PLACES = {word: place for place, word in enumerate(Health)}
UNWELL = frozenset({Health.OPEN, Health.DISABLED, Health.DEGRADED})


class HealthState(StrEnum):
    """What was told of a source last; `undecided` was unwell, and an operator tries it again."""

    WELL = "well"
    UNDECIDED = "undecided"
    DEGRADED = "degraded"
    OPEN = "open"
    DISABLED = "disabled"


class Alert(StrEnum):
    """What is told when a state changes: the kinds that recipients name."""

    DEGRADED = "source_degraded"
    RECOVERED = "source_recovered"
    OPENED = "breaker_opened"
    DISABLED = "source_disabled"


# Who holds a poll back that is nobody's failure: the other side, not we.
THEIR_PAUSES = frozenset({"rate_limited", "robots_unavailable"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a source; `held_by` is the code of what holds its poll back, if anything.

    `held_back` says which dataset of it is not believed, and why; `missing` that its last crawl
    went without pages that stated records; `shown_at` is when a dataset was last published, by its
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
    """The state of a source as it was told last; `changes` counts the states it has had."""

    state: HealthState = HealthState.WELL
    since: datetime | None = None
    changes: int = 0
    success_before: datetime | None = None


NEVER = ReportedHealth()


@dataclass(frozen=True, slots=True)
class HealthStatus:
    """A word and its reason, for people."""

    health: Health
    reason: str


def health_of(
    facts: Facts, *, told: ReportedHealth = NEVER, now: datetime, limits: Limits
) -> HealthStatus:
    """How well the source is."""
    match facts.status:
        case SourceStatus.DISABLED:
            word = Health.DISABLED if is_disabled_by_us(facts.status_reason) else Health.OFF
            return HealthStatus(word, facts.status_reason or "disabled, and nobody said why")
        case SourceStatus.PENDING_VALIDATION:
            return HealthStatus(Health.WAITING, "waits for approval")
        case SourceStatus.OPEN:
            return HealthStatus(Health.OPEN, f"breaker open: {_failures(facts)}")
        case SourceStatus.ACTIVE:
            return _of_polled(facts, told, now, limits)


def _of_polled(facts: Facts, told: ReportedHealth, now: datetime, limits: Limits) -> HealthStatus:
    if facts.failure_count:
        needed = failures_needed(facts.error_class, told, now=now, limits=limits)
        word = Health.DEGRADED if facts.failure_count >= needed else Health.UNSTEADY
        return HealthStatus(word, _failures(facts))
    age = overdue(facts, now)
    if (why := _held_back(facts, age, now)) is not None:
        return HealthStatus(Health.DEGRADED, why)
    if is_late(facts, now, limits):
        held = f" ({facts.held_by})" if facts.held_by else ""
        return HealthStatus(Health.LATE, f"due for {_span(age)} and not polled{held}")
    if told.state is not HealthState.WELL and not _is_decided(facts, told):
        return HealthStatus(Health.WAITING, "tried again: its next poll decides")
    if facts.last_success_at is None:
        return HealthStatus(Health.WAITING, "not read yet")
    return HealthStatus(Health.HEALTHY, "its last poll succeeded")


def failures_needed(
    error_class: str | None, told: ReportedHealth, *, now: datetime, limits: Limits
) -> int:
    """How many failed polls in a row degrade a source.

    One is enough where waiting cannot help; who has just recovered gets more time, so that a source
    which comes and goes is not told of at every turn.
    """
    window = timedelta(seconds=limits.flapping_seconds)
    is_back = told.state is HealthState.WELL
    if is_back and told.since is not None and now - told.since < window:
        return 2 * limits.degraded_failures
    is_final = error_class == ErrorClass.PERMANENT.value
    return 1 if is_final or told.state is HealthState.DEGRADED else limits.degraded_failures


def is_late(facts: Facts, now: datetime, limits: Limits) -> bool:
    """Whether nobody has come for its poll for longer than is usual."""
    return overdue(facts, now) > min(facts.interval, timedelta(seconds=limits.late_seconds))


def overdue(facts: Facts, now: datetime) -> timedelta:
    """How long nobody has come for a poll that is due; nothing, while somebody has it."""
    match facts.poll:
        case TaskStatus.PENDING if facts.due_at is not None:
            return now - facts.due_at
        case TaskStatus.PROCESSING if facts.lease_until is not None:
            return now - facts.lease_until
        case _:
            return facts.interval + (now - (facts.last_success_at or facts.created_at))


def _is_decided(facts: Facts, told: ReportedHealth) -> bool:
    """Whether it was read since it was told of, or somebody accepted what was held back of it."""
    if facts.last_success_at != told.success_before:
        return True
    if facts.shown_at is None or told.since is None:
        return False
    return told.state is HealthState.DEGRADED and facts.shown_at >= told.since


def _held_back(facts: Facts, age: timedelta, now: datetime) -> str | None:
    """Why not all that is shown of it is new, though no poll has failed; None if it may be."""
    if facts.last_outcome is not None and facts.last_outcome.startswith(QUARANTINED):
        return facts.last_outcome
    if facts.held_back is not None:
        return f"{QUARANTINED}: {facts.held_back}; the last good data stays"
    if facts.missing is not None:
        return facts.missing
    if _is_starved(facts, age, now):
        return f"held back by its server ({facts.held_by}) for too long"
    return None


def _is_starved(facts: Facts, overdue: timedelta, now: datetime) -> bool:
    """Whether the other side asks for pause after pause, and nothing came for several intervals."""
    silent = now - (facts.last_success_at or facts.created_at) > facts.patience
    return facts.held_by in THEIR_PAUSES and silent and overdue <= facts.interval


def next_state(told: HealthState, health: Health) -> tuple[HealthState, Alert | None]:
    """The state after this word, and what is told; an unchanged state is told to nobody."""
    match health:
        case Health.OPEN | Health.DISABLED | Health.DEGRADED:
            state = HealthState(health.value)
            return state, None if state is told else _ALERTS[state]
        case Health.HEALTHY:
            return HealthState.WELL, None if told is HealthState.WELL else Alert.RECOVERED
        case Health.OFF:
            return HealthState.WELL, None  # whoever switched it off knows
        case Health.WAITING:
            return told if told is HealthState.WELL else HealthState.UNDECIDED, None
        case Health.LATE | Health.UNSTEADY:
            return told, None


_ALERTS = {
    HealthState.OPEN: Alert.OPENED,
    HealthState.DISABLED: Alert.DISABLED,
    HealthState.DEGRADED: Alert.DEGRADED,
}


def _failures(facts: Facts) -> str:
    count = facts.failure_count
    polls = "1 failed poll" if count == 1 else f"{count} failed polls in a row"
    last = (
        f", last success {facts.last_success_at:%Y-%m-%d %H:%M} UTC"
        if facts.last_success_at
        else ""
    )
    return f"{polls}{last or ', never a success'}; {facts.last_outcome or 'no outcome'}"


def _span(length: timedelta) -> str:
    hours, minutes = divmod(int(length.total_seconds() // 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


SHOWN = 20  # findings written out; their number tells of the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be; a warning, unless `is_error`."""

    subject: str
    message: str
    is_error: bool = False


def summary(findings: Sequence[Finding]) -> str:
    """The first findings, a line each."""
    lines = [f"{one.subject}: {one.message}" for one in findings[:SHOWN]]
    more = len(findings) - SHOWN
    return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])])
