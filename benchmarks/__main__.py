"""`python -m benchmarks [NAME]`: every claim on both databases, or one of them at full size."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks import claims, crawl, exports, extraction, ingestion, listings, polls
from benchmarks.database import Database, postgresql, sqlite
from benchmarks.figure import Figure, Flat, Skipped

Measure = Callable[[Database], Iterator[Figure | Flat | Skipped]]
FULL: dict[str, Measure] = {
    "claims": claims.measure,
    "crawl": crawl.measure,
    "exports": exports.measure,
    "extraction": extraction.measure,
    "ingestion": ingestion.measure,
    "listings": listings.measure,
    "polls": polls.measure,
}
# All of them in a few minutes; ten thousand sources alone would take longer.
QUICK = FULL | {
    "crawl": partial(
        crawl.measure,
        sizes=crawl.Sizes(pages=500, pages_with_markdown=100, rounds=1, small_pages=(1_000, 4_000)),
    ),
    "exports": partial(exports.measure, sizes=exports.Sizes(items=20_000, few=10_000, rounds=1)),
    "extraction": partial(extraction.measure, pages=300, rounds=1),
    "listings": partial(
        listings.measure,
        sizes=listings.Sizes(listings=2_000, stored=(1_000, 20_000), rounds=1),
    ),
    "polls": partial(polls.measure, count=500),
}
HEAD = ("claim", "database", "peer", "ours", "peer's", "wall", "CPU", "bar")
WIDTHS = (52, 11, 35, 10, 10, 6, 6, 5)


def main(names: list[str]) -> None:
    """One table; CPU ratios are the ones to trust on a busy machine."""
    if unknown := [name for name in names if name not in FULL]:
        raise SystemExit(f"no benchmark {', '.join(unknown)}; there are: {', '.join(FULL)}")
    wanted = {name: FULL[name] for name in names} or QUICK
    started = time.monotonic()
    print(row(HEAD))
    for open_database in (sqlite, postgresql):
        with open_database() as database:
            if database is None:
                print("no PostgreSQL on this machine: `make system` installs it")
                continue
            for name, measure in wanted.items():
                if name == "polls" and database.name != "SQLite" and not names:
                    continue
                for line in measure(database):
                    print(written(line), flush=True)
    print(f"{time.monotonic() - started:.0f} seconds")


def written(line: Figure | Flat | Skipped) -> str:
    """A line of the table."""
    if isinstance(line, Flat):
        peaks = ", ".join(f"{n:,}: {size / 1e6:.0f} MB" for n, size in line.peaks.items())
        growth, bar = f"{line.growth:.2f}", f"{line.bar:.2f}"
        return row((line.claim, line.database, peaks, "", "", "", growth, bar))
    if isinstance(line, Skipped):
        return row((line.claim, line.database, f"skipped: {line.reason}"))
    rates = (f"{line.ours.rate:,.0f}/s", f"{line.theirs.rate:,.0f}/s")
    ratios = (f"{line.ratio:.2f}", f"{line.cpu_ratio:.2f}")
    bar = "" if line.bar is None else f"{line.bar:.2f}"
    return row((line.claim, line.database, line.peer, *rates, *ratios, bar))


def row(cells: tuple[str, ...]) -> str:
    """Texts to the left, numbers to the right."""
    pairs = list(zip(cells, WIDTHS, strict=False))
    texts = [f"{cell:<{width}}" for cell, width in pairs[:3]]
    return "  ".join(texts + [f"{cell:>{width}}" for cell, width in pairs[3:]]).rstrip()


if __name__ == "__main__":
    main(sys.argv[1:])
