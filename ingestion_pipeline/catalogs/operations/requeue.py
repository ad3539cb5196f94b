"""Give an extraction's open pages their tasks again: to be fetched, and to be extracted.

A page that has a live task keeps it; repeating this changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Text,
    cast,
    exists,
    func,
    literal,
    null,
    select,
    type_coerce,
    update,
)

from ingestion_pipeline.catalogs.states import EXTRACT_PAGE, FETCH_PAGE, PageStatus
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import ACTIVE, crawl_steps, pages, tasks
from ingestion_pipeline.store.types import Json, UtcDateTime
from ingestion_pipeline.tasks.task import TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """How many pages wait again to be fetched, and how many to be extracted."""

    fetched: int
    read: int


def requeue(connection: Connection, extraction_id: int, tracking_id: str, source: Source, *, now: datetime) -> Requeued:
    """Ensure that every open page of the extraction has a live task; orphans wait again."""
    queue = _Queue(connection, extraction_id, tracking_id, source, now)
    queue.free_orphans()
    return Requeued(
        fetched=queue.fill(FETCH_PAGE, PageStatus.WAITING), read=queue.fill(EXTRACT_PAGE, PageStatus.DOWNLOADED)
    )


class _Queue:
    def __init__(
        self, connection: Connection, extraction_id: int, tracking_id: str, source: Source, now: datetime
    ) -> None:
        self._connection = connection
        self._id = extraction_id
        self._tracking_id = tracking_id
        self._source = source
        self._now = now

    def free_orphans(self) -> None:
        """Set pages in progress that no task works on back to waiting."""
        self._connection.execute(
            update(pages)
            .where(
                pages.c.extraction_id == self._id,
                pages.c.status == PageStatus.IN_PROGRESS.value,
                ~self._has_live(FETCH_PAGE),
            )
            .values(status=PageStatus.WAITING.value)
        )

    def fill(self, kind: str, status: PageStatus) -> int:
        """Ensure a live task of this kind for pages of this state; return how many were added."""
        return self._reactivate(kind, status) + self._insert(kind, status)

    def _reactivate(self, kind: str, status: PageStatus) -> int:
        """Reactivate each page's last cancelled task, which has its depth and parent."""
        last = (
            select(func.max(tasks.c.id).label("id"))
            # By the page's id, not by the dedupe key, which no index of ended tasks has: with
            # 100,000 pages each would be compared with each task.
            .join(pages, pages.c.id == tasks.c.payload["page"].as_integer())
            .where(
                pages.c.extraction_id == self._id,
                pages.c.status == status.value,
                tasks.c.source_id == self._source.id,
                tasks.c.kind == kind,
                tasks.c.tracking_id == self._tracking_id,
                tasks.c.status == TaskStatus.CANCELLED.value,
                ~self._has_live(kind),
            )
            .group_by(tasks.c.dedupe_key)
            .subquery("last")
        )
        statement = (
            update(tasks)
            .where(tasks.c.id.in_(select(last.c.id)))
            .values(
                status=TaskStatus.PENDING.value,
                attempts=0,
                not_before=self._now,
                fence=tasks.c.fence + 1,
                state=null(),
                error_class=null(),
                error_code=null(),
                error=null(),
                updated_at=self._now,
            )
        )
        return self._connection.execute(statement).rowcount

    def _insert(self, kind: str, status: PageStatus) -> int:
        moment = literal(self._now, UtcDateTime())
        slashes = func.length(crawl_steps.c.key) - func.length(func.replace(crawl_steps.c.key, "/", ""))
        values: dict[str, ColumnElement[Any]] = {
            "kind": literal(kind),
            "dedupe_key": self._dedupe_key(kind),
            "source_id": literal(self._source.id),
            "url": pages.c.url,
            "payload": self._payload(),
            "status": literal(TaskStatus.PENDING.value),
            "priority": literal(self._source.tier.priority),
            "shard": literal(self._source.shard),
            "not_before": moment,
            "tracking_id": literal(self._tracking_id),
            "ancestry": literal([], Json),
            "spawn_depth": cast(slashes, Integer),  # its step's depth: the real one is unknown
            "created_at": moment,
            "updated_at": moment,
        }
        missing = (
            select(*(value.label(name) for name, value in values.items()))
            .join_from(pages, crawl_steps, crawl_steps.c.id == pages.c.step_id)
            .where(pages.c.extraction_id == self._id, pages.c.status == status.value, ~self._has_live(kind))
            .order_by(pages.c.id)
        )
        statement = insert_into(self._connection, tasks).from_select(list(values), missing)
        once = statement.on_conflict_do_nothing(index_elements=["kind", "dedupe_key"], index_where=ACTIVE)
        return self._connection.execute(once).rowcount

    def _dedupe_key(self, kind: str) -> ColumnElement[str]:
        own = pages.c.key if kind == FETCH_PAGE else cast(pages.c.id, Text)
        return literal(f"{self._id}:", Text) + own

    def _has_live(self, kind: str) -> ColumnElement[bool]:
        live = tasks.alias("live")
        return exists(
            select(live.c.id).where(
                live.c.ended_at.is_(None), live.c.kind == kind, live.c.dedupe_key == self._dedupe_key(kind)
            )
        ).correlate(pages)

    def _payload(self) -> ColumnElement[object]:
        is_postgres = self._connection.dialect.name == "postgresql"
        build = func.jsonb_build_object if is_postgres else func.json_object
        return type_coerce(build("page", pages.c.id, "extraction", literal(self._id)), Json)
