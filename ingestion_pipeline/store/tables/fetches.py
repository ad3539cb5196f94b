"""Tables of fetching: hosts and snapshots."""

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
    Column("url_key", String(64), comment="sha256 of url: an index takes no text of any length"),
    # Of a page's cleaned text without the day; of a listing's body.
    Column("content_hash", String(64), nullable=False),
    Column("content_type", Text),
    Column("size_bytes", Integer, nullable=False),
    Column("status_code", Integer, nullable=False),
    Column("fetched_at", UtcDateTime, nullable=False),  # when the content last changed
    Column("etag", Text),
    Column("last_modified", Text),
    Column("final_url", Text),
    Column("canonical_url", Text, comment="what the page calls its own address, on its own site"),
    Column("served_hash", String(64), comment="of the bytes that plain HTTP gave last"),
    Column("links_hash", String(64), comment="of the set of addresses it leads to"),
    Column("rendered_at", UtcDateTime, comment="when a browser last showed it; null: none did"),
    Column("rendering_hash", String(64), comment="of how the browser was told to show it"),
    Column("discovered", Json, comment="addresses that only clicks in the browser found"),
    Column("body_hash", String(64), comment="object: what was served, or the rendered DOM"),
    Column("text_hash", String(64), comment="object: the cleaned text; null: a listing"),
    Column("markdown_hash", String(64), comment="object"),
    Column("markdown_version", Text),
    Column("screenshot_hash", String(64), comment="object"),
    Column("failure", String(40), comment="why it could not be read; null: it is good"),
    Column("run_id", String(64), comment="the run that fetched it last"),
    Index("uq_snapshots_url_key_content_hash", "url_key", "content_hash", unique=True),
    Index(None, "source_id", "fetched_at"),
    Index(None, "content_hash"),
)
