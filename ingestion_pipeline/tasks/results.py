"""Counts of a run, and totals of ended tasks."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Self

from sqlalchemy import Connection, func, select

from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import ENDED, task_totals, tasks


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
