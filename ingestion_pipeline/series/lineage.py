"""Lineage of chapters and of their links to sources."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from ingestion_pipeline.engine.lineage import ExplainedTable, Hop, Lineage, origin_by_poll, row_of, values_in_body
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.store import tables


def _chapter(connection: Connection, content: ContentStore, row: RowMapping) -> Lineage:
    links = tables.chapter_sources
    query = select(links).where(links.c.chapter_id == row["id"])
    order = (links.c.available.desc(), links.c.ingestion_id.is_(None), links.c.id)
    link = connection.execute(query.order_by(*order).limit(1)).mappings().one_or_none()
    facts = {name: row[name] for name in ("series_id", "key", "number", "title", "published_at")}
    if link is None:
        nobody = Hop.unknown("source", "no source has it any more")
        return Lineage(row=f"chapters:{row['id']}", facts=facts, fields=(), hops=[nobody])
    lineage = _chapter_source(connection, content, link)
    return replace(lineage, row=f"chapters:{row['id']}", facts={**facts, **lineage.facts})


def _chapter_source(connection: Connection, content: ContentStore, row: RowMapping) -> Lineage:
    chapter = row_of(connection, tables.chapters, row["chapter_id"])
    releases: Sequence[Mapping[str, Any]] = row["releases"] or [{}]
    first = releases[0]
    values: dict[str, Any] = {
        "number": chapter["number"] if chapter else None,
        "title": first.get("title"),
        "url": row["url"],
        "source_chapter_id": row["source_chapter_id"],
        "language": row["language"],
        "scanlation_group": row["scanlation_group"],
        "published_at": _moment(first.get("published_at")),
    }
    anchors = [anchor for anchor in (row["source_chapter_id"], row["url"], first.get("title")) if anchor]
    origin = origin_by_poll(connection, row["source_id"], row["ingestion_id"])
    facts = {"source_id": row["source_id"], "link": row["id"], "available": row["available"]}
    return values_in_body(connection, content, f"chapter_sources:{row['id']}", facts, origin, anchors, values)


def _moment(text: str | None) -> datetime | None:
    with suppress(ValueError, TypeError):
        return datetime.fromisoformat(text or "")
    return None


EXPLAINED = (
    ExplainedTable(table=tables.chapters, explain=_chapter),
    ExplainedTable(table=tables.chapter_sources, explain=_chapter_source),
)
