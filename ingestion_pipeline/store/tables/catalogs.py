"""Catalogues as they are crawled: extractions, their steps, and every page that was found."""

from __future__ import annotations

from sqlalchemy import (
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import Id, Json, UtcDateTime

# The same words stand in the partial indexes and in the statements that want them: SQLite uses a
# partial index only if the query repeats its condition literally.
CRAWLING = text("status IN ('WAITING', 'IN_PROGRESS')")

extractions = Table(
    "extractions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("source_id", String(120), ForeignKey("sources.id"), nullable=False),
    Column("status", String(12), nullable=False),
    Column("recipe", Json, nullable=False, comment="as it was when the extraction began"),
    Column("tracking_id", String(36), nullable=False, comment="of all its tasks"),
    Column("page_count", Integer, nullable=False, server_default="0", comment="found so far"),
    Column("too_deep", Integer, nullable=False, server_default="0", comment="links not followed"),
    Column("over_budget", Integer, nullable=False, server_default="0", comment="pages not taken"),
    Column("failure", Json, comment="why it ended without being complete"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False, comment="last time a page changed"),
    Column("finished_at", UtcDateTime),
    Index(None, "source_id", "id"),
    Index(
        "uq_extractions_crawling",
        "source_id",
        unique=True,
        postgresql_where=CRAWLING,
        sqlite_where=CRAWLING,
    ),
)

crawl_steps = Table(
    "crawl_steps",
    metadata,
    Column("id", Id, primary_key=True),
    Column("extraction_id", Id, ForeignKey("extractions.id"), nullable=False),
    Column("parent_id", Id),
    Column("kind", String(20), nullable=False),
    Column("key", Text, nullable=False, comment="the way to it in the recipe: root/pages/links"),
    Column("page_type", String(20), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("extraction_id", "key"),
)

pages = Table(
    "pages",
    metadata,
    Column("id", Id, primary_key=True),
    Column("extraction_id", Id, ForeignKey("extractions.id"), nullable=False),
    Column("step_id", Id, ForeignKey("crawl_steps.id"), nullable=False),
    Column("url", Text, nullable=False),
    Column("key", Text, nullable=False, comment="canonical URL without a slash at its path's end"),
    Column("host", Text, nullable=False),
    Column("status", String(20), nullable=False),
    Column("page_type", String(20), nullable=False),
    Column("position", Integer, comment="in a list of pages"),
    Column("snapshot_id", Id),
    Column("outcome", String(10), comment="of the last visit: new or same"),
    Column("failure", Json, comment="class, code and message"),
    Column("size_bytes", Integer),
    Column("elapsed_ms", Integer, comment="of the last visit, without waiting for a turn"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("visited_at", UtcDateTime),
    UniqueConstraint("extraction_id", "key"),
    Index(None, "extraction_id", "status"),
    Index(None, "snapshot_id"),
)
