"""Tables of series: series, their chapters, and the sources of each chapter."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, ForeignKey, Index, String, Table, Text, UniqueConstraint, text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import ExactDecimal, Id, Json, UtcDateTime, count, flag, modified_at

series = Table(
    "series",
    metadata,
    Column("id", String(120), primary_key=True, comment="slug of the series, as sources and followers name it"),
    Column("title", Text, nullable=False, comment="what people call the series"),
    Column("latest_chapter", ExactDecimal, comment="highest chapter number that a source has; null: none is numbered"),
    Column(
        "last_chapter_at",
        UtcDateTime,
        comment="since when that chapter is the latest, UTC: when it was found, or at a first sync when it was"
        " published; null: none is numbered",
    ),
    Column(
        "merged_into", String(120), comment="the series it was merged into, which replaces it; null: it was not merged"
    ),
    Column("created_at", UtcDateTime, nullable=False),
    modified_at(),
)

chapters = Table(
    "chapters",
    metadata,
    Column("id", Id, primary_key=True),
    Column(
        "series_id",
        String(120),
        ForeignKey("series.id"),
        nullable=False,
        comment="the work it belongs to (`series.id`), whatever source has it",
    ),
    Column(
        "key",
        Text,
        nullable=False,
        comment="what makes it one chapter within its series: its number as a canonical decimal, or the"
        " source's id and its own for one without number",
    ),
    Column("number", ExactDecimal, comment="chapter number, exact, such as 10.5; null: the chapter has none"),
    Column("title", Text, comment="title as a source last stated it; null: none does"),
    Column("published_at", UtcDateTime, comment="date of publication as a source last stated it, UTC; null: none does"),
    Column("first_detected_at", UtcDateTime, nullable=False, comment="when we first saw it on any source, UTC"),
    Column(
        "rejected_at", UtcDateTime, comment="when an operator said that there is no such chapter, UTC; null: it counts"
    ),
    flag(
        "unannounced",
        "whether followers are notified once another source lists it: the first sync that brought it notified nobody",
    ),
    modified_at(),
    UniqueConstraint("series_id", "key"),
)

chapter_sources = Table(
    "chapter_sources",
    metadata,
    Column("id", Id, primary_key=True),
    Column(
        "chapter_id",
        Id,
        ForeignKey("chapters.id"),
        nullable=False,
        comment="the chapter that the source has (`chapters.id`)",
    ),
    Column("source_id", String(120), ForeignKey("sources.id"), nullable=False),
    Column("url", Text, comment="where the source shows the chapter; null: its listing links none"),
    Column("source_chapter_id", Text, comment="the source's own id of the chapter; null: its listing has none"),
    Column("volume", Text, comment="volume it is in, as the source words it; null: not stated"),
    Column("language", Text, comment="language of the first release, as the source words it; null: not stated"),
    Column("scanlation_group", Text, comment="who made the first release; null: not stated"),
    Column(
        "releases",
        Json,
        nullable=False,
        comment="every release that the source lists of the number, as JSON, in its order",
    ),
    Column("fingerprint", String(64), nullable=False, comment="hash of everything the source states about the chapter"),
    Column(
        "detected_at",
        UtcDateTime,
        nullable=False,
        comment="when this source was first seen to have it, UTC; never moves",
    ),
    Column(
        "last_seen_at",
        UtcDateTime,
        comment="last complete listing that had it, UTC, once it is missing; null: the source's last complete"
        " listing has it",
    ),
    count("missed_listings", "complete listings in a row that lacked it; 0 while it is listed"),
    Column(
        "available",
        Boolean,
        nullable=False,
        server_default=text("true"),
        comment="whether the source still has it; false once enough complete listings lack it",
    ),
    Column("ingestion_id", Id),
    modified_at(),
    UniqueConstraint("source_id", "chapter_id"),
    Index(None, "chapter_id"),
)
