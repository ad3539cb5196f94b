"""Work that was given up: kept with payload, error and stack until an operator has decided.

He replays it, or discards it with his reason. Both are audited, and neither deletes anything:
`maintain` does, once a letter that was decided is old enough.
"""

from __future__ import annotations

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
    """One task that is given up, with what it died of, and what is to be looked at."""

    task: Task
    error: WorkError
    stack: str | None = None
    evidence: Mapping[str, object] = field(default_factory=dict[str, object])


def add_dead_letters(
    connection: Connection, burials: Sequence[DeadLetterEntry], *, now: datetime
) -> None:
    """One dead letter each, in the transaction that gives the tasks up.

    A task that dies of the same error again, as a broken source does at every poll, adds to its
    open letter: what an operator has to look at is listed once, with how often and when last.
    """
    if not burials:
        return
    statement = insert_into(connection, dead_letters).values(
        # In one order, as whoever discards them has them.
        [_dead_letter_row(one, now=now) for one in sorted(burials, key=lambda one: one.task.id)]
    )
    renewed = ("payload", "stage", "error_class", "error", "stack", "attempts", "failed_at")
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["task_id", "error_code"],
            index_where=OPEN,
            set_={name: statement.excluded[name] for name in renewed}
            | {"occurrences": dead_letters.c.occurrences + 1},
        )
    )


