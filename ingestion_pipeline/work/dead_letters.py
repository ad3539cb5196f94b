"""Work that was given up: kept with payload, error and stack, and replayed by an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection, RowMapping, select, update

from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.tables import ACTIVE, OPEN, dead_letters, tasks
from ingestion_pipeline.work.errors import WorkError, storable
from ingestion_pipeline.work.task import ASKED, Task, TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Burial:
    """One task that is given up, with what it died of, and what is to be looked at."""

    task: Task
    error: WorkError
    stack: str | None = None
    evidence: Mapping[str, object] = field(default_factory=dict[str, object])


def bury(connection: Connection, burials: Sequence[Burial], *, now: datetime) -> None:
    """One dead letter each, in the transaction that gives the tasks up.

    A task that dies of the same error again, as a broken source does at every poll, adds to its
    open letter: what an operator has to look at is listed once, with how often and when last.
    """
    if not burials:
        return
    statement = insert_into(connection, dead_letters).values(
        [_letter(one, now=now) for one in burials]
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


def _letter(one: Burial, *, now: datetime) -> dict[str, object]:
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


def list_letters(
    connection: Connection,
    *,
    error_class: str | None = None,
    source_id: str | None = None,
    replayed: bool = False,
    limit: int = 1_000,
) -> list[RowMapping]:
    """Newest first; by default those that nobody has replayed yet."""
    query = select(dead_letters).order_by(dead_letters.c.failed_at.desc(), dead_letters.c.id.desc())
    if not replayed:
        query = query.where(dead_letters.c.replayed_at.is_(None))
    if error_class is not None:
        query = query.where(dead_letters.c.error_class == error_class)
    if source_id is not None:
        query = query.where(dead_letters.c.source_id == source_id)
    return list(connection.execute(query.limit(limit)).mappings())


def letter(connection: Connection, letter_id: int) -> RowMapping | None:
    """The dead letter with this id."""
    query = select(dead_letters).where(dead_letters.c.id == letter_id)
    return connection.execute(query).mappings().one_or_none()


Revive = Callable[[Connection, RowMapping, datetime], str]


def replay(
    connection: Connection,
    letter_id: int,
    *,
    actor: str,
    now: datetime,
    revive: Revive | None = None,
) -> str:
    """The letter's task is due now with all its attempts; what happened, in a word for people.

    Work that is more than its task brings its own `revive`.
    """
    found = letter(connection, letter_id)
    if found is None:
        raise LookupError(
            f"there is no dead letter {letter_id}; `ingest dead-letters list` shows all"
        )
    outcome = (revive or revive_task)(connection, found, now)
    if outcome in _RUNS_AGAIN:  # else it stays in the list of what waits for an operator
        connection.execute(
            update(dead_letters).where(dead_letters.c.id == letter_id).values(replayed_at=now)
        )
    audit(
        connection,
        actor=actor,
        action="dead_letter.replay",
        subject=f"dead_letter:{letter_id}",
        now=now,
        detail={"task": found["task_id"], "source": found["source_id"], "outcome": outcome},
    )
    return outcome


_RUNS_AGAIN = {"queued", "already queued", "already running"}


def revive_task(connection: Connection, letter: RowMapping, now: datetime) -> str:
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
