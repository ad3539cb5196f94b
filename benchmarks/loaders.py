"""The peers of ingestion: bulk loaders as one writes them by hand, and an object mapper's loop."""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.orm import DeclarativeBase, Session

from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.store import Store, tables
from ingestion_pipeline.store.changes import recording_of
from ingestion_pipeline.store.types import utc_text

STAGED = "key, number, title, published_at, url, source_chapter_id, volume, language, scanlation_group, releases"

STAGE = """CREATE TEMPORARY TABLE staged (
  key text, number numeric, title text, published_at {time}, url text, source_chapter_id text,
  volume text, language text, scanlation_group text, releases {json}
)"""

MERGE_SERIES = """
INSERT INTO series (id, title, created_at) VALUES (:series, :series, :now) ON CONFLICT DO NOTHING
"""

MERGE_CHAPTERS = """
INSERT INTO chapters (series_id, key, number, title, published_at, first_detected_at)
SELECT :series, key, number, title, published_at, :now FROM staged WHERE true
ON CONFLICT (series_id, key) DO UPDATE
  SET title = excluded.title, published_at = excluded.published_at
  WHERE chapters.title IS DISTINCT FROM excluded.title
     OR chapters.published_at IS DISTINCT FROM excluded.published_at
"""

MERGE_LINKS = """
INSERT INTO chapter_sources (chapter_id, source_id, url, source_chapter_id, volume, language,
  scanlation_group, releases, fingerprint, detected_at)
SELECT chapters.id, :source, staged.url, staged.source_chapter_id, staged.volume, staged.language,
  staged.scanlation_group, staged.releases, '', :now
FROM staged JOIN chapters ON chapters.series_id = :series AND chapters.key = staged.key WHERE true
ON CONFLICT (source_id, chapter_id) DO UPDATE
  SET url = excluded.url, releases = excluded.releases
  WHERE chapter_sources.releases IS DISTINCT FROM excluded.releases
"""


def bulk_loader(store: Store) -> tuple[Callable[[Store, str, Sequence[Release]], None], str]:
    """The fastest way into the database that people use, and its name."""
    if store.engine.dialect.name == "postgresql":
        return copy_and_merge, "COPY + merge"
    return executemany_and_merge, "executemany + merge"


def stop_recording(store: Store) -> None:
    """Record no changes in this store: a peer does not pay for what only ours does."""
    with store.begin() as connection:
        if connection.dialect.name == "postgresql":
            for name in (table.name for table in tables.metadata.sorted_tables if recording_of(table)):
                connection.execute(text(f"ALTER TABLE {name} DISABLE TRIGGER USER"))
            return
        for name in connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars().all():
            connection.execute(text(f"DROP TRIGGER {name}"))


def copy_and_merge(store: Store, series: str, listed: Sequence[Release]) -> None:
    """COPY into a temporary table, then INSERT ... SELECT ... ON CONFLICT into both."""
    with store.begin() as connection:
        driver: Any = connection.connection.dbapi_connection
        cursor = driver.cursor()
        given = {"series": series, "source": f"series:{series}", "now": store.clock.now(connection)}
        cursor.execute(STAGE.format(time="timestamptz", json="jsonb") + " ON COMMIT DROP")
        lines = ("\t".join(map(_copied, row)) + "\n" for row in _rows(listed))
        cursor.copy_expert(f"COPY staged ({STAGED}) FROM STDIN", io.StringIO("".join(lines)))
        for statement in (MERGE_SERIES, MERGE_CHAPTERS, MERGE_LINKS):
            for name in given:
                statement = statement.replace(f":{name}", f"%({name})s")  # noqa: PLW2901
            cursor.execute(statement, given)


def _copied(value: object) -> str:
    if value is None:
        return r"\N"
    return str(value).replace("\\", "\\\\").replace("\t", r"\t").replace("\n", r"\n")


def executemany_and_merge(store: Store, series: str, listed: Sequence[Release]) -> None:
    """The same through SQLite's executemany, which is as near to COPY as it has."""
    with store.begin() as connection:
        driver: Any = connection.connection.dbapi_connection
        now = utc_text(store.clock.now(connection))
        given = {"series": series, "source": f"series:{series}", "now": now}
        driver.execute(STAGE.format(time="text", json="text"))
        marks = ", ".join("?" * len(STAGED.split(",")))
        driver.executemany(f"INSERT INTO staged ({STAGED}) VALUES ({marks})", _rows(listed))
        for statement in (MERGE_SERIES, MERGE_CHAPTERS, MERGE_LINKS):
            driver.execute(statement, given)
        driver.execute("DROP TABLE staged")


def _rows(listed: Sequence[Release]) -> Iterator[tuple[str | None, ...]]:
    for one in listed:
        number = str(one.number)
        published_at = None if one.published_at is None else utc_text(one.published_at)
        said = {
            "number": number,
            "title": one.title,
            "url": one.url,
            "language": one.language,
            "scanlation_group": one.scanlation_group,
            "source_chapter_id": one.source_chapter_id,
            "volume": one.volume,
            "published_at": published_at,
        }
        yield (
            number,
            number,
            one.title,
            published_at,
            one.url,
            one.source_chapter_id,
            one.volume,
            one.language,
            one.scanlation_group,
            json.dumps([said]),
        )


class _Mapped(DeclarativeBase):
    metadata = tables.metadata


class _Series(_Mapped):
    __table__ = tables.series


class _Chapter(_Mapped):
    __table__ = tables.chapters


class _Link(_Mapped):
    __table__ = tables.chapter_sources


def row_by_row(store: Store, series: str, listed: Sequence[Release]) -> None:
    """One session, and for each chapter: is it there? if not, insert it and its source."""
    now = store.now()
    with Session(store.engine) as session, session.begin():
        if session.get(_Series, series) is None:
            session.add(_Series(id=series, title=series, created_at=now))
            session.flush()
        for one in listed:
            key = str(one.number)
            wanted = select(_Chapter).filter_by(series_id=series, key=key)
            if session.scalars(wanted).one_or_none() is not None:
                continue
            chapter = _Chapter(
                series_id=series,
                key=key,
                number=one.number,
                title=one.title,
                published_at=one.published_at,
                first_detected_at=now,
            )
            session.add(chapter)
            session.flush()
            session.add(_link(one, chapter, f"series:{series}", now))
            session.flush()


def _link(one: Release, chapter: _Chapter, source_id: str, now: object) -> _Link:
    return _Link(
        chapter_id=chapter.id,
        source_id=source_id,
        url=one.url,
        source_chapter_id=one.source_chapter_id,
        volume=one.volume,
        language=one.language,
        scanlation_group=one.scanlation_group,
        releases=[{"number": str(one.number), "title": one.title, "url": one.url}],
        fingerprint="",
        detected_at=now,
    )
