"""What was fetched, and from whom: hosts and snapshots."""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, Integer, String, Table, Text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import Id, Json, UtcDateTime

hosts = Table(
    "hosts",
    metadata,
    Column("host", Text, primary_key=True),
    Column("next_allowed_at", UtcDateTime),
    Column("lease_owner", String(36)),
    Column("lease_until", UtcDateTime),
    Column("leased_at", UtcDateTime),
    Column("wanted_at", UtcDateTime, comment="another run waits for the lease"),
    Column("crawl_delay_seconds", Float),
    Column("robots_fetched_at", UtcDateTime),
    Column("robots", Json, comment="by origin: what robots.txt tells us, and until when it holds"),
    Column("blocked_reason", Text),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", Id, primary_key=True),
    Column("source_id", String(120)),
    Column("url", Text, nullable=False),
    Column("content_hash", String(64), nullable=False),
    Column("content_type", Text),
    Column("size_bytes", Integer, nullable=False),
    Column("status_code", Integer, nullable=False),
    Column("fetched_at", UtcDateTime, nullable=False),
    Column("etag", Text),
    Column("last_modified", Text),
    Index(None, "source_id", "fetched_at"),
    Index(None, "content_hash"),
)
