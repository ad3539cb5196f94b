"""All benchmarks: to add one, add an entry to `ALL`.

A measure is given a database and yields whatever has a `line()` (`figure.Figure`, `figure.Flat`,
`figure.Skipped`, `table.Line`), as soon as it is known.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from benchmarks import (
    asset_page,
    claims,
    crawl,
    exports,
    extraction,
    ingestion,
    listings,
    polls,
    rounds,
    scale,
    slow_hosts,
)
from benchmarks.database import Database
from benchmarks.polling import delays
from benchmarks.table import Measured

SQLITE, POSTGRESQL = "SQLite", "PostgreSQL"

Measure = Callable[[Database], Iterable[Measured]]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Measured at full size, or so quickly that all of them together take a few minutes."""

    name: str
    full: Measure
    quick: Measure
    databases: tuple[str, ...] = (SQLITE, POSTGRESQL)
    quick_databases: tuple[str, ...] = (SQLITE, POSTGRESQL)


ALL = (
    Benchmark(
        name="asset_page",
        full=asset_page.measure,
        quick=partial(asset_page.measure, sizes=(1_000,)),
        databases=(SQLITE,),
        quick_databases=(),
    ),
    Benchmark(
        name="claims",
        full=claims.measure,
        quick=partial(claims.measure, sizes=claims.Sizes(tasks=2_000, workers=(4,), rounds=1)),
    ),
    Benchmark(
        name="crawl",
        full=crawl.measure,
        quick=partial(
            crawl.measure,
            # As many pages as at full size: of 400 the start of a walk, some 0.3 s, is a fifth.
            sizes=crawl.Sizes(rounds=1, small_pages=(1_000, 4_000)),
        ),
    ),
    Benchmark(
        name="exports",
        full=exports.measure,
        quick=partial(exports.measure, sizes=exports.Sizes(items=10_000, few=5_000, rounds=1)),
        quick_databases=(SQLITE,),
    ),
    Benchmark(name="extraction", full=extraction.measure, quick=partial(extraction.measure, pages=300, rounds=3)),
    Benchmark(name="ingestion", full=ingestion.measure, quick=partial(ingestion.measure, row_by_row=200, rounds=5)),
    Benchmark(
        name="listings",
        full=listings.measure,
        quick=partial(
            listings.measure, sizes=listings.Sizes(listings=1_000, few=2_000, stored=(1_000, 10_000), rounds=1)
        ),
    ),
    Benchmark(
        name="polling",
        full=delays.measure,
        quick=partial(delays.measure, sizes=delays.Sizes(sources=2, days=60, documents=5, document_days=180)),
        databases=(SQLITE,),
        quick_databases=(SQLITE,),
    ),
    Benchmark(name="polls", full=polls.measure, quick=partial(polls.measure, count=500), quick_databases=(SQLITE,)),
    Benchmark(name="rounds", full=rounds.measure, quick=partial(rounds.measure, rounds=40)),
    Benchmark(
        name="scale",
        full=scale.measure,
        quick=partial(scale.measure, sizes=scale.Sizes(sources=(200, 1_000, 5_000), with_chapters=(200, 1_000))),
    ),
    Benchmark(name="slow_hosts", full=slow_hosts.measure, quick=partial(slow_hosts.measure, hosts=100)),
)


def named(names: Iterable[str]) -> list[Benchmark]:
    """Those that were asked for, or all.

    Raises:
        LookupError: there is none of that name; the message says which there are.
    """
    by_name = {one.name: one for one in ALL}
    wanted = list(names) or list(by_name)
    if unknown := [name for name in wanted if name not in by_name]:
        raise LookupError(f"no benchmark {', '.join(unknown)}; there are: {', '.join(by_name)}")
    return [by_name[name] for name in wanted]
