"""Companies and jobs: who hires, what is listed and where, and what fits a profile."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
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

# The same words stand in the partial index and in the statements that want it: SQLite uses a
# partial index only if the query repeats its condition literally.
LISTED = text("status = 'open'")

companies = Table(
    "companies",
    metadata,
    Column("id", String(120), primary_key=True, comment="as sources and listings name it"),
    Column("name", Text, comment="null until somebody states it"),
    Column("website", Text),
    Column("website_key", String(64), comment="sha256 of the canonical website"),
    Column("source_id", String(120), comment="the source of kind company, if it has one"),
    Column("status", String(12), nullable=False, comment="pending, analyzing, active, failed"),
    Column("about", Text),
    Column("culture", Text),
    Column("mission", Text),
    Column("size", Text, comment="as stated"),
    Column("employees_low", Integer),
    Column("employees_high", Integer),
    Column("size_category", String(10), comment="large, medium, small; null if not stated"),
    Column("headquarters", Text),
    Column("industry", Text),
    Column("founded", Integer, comment="year"),
    Column("is_remote_first", Boolean),
    Column("tech_stack", Json, comment="technologies by group"),
    Column("boards", Json, comment="boards that its pages lead to, each with its confidence"),
    Column("score", Integer, comment="null until analysed"),
    Column("score_parts", Json, comment="what the score is made of"),
    Column("tier", String(1), comment="S, A, B, C, D"),
    Column("quality", Json, nullable=False, comment="what is missing or thin"),
    Column("evidence", Json, comment="by field: page, rung, status, start and end"),
    Column("discovered_by", Text, nullable=False, comment="the source or listing, or operator"),
    Column("tracking_id", String(36), nullable=False),
    Column("failure", Text),
    Column("analyzed_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Index("uq_companies_website_key", "website_key", unique=True),
    Index(None, "source_id"),
)

job_listings = Table(
    "job_listings",
    metadata,
    Column("id", Id, primary_key=True),
    Column("source_id", String(120), nullable=False, comment="the board that listed it first"),
    Column("company_id", String(120), comment="null until the company is known"),
    Column("company_name", Text, comment="as listed"),
    Column("company_website", Text, comment="as listed"),
    Column("url", Text),
    Column("url_key", String(64), comment="sha256 of the canonical URL"),
    Column("fingerprint", String(64), nullable=False, comment="of title, company, beginning"),
    # Of the board that listed it first and its key there: the one name of a new row.
    Column("origin_key", String(64)),
    Column("title", Text, nullable=False),
    Column("location", Text),
    Column("other_locations", Json),
    Column("remote", String(10), comment="remote, hybrid, on_site; null if not stated"),
    Column("department", Text),
    Column("employment_type", Text),
    Column("description", Text, comment="Markdown"),
    Column("salary", Json),
    Column("posted_at", UtcDateTime),
    Column("valid_until", UtcDateTime),
    Column("status", String(10), nullable=False, comment="open or closed"),
    Column("quality", Json, nullable=False, comment="what is missing or thin"),
    Column("content_hash", String(64), nullable=False, comment="of what a judgement looks at"),
    Column("verdict", String(10), comment="filtered, skipped, matched; null: not judged"),
    Column("judged_as", String(64), comment="hash of profile, rules and content at the verdict"),
    Column("filter_result", Json, comment="passed, totals, and each item with its reason"),
    Column("match_result", Json, comment="score, adjustments, skills; also of what did not fit"),
    Column("snapshot_id", Id, comment="the body that states it"),
    Column("tracking_id", String(36), nullable=False),
    Column("first_seen_at", UtcDateTime, nullable=False),
    Column("changed_at", UtcDateTime, nullable=False),
    Column("judged_at", UtcDateTime),
    Column("closed_at", UtcDateTime),
    Index("uq_job_listings_url_key", "url_key", unique=True),
    Index("uq_job_listings_origin_key", "origin_key", unique=True),
    Index(None, "fingerprint"),
    Index(None, "company_id"),
    Index(
        "ix_job_listings_judged",
        "judged_as",
        "id",
        postgresql_where=LISTED,
        sqlite_where=LISTED,
    ),
)

listing_sources = Table(
    "listing_sources",
    metadata,
    Column("id", Id, primary_key=True),
    Column("listing_id", Id, ForeignKey("job_listings.id"), nullable=False),
    Column("source_id", String(120), ForeignKey("sources.id"), nullable=False),
    Column("external_key", Text, nullable=False, comment="the platform's id, else hash of the URL"),
    Column("external_id", Text),
    Column("url", Text),
    Column("content_hash", String(64), nullable=False, comment="of the listing as this one states"),
    # A letter for each field that a board must not lose: title, url, description, location.
    Column("stated", String(8), nullable=False),
    Column(
        "missing", Integer, nullable=False, server_default="0", comment="complete lists without"
    ),
    Column("available", Boolean, nullable=False, server_default=text("true")),
    Column("first_seen_at", UtcDateTime, nullable=False),
    # Written when it goes missing or returns; until then the source's last complete listing.
    Column("last_seen_at", UtcDateTime, nullable=False),
    UniqueConstraint("source_id", "external_key"),
    Index(None, "listing_id"),
)

job_matches = Table(
    "job_matches",
    metadata,
    Column("id", Id, primary_key=True),
    Column("listing_id", Id, ForeignKey("job_listings.id"), nullable=False),
    Column("source_id", String(120), nullable=False),
    Column("company_id", String(120)),
    Column("status", String(10), nullable=False, comment="new, or withdrawn"),
    Column("score", Integer, nullable=False),
    Column("base_score", Integer, nullable=False, comment="before the adjustments"),
    Column("priority", String(10), nullable=False, comment="high, medium, low"),
    Column("method", String(10), nullable=False, comment="model or rules"),
    Column("model", Text),
    Column("adjustments", Json, nullable=False, comment="each with its reason and points"),
    Column("skills_matched", Json, nullable=False),
    Column("skills_missing", Json, nullable=False),
    Column("reason", Text, nullable=False, comment="for people"),
    Column("grounding", Json, nullable=False, comment="where the listing's text proves a skill"),
    Column("judged_as", String(64), nullable=False, comment="hash of profile, rules and content"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    UniqueConstraint("listing_id"),
    Index(None, "source_id", "status"),
    Index(None, "score"),
)
