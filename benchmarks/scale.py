"""What a hundred thousand sources cost: to register, to tick, to list; what history costs a poll.

Sources are registered as files and rows are. CPU time, the server's included: others on the machine
do not show in it. A limit in seconds is one of wall time: nobody else uses the database.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, text, update

from benchmarks.database import Database
from benchmarks.figure import Meter
from benchmarks.history import add_chapters, compared, series_name
from benchmarks.table import Line
from ingestion_pipeline.cli.output import Column, cell, distance, table_lines
from ingestion_pipeline.cli.sources import source_facts
from ingestion_pipeline.operations.source_health import source_statuses
from ingestion_pipeline.registry import ingesting_kinds
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.sources import Definition, Kind, Tier
from ingestion_pipeline.sources.files import partition_keys
from ingestion_pipeline.sources.lookup import SourceLine, listed_sources
from ingestion_pipeline.sources.poll_tasks import (
    backlog,
    due_counts,
    known_pace,
    new_shards,
    shard_count,
    shards_of,
    source_counts,
    unscheduled_shards,
)
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.scheduling.tiers import adjust_request_costs, load_measurements
from ingestion_pipeline.sources.status import totals, watched_sources
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import tasks
from ingestion_pipeline.store.types import UtcDateTime

PER_HOST = 5
Ask = Callable[[Connection], object]
Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sources; each of those that history is compared among has a hundred chapters."""

    sources: tuple[int, ...] = (1_000, 10_000, 100_000)
    with_chapters: tuple[int, ...] = (1_000, 10_000, 100_000)
    rounds: int = 7  # of listings


def measure(database: Database, sizes: Sizes | None = None) -> Iterator[Line]:
    """Every question at every size."""
    sizes = sizes or Sizes()
    taken: dict[str, dict[int, float]] = {}
    with ExitStack() as stack:
        among: dict[int, Store] = {}
        for count in sizes.sources:
            store = stack.enter_context(closing(open_store(database.another(f"scale-{count}"))))
            for name, seconds in measured(store, count, database.meter).items():
                taken.setdefault(name, {})[count] = seconds
            if count in sizes.with_chapters:
                among[add_chapters(store)] = store
        for name, by_size in taken.items():
            yield _line(name, database, by_size, bar=1.0 if name in BARS else None)
        yield _growth(database, compared(among, database.meter, rounds=sizes.rounds))


def _line(name: str, database: Database, seconds: Mapping[int, float], *, bar: float | None = None) -> Line:
    """The ratio is the seconds with the most there is."""
    sizes = ", ".join(f"{n:,}: {one * 1_000:,.1f}" for n, one in seconds.items())
    return Line(
        claim=f"{name}, ms" if bar else f"{name}, CPU ms",
        database=database.name,
        peer=sizes,
        ratio=seconds[max(seconds)],
        limit=bar,
        is_less_better=True,
    )


GROWTH_BAR = 1.5  # what a poll costs must not follow its history


def _growth(database: Database, seconds: Mapping[int, float]) -> Line:
    """The ratio is of the seconds with the most chapters stored and the least with any number."""
    sizes = ", ".join(f"{n:,}: {one * 1_000:,.2f}" for n, one in seconds.items())
    return Line(
        claim="comparing a feed of 100 chapters, CPU ms, by chapters stored",
        database=database.name,
        peer=sizes,
        ratio=seconds[max(seconds)] / min(seconds.values()),
        limit=GROWTH_BAR,
        is_less_better=True,
    )


BARS = {"a tick, all are due", "a tick, one in a hundred is due", "new_sources, nothing is new"}


