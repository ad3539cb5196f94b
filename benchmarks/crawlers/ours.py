"""`python -m benchmarks.crawlers.ours JOB`: fetch, guard, store and links by our own parts.

Without the frontier in the database: what is still to be fetched waits in the loop of the peers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import ingestion_pipeline.pages.transport  # noqa: F401 - else the first fetch would import it
from benchmarks.crawlers.job import LOOPBACK, Job, Seen, crawl, main
from ingestion_pipeline.pages import ContentStore, Endpoint, FetchLimits, Guard, HttpFetcher
from ingestion_pipeline.pages.request import Fetched, Request
from ingestion_pipeline.reading import content_hash, decode
from ingestion_pipeline.reading.links import page_links
from ingestion_pipeline.reading.markup import parse_html
from ingestion_pipeline.reading.page import read_page

USER_AGENT = "ingestion_pipeline benchmark"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def ours(job: Job) -> Seen:
    """Each page is fetched through the guard, kept durably and read."""
    content = ContentStore(job.folder)
    async with HttpFetcher(USER_AGENT, FetchLimits(), Guard(resolve=_names(job))) as fetcher:

        async def visit(url: str) -> Iterable[str]:
            answer = await fetcher.fetch(Request(url=url), now=NOW)
            assert isinstance(answer, Fetched), "nothing was known of the page"
            content.put(answer.body)
            return _read(content, answer) if job.is_with_markdown else _links(answer)

        return await crawl(job, visit)


def _links(page: Fetched) -> Iterable[str]:
    return page_links(parse_html(decode(page.body, page.content_type)), page.final_url)


def _read(content: ContentStore, page: Fetched) -> Iterable[str]:
    """Everything the page says; its text and its Markdown are kept beside its body."""
    read = read_page(decode(page.body, page.content_type), url=page.final_url)
    content_hash(read.text)
    for made in (read.text, read.markdown):
        content.put(made.encode(), durably=False)
    return read.links


def _names(job: Job):  # noqa: ANN202 - a Resolver
    async def resolve(_: str, __: int) -> Sequence[Endpoint]:
        return [Endpoint(LOOPBACK, job.port, is_exempt=True)]

    return resolve


if __name__ == "__main__":
    main(lambda job: asyncio.run(ours(job)))
