"""Polls of healthy hosts while others hang or fail: of 300 hosts a tenth never answers and a tenth answers 500.

Polled by the bare functions (`poll_once bare`) in a process of its own; the site is another. The peer polls the
healthy sources alone. Rates are feeds of healthy hosts fetched and stored per second of wall time, until the last of
them: waiting for hanging hosts costs no CPU time, but slots.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from sqlalchemy import func, select

from benchmarks.database import Database
from benchmarks.polls import CONFIG, environment, running_site
from benchmarks.table import Line
from ingestion_pipeline.sources import Definition, Kind, Tier
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import batch_items, sources

HOSTS = 300
SOURCES_PER_HOST = 20  # at every size: waiting for a silent host for the first time costs the same however many it has
LIMIT = 0.7  # of the rate without slow hosts
TIMEOUT_SECONDS = 600
PATHS = {0: "hang", 1: "error"}  # of every ten hosts; the others answer


@dataclass(frozen=True, kw_only=True)
class HealthyPolls:
    """How many sources of healthy hosts were polled, and how long it took until the last of them was."""

    count: int
    seconds: float

    @property
    def rate(self) -> float:
        """Return polls per second."""
        return self.count / self.seconds


def measure(database: Database, *, hosts: int = HOSTS) -> Iterator[Line]:
    """Yield one line: the rate of healthy polls beside slow hosts, against the rate without them."""
    numbers = range(hosts * SOURCES_PER_HOST)
    alone = _poll(database, "healthy", [n for n in numbers if _path(n, hosts) == "source"], hosts)
    beside = _poll(database, "mixed", numbers, hosts)
    yield Line(
        claim=f"{beside.count:,} healthy polls, 10 % of hosts hang, 10 % answer 500",
        database=database.name,
        ours=f"{beside.rate:,.0f}/s",
        peer=f"{alone.rate:,.0f}/s  without the slow hosts (wall time)",
        ratio=beside.rate / alone.rate,
        limit=LIMIT,
    )


def _path(number: int, hosts: int) -> str:
    return PATHS.get(number % hosts % 10, "source")


def _poll(database: Database, name: str, numbers: Sequence[int], hosts: int) -> HealthyPolls:
    home = database.folder / f"slow-hosts-{name}"
    home.mkdir()
    url = database.another(f"slow-hosts-{name}")
    with closing(open_store(url)) as store, running_site(home):
        _register(store, numbers, hosts)
        healthy = sum(_path(number, hosts) == "source" for number in numbers)
        started = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.poll_once", "bare"]
        with subprocess.Popen(command, env=environment(home, url)) as worker:
            try:
                while (stored := _feed_count(store)) < healthy:
                    if worker.poll() is not None or time.monotonic() - started > TIMEOUT_SECONDS:
                        raise RuntimeError(f"{stored} of {healthy} healthy feeds were stored")
                    time.sleep(0.1)
                seconds = time.monotonic() - started
            finally:
                worker.kill()
    return HealthyPolls(count=healthy, seconds=seconds)


def _feed_count(store: Store) -> int:
    """Return how many feeds are stored; those that were ingested are no longer in a batch."""
    waiting = select(func.count()).select_from(batch_items).scalar_subquery()
    ingested = select(func.count()).where(sources.c.last_success_at.is_not(None)).scalar_subquery()
    with store.read() as connection:
        return connection.execute(select(waiting + ingested)).scalar_one()


def _register(store: Store, numbers: Sequence[int], hosts: int) -> None:
    definitions = [
        Definition(
            id=f"series:bench-{n}",
            kind=Kind.SERIES,
            url=f"http://h{n % hosts}.demo.test/{_path(n, hosts)}/{n}",
            platform="json",
            tier=Tier.HOT,
            config=CONFIG,
            series=f"bench-{n}",
        )
        for n in numbers
    ]
    with store.begin() as connection:
        register(connection, definitions, now=store.clock.now(connection))
