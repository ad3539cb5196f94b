"""What history costs a poll: a listing compared among few and among many stored chapters.

The chapters are made by the database itself, a hundred for each source that is registered. Then the
stores take turns: listings of the same length are looked up in one after the other, and the least
CPU time of several rounds counts, the server's included.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random

from sqlalchemy import Connection, bindparam, func, select, text

from benchmarks.figure import Meter
from ingestion_pipeline.series import chapter_rows
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import chapter_sources, chapters
from ingestion_pipeline.store.types import UtcDateTime

CHAPTERS_EACH = 100  # of a source
LISTINGS = 100  # of a round, each of another source
SERIES = text(
    """
    INSERT INTO series (id, title, created_at)
    SELECT series_id, series_id, :now FROM sources ORDER BY series_id
    """
).bindparams(bindparam("now", type_=UtcDateTime()))
# In the order of the indexes, so that these grow at their end: else millions take an hour.
CHAPTERS = text(
    """
    INSERT INTO chapters (series_id, key, number, title, first_detected_at)
    WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :each)
    SELECT one.id, CAST(n AS TEXT), n, 't', :now
    FROM (SELECT id FROM series ORDER BY id) AS one CROSS JOIN numbers
    ORDER BY one.id
    """
).bindparams(bindparam("now", type_=UtcDateTime()))
LINKS = text(
    """
    INSERT INTO chapter_sources (chapter_id, source_id, url, releases, fingerprint, detected_at,
                                 last_seen_at, available, missed_listings)
    SELECT id, 'series:' || series_id, 'u', '[]', 'f', :now, :now, true, 0 FROM chapters
    ORDER BY id
    """
).bindparams(bindparam("now", type_=UtcDateTime()))


def add_chapters(store: Store) -> int:
    """A hundred chapters for each source that is registered; how many there are."""
    with store.begin() as connection:
        now = store.clock.now(connection)
        with _unchecked(connection):
            connection.execute(SERIES, {"now": now})
            connection.execute(CHAPTERS, {"now": now, "each": CHAPTERS_EACH})
            connection.execute(LINKS, {"now": now})
        stored = connection.execute(select(func.count()).select_from(chapters)).scalar_one()
    with store.begin() as connection:
        connection.execute(text("ANALYZE"))
    return stored


@contextmanager
def _unchecked(connection: Connection) -> Iterator[None]:
    """On PostgreSQL no foreign key is looked up for each row, and one index is made at the end."""
    if connection.dialect.name != "postgresql":
        yield
        return
    connection.execute(text("SET LOCAL session_replication_role = replica"))
    for index in chapter_sources.indexes:
        index.drop(connection)
    yield
    for index in chapter_sources.indexes:
        index.create(connection)
    connection.execute(text("SET LOCAL session_replication_role = origin"))


def compared(stores: Mapping[int, Store], meter: Meter, *, rounds: int) -> dict[int, float]:
    """CPU seconds of a listing, the least of the rounds, by how many chapters a store has."""
    random, least = Random(7), dict.fromkeys(stores, float("inf"))
    for _ in range(rounds):
        for stored, store in stores.items():
            sources = [random.randrange(stored // CHAPTERS_EACH) for _ in range(LISTINGS)]
            with store.read() as connection:
                _look_up(connection, sources[:1])  # the connection is warm, as a run's is
                before = meter.cpu_seconds()
                _look_up(connection, sources)
                least[stored] = min(least[stored], meter.cpu_seconds() - before)
    return {stored: seconds / LISTINGS for stored, seconds in least.items()}


def _look_up(connection: Connection, sources: list[int]) -> None:
    """As ingestion asks for what a listing has to be compared with."""
    for one in sources:
        keys = {(series_name(one), str(n)) for n in range(1, CHAPTERS_EACH + 1)}
        ids = chapter_rows.chapter_ids(connection, keys)
        if len(ids) != CHAPTERS_EACH:
            raise RuntimeError(f"{len(ids)} of {CHAPTERS_EACH} chapters of {series_name(one)}")
        pairs = {(f"series:{series_name(one)}", id_) for id_ in ids.values()}
        if len(chapter_rows.stored_links(connection, pairs)) != CHAPTERS_EACH:
            raise RuntimeError(f"links of {series_name(one)} are missing")


def series_name(number: int) -> str:
    """Of one length, so that names come in the order of their numbers."""
    return f"scale-{number:07}"
