"""SCRAPE tasks: poll boards ahead of their schedule, a few at a time, until enough jobs match.

A task names its boards, or requests a rotation: those scraped longest ago first. It only makes
polls due; other runs poll and evaluate, so it waits for their results between two steps.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, exists, func, select

from ingestion_pipeline.companies.boards.listing_rows import WITHDRAWN
from ingestion_pipeline.companies.company_states import JOB, SCRAPE
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
RECHECK_INTERVAL = timedelta(seconds=30)
STEP_TIMEOUT = timedelta(hours=1)  # for the polls and evaluations of one step


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeRequest:
    """What a SCRAPE task should do; without ids it is a rotation."""

    source_ids: Sequence[str] = ()
    target_matches: int | None = None
    max_sources: int | None = None

    def payload(self) -> dict[str, Any]:
        """Return the request as a task payload."""
        return asdict(self) | {"source_ids": sorted(self.source_ids)}


class NotPolled(ValueError):
    """A source that a scrape cannot reach."""


_UNPOLLED = (SourceStatus.DISABLED, SourceStatus.PENDING_VALIDATION)


def request_scrape(
    connection: Connection, request: ScrapeRequest, *, now: datetime, settings: Settings
) -> int | Refusal:
    """Enqueue a SCRAPE task unless an equal one is active; raise UnknownSource or NotPolled for a bad source."""
    existing = sources_by_id(connection, request.source_ids)
    for source_id in request.source_ids:
        if (source := existing.get(source_id)) is None:
            raise UnknownSource(source_id)
        if source.kind is not Kind.JOB_BOARD:
            raise NotPolled(f"{source_id} is no job board, but a source of kind {source.kind}")
        if source.status in _UNPOLLED:
            reason = source.status_reason or source.status.value
            raise NotPolled(f"{source_id} is not polled ({reason}); `ingest sources enable` ends it")
    payload = request.payload()
    key = sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()
    task = NewTask(kind=SCRAPE, dedupe_key=key, not_before=now, payload=payload)
    return enqueue(connection, task, now=now, policy=settings.work)


def run_scrape(connection: Connection, task: Task, *, now: datetime, settings: Settings) -> Move:
    """Run one step of a claimed SCRAPE task; return the move to apply in this transaction."""
    if source_ids := list(task.payload.get("source_ids") or ()):
        return _done(task, {"taken": source_ids, "due": make_due(connection, source_ids, now=now)})
    state: dict[str, Any] = dict(task.state or {"taken": [], "started_at": now.isoformat()})
    taken: list[str] = list(state["taken"])
    state["matches"] = _matches(connection, taken, since=datetime.fromisoformat(state["started_at"]))
    most: int = task.payload.get("max_sources") or settings.boards.max_sources
    target: int = task.payload.get("target_matches") or settings.boards.target_matches
    if state["matches"] >= target or len(taken) >= most:
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
    """Advance every due SCRAPE task by one step; return how many."""
    claimed = worker.claim(ClaimFilter(kind=SCRAPE), limit=SCRAPES_AT_ONCE)
    for task in claimed:
        with store.begin() as connection:
            now = store.clock.now(connection)
            claims.apply(connection, [run_scrape(connection, task, now=now, settings=settings)], now=now)
    return len(claimed)


def _done(task: Task, state: dict[str, Any]) -> Move:
    return replace(finished(task), state=state)


def _later(task: Task, state: dict[str, Any], *, now: datetime) -> Move:
    """Return a move that waits for other runs; it does not count as an attempt."""
    return Move(
        task=task,
        status=TaskStatus.PENDING,
        not_before=now + RECHECK_INTERVAL,
        attempts=0,
        priority=task.priority,
        stage="waiting",
        state=state,
    )


def _oldest(connection: Connection, *, without: Sequence[str], limit: int) -> list[str]:
    """Return the boards that were scraped longest ago, or never."""
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
    """Return how many listings of these boards have become matches since then."""
    is_listed = exists().where(
        listing_sources.c.listing_id == job_matches.c.listing_id, listing_sources.c.source_id.in_(list(source_ids))
    )
    query = select(func.count()).where(job_matches.c.created_at >= since, job_matches.c.status != WITHDRAWN, is_listed)
    return connection.execute(query).scalar_one()


def _is_busy(connection: Connection, state: dict[str, Any], *, now: datetime) -> bool:
    """Return whether the last step's boards are not polled or their jobs not evaluated yet."""
    step: list[str] = state.get("step") or []
    if not step:
        return False
    stepped_at = datetime.fromisoformat(state["stepped_at"])
    if now - stepped_at > STEP_TIMEOUT:
        return False
    unpolled = select(sources.c.id).where(
        sources.c.id.in_(step),
        sources.c.status == SourceStatus.ACTIVE.value,
        func.coalesce(sources.c.last_checked_at < stepped_at, True),
    )
    unjudged = select(tasks.c.id).where(ACTIVE, tasks.c.kind == JOB, tasks.c.source_id.in_(step))
    return any(connection.execute(query.limit(1)).first() for query in (unpolled, unjudged))