def measured(store: Store, count: int, meter: Meter) -> dict[str, float]:
    """Seconds by what was asked."""
    declared = _definitions(count)
    found = {
        "register": _taken(lambda: _register(store, declared), meter.cpu_seconds),
        "register again, unchanged": _taken(lambda: _register(store, declared), meter.cpu_seconds),
    }
    with store.begin() as connection:
        connection.execute(text("ANALYZE"))
    asked: dict[str, Ask] = {
        "a tick, all are due": lambda c: runs_requested(c, store),
        "new_sources, all are new": lambda c: _arrivals(c, store, is_new=True),
    }
    found |= {name: _asked(store, ask, _clock(name, meter)) for name, ask in asked.items()}
    _poll_most(store)
    later: dict[str, Ask] = {
        "a tick, one in a hundred is due": lambda c: runs_requested(c, store),
        "new_sources, nothing is new": lambda c: _arrivals(c, store, is_new=False),
        "pending_work": lambda c: unscheduled_shards(c, now=store.clock.now(c), shards=2),
        "ingest status: totals": lambda c: totals(c, now=store.clock.now(c)),
        "ingest status: every source's health": lambda c: _healths(c, store),
        "ingest sources list": lambda c: _listed(c, store),
        "ingest sources list --json": lambda c: _facts(c, store),
    }
    found |= {name: _asked(store, ask, _clock(name, meter)) for name, ask in later.items()}
    found["maintain: request costs"] = _taken(lambda: _prices(store), meter.cpu_seconds)
    return found


def runs_requested(connection: Connection, store: Store) -> int:
    """As a schedule's tick asks it: how many runs it would request, of all tiers."""
    settings, now = load_settings({}), store.clock.now(connection)
    backlog(connection, now=now, limit=settings.polling.backlog_limit, kinds=ingesting_kinds())
    paces = load_measurements(connection)
    wanted = 0
    for tier in Tier:
        due = due_counts(connection, tier, now=now)
        pace = known_pace(paces, tier.value)
        count = shard_count(sum(due.values()), pace=pace, limits=settings.polling)
        wanted += len(shards_of(due, count))
    return wanted


def _healths(connection: Connection, store: Store) -> None:
    source_statuses(connection, load_settings({}), now=store.clock.now(connection))


def _listed(connection: Connection, store: Store) -> int:
    """To the last line of the table."""
    columns = [Column(name) for name in SourceLine._fields]
    now = store.clock.now(connection)
    cells = [
        [cell(distance(value, now) if isinstance(value, datetime) else value) for value in one]
        for one in listed_sources(connection)
    ]
    return len(table_lines(columns, cells, width=1_000))


def _facts(connection: Connection, store: Store) -> int:
    """To the JSON's rows; they are written in a tenth of the time."""
    now = store.clock.now(connection)
    found = watched_sources(connection)
    return len([source_facts(one, now=now, max_attempts=3) for one in found])


def _definitions(count: int) -> list[Definition]:
    return [
        Definition(
            id=f"series:{series_name(n)}",
            kind=Kind.SERIES,
            url=f"https://h{n // PER_HOST}.test/{n}",
            platform="rss",
            series=series_name(n),
        )
        for n in range(count)
    ]


def _register(store: Store, definitions: list[Definition]) -> None:
    with store.begin() as connection:
        register(connection, definitions, now=store.clock.now(connection))


def _arrivals(connection: Connection, store: Store, *, is_new: bool) -> None:
    source_counts(connection)
    if is_new:
        new_shards(connection, now=store.clock.now(connection), shards=2)
        partition_keys(connection, limit=Settings().polling.partition_limit)


POLLED = text(
    """
    UPDATE sources SET last_checked_at = :now, last_success_at = :now, changes_per_day = 0.2,
           checks_per_day = 6
    """
).bindparams(bindparam("now", type_=UtcDateTime()))


def _poll_most(store: Store) -> None:
    """As if all had been polled; one in a hundred is due again."""
    with store.begin() as connection:
        now = store.clock.now(connection)
        connection.execute(POLLED, {"now": now})
        later = text("id % 100 <> 0")
        values = {"not_before": now.replace(year=now.year + 1)}
        connection.execute(update(tasks).where(later).values(**values))
        connection.execute(text("ANALYZE"))


def _prices(store: Store) -> None:
    with store.begin() as connection:
        adjust_request_costs(connection, load_settings({}), store.clock.now(connection))


def _clock(name: str, meter: Meter) -> Clock:
    return time.perf_counter if name in BARS else meter.cpu_seconds


def _asked(store: Store, ask: Ask, clock: Clock) -> float:
    """The least of two; once before to warm up: a daemon asks all day."""
    with store.read() as connection:
        ask(connection)
        return min(_taken(lambda: ask(connection), clock) for _ in range(2))


def _taken(work: Callable[[], object], clock: Clock) -> float:
    before = clock()
    work()
    return clock() - before
