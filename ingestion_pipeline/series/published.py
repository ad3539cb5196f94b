"""What series publish: their tables, and the contract of the asset `chapters`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.engine.published import (
    ADDRESS,
    POLL_ORIGIN,
    Contract,
    PublishedTable,
    joined_to_poll,
    required,
    written_by_polls,
)
from ingestion_pipeline.store.tables import chapter_sources, chapters, ingestions, series


def _first_link() -> ColumnElement[Any]:
    """Select the link of the source that had the chapter first, of those that have it."""
    return (
        select(chapter_sources.c.id)
        .where(chapter_sources.c.chapter_id == chapters.c.id)
        .order_by(chapter_sources.c.available.desc(), chapter_sources.c.id)
        .limit(1)
        .correlate(chapters)
        .scalar_subquery()
    )


_link = chapter_sources.alias("first_link")
_CHAPTER_SOURCES = PublishedTable(
    table=chapter_sources,
    without=frozenset({"fingerprint"}),
    source_id=chapter_sources.c.source_id,
    rows=joined_to_poll(chapter_sources),
    origin=POLL_ORIGIN,
)
TABLES = (
    PublishedTable(table=series),
    PublishedTable(
        table=chapters,
        rows=chapters.outerjoin(_link, _link.c.id == _first_link()).outerjoin(
            ingestions, ingestions.c.id == _link.c.ingestion_id
        ),
        origin=(_link.c.source_id, _link.c.ingestion_id, *POLL_ORIGIN),
        meanings={
            "source_id": "of the sources that have it, the one that had it first; null: no source has the chapter",
        },
    ),
    _CHAPTER_SOURCES,
)
CONTRACTS = (
    Contract(
        asset="chapters",
        table=_CHAPTER_SOURCES,
        rules={"chapter_id": [required("the chapter is gone; `ingest series` moves links")], "url": [ADDRESS]},
        written=written_by_polls(chapter_sources),
    ),
)
