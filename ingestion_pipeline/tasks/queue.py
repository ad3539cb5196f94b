"""New tasks: enqueued by an event, or spawned by another task under the spawn guard.

The partial unique index over active rows is the lasting guard against duplicates: two parents that
spawn the same child at the same moment make one row, and neither sees an error. A finished task
never stands in the way of a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from uuid import uuid4

from sqlalchemy import (
    Connection,
    Integer,
    String,
    Text,
    and_,
    exists,
    func,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy.dialects import postgresql

from ingestion_pipeline.settings import Work
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.bulk import row_document, row_source, row_table
from ingestion_pipeline.store.inserts import insert_for, insert_into
from ingestion_pipeline.store.tables import ACTIVE, SPAWNED, audit_log, tasks
from ingestion_pipeline.store.types import Id, Json, UtcDateTime
from ingestion_pipeline.tasks.task import NewTask, Task, TaskStatus
from ingestion_pipeline.urls import without_credentials

log = logging.getLogger(__name__)


class Refusal(StrEnum):
    """Why a task was not made."""

    TOO_DEEP = "too_deep"
    IN_ANCESTRY = "in_ancestry"
    ACTIVE_DUPLICATE = "active_duplicate"
    TERMINAL_IN_LINEAGE = "terminal_in_lineage"
    QUEUE_FULL = "queue_full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """What the guard must know of another task of the lineage."""

    kind: str
    url: str | None
    status: TaskStatus
    is_ancestor: bool


def refusal(
    child: NewTask, *, depth: int, lineage: Collection[Relative], policy: Work
) -> Refusal | None:
    """Why the lineage does not want this child, or None; the same URL of another kind is fine."""
    if depth > policy.spawn_depth:
        return Refusal.TOO_DEEP
    same = [one for one in lineage if (one.kind, one.url) == (child.kind, child.url)]
    if any(one.is_ancestor for one in same):
        return Refusal.IN_ANCESTRY
    if any(one.status.is_active for one in same):
        return Refusal.ACTIVE_DUPLICATE
    return Refusal.TERMINAL_IN_LINEAGE if same else None


REFUSED = "spawn.refused"  # the action in the audit log; its subject is the lineage


def lineage_of(tracking_id: str) -> str:
    """How the audit log names a lineage."""
    return f"task:{tracking_id}"


def tell_refusal(
    connection: Connection, parent: Task, child: NewTask, why: Refusal, *, now: datetime
) -> None:
    """One warning and one line of the audit log; the same edge of a lineage only once."""
    shown, subject = without_credentials(child.url or ""), lineage_of(parent.tracking_id)
    edge = {"kind": child.kind, "url": shown, "reason": why.value}
    told = connection.execute(
        select(audit_log.c.detail).where(
            audit_log.c.subject == subject, audit_log.c.action == REFUSED
        )
    ).scalars()
    if any({name: one.get(name) for name in edge} == edge for one in told):
        return
    log.warning("spawn of %s %s refused: %s", child.kind, shown, why.value)
    audit(
        connection,
        actor="system",
        action=REFUSED,
        subject=subject,
        now=now,
        detail={**edge, "parent": parent.id},
    )


def spawn(
    connection: Connection,
    parent: Task,
    child: NewTask,
    *,
    now: datetime,
    policy: Work,
    is_permanent: bool = False,
) -> int | Refusal:
    """The new task's id, of the parent's tracking id, or the reason why there is none.

    A permanent one never ends, as a poll: `queue_limit`, which counts what waits, is not asked. The
    same refusal in the same lineage is logged and audited once.
    """
    if child.url is None:
        raise ValueError(f"a spawned {child.kind} task needs a URL: the loop guard judges by it")
    depth = parent.spawn_depth + 1
    why = refusal(child, depth=depth, lineage=_lineage(connection, parent, child), policy=policy)
    if why is None and is_permanent:
        permanent = insert_tasks(connection, [child], now=now, parent=parent)
        made = permanent[0] if permanent else Refusal.ACTIVE_DUPLICATE
    else:
        made = why or enqueue(connection, child, now=now, policy=policy, parent=parent)
    if isinstance(made, Refusal):
        tell_refusal(connection, parent, child, made, now=now)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawning:
    """A child that a task wants; a sibling continues what its parent is, and is no deeper."""

    parent: Task
    child: NewTask
    is_sibling: bool = False

    @property
    def depth(self) -> int:
        """The child's generation."""
        return self.parent.spawn_depth + (0 if self.is_sibling else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawned:
    """How many were made, how many were too deep, and how many the lineage already had.

    Those are the ancestors, the active and the ended ones of the same kind and URL together: in a
    crawl nearly every link is one of them, and no line of a log is worth that.
    """

    made: int = 0
    too_deep: int = 0
    known: int = 0


def tell_refused(
    connection: Connection, wanted: Sequence[Spawning], *, now: datetime, policy: Work
) -> None:
    """Each of these that `spawn_all` did not make is told as `spawn` tells it.

    For whoever spawns few and wants to know of each; a crawl would tell of nearly every link.
    """
    parents = sorted({one.parent.id for one in wanted})
    query = select(tasks.c.parent_id, tasks.c.kind, tasks.c.url).where(
        SPAWNED, tasks.c.parent_id.in_(parents)
    )
    made = {tuple(row) for row in connection.execute(query)}
    for one in wanted:
        if (one.parent.id, one.child.kind, one.child.url) not in made:
            family = _lineage(connection, one.parent, one.child)
            why = refusal(one.child, depth=one.depth, lineage=family, policy=policy)
            tell_refusal(
                connection, one.parent, one.child, why or Refusal.ACTIVE_DUPLICATE, now=now
            )


_SPAWN_COLUMNS = {
    "kind": String(40),
    "dedupe_key": Text(),
    "source_id": String(120),
    "url": Text(),
    "payload": Json,
    "status": String(10),
    "priority": Integer(),
    "shard": Integer(),
    "not_before": UtcDateTime(),
    "tracking_id": String(36),
    "parent_id": Id,
    "ancestry": Json,
    "spawn_depth": Integer(),
    "created_at": UtcDateTime(),
    "updated_at": UtcDateTime(),
}
_GIVEN_COLUMNS = _SPAWN_COLUMNS | {"root_id": Id}


def spawn_all(
    connection: Connection, wanted: Sequence[Spawning], *, now: datetime, policy: Work
) -> Spawned:
    """Every child that its lineage does not have is a task, by one statement however many.

    The same guard as `spawn`; but `queue_limit` is not asked: it keeps a phase from being flooded
    by events, and a frontier has a budget of its own, which its system keeps.
    """
    fit = [one for one in wanted if one.depth <= policy.spawn_depth]
    by_page = {(one.parent.tracking_id, one.child.kind, one.child.url): one for one in fit[::-1]}
    if any(url is None for _, _, url in by_page):
        raise ValueError("a spawned task needs a URL: the loop guard judges by it")
    made = _insert_new(connection, list(by_page.values())[::-1], now=now) if by_page else 0
    return Spawned(made=made, too_deep=len(wanted) - len(fit), known=len(fit) - made)


def _insert_new(connection: Connection, wanted: Sequence[Spawning], *, now: datetime) -> int:
    rows = [_spawned_row(one, now=now) for one in wanted]
    values = [
        (*(row[name] for name in _SPAWN_COLUMNS), (*one.parent.ancestry, one.parent.id)[0])
        for one, row in zip(wanted, rows, strict=True)
    ]
    dialect = connection.dialect.name
    document = row_document(dialect, _GIVEN_COLUMNS, values)
    return connection.execute(_spawn_statement(dialect), {"given": document}).rowcount


@cache
def _spawn_statement(dialect: str) -> postgresql.Insert:
    """Written once: to put it together takes far longer than to run it for a few tasks."""
    given = row_table(dialect, _GIVEN_COLUMNS, "given")
    same = and_(tasks.c.url == given.c.url, tasks.c.kind == given.c.kind)
    # As in `_lineage`: the root alone was not spawned.
    is_root = exists().where(tasks.c.id == given.c.root_id, same)
    is_spawned = exists().where(SPAWNED, tasks.c.tracking_id == given.c.tracking_id, same)
    columns = [given.c[name] for name in _SPAWN_COLUMNS]
    statement = insert_for(dialect, tasks).from_select(
        list(_SPAWN_COLUMNS), select(*columns).where(~or_(is_root, is_spawned))
    )
    return statement.on_conflict_do_nothing(
        index_elements=["kind", "dedupe_key"], index_where=ACTIVE
    )


def continue_all(connection: Connection, wanted: Sequence[Spawning], *, now: datetime) -> int:
    """The next stage of each parent's work is a task, by one statement; how many were made.

    A stage belongs to its parent and is no deeper. It is not judged by its lineage, since what is
    fetched anew must be read anew; only an active one is not made twice.
    """
    if not wanted:
        return 0
    rows = [
        _row(one.child, now=now, parent=one.parent) | {"spawn_depth": one.parent.spawn_depth}
        for one in wanted
    ]
    values = [[row[name] for name in _SPAWN_COLUMNS] for row in rows]
    given = row_source(connection, _SPAWN_COLUMNS, values, "given")
    found = select(*given.c).where(true())  # SQLite wants a WHERE before ON CONFLICT
    statement = insert_into(connection, tasks).from_select(list(_SPAWN_COLUMNS), found)
    once = statement.on_conflict_do_nothing(
        index_elements=["kind", "dedupe_key"], index_where=ACTIVE
    )
    return connection.execute(once).rowcount


def _spawned_row(one: Spawning, *, now: datetime) -> dict[str, object]:
    row = _row(one.child, now=now, parent=one.parent)
    if one.is_sibling:
        row |= {
            "parent_id": one.parent.parent_id or one.parent.id,
            "ancestry": list(one.parent.ancestry) or [one.parent.id],
            "spawn_depth": one.depth,
        }
    return row


def enqueue(
    connection: Connection,
    new: NewTask,
    *,
    now: datetime,
    policy: Work,
    parent: Task | None = None,
) -> int | Refusal:
    """The new task's id; `ACTIVE_DUPLICATE` or `QUEUE_FULL` when there is none."""
    if _active_count(connection, new.kind, policy.queue_limit) >= policy.queue_limit:
        return Refusal.QUEUE_FULL
    made = insert_tasks(connection, [new], now=now, parent=parent)
    return made[0] if made else Refusal.ACTIVE_DUPLICATE


def insert_tasks(
    connection: Connection, new: Sequence[NewTask], *, now: datetime, parent: Task | None = None
) -> list[int]:
    """The ids of those that were inserted; an active duplicate is left as it is."""
    if not new:
        return []
    statement = (
        insert_into(connection, tasks)
        .on_conflict_do_nothing(index_elements=["kind", "dedupe_key"], index_where=ACTIVE)
        .returning(tasks.c.id)
    )
    rows = [_row(one, now=now, parent=parent) for one in new]
    return list(connection.execute(statement, rows).scalars())


def _row(new: NewTask, *, now: datetime, parent: Task | None) -> dict[str, object]:
    return {
        "kind": new.kind,
        "dedupe_key": new.dedupe_key,
        "source_id": new.source_id,
        "url": new.url,
        "payload": dict(new.payload),
        "status": TaskStatus.PENDING.value,
        "priority": new.priority,
        "shard": new.shard,
        "not_before": new.not_before,
        "tracking_id": parent.tracking_id if parent else new.tracking_id or str(uuid4()),
        "parent_id": parent.id if parent else None,
        "ancestry": [*parent.ancestry, parent.id] if parent else [],
        "spawn_depth": parent.spawn_depth + 1 if parent else 0,
        "created_at": now,
        "updated_at": now,
    }


def _lineage(connection: Connection, parent: Task, child: NewTask) -> list[Relative]:
    """Those of the lineage that can speak against the child: the same kind and URL."""
    ancestors = (*parent.ancestry, parent.id)
    same = select(tasks.c.id, tasks.c.kind, tasks.c.url, tasks.c.status).where(
        tasks.c.kind == child.kind, tasks.c.url == child.url
    )
    # The root alone was not spawned: what never has children is in no index of lineages.
    root = same.where(tasks.c.id == ancestors[0])
    spawned = same.where(SPAWNED, tasks.c.tracking_id == parent.tracking_id)
    rows = connection.execute(union_all(root, spawned))
    return [
        Relative(
            kind=row.kind,
            url=row.url,
            status=TaskStatus(row.status),
            is_ancestor=row.id in ancestors,
        )
        for row in rows
    ]


def _active_count(connection: Connection, kind: str, enough: int) -> int:
    some = select(tasks.c.id).where(ACTIVE, tasks.c.kind == kind).limit(enough).subquery()
    return connection.execute(select(func.count()).select_from(some)).scalar_one()
