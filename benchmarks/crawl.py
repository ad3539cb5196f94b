"""2,000 pages of ten hosts on loopback, each about 43 KB with 110 links: fetch, store and links.

Peers: Scrapy with its LinkExtractor, and aiohttp + selectolax in a bare loop that also hashes,
compresses and writes each body; with Markdown, Crawl4AI over plain HTTP, which keeps its pages by
its own cache, and for comparison the same without keeping any. Each crawler is a process of its
own, whose CPU time counts from when its libraries are imported; the site's does not count.
All of them go by the same names and links, one request a host at a time, without delay; ours alone
asks each host for robots.txt, once. The site's own tally says whether each page was fetched, and
once. Each single run is told on stderr at once.

Then the memory of ours, with ten times as many pages: small ones, since it is their number that
must not matter.
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

from benchmarks.crawlers.job import LOOPBACK, Crawled, Job, as_argument
from benchmarks.database import Database
from benchmarks.disk import dearest_file, kept_folder, wait_for_quiet
from benchmarks.environments import NoEnvironment, python_with
from benchmarks.figure import Cost, Figure, Flat, Skipped, middle

PATIENCE_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is crawled."""

    pages: int = 2_000
    pages_with_markdown: int = 2_000
    hosts: int = 10
    rounds: int = 3
    small_pages: tuple[int, ...] = (2_000, 20_000)
    patience_seconds: float = 300.0  # for a disk that others have just deleted much from


@dataclass(frozen=True, kw_only=True)
class Crawler:
    """A module of `benchmarks.crawlers`, and where its libraries are."""

    name: str
    module: str
    option: str | None = None
    needs: tuple[str, ...] = ()
    environment: str | None = None  # a requirement that does not belong into ours
    bar: float | None = None
    goal: float | None = None

    def python(self) -> str:
        """The interpreter it runs in.

        Raises:
            NoEnvironment: it cannot be measured here.
        """
        if self.environment:
            return str(python_with(self.environment))
        if missing := [name for name in self.needs if find_spec(name) is None]:
            raise NoEnvironment(f"no {' and no '.join(missing)}: pip install -e '.[bench]'")
        return sys.executable


OURS = Crawler(name="crawl: fetch, guard, store, links", module="ours")
BARE = Crawler(
    name="aiohttp + selectolax, bare",
    module="bare",
    needs=("aiohttp", "selectolax"),
    bar=0.5,
    goal=1 / 1.5,
)
PEERS = (
    Crawler(name="Scrapy, LinkExtractor", module="scrapy_peer", needs=("scrapy",), bar=4.0),
    Crawler(name="Scrapy, links compared first", module="scrapy_peer", option="seen", needs=("scrapy",)),
    BARE,
)
# 96 packages and 0.9 GB, from scipy to a second browser driver: not for the environment we test in.
CRAWL4AI = Crawler(name="Crawl4AI over HTTP", module="crawl4ai_peer", environment="crawl4ai==0.9.5", bar=8.0)
WITH_MARKDOWN = (CRAWL4AI, replace(CRAWL4AI, name="Crawl4AI, nothing stored", option="unkept", bar=None))


def measure(database: Database, sizes: Sizes | None = None) -> Iterator[Figure | Flat | Skipped]:
    """Links alone against each peer, then with Markdown, then memory; on a server less of it."""
    sizes = sizes or Sizes()
    if database.name != "SQLite":
        yield from _against((BARE,), sizes, database, pages=sizes.pages)
        return
    yield from _against(PEERS, sizes, database, pages=sizes.pages)
    if sizes.pages_with_markdown:
        pages = sizes.pages_with_markdown
        yield from _against(WITH_MARKDOWN, sizes, database, pages=pages, markdown=True)
    if sizes.small_pages:
        peaks = {pages: peak_bytes(pages, sizes.hosts) for pages in sizes.small_pages}
        yield Flat(claim="memory of the crawl, small pages", database=database.name, peaks=peaks)


def peak_bytes(pages: int, hosts: int = 10) -> int:
    """The most that a process of ours held while it crawled so many small pages."""
    with site(pages=pages, hosts=hosts, is_small=True) as port:
        return run(OURS, port, pages, hosts).peak_bytes


