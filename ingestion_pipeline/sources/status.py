"""The status of sources and their polls: the reason for people, counts, and Dagster reports."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select, update

from ingestion_pipeline.sources.lookup import list_sources, sources_by_id
from ingestion_pipeline.sources.poll_tasks import POLL
from ingestion_pipeline.sources.registry import BY_FILE, REMOVED
from ingestion_pipeline.sources.source import Kind, Source, SourceStatus
from ingestion_pipeline.store.locking import lock_rows
from ingestion_pipeline.store.tables import ACTIVE, OPEN, dead_letters, hosts, outbox, sources, tasks
from ingestion_pipeline.tasks.errors import ErrorClass
from ingestion_pipeline.tasks.task import TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """The state of a source's permanent poll task."""

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
    poll: Poll | None

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
    polls = _polls(connection)
    return [Watched(source=source, poll=polls.get(source.id)) for source in list_sources(connection, kind=kind)]


def watched_source(connection: Connection, source_id: str) -> Watched | None:
    """Return one source with its poll."""
    return watched_by_id(connection, [source_id]).get(source_id)


def watched_by_id(connection: Connection, ids: Sequence[str]) -> dict[str, Watched]:
    """Return these sources with their polls."""
    polls = _polls(connection, *ids)
    by_id = sources_by_id(connection, ids)
    return {id_: Watched(source=source, poll=polls.get(id_)) for id_, source in by_id.items()}


def waiting_hosts(connection: Connection, *, now: datetime) -> list[tuple[str, datetime]]:
    """Return hosts that a run waits for while another has the lease, with since when."""
    query = select(hosts.c.host, hosts.c.requested_at).where(
        hosts.c.requested_at.is_not(None), hosts.c.lease_until > now
    )
    return [(host, since) for host, since in connection.execute(query)]


def _polls(connection: Connection, *ids: str) -> dict[str, Poll]:
    names = tuple(Poll.__dataclass_fields__)
    query = (
        select(tasks.c.source_id, *(tasks.c[name] for name in names))
        .where(tasks.c.kind == POLL, tasks.c.source_id.is_not(None))
        .order_by(tasks.c.id)
    )
    if ids:
        query = query.where(tasks.c.source_id.in_(ids))
    polls: dict[str, Poll] = {}
    for source_id, *row in connection.execute(query):
        values: dict[str, Any] = dict(zip(names, row, strict=True))
        values["status"] = TaskStatus(values["status"])
        polls[source_id] = Poll(**values)
    return polls


def totals(connection: Connection, *, now: datetime) -> Totals:
    """Return the counts of this moment."""
    by_status = select(sources.c.status, func.count().label("sources")).group_by(sources.c.status)
    is_pending = tasks.c.status == TaskStatus.PENDING.value
    is_running = tasks.c.status == TaskStatus.PROCESSING.value
    counts = (
        select(
            func.count().filter(and_(is_pending, tasks.c.not_before <= now)),
            func.count().filter(and_(is_running, tasks.c.lease_until >= now)),
            func.count().filter(and_(is_running, tasks.c.lease_until < now)),
            func.count().filter(and_(is_pending, tasks.c.not_before > now, tasks.c.attempts > 0)),
        )
        .select_from(tasks)
        .where(ACTIVE)
    )
    due, in_progress, abandoned, retrying = connection.execute(counts).one()
    open_dead_letters = select(func.count()).select_from(dead_letters).where(OPEN)
    unhandled = select(func.count()).where(outbox.c.handled_at.is_(None))
    return Totals(
        sources={row.status: row.sources for row in connection.execute(by_status)},
        due=due,
        in_progress=in_progress,
        abandoned=abandoned,
        retrying=retrying,
        dead_letters=connection.execute(open_dead_letters).scalar_one(),
        outbox=connection.execute(unhandled).scalar_one(),
    )


def reason(source: Source, poll: Poll | None, *, now: datetime, max_attempts: int) -> str:
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


def _why_running(poll: Poll, *, now: datetime) -> str:
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


def _why_waiting(source: Source, poll: Poll, *, now: datetime, max_attempts: int) -> str:
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
