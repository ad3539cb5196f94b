"""Ended tasks: the decision after a failure, the dead letters it leaves, and the counts and totals of runs.

The decision follows from the class of the error and the attempts made. A dead letter keeps payload, error and stack
until an operator replays it, or discards it with a reason. Both are audited and neither deletes anything: the
`maintain` job deletes decided dead letters once they are old enough.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from random import Random
from typing import Any, Self, assert_never

from sqlalchemy import ColumnElement, Connection, RowMapping, func, select, update

from ingestion_pipeline.settings import Work
from ingestion_pipeline.store.statements import audit, insert_into
from ingestion_pipeline.store.tables import ACTIVE, ENDED, OPEN, dead_letters, task_totals, tasks
from ingestion_pipeline.tasks.errors import ErrorClass, Resource, Transient, WorkError, storable
from ingestion_pipeline.tasks.task import ASKED, Task, TaskStatus


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
BACKOFF_JITTER_SHARE = 0.1  # delays grow by up to this
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
    return timedelta(seconds=seconds * (1 + random.random() * BACKOFF_JITTER_SHARE))


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


DECIDED_AT_ONCE = 10_000  # SQLite takes 32,766 parameters; the next command takes the next


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterEntry:
    """A task that is given up, its error, and evidence such as snapshot ids."""

    task: Task
    error: WorkError
    stack: str | None = None
    evidence: Mapping[str, object] = field(default_factory=dict[str, object])


def add_dead_letters(connection: Connection, entries: Sequence[DeadLetterEntry], *, now: datetime) -> None:
    """Write one dead letter per entry, in the transaction that fails the tasks.

    A task that fails with the same error again, as a broken source does at every poll, updates its
    open dead letter: an operator sees it once, with its number of occurrences and its last time.
    """
    if not entries:
        return
    statement = insert_into(connection, dead_letters).values(
        # Sorted by task, the lock order that discarding uses as well.
        [_dead_letter_row(entry, now=now) for entry in sorted(entries, key=lambda entry: entry.task.id)]
    )
    renewed = ("payload", "stage", "error_class", "error", "stack", "attempts", "failed_at")
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["task_id", "error_code"],
            index_where=OPEN,
            set_={name: statement.excluded[name] for name in renewed} | {"occurrences": dead_letters.c.occurrences + 1},
        )
    )


def _dead_letter_row(entry: DeadLetterEntry, *, now: datetime) -> dict[str, object]:
    return {
        "task_id": entry.task.id,
        "task_kind": entry.task.kind,
        "source_id": entry.task.source_id,
        "payload": {"url": entry.task.url, **entry.task.payload, **entry.evidence},
        "stage": entry.task.stage,
        "error_class": entry.error.error_class.value,
        "error_code": entry.error.code,
        "error": entry.error.text,
        "stack": None if entry.stack is None else storable(entry.stack),
        "attempts": entry.task.attempts,
        "tracking_id": entry.task.tracking_id,
        "failed_at": now,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Selects dead letters by error class, by source, or by both; by default all."""

    error_class: str | None = None
    source_id: str | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the conditions for the WHERE of a query."""
        values = {dead_letters.c.error_class: self.error_class, dead_letters.c.source_id: self.source_id}
        return [column == value for column, value in values.items() if value is not None]


ALL = DeadLetterFilter()


def list_dead_letters(
    connection: Connection, selection: DeadLetterFilter = ALL, *, decided: bool = False, limit: int = 1_000
) -> list[RowMapping]:
    """Return dead letters, newest first; by default only the open ones."""
    query = select(dead_letters).where(*selection.conditions())
    if not decided:
        query = query.where(OPEN)
    newest_first = (dead_letters.c.failed_at.desc(), dead_letters.c.id.desc())
    return list(connection.execute(query.order_by(*newest_first).limit(limit)).mappings())


def open_ids(connection: Connection, selection: DeadLetterFilter) -> list[int]:
    """Return the ids of the selected open dead letters, oldest first, at most `DECIDED_AT_ONCE`."""
    query = select(dead_letters.c.id).where(OPEN, *selection.conditions()).order_by(dead_letters.c.id)
    return list(connection.execute(query.limit(DECIDED_AT_ONCE)).scalars())


def dead_letter_groups(connection: Connection, selection: DeadLetterFilter = ALL) -> list[RowMapping]:
    """Return open dead letters grouped by class, source and error code, the largest group first."""
    by = (dead_letters.c.error_class, dead_letters.c.source_id, dead_letters.c.error_code)
    count = func.count().label("dead_letters")
    query = (
        select(
            *by,
            count,
            func.sum(dead_letters.c.occurrences).label("occurrences"),
            func.max(dead_letters.c.failed_at).label("failed_at"),
            func.max(dead_letters.c.id).label("newest"),
        )
        .where(OPEN, *selection.conditions())
        .group_by(*by)
    )
    return list(connection.execute(query.order_by(count.desc(), *by)).mappings())


def find_dead_letter(connection: Connection, dead_letter_id: int) -> RowMapping | None:
    """Return the dead letter with this id; None if there is none."""
    query = select(dead_letters).where(dead_letters.c.id == dead_letter_id)
    return connection.execute(query).mappings().one_or_none()


def state_of(dead_letter: RowMapping | Mapping[str, Any]) -> str:
    """Return `open`, `replayed` or `discarded`."""
    if dead_letter["discarded_at"] is not None:
        return "discarded"
    return "open" if dead_letter["replayed_at"] is None else "replayed"


class UnknownDeadLetter(LookupError):
    """No dead letter has the id."""

    def __init__(self, dead_letter_ids: Sequence[int]) -> None:
        ids = ", ".join(map(str, dead_letter_ids))
        super().__init__(f"there is no dead letter {ids}; `ingest dead-letters list` shows all")


def check_dead_letters(connection: Connection, dead_letter_ids: Sequence[int]) -> None:
    """Raise UnknownDeadLetter with all of these ids that do not exist."""
    query = select(dead_letters.c.id).where(dead_letters.c.id.in_(dead_letter_ids))
    existing = set(connection.execute(query).scalars())
    if unknown := [dead_letter_id for dead_letter_id in dead_letter_ids if dead_letter_id not in existing]:
        raise UnknownDeadLetter(unknown)


Requeue = Callable[[Connection, RowMapping, datetime], str]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The outcome of replaying one dead letter."""

    dead_letter_id: int
    outcome: str

    @property
    def runs_again(self) -> bool:
        """Whether its work is queued or running; otherwise the dead letter stays open."""
        return self.outcome in _RUNS_AGAIN


