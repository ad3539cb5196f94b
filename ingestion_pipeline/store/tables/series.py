"""Tables of series: series, their chapters, and the sources of each chapter."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint, text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import ExactDecimal, Id, Json, UtcDateTime, modified_at

series = Table(
    "series",
    metadata,
    Column("id", String(120), primary_key=True),
    Column("title", Text, nullable=False),
    Column("latest_chapter", ExactDecimal),
    Column("last_chapter_at", UtcDateTime),
    Column("merged_into", String(120), comment="whoever names this one means that one"),
    Column("created_at", UtcDateTime, nullable=False),
    modified_at(),
)

chapters = Table(
    "chapters",
    metadata,
    Column("id", Id, primary_key=True),
    Column("series_id", String(120), ForeignKey("series.id"), nullable=False),
    Column("key", Text, nullable=False, comment="canonical decimal, or source id # its own id"),
    Column("number", ExactDecimal),
    Column("title", Text),
    Column("published_at", UtcDateTime),
    Column("first_detected_at", UtcDateTime, nullable=False),
    Column("rejected_at", UtcDateTime, comment="an operator's word: there is no such chapter"),
    Column(
        "unannounced",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="a silent sync added it to a series that had chapters: news once listed",
    ),
    modified_at(),
    UniqueConstraint("series_id", "key"),
)

chapter_sources = Table(
    "chapter_sources",
    metadata,
    Column("id", Id, primary_key=True),
    Column("chapter_id", Id, ForeignKey("chapters.id"), nullable=False),
    Column("source_id", String(120), ForeignKey("sources.id"), nullable=False),
    Column("url", Text),
    Column("source_chapter_id", Text),
    Column("volume", Text),
    Column("language", Text),
    Column("scanlation_group", Text),
    Column("releases", Json, nullable=False),
    Column("fingerprint", String(64), nullable=False, comment="of all the source says of it"),
    Column("detected_at", UtcDateTime, nullable=False),
    Column("last_seen_at", UtcDateTime, comment="null: in the source's last complete listing"),
    Column("missed_listings", Integer, nullable=False, server_default="0"),
    Column("available", Boolean, nullable=False, server_default=text("true")),
    Column("ingestion_id", Id, comment="the poll that last wrote what the source says of it"),
    modified_at(),
    UniqueConstraint("source_id", "chapter_id"),
    Index(None, "chapter_id"),
)