def _against(
    peers: tuple[Crawler, ...], sizes: Sizes, database: Database, *, pages: int, markdown: bool = False
) -> Iterator[Figure | Skipped]:
    claim = f"{OURS.name}, Markdown" if markdown else OURS.name
    able: list[Crawler] = []
    for peer in peers:
        try:
            peer.python()
            able.append(peer)
        except NoEnvironment as error:
            yield Skipped(claim, database.name, f"{peer.name}: {error}")
    if not able:
        return
    crawled: dict[Crawler, list[Crawled]] = {crawler: [] for crawler in (OURS, *able)}
    cost = partial(dearest_file, kept_folder())
    wait_for_quiet(cost, patience_seconds=sizes.patience_seconds)
    with site(pages=pages, hosts=sizes.hosts) as port:
        for _ in range(sizes.rounds):
            # Before and after each peer: a slow one has the machine's quick minutes and its slow
            # ones, a quick one only some of them.
            for crawler in [one for peer in able for one in (OURS, peer)] + [OURS]:
                where = database if crawler is OURS else None
                once = run(crawler, port, pages, sizes.hosts, where, markdown=markdown)
                crawled[crawler].append(once)
    check_links(crawled)
    costs = {crawler: middle([_cost(one) for one in times]) for crawler, times in crawled.items()}
    ours = costs.pop(OURS)
    for peer, theirs in costs.items():
        yield Figure(
            claim=f"{claim}: {_per_thousand(ours)}",
            database=database.name,
            peer=f"{peer.name}: {_per_thousand(theirs)}",
            ours=ours,
            theirs=theirs,
            bar=peer.bar,
            goal=peer.goal,
        )


def check_links(crawled: dict[Crawler, list[Crawled]]) -> None:
    """A crawler that overlooks links has less to do."""
    found = {crawler.name: {one.links for one in times} for crawler, times in crawled.items()}
    if len(set.union(*found.values())) != 1:
        raise RuntimeError(f"the crawlers did not find the same links: {found}")


def run(
    crawler: Crawler, port: int, pages: int, hosts: int, database: Database | None = None, *, markdown: bool = False
) -> Crawled:
    """What the crawler says of the whole site, once the site has confirmed it.

    With a database the crawler gets an empty one of its kind, and its server's CPU time counts.
    """
    job = Job(
        port=port,
        pages=pages,
        hosts=hosts,
        folder=Path(tempfile.mkdtemp(dir=kept_folder())),
        is_with_markdown=markdown,
        database=_another(database),
        server_pid=database.meter.server_pid if database else None,
    )
    crawled = _crawled(crawler, job)
    check_whole(crawler, crawled, _served(port), pages)
    _tell(crawler, crawled)
    return crawled


def _another(database: Database | None) -> str | None:
    return database.another(uuid4().hex) if database and database.name != "SQLite" else None


def _crawled(crawler: Crawler, job: Job) -> Crawled:
    command = [crawler.python(), "-m", f"benchmarks.crawlers.{crawler.module}"]
    command += [as_argument(job), *([crawler.option] if crawler.option else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{crawler.name} failed:\n{done.stderr[-2_000:]}")
    return Crawled(**json.loads(done.stdout.splitlines()[-1]))


def _tell(crawler: Crawler, crawled: Crawled) -> None:
    print(
        f"  {crawler.name}: {crawled.pages} pages, {_per_thousand(_cost(crawled))} CPU s a"
        f" thousand, {crawled.wall_seconds:.1f} s, {crawled.peak_bytes / 1e6:.0f} MB at the most",
        file=sys.stderr,
        flush=True,
    )


def check_whole(crawler: Crawler, crawled: Crawled, served: dict[str, int], pages: int) -> None:
    """Each page was fetched once, by the crawler's count and by the site's; robots.txt, too."""
    if {crawled.pages, served["pages"], served["requests"]} != {pages}:
        raise RuntimeError(f"{crawler.name} crawled {crawled} of {pages} pages, served: {served}")
    if served.get("most_of_one_missing", 0) > 1:
        raise RuntimeError(f"{crawler.name} asked again for what is not there: {served}")


@contextmanager
def site(*, pages: int, hosts: int, is_small: bool = False) -> Iterator[int]:
    """The site in a process of its own, and its port."""
    command = [sys.executable, "-m", "benchmarks.crawlers.site"]
    command += [str(pages), str(hosts), str(int(is_small))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def _served(port: int) -> dict[str, int]:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/served") as answer:
        return json.load(answer)


def _cost(crawled: Crawled) -> Cost:
    return Cost(items=crawled.pages, wall_seconds=crawled.wall_seconds, cpu_seconds=crawled.cpu_seconds)


def _per_thousand(cost: Cost) -> str:
    return f"{1_000 * cost.cpu_seconds / cost.items:.2f}"
