"""`python -m benchmarks [--quick] [NAME ...]`: every claim on both databases, as one table.

Without `--quick` at full size, which takes its time. The table is also written as JSON, to
`benchmarks/last.json` under INGESTION_HOME or under `build`; INGESTION_HOME is not used otherwise.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime

from benchmarks.database import Database, postgresql, sqlite
from benchmarks.figure import Skipped
from benchmarks.registry import POSTGRESQL, SQLITE, Benchmark, named
from benchmarks.table import Line, as_json, head, place_of_json, row, summary
from ingestion_pipeline.gc_thresholds import fewer_collections

DATABASES: dict[str, Callable[[], AbstractContextManager[Database | None]]] = {SQLITE: sqlite, POSTGRESQL: postgresql}


def main(arguments: Sequence[str]) -> None:
    """One table; the ratios are of CPU time, which others on the machine do not spoil."""
    asked = _asked(arguments)
    try:
        wanted = named(asked.names)
    except LookupError as error:
        raise SystemExit(str(error.args[0])) from error
    started = time.monotonic()
    print(head())
    lines: list[Line] = []
    for line in measured(wanted, quick=asked.quick):
        print(row(line), flush=True)
        lines.append(line)
    seconds = time.monotonic() - started
    place = place_of_json()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(as_json(lines, now=datetime.now(UTC), quick=asked.quick, seconds=seconds))
    print(f"{summary(lines)}; {seconds:.0f} seconds; {place}")


def measured(wanted: Sequence[Benchmark], *, quick: bool) -> Iterator[Line]:
    """Every line of every benchmark; one that fails, or cannot be run here, has a line as well."""
    for name, opened in DATABASES.items():
        if here := [one for one in wanted if name in one.databases]:
            with fewer_collections(), opened() as database:  # as in our runs; for the peers in this process, too
                for one in here:
                    yield from _lines(one, name, database, quick=quick)


def _lines(one: Benchmark, name: str, database: Database | None, *, quick: bool) -> Iterator[Line]:
    if database is None:
        yield Skipped(one.name, name, "no such server on this machine: `make system`").line()
        return
    if quick and name not in one.quick_databases:
        yield Skipped(one.name, name, "it takes too long for --quick").line()
        return
    try:
        for line in (one.quick if quick else one.full)(database):
            yield line.line()
    except Exception as error:
        print(f"{one.name} on {name} failed: {error!r}", file=sys.stderr)
        yield Skipped(one.name, name, f"it failed: {str(error)[:200]}").line()


def _asked(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="all of it in a few minutes")
    parser.add_argument("names", nargs="*", help="some of it")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
