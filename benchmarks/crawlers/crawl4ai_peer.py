"""`python -m benchmarks.crawlers.crawl4ai_peer JOB [unkept]`: Crawl4AI without a browser.

Its HTTP strategy with its Markdown, one `arun` a page from the loop of the other peers: its
dispatcher, which watches the machine's memory, is left out in its favour. What it makes of a page
it keeps by its own cache, which is written and never read; with `unkept` it keeps nothing.
"""

import asyncio
import os
import sys
from json import loads

# Its folder is asked for when it is imported.
os.environ["CRAWL4_AI_BASE_DIRECTORY"] = loads(sys.argv[1])["folder"]
os.environ["CRAWL4AI_NO_CLOUD_NOTICE"] = "1"

from aiohttp import ClientSession, ClientTimeout, TCPConnector
from crawl4ai import AsyncWebCrawler, BrowserConfig, CacheMode, CrawlerRunConfig
from crawl4ai.async_crawler_strategy import AsyncHTTPCrawlerStrategy

from benchmarks.crawlers.aiohttp_names import SiteResolver
from benchmarks.crawlers.job import Job, Seen, crawl, main, without_tracking


class SiteStrategy(AsyncHTTPCrawlerStrategy):
    """Its own session, but for the names and the number of connections."""

    def __init__(self, job: Job) -> None:
        super().__init__(max_connections=job.connections)
        self._job = job

    async def start(self) -> None:
        if not self._session:
            connector = TCPConnector(
                limit=self._job.connections,
                limit_per_host=self._job.connections_per_host,
                resolver=SiteResolver(self._job.port),
            )
            self._session = ClientSession(
                headers=dict(self._BASE_HEADERS), connector=connector, timeout=ClientTimeout(total=self.DEFAULT_TIMEOUT)
            )


async def crawl4ai(job: Job, *, is_kept: bool) -> Seen:
    """Each page is fetched, cleaned and made into Markdown, with its links beside it."""
    cache = CacheMode.WRITE_ONLY if is_kept else CacheMode.BYPASS
    config = CrawlerRunConfig(cache_mode=cache, verbose=False)
    crawler = AsyncWebCrawler(crawler_strategy=SiteStrategy(job), config=BrowserConfig(verbose=False))
    async with crawler:

        async def visit(url: str) -> set[str]:
            result = await crawler.arun(url, config=config)
            if not result.success or not result.markdown:
                raise RuntimeError(f"Crawl4AI failed at {url}: {result.error_message}")
            found = result.links["internal"] + result.links["external"]
            hrefs = {link["href"] for link in found}
            return {without_tracking(href) for href in hrefs if href.startswith("http")}

        seen = await crawl(job, visit)
    kept = sum(1 for _ in job.folder.rglob("markdown_content/*"))
    if kept != (seen.pages if is_kept else 0):  # it only logs what it could not keep
        raise RuntimeError(f"Crawl4AI kept {kept} of {seen.pages} pages")
    return seen


if __name__ == "__main__":
    main(lambda job: asyncio.run(crawl4ai(job, is_kept="unkept" not in sys.argv)))
