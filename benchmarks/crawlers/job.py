"""What every crawler is asked, what it answers, and the loop of those that bring none of their own.

Peers may live in environments of their own: this module, and what it imports, needs the standard
library alone.
"""

import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.figure import Meter

SUFFIX = ".bench.test"  # nobody can register a name under `.test` (RFC 6761)
LOOPBACK = "127.0.0.1"
KILOBYTE = 1024


@dataclass(frozen=True, kw_only=True)
class Job:
    """Crawl all pages of the site on `port`, which answers for as many names as there are hosts."""

    port: int
    pages: int
    hosts: int
    folder: Path  # an empty one, for whatever is kept
    connections_per_host: int = 1
    is_with_markdown: bool = False
    database: str | None = None  # for whoever keeps his frontier in one; else in the folder
    server_pid: int | None = None  # of that database: what it does for the crawl counts

    @property
    def connections(self) -> int:
        """At a time, in all."""
        return self.hosts * self.connections_per_host

    @property
    def starts(self) -> list[str]:
        """The front page of each host; every other page is found through links."""
        return [f"http://{host_name(number)}/" for number in range(self.hosts)]


@dataclass(frozen=True, kw_only=True)
class Crawled:
    """What a crawler has seen, and what that took once its libraries were imported."""

    pages: int
    links: int  # of each page those to other pages of the site, each once, all added up
    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Seen:
    """How many pages, and how many links of them to pages of the site."""

    pages: int
    links: int


def host_name(number: int) -> str:
    """The name of a host of the site; its port is not in its URLs, as on the web."""
    return f"h{number}{SUFFIX}"


def without_tracking(url: str) -> str:
    """The page behind a link of the site: its fragment and its tracking parameters are cut.

    The least that makes the same pages of the same links, and far less than a URL's canonical form.
    """
    page = url.partition("#")[0]
    return page.partition("?utm_")[0].partition("&utm_")[0]


Visit = Callable[[str], Awaitable[Iterable[str]]]
"""Fetches a page; the answer is where it leads, each page once, other sites' too."""


async def crawl(job: Job, visit: Visit) -> Seen:
    """Every page of the site is visited once, by so many workers a host."""
    queues = {host_name(number): asyncio.Queue[str]() for number in range(job.hosts)}
    seen = set(job.starts)
    visited = links = 0
    is_done = asyncio.Event()
    for url in job.starts:
        queues[_host(url)].put_nowait(url)

    async def work(queue: asyncio.Queue[str]) -> None:
        nonlocal visited, links
        while True:
            url = await queue.get()
            for link in await visit(url):
                if link == url or (theirs := queues.get(_host(link))) is None:
                    continue
                links += 1
                if link not in seen:
                    seen.add(link)
                    theirs.put_nowait(link)
            visited += 1
            if visited == len(seen):
                is_done.set()

    async with asyncio.TaskGroup() as group:
        queued = list(queues.values()) * job.connections_per_host
        workers = [group.create_task(work(queue)) for queue in queued]
        workers.append(group.create_task(_end(is_done, workers)))
    return Seen(visited, links)


def main(work: Callable[[Job], Seen], prepare: Callable[[Job], None] | None = None) -> None:
    """Do the job of the command line; the last line that is written says what it took.

    What `prepare` does is not counted, as imports are not.
    """
    asked = json.loads(sys.argv[1])
    job = Job(**asked | {"folder": Path(asked["folder"])})
    if prepare is not None:
        prepare(job)
    meter = Meter(job.server_pid)
    cpu, started = meter.cpu_seconds(), time.perf_counter()
    seen = work(job)
    wall = time.perf_counter() - started
    crawled = Crawled(
        pages=seen.pages,
        links=seen.links,
        wall_seconds=wall,
        cpu_seconds=meter.cpu_seconds() - cpu,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILOBYTE,
    )
    print(json.dumps(asdict(crawled)), flush=True)


def as_argument(job: Job) -> str:
    """The job as `main` reads it."""
    return json.dumps(asdict(job) | {"folder": str(job.folder)})


async def _end(is_done: asyncio.Event, workers: list[asyncio.Task[None]]) -> None:
    await is_done.wait()
    for worker in workers[:-1]:
        worker.cancel()


def _host(url: str) -> str:
    return url.split("/", 3)[2]
