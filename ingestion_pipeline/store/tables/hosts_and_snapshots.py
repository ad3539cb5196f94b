"""Tables of fetching: hosts and snapshots."""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, Integer, String, Table, Text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import Id, Json, UtcDateTime

hosts = Table(
    "hosts",
    metadata,
    Column("host", Text, primary_key=True, comment="host name with port"),
    Column(
        "next_allowed_at",
        UtcDateTime,
        comment="no process sends a request to the host before this time, UTC (also after a Retry-After)",
    ),
    Column("lease_owner", String(36), comment="worker that holds the host; null: free"),
    Column("lease_until", UtcDateTime, comment="when the lease expires, UTC"),
    Column("leased_at", UtcDateTime, comment="when the lease was taken, UTC"),
    Column(
        "requested_at",
        UtcDateTime,
        comment="when another worker first asked for the leased host, UTC; null: nobody waits",
    ),
    Column(
        "error_score",
        Float,
        nullable=False,
        server_default="0",
        comment="recent failed requests, each weighing less with every later request; too many pause the host",
    ),
    Column("timed_out_at", UtcDateTime, comment="when the last request timed out, UTC; null: the last one did not"),
    Column("crawl_delay_seconds", Float, comment="crawl delay of robots.txt; null: none stated"),
    Column("robots_fetched_at", UtcDateTime, comment="when robots.txt was last fetched, UTC"),
    Column("robots", Json, comment="by origin: robots.txt rules and when they expire"),
    Column("blocked_reason", Text, comment="why the host is blocked; null: it is not"),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", Id, primary_key=True),
    Column("source_id", String(120), comment="the source it was fetched for"),
    Column("url", Text, nullable=False, comment="requested URL"),
    Column("url_key", String(64), comment="sha256 of the URL: an index takes no text of any length"),
    # Of a page's cleaned text without the day; of a listing's body.
    Column("content_hash", String(64), nullable=False, comment="hash of the cleaned text"),
    Column("content_type", Text, comment="Content-Type of the response"),
    Column("size_bytes", Integer, nullable=False, comment="size of the body"),
    Column("status_code", Integer, nullable=False, comment="HTTP status"),
    Column(
        "fetched_at", UtcDateTime, nullable=False, comment="when it was last fetched, UTC"
    ),  # when the content last changed
    Column("etag", Text, comment="ETag of the response"),
    Column("last_modified", Text, comment="Last-Modified of the response"),
    Column("final_url", Text, comment="URL after redirects"),
    Column("canonical_url", Text, comment="canonical URL that the page states, if on its own site"),
    Column("served_hash", String(64), comment="hash of the bytes last served over plain HTTP"),
    Column("links_hash", String(64), comment="hash of the set of links"),
    Column("rendered_at", UtcDateTime, comment="when a browser last rendered it, UTC; null: never"),
    Column("rendering_hash", String(64), comment="hash of the rendering configuration"),
    Column("discovered", Json, comment="URLs that only clicks in the browser revealed"),
    Column("body_hash", String(64), comment="object in the content store: the served body, or the rendered DOM"),
    Column("text_hash", String(64), comment="object in the content store: the cleaned text; null: a feed"),
    Column("markdown_hash", String(64), comment="object in the content store: the Markdown"),
    Column("markdown_version", Text, comment="version of the Markdown conversion"),
    Column("screenshot_hash", String(64), comment="object in the content store: the screenshot"),
    Column("failure", String(40), comment="why it could not be read; null: it is good"),
    Column("run_id", String(64), comment="the run that last fetched it"),
    Index("uq_snapshots_url_key_content_hash", "url_key", "content_hash", unique=True),
    Index(None, "source_id", "fetched_at"),
    Index(None, "content_hash"),
)
