"""Websites as polling sees them: a poll begins an analysis, other runs do it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from uuid import uuid4

from sqlalchemy import Connection, RowMapping, exists, select, update

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.polling.results import (
    ClaimedPoll,
    Deferred,
    PollResult,
    failure_of,
    write_results,
)
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.pages.visits.rendering import Renderer
from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_tasks import POLL
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.store.locking import lock_rows
from ingestion_pipeline.store.tables import ACTIVE, UNFINISHED, sources, tasks, website_analyses
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.dead_letters import requeue_task
from ingestion_pipeline.tasks.errors import Permanent, Resource
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.websites.provider_pool import ProviderPool, configured_providers
from ingestion_pipeline.websites.runs.loop import AnalysisSlice, PhaseTools, PhaseWork
from ingestion_pipeline.websites.runs.starting import KINDS, begin, make_due
from ingestion_pipeline.websites.source_config import given_of
from ingestion_pipeline.websites.states import BY_KIND, AnalysisStatus


class WebsiteSystem:
    """What websites bring to polling."""

    def pace(self, source: Source, settings: Settings) -> Pace:  # noqa: ARG002 - the protocol
        """Our own floor; robots.txt may ask for more."""
        return Pace(delay_seconds=settings.hosts.delay_seconds)

    def check(self, source: Source) -> None:
        """Raise ValueError if what an operator says of the website cannot be understood."""
        _, bad = given_of(source.config)
        if bad:
            raise ValueError("; ".join(f"{one.field}: {one.message}" for one in bad))

    def start(
        self,
        connection: Connection,
        sources: Sequence[Source],
        *,
        now: datetime,
        settings: Settings,
    ) -> Mapping[str, str | Resource]:
        """Each source has an analysis under way, as far as there is room."""
        return begin(connection, sources, now=now, settings=settings)


MOST = 200  # at a time; the others are polled by a run, as all sources are


def begin_first(shop: RunContext) -> int:
    """New websites have an analysis under way; how many began.

    As a poll does it, but claimed and written in one transaction: a run of its own would take
    longer to start than the analysis takes.
    """
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        ids = _unpolled(connection)
        if not ids:
            return 0
        polls = claims.claim(
            connection,
            ClaimFilter(kind=POLL, due_of=ids),
            owner=str(uuid4()),
            now=now,
            lease=timedelta(seconds=shop.settings.work.lease_seconds),
            limit=MOST,
        )
        known = sources_by_id(connection, ids)
        claimed = [ClaimedPoll(task=task, source=known[task.source_id or ""]) for task in polls]
        counts, _ = write_results(
            connection,
            [_result(shop, one) for one in claimed],
            batch_id="",  # there are no listings
            now=now,
            settings=shop.settings,
            random=shop.random,
            begun_by=shop.begun,
        )
    return counts.begun


def _unpolled(connection: Connection) -> list[str]:
    query = select(sources.c.id).where(
        sources.c.kind == Kind.WEBSITE.value, sources.c.last_checked_at.is_(None)
    )
    return list(connection.execute(query.order_by(sources.c.created_at).limit(MOST)).scalars())


def _result(shop: RunContext, one: ClaimedPoll) -> PollResult:
    try:
        shop.begun[one.source.kind].check(one.source)
    except ValueError as error:
        return failure_of(one, Permanent(str(error), code="bad_config"))
    return Deferred(task=one.task, source=one.source)


NO_PROVIDER = "no_provider"


async def website_slice(
    shop: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    *,
    source_ids: Collection[str] | None = None,
    renderer: Renderer | None = None,
) -> Counter[str]:
    """One run's part of the analyses; how many phases ended how.

    Raises:
        BadSetting: the providers are not written as they must be.
    """
    providers = configured_providers(shop.settings)
    if providers:
        await asyncio.to_thread(_wake, shop)
    clock = SteadyClock(await asyncio.to_thread(shop.store.now))
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(ProviderPool(shop.store, shop.settings, providers))
        model = None
        if shop.settings.has_model:
            model = await stack.enter_async_context(ModelClient(shop.store, shop.settings))
        visitor = PoliteVisitor(fetcher, renderer, clock, shop.settings)
        tools = PhaseTools(shop=shop, visitor=visitor, pool=pool, clock=clock, model=model)
        work = PhaseWork(tools)
        return await AnalysisSlice(
            shop, worker, fetcher, work, clock=clock, source_ids=source_ids
        ).run()


def _wake(shop: RunContext) -> None:
    """What waits for want of a provider is due, now that there is one."""
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        make_due(connection, None, now=now, code=NO_PROVIDER)


def is_work_waiting(connection: Connection, *, now: datetime) -> bool:
    """Whether a phase of an analysis can be claimed now."""
    claimable = (tasks.c.status == TaskStatus.PENDING.value) | (tasks.c.lease_until < now)
    query = select(
        exists().where(ACTIVE, tasks.c.kind.in_(KINDS), tasks.c.not_before <= now, claimable)
    )
    return bool(connection.execute(query).scalar_one())


GONE = "its analysis is no longer kept"
NEWER = "a newer analysis of the website is under way"


def requeue_phase(connection: Connection, letter: RowMapping, now: datetime) -> str:
    """Analysis and task wait again; not if another analysis of the source is under way."""
    phase, id_ = BY_KIND[letter["task_kind"]], letter["payload"].get("analysis", 0)
    lock_rows(connection, tasks.c.id, [letter["task_id"]])  # before the analysis, as its worker
    query = select(website_analyses.c.source_id, website_analyses.c.status)
    row = connection.execute(
        query.where(website_analyses.c.id == id_).with_for_update()
    ).one_or_none()
    if row is None:
        return GONE
    others = select(website_analyses.c.id).where(
        UNFINISHED, website_analyses.c.source_id == row.source_id, website_analyses.c.id != id_
    )
    if connection.execute(others).first() is not None:
        return NEWER
    if row.status not in {AnalysisStatus.FAILED.value, phase.status.value}:
        return f"its analysis is {row.status}"
    outcome = requeue_task(connection, letter, now)
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