def _dead_letter_row(one: DeadLetterEntry, *, now: datetime) -> dict[str, object]:
    return {
        "task_id": one.task.id,
        "task_kind": one.task.kind,
        "source_id": one.task.source_id,
        "payload": {"url": one.task.url, **one.task.payload, **one.evidence},
        "stage": one.task.stage,
        "error_class": one.error.error_class.value,
        "error_code": one.error.code,
        "error": one.error.text,
        "stack": None if one.stack is None else storable(one.stack),
        "attempts": one.task.attempts,
        "tracking_id": one.task.tracking_id,
        "failed_at": now,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which letters: all, or those of a class, of a source, of both."""

    error_class: str | None = None
    source_id: str | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """For a query's WHERE."""
        given = {
            dead_letters.c.error_class: self.error_class,
            dead_letters.c.source_id: self.source_id,
        }
        return [column == value for column, value in given.items() if value is not None]


ALL = Chosen()


def list_dead_letters(
    connection: Connection, chosen: Chosen = ALL, *, decided: bool = False, limit: int = 1_000
) -> list[RowMapping]:
    """Newest first; by default those about which nobody has decided yet."""
    query = select(dead_letters).where(*chosen.conditions())
    if not decided:
        query = query.where(OPEN)
    newest_first = (dead_letters.c.failed_at.desc(), dead_letters.c.id.desc())
    return list(connection.execute(query.order_by(*newest_first).limit(limit)).mappings())


def open_ids(connection: Connection, chosen: Chosen) -> list[int]:
    """The open letters that were chosen, oldest first; at most so many as one command takes."""
    query = select(dead_letters.c.id).where(OPEN, *chosen.conditions()).order_by(dead_letters.c.id)
    return list(connection.execute(query.limit(DECIDED_AT_ONCE)).scalars())


def dead_letter_groups(connection: Connection, chosen: Chosen = ALL) -> list[RowMapping]:
    """Open letters that have class, source and error in common, the most numerous first."""
    by = (dead_letters.c.error_class, dead_letters.c.source_id, dead_letters.c.error_code)
    letters = func.count().label("letters")
    query = (
        select(
            *by,
            letters,
            func.sum(dead_letters.c.occurrences).label("occurrences"),
            func.max(dead_letters.c.failed_at).label("failed_at"),
            func.max(dead_letters.c.id).label("newest"),
        )
        .where(OPEN, *chosen.conditions())
        .group_by(*by)
    )
    return list(connection.execute(query.order_by(letters.desc(), *by)).mappings())


def find_dead_letter(connection: Connection, letter_id: int) -> RowMapping | None:
    """The dead letter with this id."""
    query = select(dead_letters).where(dead_letters.c.id == letter_id)
    return connection.execute(query).mappings().one_or_none()


def state_of(letter: RowMapping | Mapping[str, Any]) -> str:
    """`open`, `replayed`, or `discarded`, in a word for people."""
    if letter["discarded_at"] is not None:
        return "discarded"
    return "open" if letter["replayed_at"] is None else "replayed"


class UnknownDeadLetter(LookupError):
    """An id that no dead letter has."""

    def __init__(self, letter_ids: Sequence[int]) -> None:
        said = ", ".join(map(str, letter_ids))
        super().__init__(f"there is no dead letter {said}; `ingest dead-letters list` shows all")


def check_dead_letters(connection: Connection, letter_ids: Sequence[int]) -> None:
    """Nothing is done to any of them unless each exists.

    Raises:
        UnknownLetter: with all that do not.
    """
    query = select(dead_letters.c.id).where(dead_letters.c.id.in_(letter_ids))
    known = set(connection.execute(query).scalars())
    if unknown := [one for one in letter_ids if one not in known]:
        raise UnknownDeadLetter(unknown)


Revive = Callable[[Connection, RowMapping, datetime], str]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of a letter, in a word for people."""

    letter_id: int
    outcome: str

    @property
    def runs_again(self) -> bool:
        """Whether its work is under way; else it stays in the list of what waits for somebody."""
        return self.outcome in _RUNS_AGAIN


def replay(
    connection: Connection,
    letter_id: int,
    *,
    actor: str,
    now: datetime,
    revive: Revive | None = None,
) -> str:
    """The letter's task is due now with all its attempts; what happened, in a word for people.

    Work that is more than its task brings its own `revive`. It is claimed like any other: leases,
    the manners of its host and budgets hold for it.
    """
    found = find_dead_letter(connection, letter_id)
    if found is None:
        raise UnknownDeadLetter([letter_id])
    outcome = (revive or requeue_task)(connection, found, now)
    if outcome in _RUNS_AGAIN:
        connection.execute(
            update(dead_letters)
            .where(dead_letters.c.id == letter_id)
            .values(replayed_at=now, discarded_at=None, discard_reason=None)
        )
    detail = {"task": found["task_id"], "source": found["source_id"], "outcome": outcome}
    _audit(connection, "replay", letter_id, detail, actor=actor, now=now)
    return outcome


def discard(
    connection: Connection, letter_ids: Sequence[int], *, reason: str, actor: str, now: datetime
) -> list[int]:
    """Nobody needs to look at these letters any more; those that were open, which it closed.

    Their work stays as it is: what fails again writes a letter again.

    Raises:
        UnknownLetter: nothing was discarded.
        ValueError: without a reason nobody can tell it from a mistake.
    """
    if not reason.strip():
        raise ValueError("a letter is discarded with a reason: say why nobody has to look at it")
    check_dead_letters(connection, letter_ids)
    lock_dead_letters(connection, dead_letters.c.id.in_(letter_ids))
    statement = (
        update(dead_letters)
        .where(OPEN, dead_letters.c.id.in_(letter_ids))
        .values(discarded_at=now, discard_reason=storable(reason.strip()))
        .returning(dead_letters.c.id)
    )
    closed = sorted(connection.execute(statement).scalars())
    for letter_id in closed:
        detail = {"reason": reason.strip()}
        _audit(connection, "discard", letter_id, detail, actor=actor, now=now)
    return closed


def lock_dead_letters(connection: Connection, *chosen: ColumnElement[bool]) -> None:
    """The open letters that were chosen are ours, by their tasks: in the order of burials."""
    query = select(dead_letters.c.id).where(OPEN, *chosen)
    in_order = query.order_by(dead_letters.c.task_id, dead_letters.c.id)
    connection.execute(in_order.with_for_update()).all()


def _audit(
    connection: Connection,
    action: str,
    letter_id: int,
    detail: Mapping[str, object],
    *,
    actor: str,
    now: datetime,
) -> None:
    audit(
        connection,
        actor=actor,
        action=f"dead_letter.{action}",
        subject=f"dead_letter:{letter_id}",
        now=now,
        detail=dict(detail),
    )


_RUNS_AGAIN = {"queued", "already queued", "already running"}


def requeue_task(connection: Connection, letter: RowMapping, now: datetime) -> str:
    """A failed task waits again; a permanent one (a poll) that waits already becomes due."""
    task_id: int = letter["task_id"]
    query = select(tasks).where(tasks.c.id == task_id).with_for_update()  # nobody claims it now
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return "task no longer kept"
    if row["status"] == TaskStatus.PROCESSING.value:
        return "already running"
    if row["status"] in {TaskStatus.SKIPPED.value, TaskStatus.CANCELLED.value}:
        return "its source is disabled"
    if row["status"] != TaskStatus.PENDING.value and _has_active_twin(connection, row):
        return "already queued"
    connection.execute(
        update(tasks)
        .where(tasks.c.id == task_id)
        .values(
            status=TaskStatus.PENDING.value,
            not_before=now,
            attempts=0,
            stage=ASKED,
            updated_at=now,
        )
    )
    return "queued"


def _has_active_twin(connection: Connection, row: RowMapping) -> bool:
    query = select(tasks.c.id).where(
        ACTIVE, tasks.c.kind == row["kind"], tasks.c.dedupe_key == row["dedupe_key"]
    )
    return connection.execute(query).first() is not None
