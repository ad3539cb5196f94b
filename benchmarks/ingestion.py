"""First sync and unchanged re-poll of a long listing; peer: one upsert per row and table."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from sqlalchemy import insert, select

from benchmarks.figure import Figure, rate
from ingestion_pipeline.reading.reading import Reading
from ingestion_pipeline.series.chapter import chapters_of, fingerprint, release_as_dict
from ingestion_pipeline.series.ingestion import ingest_listings
from ingestion_pipeline.series.plan import SourceListing
from ingestion_pipeline.series.release import Release
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.sources import Definition, Kind
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.tables import chapter_sources, chapters, series

CHAPTERS = 5_000
PEER_CHAPTERS = 1_000


def measure(store: Store) -> Iterator[Figure]:
    ours = rate(lambda: _ours(store, CHAPTERS))
    again = rate(lambda: _ours(store, CHAPTERS))
    peer = rate(lambda: _row_by_row(store, PEER_CHAPTERS))
    peer_again = rate(lambda: _row_by_row(store, PEER_CHAPTERS))
    yield Figure("first sync, chapters", ours, peer)
    yield Figure("unchanged listing again, chapters", again, peer_again)


def _releases(count: int) -> list[Release]:
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
        for n in range(1, count + 1)
    ]


def _ours(store: Store, count: int) -> int:
    with store.begin() as connection:
        now = store.clock.now(connection)
        definition = Definition(
            id="series:ours", kind=Kind.SERIES, url="https://bench.test/", series="ours"
        )
        register(connection, [definition], now=now)
        source = sources_by_id(connection, ["series:ours"])["series:ours"]
        listing = SourceListing.of(source, Reading(records=_releases(count), is_complete=True))
        ingest_listings(connection, [listing], now=now, settings=load_settings({}))
    return count


def _row_by_row(store: Store, count: int) -> int:
    """What a loop of upserts does: two statements a chapter, in one transaction."""
    with store.begin() as connection:
        now = store.clock.now(connection)
        definition = Definition(
            id="series:peer", kind=Kind.SERIES, url="https://bench.test/", series="peer"
        )
        register(connection, [definition], now=now)
        if connection.execute(select(series).where(series.c.id == "peer")).first() is None:
            connection.execute(insert(series).values(id="peer", title="Peer", created_at=now))
        listed, _ = chapters_of(_releases(count), source_id="series:peer")
        for chapter in listed:
            values = {"title": chapter.title, "published_at": chapter.published_at}
            statement = insert_into(connection, chapters).values(
                series_id="peer",
                key=chapter.key,
                number=chapter.number,
                first_detected_at=now,
                **values,
            )
            chapter_id = connection.execute(
                statement.on_conflict_do_update(
                    index_elements=["series_id", "key"], set_=values
                ).returning(chapters.c.id)
            ).scalar_one()
            facts = {
                "url": chapter.url,
                "releases": [release_as_dict(release) for release in chapter.releases],
                "fingerprint": fingerprint(chapter),
            }
            link = insert_into(connection, chapter_sources).values(
                chapter_id=chapter_id, source_id="series:peer", detected_at=now, **facts
            )
            connection.execute(
                link.on_conflict_do_update(index_elements=["source_id", "chapter_id"], set_=facts)
            )
    return count
