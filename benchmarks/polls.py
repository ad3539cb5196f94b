"""Ten thousand due sources of 200 hosts, 50 ms away: through `poll_hot`, and by the bare functions.

The site is a process of its own and not counted. Each way has a store of its own; it first syncs
every source (20 chapters each) and then polls them all again, 2 % changed. Each Dagster run is a
process of its own, as the default launcher has it, and its imports are counted like all else.
Not counted is what happens once in the life of a house: that the program is compiled, and that
either database is made.
"""

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select, update

from benchmarks.database import Database
from benchmarks.figure import Cost, Figure
from ingestion_pipeline.pages.http.guard import LOOPBACK, running_server
from ingestion_pipeline.sources import Definition, Kind, Tier
from ingestion_pipeline.sources.poll_tasks import due_counts
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import chapter_sources, sources, tasks

SOURCES = 10_000
HOSTS = 200
BAR = 1 / 1.3
MOST_RUNS = 20
LEFT_OUT = re.compile(r"INGESTION|PYTHONDONTWRITEBYTECODE$")
TOO_FEW = "no limit: a run's start and its events weigh more than so few polls"
CONFIG = {
    "items": "chapters",
    "fields": {"number": ["number"], "title": ["title"], "url": ["url"], "source_chapter_id": ["id"]},
}


@dataclass(frozen=True, kw_only=True)
class Polled:
    """What one way took, and in how many runs."""

    cost: Cost
    runs: int


def measure(database: Database, *, count: int = SOURCES) -> Iterator[Figure]:
    """Two figures: the first sync of all, and all again with 2 % changed.

    The limit is for ten thousand: a run tells up to a hundred changes, however few it has polled.
    """
    bar, note = promised(count)
    ways = {way: _Way(way, database, count) for way in ("dagster", "bare")}
    for again, claim in enumerate(("first sync", "2 % changed")):
        polled = {name: way.poll(version=again) for name, way in ways.items()}
        yield Figure(
            claim=f"{count:,} sources, {claim}, {polled['dagster'].runs} x poll_hot",
            database=database.name,
            peer="the same functions without Dagster",
            ours=polled["dagster"].cost,
            theirs=polled["bare"].cost,
            bar=bar,
            note=note,
        )


def promised(count: int) -> tuple[float | None, str]:
    """The limit for so many sources; or none, and why."""
    return (BAR, "") if count >= SOURCES else (None, TOO_FEW)


class _Way:
    """A home, a store and a site of its own."""

    def __init__(self, name: str, database: Database, count: int) -> None:
        self._name, self._database, self._count = name, database, count
        self._home = database.folder / name
        dagster_home = self._home / "dagster"
        dagster_home.mkdir(parents=True)
        shutil.copy("dagster.yaml", dagster_home)
        self._url = database.another(name)
        self._run()  # nothing is due yet: it makes the databases, and what is compiled is kept
        with closing(open_store(self._url)) as store:
            register_sources(store, count)

    def poll(self, *, version: int) -> Polled:
        """Everything is due, and polled; the chapters that must be there are."""
        with closing(open_store(self._url)) as store, running_site(self._home) as port:
            urllib.request.urlopen(f"http://{LOOPBACK}:{port}/version/{version}").close()
            make_due(store)
            runs = 0

            def until_nothing_is_due() -> int:
                nonlocal runs
                while _is_due(store) and runs < MOST_RUNS:
                    self._run()
                    runs += 1
                return self._count

            cost = self._database.meter.cost(until_nothing_is_due)
            _check(store, chapters=self._count * 20 + version * (self._count // 50))
        return Polled(cost=cost, runs=runs)

    def _run(self) -> None:
        command = [sys.executable, "-m", "benchmarks.poll_once", self._name]
        subprocess.run(command, env=environment(self._home, self._url), check=True)


def environment(home: Path, url: str) -> dict[str, str]:
    """Return the environment of a process that polls into the database, with the Dagster home beside it."""
    return {
        **{name: value for name, value in os.environ.items() if not LEFT_OUT.match(name)},
        "INGESTION_HOME": str(home),
        "INGESTION_DATABASE_URL": url,
        "INGESTION_HOSTS__DELAY_SECONDS": "0",
        "DAGSTER_HOME": str(home / "dagster"),
        "PYTHONWARNINGS": "ignore",
    }


@contextmanager
def running_site(home: Path) -> Iterator[int]:
    """Run the site of `benchmarks.site` and yield its port."""
    command = [sys.executable, "-m", "benchmarks.site", str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            server = running_server(home)
            assert server is not None, "the site did not start"
            yield server.port
        finally:
            process.terminate()


def register_sources(store: Store, count: int) -> None:
    """Register so many sources of the site, spread over its hosts."""
    definitions = [
        Definition(
            id=f"series:bench-{n}",
            kind=Kind.SERIES,
            url=f"http://h{n % HOSTS}.demo.test/source/{n}",
            platform="json",
            tier=Tier.HOT,
            config=CONFIG,
            series=f"bench-{n}",
        )
        for n in range(count)
    ]
    for start in range(0, count, 1_000):
        with store.begin() as connection:
            now = store.clock.now(connection)
            register(connection, definitions[start : start + 1_000], now=now)


def make_due(store: Store) -> None:
    """Make every poll due now."""
    with store.begin() as connection:
        connection.execute(update(tasks).values(not_before=store.clock.now(connection)))


def _is_due(store: Store) -> bool:
    with store.read() as connection:
        return bool(due_counts(connection, Tier.HOT, now=store.clock.now(connection)))


def _check(store: Store, *, chapters: int) -> None:
    """A benchmark that measures failing polls measures nothing."""
    with store.read() as connection:
        failed = select(func.count()).select_from(sources).where(sources.c.failure_count > 0)
        found = select(func.count()).select_from(chapter_sources)
        seen = connection.execute(found).scalar_one(), connection.execute(failed).scalar_one()
    if seen != (chapters, 0):
        raise RuntimeError(f"{seen[0]} chapters of {chapters}, {seen[1]} sources failed")
