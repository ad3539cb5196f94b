"""A company on a loopback web: its pages, its board, and runs that analyse it."""

import asyncio
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from ingestion_pipeline.companies.company_runs import run_companies
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.sources.source import Definition, Kind
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import companies, tasks
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import WorkerJob, a_fetcher, add_sources, fetch_async, rows

ACME = "company:acme"
ABOUT = (
    "Acme Robotics builds quiet machines that sort parcels in warehouses all over the world,"
    " and the software that lets people and machines work side by side without getting hurt."
)
CULTURE = (
    "We write things down, decide in small teams and leave at five; nobody here has ever been"
    " asked to be a hero on a weekend, and we intend to keep it that way."
)
ORGANIZATION = {
    "@context": "https://schema.org",
    "@type": "Organization",
    "name": "Acme Robotics, Inc.",
    "url": "http://acme.test/",
    "foundingDate": "2011-04-01",
    "numberOfEmployees": {"@type": "QuantitativeValue", "minValue": 51, "maxValue": 200},
    "address": {"@type": "PostalAddress", "addressLocality": "Portland", "addressRegion": "OR", "addressCountry": "US"},
}
BOARD = "https://boards.greenhouse.io/acme"
API = "/v1/boards/acme/jobs?content=true&pay_transparency=true"


def a_page(body: str, *, head: str = "", title: str = "Acme") -> str:
    """Return a page with a navigation menu."""
    menu = (
        '<nav><a href="/">Home</a><a href="/company/about-acme">About us</a>'
        '<a href="/team/careers">Careers</a><a href="/blog">Blog</a></nav>'
    )
    return f"<html lang=en><head><title>{title}</title>{head}</head><body>{menu}<main>{body}</main></body></html>"


def a_site(*, board: str | None = BOARD) -> dict[str, str]:
    """Return the pages of acme.test by path; the about page is only linked in the menu."""
    data = f'<script type="application/ld+json">{json.dumps(ORGANIZATION)}</script>'
    link = f'<p><a href="{board}">See open positions</a></p>' if board else ""
    return {
        "/": a_page("<h1>Acme</h1><p>Parcels, sorted.</p>", head=data),
        "/company/about-acme": a_page(
            f"<h1>About us</h1><p>{ABOUT}</p><p>Our mission is to give every parcel a quiet way"
            " home.</p><p>Our backend is written in Go and Python on AWS, with PostgreSQL; machine"
            " learning sorts the rest.</p><p>We are a remote-first company.</p>"
        ),
        "/team/careers": a_page(f"<h1>Careers</h1><h2>Our culture</h2><p>{CULTURE}</p>{link}"),
    }


def board_answer(*titles: str) -> str:
    """Return the answer of the Greenhouse API."""
    jobs = [
        {
            "id": number,
            "title": title,
            "absolute_url": f"https://boards.greenhouse.io/acme/jobs/{number}",
            "location": {"name": "Portland"},
            "content": "Sort parcels.",
        }
        for number, title in enumerate(titles, 1)
    ]
    return json.dumps({"jobs": jobs, "meta": {"total": len(jobs)}})


def a_company(name: str = "acme", **changes: Any) -> Definition:
    """Return the definition of a company at NAME.test whose boards are fetched from api.test."""
    values: dict[str, Any] = {
        "id": f"company:{name}",
        "kind": Kind.COMPANY,
        "url": f"http://{name}.test/",
        "platform": "page",
        "config": {"boards": {"greenhouse": {"api_base": "http://api.test"}}},
    }
    return Definition(**(values | changes))


def serve(web: FakeWeb, site: Mapping[str, Any], host: str = "acme.test") -> None:
    web.routes |= {f"{host}{path}": answer for path, answer in site.items()}


def poll_companies(ctx: RunContext, web: FakeWeb) -> None:
    """Run the due polls, which start the analyses."""
    asyncio.run(fetch_async(ctx, web.port))


def add_acme(ctx: RunContext, web: FakeWeb) -> None:
    """Serve Acme's site and its board, and run the poll that starts its analysis."""
    serve(web, a_site())
    serve(web, {API: board_answer("Sorter")}, host="api.test")
    add_sources(ctx.store, a_company())
    poll_companies(ctx, web)


@contextmanager
def transaction(ctx: RunContext) -> Iterator[tuple[Connection, datetime]]:
    with ctx.store.begin() as connection:
        yield connection, ctx.store.clock.now(connection)


def process_companies(
    ctx: RunContext, port: int, *, ranks: Mapping[str, int] | None = None, source_ids: Collection[str] | None = None
) -> Counter[str]:
    """Run once over the pending companies and board discoveries."""

    async def run() -> Counter[str]:
        worker = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds)
        async with a_fetcher(ctx.settings, port) as fetcher:
            return await run_companies(ctx, worker, fetcher, ranks=ranks, source_ids=source_ids)

    return asyncio.run(run())


def company_row(store: Store, company_id: str = "acme") -> Any:
    return next(row for row in rows(store, companies) if row.id == company_id)


def tasks_of(store: Store, kind: str) -> list[Any]:
    return [row for row in rows(store, tasks) if row.kind == kind]


def process_companies_job(job: WorkerJob) -> dict[str, int]:
    """Run once over the pending companies, in a separate process."""
    with job.ctx() as ctx:
        return dict(process_companies(ctx, job.port))
