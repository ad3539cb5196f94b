"""Exports: rows a second and memory of a file of all courses, against pandas.read_sql + to_*."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, insert, select

from benchmarks.database import Database
from benchmarks.figure import Cost, Figure, Flat, middle
from ingestion_pipeline.store import Store, open_store, tables
from ingestion_pipeline_tests.exports.datasets import a_course, a_dataset

BATCH = 5_000
DESCRIPTION = "What the course is about, who teaches it, and what one can do after it. " * 6


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured."""

    items: int = 100_000
    few: int = 20_000  # for the growth of memory
    rounds: int = 3


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one export took."""

    cost: Cost
    peak: int


def measure(database: Database, sizes: Sizes | None = None) -> Iterator[Figure | Flat]:
    """Both formats against pandas, then our memory with few and with many."""
    sizes = sizes or Sizes()
    urls = {count: database.another(f"exports{count}") for count in (sizes.few, sizes.items)}
    for count, url in urls.items():
        with closing(open_store(url)) as store:
            _fill(store, count)
    for form in ("parquet", "csv"):
        ours: list[Run] = []
        theirs: list[Run] = []
        for _ in range(sizes.rounds):
            ours.append(_run(database, "ours", urls[sizes.items], form))
            theirs.append(_run(database, "pandas", urls[sizes.items], form))
        held = f"{_most(ours):.0f} MB to {_most(theirs):.0f}"
        yield Figure(
            claim=f"{sizes.items:,} courses to {form}, {held}",
            database=database.name,
            peer=f"pandas.read_sql + to_{form}",
            ours=middle([one.cost for one in ours]),
            theirs=middle([one.cost for one in theirs]),
        )
    few = _run(database, "ours", urls[sizes.few], "parquet").peak
    many = _run(database, "ours", urls[sizes.items], "parquet").peak
    peaks = {sizes.few: few, sizes.items: many}
    yield Flat(claim="memory of an export to parquet", database=database.name, peaks=peaks)


def _most(runs: list[Run]) -> float:
    return max(one.peak for one in runs) / 1e6


def _run(database: Database, way: str, url: str, form: str) -> Run:
    file = str(database.folder / f"{way}.{form}")
    line = [sys.executable, "-m", "benchmarks.export_once", way, url, form, file]
    server = database.meter.server_seconds()
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    server = database.meter.server_seconds() - server
    took = json.loads(done.stdout)
    cost = Cost(items=took["rows"], wall_seconds=took["wall"], cpu_seconds=took["cpu"] + server)
    return Run(cost=cost, peak=took["peak"])


def _fill(store: Store, count: int) -> None:
    """So many courses, all of one page: their data is what is measured."""
    dataset = a_dataset(store, [_course(0)])
    with store.begin() as connection:
        first = connection.execute(
            select(tables.data_items).where(tables.data_items.c.dataset_id == dataset)
        ).mappings()
        like: dict[str, Any] = {name: value for name, value in first.one().items() if name != "id"}
        for start in range(1, count, BATCH):
            rows = [like | _course(n) for n in range(start, min(start + BATCH, count))]
            connection.execute(insert(tables.data_items), rows)
        held = connection.scalar(select(func.count()).select_from(tables.data_items))
    assert held == count


def _course(number: int) -> dict[str, Any]:
    made = a_course(
        f"CS {number}",
        course_name=f"Introduction, part {number}",
        course_description=DESCRIPTION,
        course_prerequisites=f"CS {number - 1}",
        course_credits_max=number % 12 + 0.5,
        course_credits_type="SemesterHour",
    )
    return {**made, "item_key": f"cs {number:06}"}
