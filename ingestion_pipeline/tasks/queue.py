"""New tasks: enqueued by an event, or spawned by another task under the spawn guard; and how many wait.

The partial unique index over active rows is the final guard against duplicates: two parents that spawn the same child
at the same moment make one row, and neither sees an error. A finished task does not block a new one.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from uuid import uuid4

from sqlalchemy import Connection, and_, exists, func, or_, select, union_all
from sqlalchemy.dialects import postgresql

from ingestion_pipeline.settings import Work
from ingestion_pipeline.store import statements
from ingestion_pipeline.store.tables import ACTIVE, SPAWNED, audit_log, tasks
from ingestion_pipeline.store.types import Id
from ingestion_pipeline.tasks.task import NewTask, Task, TaskStatus
from ingestion_pipeline.urls import without_credentials

log = logging.getLogger(__name__)

QUEUE_LIMIT = 1_000  # active tasks of a kind before `queue_full`


class Refusal(StrEnum):
    """Why a task was not created."""

    TOO_DEEP = "too_deep"
    IN_ANCESTRY = "in_ancestry"
    ACTIVE_DUPLICATE = "active_duplicate"
    TERMINAL_IN_LINEAGE = "terminal_in_lineage"
    QUEUE_FULL = "queue_full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """What the spawn guard needs to know about another task of the lineage."""

    kind: str
    url: str | None
    status: TaskStatus
    is_ancestor: bool


def refusal(child: NewTask, *, depth: int, lineage: Collection[Relative], policy: Work) -> Refusal | None:
    """Return why the lineage refuses the child, or None; its URL in another kind is allowed."""
    if depth > policy.spawn_depth:
        return Refusal.TOO_DEEP
    same = [relative for relative in lineage if (relative.kind, relative.url) == (child.kind, child.url)]
    if any(relative.is_ancestor for relative in same):
        return Refusal.IN_ANCESTRY
    if any(relative.status.is_active for relative in same):
        return Refusal.ACTIVE_DUPLICATE
    return Refusal.TERMINAL_IN_LINEAGE if same else None


REFUSED = "spawn.refused"  # the action in the audit log; its subject is the lineage


def lineage_of(tracking_id: str) -> str:
    """Return the subject of a lineage in the audit log."""
    return f"task:{tracking_id}"


def log_refusal(connection: Connection, parent: Task, child: NewTask, reason: Refusal, *, now: datetime) -> None:
    """Log and audit a refused spawn, once per lineage, child and reason."""
    display_url, subject = without_credentials(child.url or ""), lineage_of(parent.tracking_id)
    edge = {"kind": child.kind, "url": display_url, "reason": reason.value}
    logged = connection.execute(
        select(audit_log.c.detail).where(audit_log.c.subject == subject, audit_log.c.action == REFUSED)
    ).scalars()
    if any({name: entry.get(name) for name in edge} == edge for entry in logged):
        return
    log.warning("spawn refused kind=%s url=%s reason=%s", child.kind, display_url, reason.value)
    statements.audit(
        connection, actor="system", action=REFUSED, subject=subject, now=now, detail={**edge, "parent": parent.id}
    )


def spawn(
    connection: Connection, parent: Task, child: NewTask, *, now: datetime, policy: Work, is_permanent: bool = False
) -> int | Refusal:
    """Create the child with the parent's tracking id; return its id, or why it was refused.

    A permanent task never ends, as a poll: it is not counted against `QUEUE_LIMIT`. The same
    refusal in the same lineage is logged and audited once.
    """
    if child.url is None:
        raise ValueError(f"a spawned {child.kind} task needs a URL: the loop guard compares it")
    depth = parent.spawn_depth + 1
    reason = refusal(child, depth=depth, lineage=_lineage(connection, parent, child), policy=policy)
    if reason is None and is_permanent:
        permanent = insert_tasks(connection, [child], now=now, parent=parent)
        made = permanent[0] if permanent else Refusal.ACTIVE_DUPLICATE
    else:
        made = reason or enqueue(connection, child, now=now, parent=parent)
    if isinstance(made, Refusal):
        log_refusal(connection, parent, child, made, now=now)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRequest:
    """A child that a task spawns; a sibling continues the work of its parent at the same depth."""

    parent: Task
    child: NewTask
    is_sibling: bool = False

    @property
    def depth(self) -> int:
        """The spawn depth of the child."""
        return self.parent.spawn_depth + (0 if self.is_sibling else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnCounts:
    """How many children were made, too deep, or of a kind and URL in the lineage (in a crawl nearly every link)."""

    made: int = 0
    too_deep: int = 0
    existing: int = 0


def log_refusals(connection: Connection, requests: Sequence[SpawnRequest], *, now: datetime, policy: Work) -> None:
    """Log and audit each request that `spawn_all` did not make; for few tasks, as a crawl would log each link."""
    parents = sorted({request.parent.id for request in requests})
    query = select(tasks.c.parent_id, tasks.c.kind, tasks.c.url).where(SPAWNED, tasks.c.parent_id.in_(parents))
    made = {tuple(row) for row in connection.execute(query)}
    for request in requests:
        if (request.parent.id, request.child.kind, request.child.url) not in made:
            family = _lineage(connection, request.parent, request.child)
            reason = refusal(request.child, depth=request.depth, lineage=family, policy=policy)
            log_refusal(connection, request.parent, request.child, reason or Refusal.ACTIVE_DUPLICATE, now=now)


_OF_CHILD = ("kind", "dedupe_key", "source_id", "url", "payload", "status", "priority", "shard", "not_before")
_OF_LINEAGE = ("tracking_id", "parent_id", "ancestry", "spawn_depth", "created_at", "updated_at")
_SPAWN_COLUMNS = statements.columns_of(tasks, (*_OF_CHILD, *_OF_LINEAGE))
_INPUT_COLUMNS = _SPAWN_COLUMNS | {"root_id": Id}


def spawn_all(connection: Connection, requests: Sequence[SpawnRequest], *, now: datetime, policy: Work) -> SpawnCounts:
    """Create every child that its lineage does not have, in one statement.

    The same guard as `spawn` except `QUEUE_LIMIT`: that keeps events from flooding a phase, and a
    frontier has its own budget, which its system enforces.
    """
    fit = [request for request in requests if request.depth <= policy.spawn_depth]
    by_page = {(request.parent.tracking_id, request.child.kind, request.child.url): request for request in fit[::-1]}
    if any(url is None for _, _, url in by_page):
        raise ValueError("a spawned task needs a URL: the loop guard compares it")
    made = _insert_new(connection, list(by_page.values())[::-1], now=now) if by_page else 0
    return SpawnCounts(made=made, too_deep=len(requests) - len(fit), existing=len(fit) - made)


def _insert_new(connection: Connection, requests: Sequence[SpawnRequest], *, now: datetime) -> int:
    rows = [_spawned_row(request, now=now) for request in requests]
    values = [
        (*(row[name] for name in _SPAWN_COLUMNS), (*request.parent.ancestry, request.parent.id)[0])
        for request, row in zip(requests, rows, strict=True)
    ]
    dialect = connection.dialect.name
    document = statements.row_document(dialect, _INPUT_COLUMNS, values)
    return connection.execute(_spawn_statement(dialect), {"given": document}).rowcount


@cache
def _spawn_statement(dialect: str) -> postgresql.Insert:
    """Return the insert statement; cached, since building it takes far longer than running it."""
    input_rows = statements.row_table(dialect, _INPUT_COLUMNS, "given")
    same = and_(tasks.c.url == input_rows.c.url, tasks.c.kind == input_rows.c.kind)
    # As in `_lineage`: only the root was not spawned.
    is_root = exists().where(tasks.c.id == input_rows.c.root_id, same)
    is_spawned = exists().where(SPAWNED, tasks.c.tracking_id == input_rows.c.tracking_id, same)
    columns = [input_rows.c[name] for name in _SPAWN_COLUMNS]
    statement = statements.insert_for(dialect, tasks).from_select(
        list(_SPAWN_COLUMNS), select(*columns).where(~or_(is_root, is_spawned))
    )
    return statement.on_conflict_do_nothing(index_elements=["kind", "dedupe_key"], index_where=ACTIVE)


def continue_all(connection: Connection, requests: Sequence[SpawnRequest], *, now: datetime) -> int:
    """Create a task for the next stage of each parent's work; return how many were made.

    A stage belongs to its parent and has the same depth. It is not checked against its lineage,
    since what is fetched again must be parsed again; only an active duplicate is skipped.
    """
    if not requests:
        return 0
    rows = [
        _row(request.child, now=now, parent=request.parent) | {"spawn_depth": request.parent.spawn_depth}
        for request in requests
    ]
    values = [[row[name] for name in _SPAWN_COLUMNS] for row in rows]
    statement = statements.insert_rows(connection, tasks, _SPAWN_COLUMNS, values)
    once = statement.on_conflict_do_nothing(index_elements=["kind", "dedupe_key"], index_where=ACTIVE)
    return connection.execute(once).rowcount


def _spawned_row(request: SpawnRequest, *, now: datetime) -> dict[str, object]:
    row = _row(request.child, now=now, parent=request.parent)
    if request.is_sibling:
        row |= {
            "parent_id": request.parent.parent_id or request.parent.id,
            "ancestry": list(request.parent.ancestry) or [request.parent.id],
            "spawn_depth": request.depth,
        }
    return row


def enqueue(connection: Connection, new: NewTask, *, now: datetime, parent: Task | None = None) -> int | Refusal:
    """Return the id of the new task; `ACTIVE_DUPLICATE` or `QUEUE_FULL` if it was not created."""
    active = select(tasks.c.id).where(ACTIVE, tasks.c.kind == new.kind).limit(QUEUE_LIMIT).subquery()
    if connection.execute(select(func.count()).select_from(active)).scalar_one() >= QUEUE_LIMIT:
        return Refusal.QUEUE_FULL
    made = insert_tasks(connection, [new], now=now, parent=parent)
    return made[0] if made else Refusal.ACTIVE_DUPLICATE


def insert_tasks(
    connection: Connection, new: Sequence[NewTask], *, now: datetime, parent: Task | None = None
) -> list[int]:
    """Insert the tasks; return the ids of those inserted; an active duplicate is left unchanged."""
    if not new:
        return []
    statement = (
        statements.insert_into(connection, tasks)
        .on_conflict_do_nothing(index_elements=["kind", "dedupe_key"], index_where=ACTIVE)
        .returning(tasks.c.id)
    )
    rows = [_row(task, now=now, parent=parent) for task in new]
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
    """Return the tasks of the lineage with the child's kind and URL, which may forbid it."""
    ancestors = (*parent.ancestry, parent.id)
    same = select(tasks.c.id, tasks.c.kind, tasks.c.url, tasks.c.status).where(
        tasks.c.kind == child.kind, tasks.c.url == child.url
    )
    # Only the root was not spawned: the lineage index holds spawned tasks only.
    root = same.where(tasks.c.id == ancestors[0])
    spawned = same.where(SPAWNED, tasks.c.tracking_id == parent.tracking_id)
    rows = connection.execute(union_all(root, spawned))
    return [
        Relative(kind=row.kind, url=row.url, status=TaskStatus(row.status), is_ancestor=row.id in ancestors)
        for row in rows
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The tasks of one kind that have not ended; `oldest_due_seconds` is 0 if none is due."""

    kind: str
    due: int
    later: int
    running: int
    lost: int
    retries: int
    oldest_due_seconds: float

    @property
    def depth(self) -> int:
        """Return the number of all tasks that have not ended."""
        return self.due + self.later + self.running + self.lost


def queues(connection: Connection, *, now: datetime, kinds: Collection[str] = ()) -> tuple[Queue, ...]:
    """Return the queues of these kinds of tasks, or of all, that have not ended, by name."""
    is_pending = tasks.c.status == TaskStatus.PENDING.value
    is_running = tasks.c.status == TaskStatus.PROCESSING.value
    is_due = and_(is_pending, tasks.c.not_before <= now)
    columns = (
        func.count().filter(is_due),
        func.count().filter(and_(is_pending, tasks.c.not_before > now)),
        func.count().filter(and_(is_running, tasks.c.lease_until >= now)),
        func.count().filter(and_(is_running, tasks.c.lease_until < now)),
        func.coalesce(func.sum(tasks.c.attempts).filter(is_pending), 0),
        func.min(tasks.c.not_before).filter(is_due),
    )
    query = select(tasks.c.kind, *columns).where(ACTIVE, *([tasks.c.kind.in_(kinds)] if kinds else []))
    return tuple(
        Queue(
            kind=kind,
            due=due,
            later=later,
            running=running,
            lost=lost,
            retries=int(retries),
            oldest_due_seconds=0.0 if oldest is None else (now - oldest).total_seconds(),
        )
        for kind, due, later, running, lost, retries, oldest in connection.execute(
            query.group_by(tasks.c.kind).order_by(tasks.c.kind)
        )
    )
