"""Catalogues whose recipe nobody wrote, and one run that looks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ingestion_pipeline.catalogs.detection.runs import DetectionCounts, run_detection
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.sources.source import Definition
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import outbox, recipes
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline_tests.crawlers import a_catalog
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import a_fetcher, rows


def a_found_catalog(path: str, **config: Any) -> Definition:
    """A catalogue whose recipe nobody wrote."""
    return a_catalog(url=f"http://a.test{path}", config=config)


def serve(web: FakeWeb, site: Mapping[str, str]) -> None:
    web.routes |= dict(site)


def detect(ctx: RunContext, web: FakeWeb) -> DetectionCounts:
    async def run() -> DetectionCounts:
        worker = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds)
        async with a_fetcher(ctx.settings, web.port) as fetcher:
            return await run_detection(ctx, worker, fetcher)

    return asyncio.run(run())


def recipe_row(store: Store) -> Any:
    [row] = rows(store, recipes)
    return row


def told(store: Store) -> list[tuple[str, str]]:
    return [(row.subject_kind, row.payload["status"]) for row in rows(store, outbox) if row.subject_kind == "recipe"]
