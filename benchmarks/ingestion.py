"""First sync and unchanged re-poll of a long listing, into `chapters` and `chapter_sources`.

Every way starts from the same releases, as Python objects, and ends with one committed transaction.
The peers write the same rows but for the fingerprint, which they do not compute, and the time of
the last change, which they leave out, and record no changes: what ours does beyond them (cleaning,
grouping, fingerprints, the plan, locks, the series' latest chapter, changes) is part of its price.
The loaders are written with care: an unchanged row is left alone by them too.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from functools import partial
from itertools import count

from benchmarks import loaders
from benchmarks.database import Database
from benchmarks.figure import Cost, Figure, Meter, middle
from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.chapter_ingestion import ingest_listings
from ingestion_pipeline.series.chapter_plan import SourceListing
from ingestion_pipeline.sources import Definition, Kind
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import Store, open_store

CHAPTERS = 5_000  # what the engine puts into one transaction
ROW_BY_ROW = 500
ROUNDS = 9  # of a fifth of a second: fewer tell more of the neighbours than of us
FIRST_SYNC_BAR, FIRST_SYNC_GOAL = 0.35, 0.5  # 0.4 without the record of changes

Way = Callable[[Store, str, Sequence[Release]], None]
_number = count(1)


def measure(
    database: Database, *, chapters: int = CHAPTERS, row_by_row: int = ROW_BY_ROW, rounds: int = ROUNDS
) -> Iterator[Figure]:
    """Two figures against a bulk loader, two against a mapper that goes row by row."""
    bulk, name = loaders.bulk_loader(database.store)
    ours, theirs = _in_turn(database, bulk, a_listing(chapters), rounds)
    first = _figure(database, "first sync, chapters", name, ours[0], theirs[0])
    yield replace(first, bar=FIRST_SYNC_BAR, goal=FIRST_SYNC_GOAL)
    yield _figure(database, "unchanged listing again, chapters", name, ours[1], theirs[1])
    mapper = "ORM, SELECT + INSERT per row"
    ours, theirs = _in_turn(database, loaders.row_by_row, a_listing(row_by_row), 1)
    yield _figure(database, "first sync, chapters", mapper, ours[0], theirs[0])
    yield _figure(database, "unchanged listing again, chapters", mapper, ours[1], theirs[1])


def _figure(database: Database, claim: str, peer: str, ours: Cost, theirs: Cost) -> Figure:
    return Figure(claim=claim, database=database.name, peer=peer, ours=ours, theirs=theirs)


def _in_turn(database: Database, peer: Way, listed: Sequence[Release], rounds: int) -> tuple[list[Cost], list[Cost]]:
    """Ours and the peer's, a round each, so that both meet the same neighbours on the machine."""
    measured: dict[Way, list[list[Cost]]] = {ingest: [], peer: []}
    with closing(open_store(database.another(f"peer-{next(_number)}"))) as peers:
        loaders.stop_recording(peers)
        stores = {ingest: database.store, peer: peers}
        for way, store in stores.items():  # caches of statements and pages are warm in the rounds that count
            _twice(database.meter, store, way, listed)
        for _ in range(rounds):
            for way, costs in measured.items():
                costs.append(_twice(database.meter, stores[way], way, listed))
    ours, theirs = ([middle(list(both)) for both in zip(*costs, strict=True)] for costs in measured.values())
    return ours, theirs


def _twice(meter: Meter, store: Store, way: Way, listed: Sequence[Release]) -> list[Cost]:
    """A first sync of a new series, and the same listing again."""
    name = f"series-{next(_number)}"
    with store.begin() as connection:
        definition = Definition(id=f"series:{name}", kind=Kind.SERIES, url="https://bench.test/", series=name)
        register(connection, [definition], now=store.clock.now(connection))
    return [meter.cost(partial(_counted, way, store, name, listed)) for _ in range(2)]


def _counted(way: Way, store: Store, series: str, listed: Sequence[Release]) -> int:
    way(store, series, listed)
    return len(listed)


def ingest(store: Store, series: str, listed: Sequence[Release]) -> None:
    """Our way."""
    with store.begin() as connection:
        source = sources_by_id(connection, [f"series:{series}"])[f"series:{series}"]
        listing = SourceListing.of(source, ParsedFeed(records=listed, is_complete=True))
        now = store.clock.now(connection)
        ingest_listings(connection, [listing], now=now)


def a_listing(length: int) -> list[Release]:
    """A listing of as many numbered chapters."""
    return [
        Release(
            number=Decimal(n),
            title=f"Chapter {n}",
            url=f"https://bench.test/{n}",
            language="en",
            scanlation_group="Group",
            source_chapter_id=f"id-{n}",
            volume=str(n // 10),
            published_at=None,
        )
        for n in range(1, length + 1)
    ]
