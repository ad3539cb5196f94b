"""Analyses put together: a slice of what waits, or of the websites that were asked for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from contextlib import AsyncExitStack
from datetime import datetime

from sqlalchemy import Connection, exists, select

from ingestion_pipeline.pages.http_fetcher import HttpFetcher
from ingestion_pipeline.pages.polite_visits import PoliteVisitor
from ingestion_pipeline.pages.rendering import Renderer
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.reading.models import ModelClient
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.store.tables import ACTIVE, tasks
from ingestion_pipeline.websites.engine.beginning import KINDS, make_due
from ingestion_pipeline.websites.engine.loop import AnalysisSlice
from ingestion_pipeline.websites.engine.phases import PhaseTools, PhaseWork
from ingestion_pipeline.websites.provider_pool import ProviderPool
from ingestion_pipeline.websites.providers import configured_providers
from ingestion_pipeline.work.task import TaskStatus
from ingestion_pipeline.work.worker import Worker

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
