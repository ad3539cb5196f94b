"""Websites in the engine: polls start analyses, runs execute them, dead letters are requeued."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime

from sqlalchemy import Connection, RowMapping, exists, select, update

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.polling.poll_handler import start_deferred
from ingestion_pipeline.engine.worker_loop import WorkerLoop
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.pages.visits.rendering import Renderer
from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.sources.poll_tasks import POLL
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.store.locking import lock_rows
from ingestion_pipeline.store.tables import ACTIVE, UNFINISHED, sources, tasks, website_analyses
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.dead_letters import requeue_task
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.websites.provider_pool import ProviderPool, configured_providers
from ingestion_pipeline.websites.runs.handler import PhaseHandler, PhaseTools
from ingestion_pipeline.websites.runs.starting import KINDS, make_due, start_analyses
from ingestion_pipeline.websites.source_config import parse_website_config
from ingestion_pipeline.websites.states import BY_KIND, AnalysisStatus


class WebsiteSystem:
    """The deferred system of the kind `website`: a poll starts an analysis."""

    def pace(self, source: Source, settings: Settings) -> Pace:  # noqa: ARG002 - the protocol
        """Return our own floor; robots.txt may ask for more."""
        return Pace(delay_seconds=settings.hosts.delay_seconds)

    def check(self, source: Source) -> None:
        """Raise ValueError if the source's config is invalid."""
        _, bad = parse_website_config(source.config)
        if bad:
            raise ValueError("; ".join(f"{problem.field}: {problem.message}" for problem in bad))

    def start(
        self, connection: Connection, sources: Sequence[Source], *, now: datetime, settings: Settings
    ) -> Mapping[str, str | Resource]:
        """Start an analysis of each source, as far as the queue has room."""
        return start_analyses(connection, sources, now=now, settings=settings)


MOST = 200  # at a time; the others are started by a poll run


def start_first_analyses(ctx: RunContext) -> int:
    """Start the analyses of new websites, as a poll does it; return how many."""
    with ctx.store.read() as connection:
        ids = _unpolled(connection)
    return start_deferred(ctx, ClaimFilter(kind=POLL, due_of=ids), limit=MOST) if ids else 0


def _unpolled(connection: Connection) -> list[str]:
    query = select(sources.c.id).where(sources.c.kind == Kind.WEBSITE.value, sources.c.last_checked_at.is_(None))
    return list(connection.execute(query.order_by(sources.c.created_at).limit(MOST)).scalars())


NO_PROVIDER = "no_provider"


async def run_analyses(
    ctx: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    *,
    source_ids: Collection[str] | None = None,
    renderer: Renderer | None = None,
) -> Counter[str]:
    """Execute due phases of analyses in this run; return counts by result.

    Raises:
        BadSetting: the setting of the providers is invalid.
    """
    providers = configured_providers(ctx.settings)
    if providers:
        await asyncio.to_thread(_wake_waiting, ctx)
    clock = SteadyClock(await asyncio.to_thread(ctx.store.now))
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(ProviderPool(ctx.store, ctx.settings, providers))
        model = None
        if ctx.settings.has_model:
            model = await stack.enter_async_context(ModelClient(ctx.store, ctx.settings))
        visitor = PoliteVisitor(fetcher, renderer, clock, ctx.settings)
        tools = PhaseTools(ctx=ctx, visitor=visitor, pool=pool, clock=clock, model=model)
        handler = PhaseHandler(tools, source_ids=source_ids)
        return await WorkerLoop(ctx, worker, fetcher, handler, clock=clock).run()


def _wake_waiting(ctx: RunContext) -> None:
    """Make analyses due that waited because no provider was configured."""
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        make_due(connection, None, now=now, code=NO_PROVIDER)


def is_work_waiting(connection: Connection, *, now: datetime) -> bool:
    """Return whether a phase of an analysis can be claimed now."""
    claimable = (tasks.c.status == TaskStatus.PENDING.value) | (tasks.c.lease_until < now)
    query = select(exists().where(ACTIVE, tasks.c.kind.in_(KINDS), tasks.c.not_before <= now, claimable))
    return bool(connection.execute(query).scalar_one())


GONE = "its analysis was deleted"
NEWER = "a newer analysis of the website is running"


def requeue_phase(connection: Connection, dead_letter: RowMapping, now: datetime) -> str:
    """Requeue the dead letter's task and its analysis, unless a newer analysis is running."""
    phase, id_ = BY_KIND[dead_letter["task_kind"]], dead_letter["payload"].get("analysis", 0)
    lock_rows(connection, tasks.c.id, [dead_letter["task_id"]])  # before the analysis, as its worker does
    query = select(website_analyses.c.source_id, website_analyses.c.status)
    row = connection.execute(query.where(website_analyses.c.id == id_).with_for_update()).one_or_none()
    if row is None:
        return GONE
    others = select(website_analyses.c.id).where(
        UNFINISHED, website_analyses.c.source_id == row.source_id, website_analyses.c.id != id_
    )
    if connection.execute(others).first() is not None:
        return NEWER
    if row.status not in {AnalysisStatus.FAILED.value, phase.status.value}:
        return f"its analysis is {row.status}"
    outcome = requeue_task(connection, dead_letter, now)
    if outcome == "queued":
        connection.execute(
            update(website_analyses)
            .where(website_analyses.c.id == id_)
            .values(
                status=phase.status.value,
                current_step=phase.step,
                failure=None,
                finished_at=None,
                progress_message="waits",
                updated_at=now,
            )
        )
    return outcome
