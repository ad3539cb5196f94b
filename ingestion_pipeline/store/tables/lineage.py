"""Where rows come from and where they went: versions of sources, ingestions, cursors of exports."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Integer, String, Table, Text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import Id, Json, UtcDateTime

source_versions = Table(
    "source_versions",
    metadata,
    Column("source_id", String(120), ForeignKey("sources.id"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("url", Text, nullable=False),
    Column("platform", String(40)),
    Column("config", Json, nullable=False),
    Column("since", UtcDateTime, nullable=False),
)

# A row for each poll that had something to say. Its id is drawn before anything is written, so
# that the rows of the same transaction can name it, and a poll that says nothing writes none.
ingestions = Table(
    "ingestions",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=False),
    Column("source_id", String(120), nullable=False),
    Column("config_version", Integer, nullable=False),
    Column("run_id", String(64), comment="the run of Dagster; null: no run did it"),
    Column("reader", Text, nullable=False, comment="platform and version of its reader"),
    Column("snapshots", Json, nullable=False, comment="ids, in the order of the pages"),
    Column("outcome", Text, nullable=False, comment="what it came to, for people"),
    Column("tracking_id", String(36), nullable=False),
    Column("fetched_at", UtcDateTime, nullable=False),
    Column("ingested_at", UtcDateTime, nullable=False),
    Index(None, "source_id", "ingested_at"),
    Index(None, "ingested_at"),
)

export_cursors = Table(
    "export_cursors",
    metadata,
    Column("name", String(200), primary_key=True, comment="what is exported, with its source"),
    Column("destination", Text, primary_key=True, comment="the folder that has the files"),
    Column("since", UtcDateTime, nullable=False, comment="what changed from here on is not told"),
    Column("files", Integer, nullable=False, comment="written so far"),
    Column("rows", Id, nullable=False, comment="written so far"),
    Column("updated_at", UtcDateTime, nullable=False),
)
