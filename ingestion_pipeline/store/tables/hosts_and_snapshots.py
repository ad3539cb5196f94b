"""Tables of fetching: hosts and snapshots."""

from sqlalchemy import Column, Float, Index, Integer, String, Table, Text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import Id, Json, UtcDateTime, optional, required

hosts = Table(
    "hosts",
    metadata,
    Column("host", Text, primary_key=True, comment="host name with port"),
    optional(
        "next_allowed_at",
        UtcDateTime,
        "no process sends a request to the host before this time, UTC (also after a Retry-After)",
    ),
    optional("lease_owner", String(36), "worker that holds the host; null: free"),
    optional("lease_until", UtcDateTime, "when the lease expires, UTC"),
    optional("leased_at", UtcDateTime, "when the lease was taken, UTC"),
    optional(
        "requested_at", UtcDateTime, "when another worker first asked for the leased host, UTC; null: nobody waits"
    ),
    Column(
        "error_score",
        Float,
        nullable=False,
        server_default="0",
        comment="recent failed requests, each weighing less with every later request; too many pause the host",
    ),
    optional("timed_out_at", UtcDateTime, "when the last request timed out, UTC; null: the last one did not"),
    optional("crawl_delay_seconds", Float, "crawl delay of robots.txt; null: none stated"),
    optional("robots_fetched_at", UtcDateTime, "when robots.txt was last fetched, UTC"),
    optional("robots", Json, "by origin: robots.txt rules and when they expire"),
    optional("blocked_reason", Text, "why the host is blocked; null: it is not"),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", Id, primary_key=True),
    optional("source_id", String(120), "the source it was fetched for"),
    required("url", Text, "requested URL"),
    optional("url_key", String(64), "sha256 of the URL: an index takes no text of any length"),
    # Of a page's cleaned text without the day; of a listing's body.
    required("content_hash", String(64), "hash of the cleaned text"),
    optional("content_type", Text, "Content-Type of the response"),
    required("size_bytes", Integer, "size of the body"),
    required("status_code", Integer, "HTTP status"),
    required("fetched_at", UtcDateTime, "when it was last fetched, UTC"),  # when the content last changed
    optional("etag", Text, "ETag of the response"),
    optional("last_modified", Text, "Last-Modified of the response"),
    optional("final_url", Text, "URL after redirects"),
    optional("canonical_url", Text, "canonical URL that the page states, if on its own site"),
    optional("served_hash", String(64), "hash of the bytes last served over plain HTTP"),
    optional("links_hash", String(64), "hash of the set of links"),
    optional("rendered_at", UtcDateTime, "when a browser last rendered it, UTC; null: never"),
    optional("rendering_hash", String(64), "hash of the rendering configuration"),
    optional("discovered", Json, "URLs that only clicks in the browser revealed"),
    optional("body_hash", String(64), "object in the content store: the served body, or the rendered DOM"),
    optional("text_hash", String(64), "object in the content store: the cleaned text; null: a feed"),
    optional("markdown_hash", String(64), "object in the content store: the Markdown"),
    optional("markdown_version", Text, "version of the Markdown conversion"),
    optional("screenshot_hash", String(64), "object in the content store: the screenshot"),
    optional("failure", String(40), "why it could not be read; null: it is good"),
    optional("run_id", String(64), "the run that last fetched it"),
    Index("uq_snapshots_url_key_content_hash", "url_key", "content_hash", unique=True),
    Index(None, "source_id", "fetched_at"),
    Index(None, "content_hash"),
)
