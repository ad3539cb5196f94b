"""`python -m benchmarks.crawlers.scrapy_peer JOB [seen]`: Scrapy with its LinkExtractor.

As it comes, a request is made of every link and its filter drops those it has seen. With `seen` the
spider keeps a set of its own and makes no request twice, as one who counts CPU seconds would write
it. Nothing is stored; robots.txt is not asked for, and there is no delay.
"""

import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess
from scrapy.http import Response, TextResponse
from scrapy.linkextractors import LinkExtractor
from scrapy.resolver import CachingHostnameResolver, HostResolution
from twisted.internet.address import IPv4Address

from benchmarks.crawlers.job import LOOPBACK, SUFFIX, Job, Seen, main, without_tracking


class SiteResolver(CachingHostnameResolver):
    """All names lead to the port of the site."""

    port = 0

    def resolveHostName(self, receiver: Any, name: str, *_: Any, **__: Any) -> Any:  # noqa: ANN401, N802
        receiver.resolutionBegan(HostResolution(name))
        receiver.addressResolved(IPv4Address("TCP", LOOPBACK, self.port))
        receiver.resolutionComplete()
        return receiver


class SiteSpider(Spider):
    """Follows every link to a page of the site."""

    name = "site"
    starts: list[str]
    is_keeping_seen = False
    pages = links = 0

    async def start(self) -> AsyncIterator[Request]:
        self.extractor = LinkExtractor(allow_domains=[SUFFIX.strip(".")], process_value=without_tracking)
        self.seen = set(self.starts)
        for url in self.starts:
            yield Request(url)

    def parse(self, response: Response) -> Iterator[Request]:
        assert isinstance(response, TextResponse)
        SiteSpider.pages += 1
        for link in self.extractor.extract_links(response):
            if link.url == response.url:
                continue
            SiteSpider.links += 1
            if self.is_keeping_seen:
                if link.url in self.seen:
                    continue
                self.seen.add(link.url)
            yield Request(link.url)


def scrapy(job: Job) -> Seen:
    """In this process, until nothing is left to fetch."""
    SiteResolver.port = job.port
    process = CrawlerProcess(
        {
            "TWISTED_DNS_RESOLVER": SiteResolver,
            "CONCURRENT_REQUESTS": job.connections,
            "CONCURRENT_REQUESTS_PER_DOMAIN": job.connections_per_host,
            "DOWNLOAD_DELAY": 0,
            "ROBOTSTXT_OBEY": False,
            "COOKIES_ENABLED": False,
            "TELNETCONSOLE_ENABLED": False,
            "LOG_ENABLED": False,
        }
    )
    process.crawl(SiteSpider, starts=job.starts, is_keeping_seen="seen" in sys.argv)
    process.start()
    return Seen(SiteSpider.pages, SiteSpider.links)


if __name__ == "__main__":
    main(scrapy)