def replay(
    connection: Connection, dead_letter_id: int, *, actor: str, now: datetime, requeue: Requeue | None = None
) -> str:
    """Make the task due now with all its attempts, or call `requeue` for work that needs more; return the outcome."""
    dead_letter = find_dead_letter(connection, dead_letter_id)
    if dead_letter is None:
        raise UnknownDeadLetter([dead_letter_id])
    outcome = (requeue or requeue_task)(connection, dead_letter, now)
    if outcome in _RUNS_AGAIN:
        connection.execute(
            update(dead_letters)
            .where(dead_letters.c.id == dead_letter_id)
            .values(replayed_at=now, discarded_at=None, discard_reason=None)
        )
    subject = f"dead_letter:{dead_letter_id}"
    detail = {"task": dead_letter["task_id"], "source": dead_letter["source_id"], "outcome": outcome}
    audit(connection, actor=actor, action="dead_letter.replay", subject=subject, now=now, detail=detail)
    return outcome


def discard(
    connection: Connection, dead_letter_ids: Sequence[int], *, reason: str, actor: str, now: datetime
) -> list[int]:
    """Close these dead letters; return the ids of those that were open.

    Their tasks are not changed: work that fails again writes a dead letter again.

    Raises:
        UnknownDeadLetter: nothing was discarded.
        ValueError: the reason is empty.
    """
    if not reason.strip():
        raise ValueError("a dead letter is discarded with a reason: say why nobody has to look at it")
    check_dead_letters(connection, dead_letter_ids)
    lock_dead_letters(connection, dead_letters.c.id.in_(dead_letter_ids))
    statement = (
        update(dead_letters)
        .where(OPEN, dead_letters.c.id.in_(dead_letter_ids))
        .values(discarded_at=now, discard_reason=storable(reason.strip()))
        .returning(dead_letters.c.id)
    )
    closed = sorted(connection.execute(statement).scalars())
    for dead_letter_id in closed:
        subject, detail = f"dead_letter:{dead_letter_id}", {"reason": reason.strip()}
        audit(connection, actor=actor, action="dead_letter.discard", subject=subject, now=now, detail=detail)
    return closed


