"""SCRAPE: boards ahead of their schedule, some at a time, until enough jobs match.

A task names its boards, or asks for a rotation: those scraped longest ago first. It only makes
polls due: who polls and who judges are other runs, so it waits for what they find between two
steps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, exists, func, select

from ingestion_pipeline.companies.boards.rows import WITHDRAWN
from ingestion_pipeline.companies.states import JOB, SCRAPE
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.sources.poll_tasks import make_due
from ingestion_pipeline.sources.source import SourceStatus
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import ACTIVE, job_matches, listing_sources, sources, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.queue import Refusal, enqueue
from ingestion_pipeline.tasks.task import Move, NewTask, Task, TaskStatus, finished
from ingestion_pipeline.tasks.worker import Worker

BOARDS_AT_ONCE = 5
SCRAPES_AT_ONCE = 20
LOOK_AGAIN = timedelta(seconds=30)
PATIENCE = timedelta(hours=1)  # for the polls and judgements of one step


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a SCRAPE task was asked for; without ids it is a rotation."""

    source_ids: Sequence[str] = ()
    target_matches: int | None = None
    max_sources: int | None = None

    def payload(self) -> dict[str, Any]:
        """As the task carries it."""
        return {
            "source_ids": sorted(self.source_ids),
            "target_matches": self.target_matches,
            "max_sources": self.max_sources,
        }


class NotPolled(ValueError):
    """A source that no scrape reaches."""


_UNPOLLED = (SourceStatus.DISABLED, SourceStatus.PENDING_VALIDATION)


def ask_scrape(
    connection: Connection, wish: Wish, *, now: datetime, settings: Settings
) -> int | Refusal:
    """A SCRAPE task for it; the same wish that still waits is not made twice.

    Raises:
        UnknownSource: there is no such source.
        NotPolled: it is no board, or it is not polled.
    """
    known = sources_by_id(connection, wish.source_ids)
    for source_id in wish.source_ids:
        if (source := known.get(source_id)) is None:
            raise UnknownSource(source_id)
        if source.kind is not Kind.JOB_BOARD:
            raise NotPolled(f"{source_id} is no job board, but a source of kind {source.kind}")
        if source.status in _UNPOLLED:
            said = source.status_reason or source.status.value
            raise NotPolled(f"{source_id} is not polled ({said}); `ingest sources enable` ends it")
    payload = wish.payload()
    key = sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()
    task = NewTask(kind=SCRAPE, dedupe_key=key, not_before=now, payload=payload)
    return enqueue(connection, task, now=now, policy=settings.work)


def run_scrape(connection: Connection, task: Task, *, now: datetime, settings: Settings) -> Move:
    """One step of a claimed SCRAPE task: what becomes of it, to be applied in this transaction.

    Named boards are made due, and that is all. A rotation takes a few, waits until they are polled
    and their jobs judged, and takes more until enough match, or it has had its share of boards.
    """
    wish = Wish(
        source_ids=tuple(task.payload.get("source_ids") or ()),
        target_matches=task.payload.get("target_matches"),
        max_sources=task.payload.get("max_sources"),
    )
    if wish.source_ids:
        due = make_due(connection, wish.source_ids, now=now)
        return _done(task, {"taken": list(wish.source_ids), "due": due})
    state: dict[str, Any] = dict(task.state or {"taken": [], "started_at": now.isoformat()})
    taken: list[str] = list(state["taken"])
    started_at = datetime.fromisoformat(state["started_at"])
    matches = _matches(connection, taken, since=started_at)
    state["matches"] = matches
    most = wish.max_sources or settings.boards.max_sources
    target = wish.target_matches or settings.boards.target_matches
    if matches >= target or len(taken) >= most:
        return _done(task, state)
    if _is_busy(connection, state, now=now):
        return _later(task, state, now=now)
    chosen = _oldest(connection, without=taken, limit=min(BOARDS_AT_ONCE, most - len(taken)))
    if not chosen:
        return _done(task, state)
    make_due(connection, chosen, now=now)
    state |= {"taken": [*taken, *chosen], "step": chosen, "stepped_at": now.isoformat()}
    return _later(task, state, now=now)


def drain_scrapes(store: Store, worker: Worker, *, settings: Settings) -> int:
    """Every SCRAPE task that is due goes a step further; how many."""
    claimed = worker.claim(ClaimFilter(kind=SCRAPE), limit=SCRAPES_AT_ONCE)
    for task in claimed:
        with store.begin() as connection:
            now = store.clock.now(connection)
            claims.apply(
                connection, [run_scrape(connection, task, now=now, settings=settings)], now=now
            )
    return len(claimed)


def _done(task: Task, state: dict[str, Any]) -> Move:
    return replace(finished(task), state=state)


def _later(task: Task, state: dict[str, Any], *, now: datetime) -> Move:
    """It waits for others, which is no attempt of its own."""
    return Move(
        task=task,
        status=TaskStatus.PENDING,
        not_before=now + LOOK_AGAIN,
        attempts=0,
        priority=task.priority,
        stage="waiting",
        state=state,
    )


def _oldest(connection: Connection, *, without: Sequence[str], limit: int) -> list[str]:
    """The boards that were scraped longest ago, or never."""
    query = (
        select(sources.c.id)
        .where(
            sources.c.kind == Kind.JOB_BOARD.value,
            sources.c.status == SourceStatus.ACTIVE.value,
            sources.c.id.not_in(list(without)),
        )
        .order_by(sources.c.last_checked_at.asc().nulls_first(), sources.c.id)
        .limit(limit)
    )
    return list(connection.execute(query).scalars())


def _matches(connection: Connection, source_ids: Sequence[str], *, since: datetime) -> int:
    """How many listings of these boards have become matches since then."""
    is_listed = exists().where(
        listing_sources.c.listing_id == job_matches.c.listing_id,
        listing_sources.c.source_id.in_(list(source_ids)),
    )
    query = select(func.count()).where(
        job_matches.c.created_at >= since, job_matches.c.status != WITHDRAWN, is_listed
    )
    return connection.execute(query).scalar_one()


def _is_busy(connection: Connection, state: dict[str, Any], *, now: datetime) -> bool:
    """Whether the last step's boards are still to be polled, or their jobs to be judged."""
    step: list[str] = state.get("step") or []
    if not step:
        return False
    stepped_at = datetime.fromisoformat(state["stepped_at"])
    if now - stepped_at > PATIENCE:
        return False
    unpolled = select(sources.c.id).where(
        sources.c.id.in_(step),
        sources.c.status == SourceStatus.ACTIVE.value,
        func.coalesce(sources.c.last_checked_at < stepped_at, True),
    )
    unjudged = select(tasks.c.id).where(ACTIVE, tasks.c.kind == JOB, tasks.c.source_id.in_(step))
    return any(connection.execute(query.limit(1)).first() for query in (unpolled, unjudged))
