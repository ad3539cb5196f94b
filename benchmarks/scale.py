"""What a hundred thousand sources cost: to register, to tick, to list; what history costs a poll.

Sources are registered as files and rows are; the chapters of millions are made by the database
itself. Seconds of wall time of this process, the server's included: nobody else uses the database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from random import Random

from sqlalchemy import Connection, bindparam, text, update

from benchmarks.database import Database
from benchmarks.table import Line
from ingestion_pipeline.cli.output import cell, distance
from ingestion_pipeline.cli.sources import source_facts
from ingestion_pipeline.cli.table import Column, table_lines
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.sources import Definition, Kind, Tier
from ingestion_pipeline.sources.arrivals import partition_keys
from ingestion_pipeline.sources.due import census, due_counts, new_shards, unscheduled_shards
from ingestion_pipeline.sources.listed import Listed, listed_sources
from ingestion_pipeline.sources.pressure import backlog
from ingestion_pipeline.sources.price import adjust_prices
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.sharding import known_pace, shard_count, shards_of
from ingestion_pipeline.sources.status import totals, watched_sources
from ingestion_pipeline.sources.tuning import tuned
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import tasks
from ingestion_pipeline.store.types import UtcDateTime
from ingestion_pipeline.upkeep.standing import standings

PER_HOST = 5
CHAPTERS_EACH = 100  # of a source; the millions are parted among the sources
Ask = Callable[[Connection], object]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sources, and chapters in the end."""

    sources: tuple[int, ...] = (1_000, 10_000, 100_000)
    chapters: int = 10_000_000
    chapters_on_sqlite: int = 1_000_000


def measure(database: Database, sizes: Sizes | None = None) -> Iterator[Line]:
    """Every question at every size."""
    sizes = sizes or Sizes()
    taken: dict[str, dict[int, float]] = {}
    history: dict[int, float] = {}
    for count in sizes.sources:
        with closing(open_store(database.another(f"scale-{count}"))) as store:
            for name, seconds in measured(store, count).items():
                taken.setdefault(name, {})[count] = seconds
            if count == max(sizes.sources):
                is_sqlite = store.engine.dialect.name == "sqlite"
                most = sizes.chapters_on_sqlite if is_sqlite else sizes.chapters
                history = dict(polls_among(store, min(most, count * CHAPTERS_EACH)))
    for name, by_size in taken.items():
        yield _line(name, database, by_size, bar=1.0 if name in BARS else None)
    yield _growth(database, history)


def _line(
    name: str, database: Database, seconds: Mapping[int, float], *, bar: float | None = None
) -> Line:
    """The ratio is the seconds with the most there is."""
    sizes = ", ".join(f"{n:,}: {one * 1_000:,.1f}" for n, one in seconds.items())
    return Line(
        claim=f"{name}, ms",
        database=database.name,
        peer=sizes,
        ratio=seconds[max(seconds)],
        limit=bar,
        is_less_better=True,
    )


GROWTH_BAR = 1.5  # what a poll costs must not follow its history


def _growth(database: Database, seconds: Mapping[int, float]) -> Line:
    """The ratio is of the seconds with the most chapters stored and with the least."""
    sizes = ", ".join(f"{n:,}: {one * 1_000:,.2f}" for n, one in seconds.items())
    return Line(
        claim="a listing of 100 chapters compared, ms, by chapters stored",
        database=database.name,
        peer=sizes,
        ratio=seconds[max(seconds)] / seconds[min(seconds)],
        limit=GROWTH_BAR,
        is_less_better=True,
    )


BARS = {"a tick, all are due", "a tick, one in a hundred is due", "new_sources, nothing is new"}


def measured(store: Store, count: int) -> dict[str, float]:
    """Seconds by what was asked."""
    found = {
        "register": _seconds(lambda: _register(store, count)),
        "register again, unchanged": _seconds(lambda: _register(store, count)),
    }
    with store.begin() as connection:
        connection.execute(text("ANALYZE"))
    asked: dict[str, Ask] = {
        "a tick, all are due": lambda c: runs_requested(c, store),
        "new_sources, all are new": lambda c: _arrivals(c, store, is_new=True),
    }
    found |= {name: _asked(store, ask) for name, ask in asked.items()}
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
    found |= {name: _asked(store, ask) for name, ask in later.items()}
    found["maintain: prices"] = _seconds(lambda: _prices(store))
    return found