def lock_dead_letters(connection: Connection, *conditions: ColumnElement[bool]) -> None:
    """Lock the open dead letters that meet the conditions, in the order of their tasks."""
    query = select(dead_letters.c.id).where(OPEN, *conditions)
    in_order = query.order_by(dead_letters.c.task_id, dead_letters.c.id)
    connection.execute(in_order.with_for_update()).all()


_RUNS_AGAIN = {"queued", "already queued", "already running"}


def requeue_task(connection: Connection, dead_letter: RowMapping, now: datetime) -> str:
    """Make a failed task pending again; a permanent task (a poll) that is pending becomes due."""
    task_id: int = dead_letter["task_id"]
    query = select(tasks).where(tasks.c.id == task_id).with_for_update()  # no claim meanwhile
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return "task no longer kept"
    if row["status"] == TaskStatus.PROCESSING.value:
        return "already running"
    if row["status"] in {TaskStatus.SKIPPED.value, TaskStatus.CANCELLED.value}:
        return "its source is disabled"
    twin = select(tasks.c.id).where(ACTIVE, tasks.c.kind == row["kind"], tasks.c.dedupe_key == row["dedupe_key"])
    if row["status"] != TaskStatus.PENDING.value and connection.execute(twin).first() is not None:
        return "already queued"
    connection.execute(
        update(tasks)
        .where(tasks.c.id == task_id)
        .values(status=TaskStatus.PENDING.value, not_before=now, attempts=0, stage=ASKED, updated_at=now)
    )
    return "queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A record of counters that can be added."""

    @classmethod
    def of(cls, counter: Mapping[str, int]) -> Self:
        """Return the record with these counters; names that it does not have are left out."""
        return cls(**{field.name: counter.get(field.name, 0) for field in fields(cls)})

    def __add__(self, other: Self) -> Self:
        """Add the counters field by field."""
        names = [field.name for field in fields(self)]
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})


NO_ERROR = "none"
Ended = tuple[str, str, str]  # kind, status, class of error


@dataclass(frozen=True, slots=True, kw_only=True)
class Total(Counts):
    """How many tasks ended in one way, and the attempts beyond their first."""

    tasks: int = 0
    retries: int = 0


def add_deleted(connection: Connection, deleted: Iterable[tuple[str, str, str | None, int]]) -> None:
    """Count these (kind, status, error class, attempts) in the transaction that deletes them."""
    counts: Counter[Ended] = Counter()
    retries: Counter[Ended] = Counter()
    for kind, status, error_class, attempts in deleted:
        ended = (kind, status, error_class or NO_ERROR)
        counts[ended] += 1
        retries[ended] += max(attempts - 1, 0)
    if not counts:
        return
    names = ("kind", "status", "error_class")
    statement = insert_into(connection, task_totals).values(
        # Sorted, so that two concurrent deletions do not deadlock.
        [
            dict(zip(names, ended, strict=True)) | {"tasks": counts[ended], "retries": retries[ended]}
            for ended in sorted(counts)
        ]
    )
    grown = {name: task_totals.c[name] + statement.excluded[name] for name in ("tasks", "retries")}
    connection.execute(statement.on_conflict_do_update(index_elements=names, set_=grown))


def ended_totals(connection: Connection, kinds: Collection[str] = ()) -> Mapping[Ended, Total]:
    """Return how many tasks of these kinds, or of all, ever ended, by kind, status and error."""
    error = func.coalesce(tasks.c.error_class, NO_ERROR)
    beyond_first = func.coalesce(func.sum(tasks.c.attempts - 1).filter(tasks.c.attempts > 1), 0)
    existing = (
        select(tasks.c.kind, tasks.c.status, error, func.count(), beyond_first)
        .where(ENDED)
        .group_by(tasks.c.kind, tasks.c.status, error)
    )
    names = ("kind", "status", "error_class", "tasks", "retries")
    deleted = select(*(task_totals.c[name] for name in names))
    if kinds:
        existing = existing.where(tasks.c.kind.in_(kinds))
        deleted = deleted.where(task_totals.c.kind.in_(kinds))
    totals: dict[Ended, Total] = {}
    for query in (existing, deleted):
        for kind, status, error_class, count, retries in connection.execute(query).all():
            key = (kind, status, error_class)
            totals[key] = totals.get(key, Total()) + Total(tasks=count, retries=int(retries))
    return dict(sorted(totals.items()))
