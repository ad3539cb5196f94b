"""The status of sources and their polls: health with its reason, the alerts that follow, counts, and Dagster reports.

A `Health` describes a source at this moment, by its row and its poll; it is computed whenever it is
displayed. A `HealthState` is what was reported last: it changes when the health has changed for
good, and only then is an alert sent, however often the health is computed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnExpressionArgument, Connection, and_, func, or_, select, update

from ingestion_pipeline.settings.groups import HealthLimits as Limits
from ingestion_pipeline.sources.lookup import list_sources, sources_by_id
from ingestion_pipeline.sources.poll_tasks import POLL
from ingestion_pipeline.sources.registry import BY_FILE, REMOVED
from ingestion_pipeline.sources.scheduling.tiers import is_disabled_by_system
from ingestion_pipeline.sources.source import QUARANTINED, Kind, Source, SourceStatus, Tier
from ingestion_pipeline.store.statements import lock_rows
from ingestion_pipeline.store.tables import ACTIVE, OPEN, dead_letters, hosts, outbox, sources, tasks
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

    `held_back` is why its system shows older data though its polls succeed; `accepted_at` is when
    data of it was last shown, after a poll or by an operator.
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
    accepted_at: datetime | None = None


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
    """Return whether it was read since the report, or data that was held back was accepted."""
    if facts.last_success_at != reported.success_before:
        return True
    if facts.accepted_at is None or reported.since is None:
        return False
    return reported.state is HealthState.DEGRADED and facts.accepted_at >= reported.since


def _held_back(facts: Facts, age: timedelta, now: datetime) -> str | None:
    """Return why its data may be stale though no poll has failed; None if it is current."""
    if facts.last_outcome is not None and facts.last_outcome.startswith(QUARANTINED):
        return facts.last_outcome
    if facts.held_back is not None:
        return facts.held_back
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """The state of a source's task: of its permanent poll, or of work that is under way."""

    status: TaskStatus
    attempts: int
    not_before: datetime
    lease_until: datetime | None
    stage: str | None
    error_class: str | None
    error_code: str | None
    error: str | None
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A source and its poll task; a source that was never enabled has none."""

    source: Source
    poll: TaskState | None

    @property
    def next_check_at(self) -> datetime | None:
        """Return when it is polled next: a retry or a pause may differ from its regular check."""
        if self.source.status in {SourceStatus.DISABLED, SourceStatus.PENDING_VALIDATION}:
            return None
        if self.poll is not None and self.poll.status is TaskStatus.PENDING:
            return self.poll.not_before
        return self.source.next_check_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts of sources, tasks, dead letters and outbox; `due` to `retrying` count all tasks."""

    sources: dict[str, int]
    due: int
    in_progress: int
    abandoned: int
    retrying: int
    dead_letters: int
    outbox: int


def watched_sources(connection: Connection, *, kind: Kind | None = None) -> list[Watched]:
    """Return every source with its poll, by id."""
    polls = task_states(connection, tasks.c.kind == POLL)
    return [Watched(source=source, poll=polls.get(source.id)) for source in list_sources(connection, kind=kind)]


def watched_source(connection: Connection, source_id: str) -> Watched | None:
    """Return one source with its poll."""
    return watched_by_id(connection, [source_id]).get(source_id)


def watched_by_id(connection: Connection, ids: Sequence[str]) -> dict[str, Watched]:
    """Return these sources with their polls."""
    polls = task_states(connection, tasks.c.kind == POLL, tasks.c.source_id.in_(ids))
    by_id = sources_by_id(connection, ids)
    return {id_: Watched(source=source, poll=polls.get(id_)) for id_, source in by_id.items()}


def waiting_hosts(connection: Connection, *, now: datetime) -> list[tuple[str, datetime]]:
    """Return hosts that a run waits for while another has the lease, with since when."""
    query = select(hosts.c.host, hosts.c.requested_at).where(
        hosts.c.requested_at.is_not(None), hosts.c.lease_until > now
    )
    return [(host, since) for host, since in connection.execute(query)]


def task_states(connection: Connection, *those: ColumnExpressionArgument[bool]) -> dict[str, TaskState]:
    """Return the newest of these tasks of each source."""
    names = tuple(TaskState.__dataclass_fields__)
    query = select(tasks.c.source_id, *(tasks.c[name] for name in names)).where(tasks.c.source_id.is_not(None), *those)
    states: dict[str, TaskState] = {}
    for source_id, *row in connection.execute(query.order_by(tasks.c.id)):
        values: dict[str, Any] = dict(zip(names, row, strict=True))
        values["status"] = TaskStatus(values["status"])
        states[source_id] = TaskState(**values)
    return states