def runs_requested(connection: Connection, store: Store) -> int:
    """As a schedule's tick asks it: how many runs it would request, of all tiers."""
    settings, now = load_settings({}), store.clock.now(connection)
    backlog(connection, now=now, limit=settings.polling.backlog_limit)
    paces = tuned(connection)
    wanted = 0
    for tier in Tier:
        due = due_counts(connection, tier, now=now)
        pace = known_pace(paces, tier.value)
        count = shard_count(sum(due.values()), pace=pace, limits=settings.polling)
        wanted += len(shards_of(due, count))
    return wanted


def _healths(connection: Connection, store: Store) -> None:
    standings(connection, load_settings({}), now=store.clock.now(connection))


def _listed(connection: Connection, store: Store) -> int:
    """To the last line of the table."""
    columns = [Column(name) for name in Listed._fields]
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


def _register(store: Store, count: int) -> None:
    definitions = [
        Definition(
            id=f"series:scale-{n}",
            kind=Kind.SERIES,
            url=f"https://h{n // PER_HOST}.test/{n}",
            platform="rss",
            series=f"scale-{n}",
        )
        for n in range(count)
    ]
    with store.begin() as connection:
        register(connection, definitions, now=store.clock.now(connection))


def _arrivals(connection: Connection, store: Store, *, is_new: bool) -> None:
    census(connection)
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
        adjust_prices(connection, load_settings({}), store.clock.now(connection))


def _asked(store: Store, ask: Ask) -> float:
    with store.read() as connection:
        ask(connection)  # once to warm up: a daemon asks all day
        return _seconds(lambda: ask(connection))


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


SERIES = text(
    """
    INSERT INTO series (id, title, created_at)
    SELECT series_id, series_id, :now FROM sources
    """
).bindparams(bindparam("now", type_=UtcDateTime()))
CHAPTERS = text(
    """
    INSERT INTO chapters (series_id, key, number, title, first_detected_at)
    WITH RECURSIVE numbers(n) AS (
        SELECT :begin UNION ALL SELECT n + 1 FROM numbers WHERE n < :end - 1
    )
    SELECT 'scale-' || (n / :each), CAST(n % :each + 1 AS TEXT), n % :each + 1, 't', :now
    FROM numbers
    """
).bindparams(bindparam("now", type_=UtcDateTime()))
LINKS = text(
    """
    INSERT INTO chapter_sources (chapter_id, source_id, url, releases, fingerprint, detected_at,
                                 last_seen_at, available, missed_listings)
    SELECT id, 'series:' || series_id, 'u', '[]', 'f', :now, :now, true, 0 FROM chapters
    WHERE id > :after
    """
).bindparams(bindparam("now", type_=UtcDateTime()))


def polls_among(store: Store, chapters: int) -> Iterator[tuple[int, float]]:
    """The look-ups of a listing, with few and with many chapters stored."""
    stored, after = 0, 0
    with store.begin() as connection:
        connection.execute(SERIES, {"now": store.clock.now(connection)})
    for wanted in (chapters // 100, chapters):
        with store.begin() as connection:
            given = {"begin": stored, "end": wanted, "each": CHAPTERS_EACH}
            now = store.clock.now(connection)
            connection.execute(CHAPTERS, given | {"now": now})
            connection.execute(LINKS, {"now": now, "after": after})
            after = connection.execute(text("SELECT max(id) FROM chapters")).scalar_one()
            connection.execute(text("ANALYZE"))
        stored = wanted
        yield wanted, _looked_up(store, wanted // CHAPTERS_EACH)


def _looked_up(store: Store, series: int) -> float:
    """The mean of a hundred listings, each of another series."""
    from ingestion_pipeline.series import rows

    random, count = Random(7), 100

    def look(connection: Connection) -> None:
        for one in (random.randrange(series) for _ in range(count)):
            keys = {(f"scale-{one}", str(n)) for n in range(1, CHAPTERS_EACH + 1)}
            ids = rows.chapter_ids(connection, keys)
            rows.known_links(connection, {(f"series:scale-{one}", id_) for id_ in ids.values()})

    return _asked(store, look) / count
