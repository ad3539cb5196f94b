"""Dead letters: failed tasks, stored with payload, error and stack until an operator decides.

An operator replays a dead letter, or discards it with a reason. Both are audited and neither
deletes anything: the `maintain` job deletes decided dead letters once they are old enough.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, func, select, update

from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import ACTIVE, OPEN, dead_letters, tasks
from ingestion_pipeline.tasks.errors import WorkError, storable
from ingestion_pipeline.tasks.task import ASKED, Task, TaskStatus

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
    count = func.count().label("letters")
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
    """Check that every one of these dead letters exists.

    Raises:
        UnknownDeadLetter: with all ids that do not exist.
    """
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
    detail = {"task": dead_letter["task_id"], "source": dead_letter["source_id"], "outcome": outcome}
    _audit(connection, "replay", dead_letter_id, detail, actor=actor, now=now)
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
        detail = {"reason": reason.strip()}
        _audit(connection, "discard", dead_letter_id, detail, actor=actor, now=now)
    return closed


def lock_dead_letters(connection: Connection, *conditions: ColumnElement[bool]) -> None:
    """Lock the open dead letters that meet the conditions, in the order of their tasks."""
    query = select(dead_letters.c.id).where(OPEN, *conditions)
    in_order = query.order_by(dead_letters.c.task_id, dead_letters.c.id)
    connection.execute(in_order.with_for_update()).all()


def _audit(
    connection: Connection, action: str, dead_letter_id: int, detail: Mapping[str, object], *, actor: str, now: datetime
) -> None:
    audit(
        connection,
        actor=actor,
        action=f"dead_letter.{action}",
        subject=f"dead_letter:{dead_letter_id}",
        now=now,
        detail=dict(detail),
    )


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
