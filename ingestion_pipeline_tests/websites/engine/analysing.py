"""Websites on loopback, scripted providers, and runs over them: here, or in one that dies."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.visits.rendering import Renderer
from ingestion_pipeline.sources.source import Definition, Kind
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import tasks, website_analyses, website_answers
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.websites.runs.system import run_analyses
from ingestion_pipeline.websites.states import AnalysisStatus
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import Job, a_fetcher, fetch_async, rows
from ingestion_pipeline_tests.websites.sites import ORGANIZATION, ld, site_page

SMALL = site_page("<h1>Bread</h1>", title="Acme", head=ld(ORGANIZATION))
QUICK: Mapping[str, str] = {
    "website__backoff_base_seconds": "0.05",
    "models__backoff_base_seconds": "0.02",
    "website__answer_seconds": "5",
    "website__prompts": "2",
}


def provided(**addresses: str) -> dict[str, str]:
    """Quick settings, with a provider at each address."""
    listed = [
        {"name": name, "base_url": address, "model": f"m-{name}", "concurrency": 64}
        for name, address in addresses.items()
    ]
    return {**QUICK, "website__providers": json.dumps(listed)}


def a_website(name: str = "acme", **changes: Any) -> Definition:
    """A website at NAME.test."""
    values: dict[str, Any] = {
        "id": f"website:{name}",
        "kind": Kind.WEBSITE,
        "url": f"http://{name}.test/",
        "platform": "page",
    }
    return Definition(**(values | changes))


def poll(ctx: RunContext, web: FakeWeb) -> None:
    """The polls that are due begin their analyses."""
    asyncio.run(fetch_async(ctx, web.port))


def work(
    ctx: RunContext,
    port: int,
    source_ids: Collection[str] | None = None,
    owner: str | None = None,
    renderer: Renderer | None = None,
) -> Counter[str]:
    """One run over what waits."""

    async def run() -> Counter[str]:
        worker = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds, owner=owner)
        async with a_fetcher(ctx.settings, port) as fetcher:
            return await run_analyses(ctx, worker, fetcher, source_ids=source_ids, renderer=renderer)

    return asyncio.run(run())


def analysis(store: Store) -> Any:
    """The only analysis."""
    [row] = rows(store, website_analyses)
    return row


def statuses(store: Store) -> Counter[str]:
    return Counter(row.status for row in rows(store, website_analyses))


def answer_pairs(store: Store) -> Counter[tuple[int, int, str]]:
    found = rows(store, website_answers)
    return Counter((row.analysis_id, row.prompt_index, row.provider) for row in found)


def phase_tasks(store: Store, kind: str | None = None) -> list[Any]:
    found = [row for row in rows(store, tasks) if row.kind.startswith("website_")]
    return [row for row in found if kind is None or row.kind == kind]


def work_job(job: Job, seconds: float = 60) -> int:
    """In a process of its own: work until every analysis has ended; how many phases it did."""
    deadline, done = time.monotonic() + seconds, 0
    with job.ctx() as ctx:
        while time.monotonic() < deadline:
            counts = work(ctx, job.port)
            done += sum(count for word, count in counts.items() if word.endswith("_done"))
            if all(AnalysisStatus(status).is_final for status in statuses(ctx.store)):
                return done
            time.sleep(0.05)
    return done
