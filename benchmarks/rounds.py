"""Memory of one process over many runs, as a Celery worker has: each round polls 300 due sources by `poll_hot`.

The figure is the memory that the process holds (resident set), the median of five rounds: after the first rounds it
must not grow.
"""

import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

from benchmarks.database import Database
from benchmarks.figure import Flat
from benchmarks.polls import environment, register_sources, running_site
from ingestion_pipeline.store import open_store

SOURCES = 300
LIMIT = 1.05


def measure(database: Database, *, rounds: int = 200, first: int = 20) -> Iterator[Flat]:
    """Yield one line: the memory in the last rounds against that of the first."""
    home = database.folder / "rounds"
    (home / "dagster").mkdir(parents=True)
    shutil.copy("dagster.yaml", home / "dagster")
    url = database.another("rounds")
    with closing(open_store(url)) as store:
        register_sources(store, SOURCES)
    with running_site(home):
        command = [sys.executable, "-m", "benchmarks.poll_once", "rounds", str(rounds)]
        done = subprocess.run(command, env=environment(home, url), check=True, capture_output=True, text=True)
    held = [int(line) for line in done.stdout.split()]
    if len(held) != rounds:
        raise RuntimeError(f"{len(held)} rounds of {rounds}")
    yield Flat(
        claim=f"memory of a process over {rounds} rounds of {SOURCES} polls",
        database=database.name,
        peaks={n: round(statistics.median(held[n - 5 : n])) for n in (first, rounds)},
        bar=LIMIT,
    )
