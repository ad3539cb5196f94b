"""`python -m benchmarks.crawlers.bare JOB`: aiohttp and selectolax in a loop, and nothing else.

It hashes, compresses (at ours' level) and writes each body, as ours does; no guard, no cap, no
deadline over the whole, no retry, no charset but UTF-8, no canonical URLs, no fsync.
"""

import asyncio
import hashlib
from pathlib import Path
from urllib.parse import urljoin

from aiohttp import ClientSession, TCPConnector
from selectolax.lexbor import LexborHTMLParser

from benchmarks.crawlers.aiohttp_names import SiteResolver
from benchmarks.crawlers.job import Job, Seen, crawl, main, without_tracking
from ingestion_pipeline.pages.zstd import zstd

NOT_FOLLOWED = ("mailto:", "javascript:", "#")


async def bare(job: Job) -> Seen:
    """Each page is fetched, stored and read for its links."""
    connector = TCPConnector(
        limit=job.connections, limit_per_host=job.connections_per_host, resolver=SiteResolver(job.port)
    )
    async with ClientSession(connector=connector) as session:

        async def visit(url: str) -> set[str]:
            async with session.get(url) as response:
                response.raise_for_status()
                body = await response.read()
            _write(job.folder, body, zstd.compress(body, level=1))
            return _links(body, url)

        return await crawl(job, visit)


def _write(folder: Path, body: bytes, compressed: bytes) -> None:
    name = hashlib.sha256(body).hexdigest()
    place = folder / name[:2]
    place.mkdir(exist_ok=True)
    (place / name[2:]).write_bytes(compressed)


def _links(body: bytes, url: str) -> set[str]:
    """Equal hrefs are one before they are joined: most of a page's links are there twice."""
    hrefs = {node.attributes.get("href") for node in LexborHTMLParser(body).css("a[href]")}
    return {without_tracking(urljoin(url, href)) for href in hrefs if href and not href.startswith(NOT_FOLLOWED)}


if __name__ == "__main__":
    main(lambda job: asyncio.run(bare(job)))
