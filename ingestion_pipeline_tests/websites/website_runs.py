"""Websites on a loopback web, and runs that analyse them in this process or another."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.visits.page import Renderer
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.markdown import read_page
from ingestion_pipeline.sources.source import Definition, Kind
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import tasks, website_analyses, website_answers
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline.tasks.errors import Permanent, WorkError
from ingestion_pipeline.websites.business import FetchedPage, Visit
from ingestion_pipeline.websites.phases import run_analyses
from ingestion_pipeline.websites.states import AnalysisStatus
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import WorkerJob, a_fetcher, add_sources, fetch_async, rows

HOME = "https://www.acme-tools.test"

ORGANIZATION = {
    "@context": "https://schema.org",
    "@type": "Organization",
    "name": "Acme Tools GmbH",
    "description": "Acme Tools makes invoicing software for bakeries.",
    "industry": "Accounting software",
    "address": {"addressLocality": "Köln", "addressCountry": "DE"},
    "knowsAbout": ["invoicing", "tax returns", "payroll"],
}


def site_page(body: str = "", *, title: str = "", head: str = "", lang: str = "en") -> str:
    return f"<html lang='{lang}'><head><title>{title}</title>{head}</head><body>{body}</body></html>"


def json_ld(data: Mapping[str, Any]) -> str:
    return f"<script type='application/ld+json'>{json.dumps(data)}</script>"


ACME_PAGES = {
    "/": site_page(
        "<nav><ul><li><a href='/about-us'>About</a><li><a href='/acme-vs-globex'>Acme vs Globex</a>"
        "<li><a href='/pricing'>Pricing</a><li><a href='/contact'>Contact</a></ul></nav><main>"
        "<h1>Invoices for bakeries</h1><p>The best alternative to Initech for your bakery.</p>",
        title="Acme Tools | Invoices for bakeries",
        head=json_ld(ORGANIZATION),
    ),
    "/about-us": site_page("<p>We are Acme Tools, and we have been in Köln since 1990.</p>"),
    "/acme-vs-globex": site_page("<h1>Acme Tools vs Globex</h1>", title="Acme Tools vs Globex"),
    "/contact": site_page("<address>Acme Tools<br>Köln</address>"),
}


def page_visitor(pages: Mapping[str, str | WorkError], visited_paths: list[str] | None = None) -> Visit:
    """Return a `Visit` that serves these pages by path and answers 404 for others."""

    async def visit(url: str) -> FetchedPage:
        path = "/" + url.partition("://")[2].partition("/")[2]
        if visited_paths is not None:
            visited_paths.append(path)
        content = pages.get(path, Permanent(f"{url} answered 404", code="http_404"))
        if isinstance(content, WorkError):
            raise content
        return FetchedPage(url=url, html=content, links=read_page(Document(content, url=url)).links)

    return visit


SMALL_PAGE = site_page("<h1>Bread</h1>", title="Acme", head=json_ld(ORGANIZATION))
FAST_SETTINGS: Mapping[str, str] = {
    "website__backoff_base_seconds": "0.05",
    "models__backoff_base_seconds": "0.02",
    "website__answer_seconds": "5",
    "website__prompts": "2",
}


def provider_settings(**addresses: str) -> dict[str, str]:
    """Return fast settings with a provider at each address."""
    providers = [
        {"name": name, "base_url": address, "model": f"m-{name}", "concurrency": 64}
        for name, address in addresses.items()
    ]
    return {**FAST_SETTINGS, "website__providers": json.dumps(providers)}


def a_website(name: str = "acme", **changes: Any) -> Definition:
    """Return the definition of a website at NAME.test."""
    values: dict[str, Any] = {
        "id": f"website:{name}",
        "kind": Kind.WEBSITE,
        "url": f"http://{name}.test/",
        "platform": "page",
    }
    return Definition(**(values | changes))


def poll(ctx: RunContext, web: FakeWeb) -> None:
    """Run the due polls, which start the analyses."""
    asyncio.run(fetch_async(ctx, web.port))


def process_analyses(
    ctx: RunContext,
    port: int,
    source_ids: Collection[str] | None = None,
    owner: str | None = None,
    renderer: Renderer | None = None,
) -> Counter[str]:
    """Run once over the pending phases."""

    async def run() -> Counter[str]:
        worker = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds, owner=owner)
        async with a_fetcher(ctx.settings, port) as fetcher:
            return await run_analyses(ctx, worker, fetcher, source_ids, renderer)

    return asyncio.run(run())


def start(ctx: RunContext, web: FakeWeb, *websites: Definition) -> None:
    """Add the websites and start their analyses."""
    add_sources(ctx.store, *websites)
    poll(ctx, web)


def analyse(ctx: RunContext, web: FakeWeb, *websites: Definition) -> Counter[str]:
    """Add the websites, start their analyses, and run once over the pending phases."""
    start(ctx, web, *websites)
    return process_analyses(ctx, web.port)


def only_analysis(store: Store) -> Any:
    """Return the row of the only analysis."""
    [row] = rows(store, website_analyses)
    return row


def statuses(store: Store) -> Counter[str]:
    return Counter(row.status for row in rows(store, website_analyses))


def answer_pairs(store: Store) -> Counter[tuple[int, int, str]]:
    answer_rows = rows(store, website_answers)
    return Counter((row.analysis_id, row.prompt_index, row.provider) for row in answer_rows)


def phase_tasks(store: Store, kind: str | None = None) -> list[Any]:
    task_rows = [row for row in rows(store, tasks) if row.kind.startswith("website_")]
    return [row for row in task_rows if kind is None or row.kind == kind]


def process_until_done(job: WorkerJob, seconds: float = 60) -> int:
    """Run in a separate process until every analysis is final; return the number of phases it completed."""
    deadline, phase_count = time.monotonic() + seconds, 0
    with job.ctx() as ctx:
        while time.monotonic() < deadline:
            counts = process_analyses(ctx, job.port)
            phase_count += sum(count for counter, count in counts.items() if counter.endswith("_done"))
            if all(AnalysisStatus(status).is_final for status in statuses(ctx.store)):
                return phase_count
            time.sleep(0.05)
    return phase_count