def totals(connection: Connection, *, now: datetime) -> Totals:
    """Return the counts of this moment."""
    by_status = select(sources.c.status, func.count().label("sources")).group_by(sources.c.status)
    is_pending = tasks.c.status == TaskStatus.PENDING.value
    is_running = tasks.c.status == TaskStatus.PROCESSING.value
    counts = {
        "due": and_(is_pending, tasks.c.not_before <= now),
        "in_progress": and_(is_running, tasks.c.lease_until >= now),
        "abandoned": and_(is_running, tasks.c.lease_until < now),
        "retrying": and_(is_pending, tasks.c.not_before > now, tasks.c.attempts > 0),
    }
    columns = (func.count().filter(those).label(name) for name, those in counts.items())
    row: dict[str, Any] = dict(connection.execute(select(*columns).select_from(tasks).where(ACTIVE)).mappings().one())
    open_dead_letters = select(func.count()).select_from(dead_letters).where(OPEN)
    unhandled = select(func.count()).where(outbox.c.handled_at.is_(None))
    return Totals(
        sources={row.status: row.sources for row in connection.execute(by_status)},
        dead_letters=connection.execute(open_dead_letters).scalar_one(),
        outbox=connection.execute(unhandled).scalar_one(),
        **row,
    )


def reason(source: Source, poll: TaskState | None, *, now: datetime, max_attempts: int) -> str:
    """Return why the source was or was not polled, in a sentence for people."""
    if source.status is SourceStatus.DISABLED:
        return _why_disabled(source)
    if source.status is SourceStatus.PENDING_VALIDATION:
        return f"waits for approval, {source.status_reason or 'no reason given'}"
    cure = f"`ingest sources enable {source.id}`"
    if poll is None:
        return f"not polled: it has no poll task; {cure} makes one"
    match poll.status:
        case TaskStatus.PROCESSING:
            return _why_running(poll, now=now)
        case TaskStatus.PENDING:
            return _why_waiting(source, poll, now=now, max_attempts=max_attempts)
        case _:
            died_of = f" ({poll.error})" if poll.error else ""
            return f"not polled: its poll task is {poll.status.value}{died_of}; {cure} requeues it"


def _why_disabled(source: Source) -> str:
    why = source.status_reason or "disabled, no reason given"
    if why == BY_FILE:
        return f"{why} in {source.origin}"
    return why if why == REMOVED or why.startswith("disabled") else f"disabled by {why}"


def _why_running(poll: TaskState, *, now: datetime) -> str:
    stage = f", {poll.stage}" if poll.stage else ""
    if poll.lease_until is None or poll.lease_until >= now:
        return f"being polled since {_at(poll.updated_at, now)} (attempt {poll.attempts}{stage})"
    since = _at(poll.lease_until, now)
    return f"its worker was lost at {since}{stage}; the next run takes over"


# Why a poll was released without being its source's fault, by the code of the error.
_HELD = {
    "host_busy": "host busy (another run has its lease)",
    "host_yielded": "host handed to another run",
    "rate_limited": "rate limited",
    "crawl_delay": "waiting for the delay that the host's robots.txt asks for,",
    "slice_over": "the last run's time was over",
}


def _why_waiting(source: Source, poll: TaskState, *, now: datetime, max_attempts: int) -> str:
    is_due = poll.not_before <= now
    when = f"due since {_at(poll.not_before, now)}" if is_due else f"until {_at(poll.not_before, now)}"
    if poll.error_class == ErrorClass.RESOURCE.value:
        held = _HELD.get(poll.error_code or "", poll.error or "held back")
        return f"{held}; {when}" if is_due else f"{held} {when}"
    if poll.attempts:
        nth = f"retrying, attempt {poll.attempts + 1}/{max_attempts}"
        return f"{nth} {'now' if is_due else 'at ' + _at(poll.not_before, now)}: {poll.error}"
    last = source.last_outcome or "never polled"
    if source.status is SourceStatus.OPEN:
        opened = f"breaker open {when} after {source.failure_count} failed polls"
        return f"{opened}; last: {last}"
    return f"{last}; {when if is_due else 'waiting ' + when}"


def _at(moment: datetime, now: datetime) -> str:
    """Return the time of day, with the date unless it is today's."""
    is_today = moment.date() == now.date()
    return f"{moment:%H:%M:%S} UTC" if is_today else f"{moment:%Y-%m-%d %H:%M} UTC"


def unreported(connection: Connection, kinds: Collection[Kind], *, limit: int) -> list[str]:
    """Return sources of these kinds that changed since the last Dagster report, oldest first."""
    query = (
        select(sources.c.id)
        .where(
            sources.c.kind.in_([kind.value for kind in kinds]),
            sources.c.last_changed_at.is_not(None),
            or_(sources.c.reported_at.is_(None), sources.c.last_changed_at > sources.c.reported_at),
        )
        .order_by(sources.c.last_changed_at)
        .limit(limit)
        # Another run may be reporting the same ones.
        .with_for_update(skip_locked=True, key_share=True)
    )
    return list(connection.execute(query).scalars())


def lock_sources(connection: Connection, source_ids: Collection[str]) -> None:
    """Lock the sources so that no poll of theirs ends, uncounted, during this transaction."""
    lock_rows(connection, sources.c.id, source_ids)


def mark_reported(connection: Connection, source_ids: Collection[str]) -> None:
    """Record that Dagster has the report of everything up to now; reset the counters."""
    connection.execute(
        update(sources)
        .where(sources.c.id.in_(list(source_ids)))
        .values(
            reported_at=func.coalesce(sources.c.last_changed_at, sources.c.reported_at),
            unreported_polls=0,
            unreported_changes=0,
            unreported_updated=0,
            unreported_withdrawn=0,
        )
    )
