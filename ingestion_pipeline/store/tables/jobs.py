"""Tables of companies and jobs: companies, listings, matches and profiles."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint, text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import Id, Json, UtcDateTime, count, modified_at

# The same condition is in the partial index and in the statements that use it: SQLite uses a
# partial index only if the query repeats its condition literally.
LISTED = text("status = 'open'")

companies = Table(
    "companies",
    metadata,
    Column("id", String(120), primary_key=True, comment="slug of the company, as sources and listings name it"),
    Column("name", Text, comment="what the company calls itself; null until it is stated"),
    Column("website", Text, comment="address of its home page; null: none is known"),
    Column(
        "website_key",
        String(64),
        comment="sha256 of the canonical website, by which two mentions are one company; null: no website is known",
    ),
    Column("source_id", String(120), comment="the source of kind company that it is analysed by; null: it has none"),
    Column("status", String(12), nullable=False, comment="how far its analysis is"),
    Column("about", Text, comment="what it does, in its own words; null: not stated, or not analysed yet"),
    Column(
        "culture", Text, comment="how it describes its work, in its own words; null: not stated, or not analysed yet"
    ),
    Column("mission", Text, comment="its purpose, in its own words; null: not stated, or not analysed yet"),
    Column("size", Text, comment="headcount as the page words it; null: not stated, or not analysed yet"),
    Column(
        "employees_low",
        Integer,
        comment="least number of people that `size` means; null: not stated, or not analysed yet",
    ),
    Column(
        "employees_high",
        Integer,
        comment="greatest number of people that `size` means; null: not stated, or not analysed yet",
    ),
    Column(
        "size_category",
        String(10),
        comment="large, medium or small, by the number of people; null: not stated, or not analysed yet",
    ),
    Column("headquarters", Text, comment="place of its head office; null: not stated, or not analysed yet"),
    Column("industry", Text),
    Column("founded", Integer, comment="year it began in; null: not stated, or not analysed yet"),
    Column(
        "is_remote_first",
        Boolean,
        comment="whether it says that people work from anywhere; null: not stated, or not analysed yet",
    ),
    Column(
        "tech_stack", Json, comment="technologies it names, as JSON by group; null: not stated, or not analysed yet"
    ),
    Column(
        "boards",
        Json,
        comment="job boards that its pages lead to, as JSON, each with its confidence; null until it is analysed",
    ),
    Column("score", Integer, comment="points by your ranks, 0 and up; null until it is analysed"),
    Column("score_parts", Json, comment="what the score is made of, as JSON; null until it is analysed"),
    Column("tier", String(1), comment="grade by the score, S the best; null until it is analysed"),
    Column(
        "scoring_hash",
        String(64),
        comment="hash of the ranks and points that the score is by; null until it is analysed",
    ),
    Column("quality", Json, nullable=False),
    Column("evidence", Json),
    Column("discovered_by", Text, nullable=False, comment="what named it first: a source, a listing or an operator"),
    Column("tracking_id", String(36), nullable=False),
    Column("failure", Text),
    Column("analyzed_at", UtcDateTime, comment="when its pages were last read, UTC; null: never"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    modified_at(),
    Index("uq_companies_website_key", "website_key", unique=True),
    Index(None, "source_id"),
    Index(None, "scoring_hash"),
)

job_listings = Table(
    "job_listings",
    metadata,
    Column("id", Id, primary_key=True),
    Column("source_id", String(120), nullable=False, comment="the board that listed it first, which is the partition"),
    Column("company_id", String(120)),
    Column("company_name", Text, comment="employer as the board words it; null: not stated"),
    Column("company_website", Text, comment="employer's address as the board gives it; null: not stated"),
    Column("url", Text),
    Column("url_key", String(64), comment="sha256 of the canonical URL"),
    Column(
        "fingerprint",
        String(64),
        nullable=False,
        comment="hash of title, company and start of the description, to merge listings of several boards",
    ),
    # Of the board that listed it first and its key there: the one name of a new row.
    Column("origin_key", String(64), comment="hash of the board that first listed it and of its key there"),
    Column("title", Text, nullable=False, comment="name of the job as listed"),
    Column("location", Text, comment="place of work as listed; null: not stated"),
    Column("other_locations", Json, comment="further places of work, as JSON; null: there is one at the most"),
    Column("remote", String(10), comment="remote, hybrid or on site; null: not stated"),
    Column("department", Text, comment="part of the company as listed; null: not stated"),
    Column("employment_type", Text, comment="full time, part time and the like, as listed; null: not stated"),
    Column("description", Text, comment="text of the posting as Markdown; null: neither list nor page has one"),
    Column("salary", Json, comment="pay as JSON: least, most, currency, period; null: not stated"),
    Column("posted_at", UtcDateTime, comment="when the board says it was posted, UTC; null: not stated"),
    Column("valid_until", UtcDateTime, comment="when the board says it ends, UTC; null: not stated"),
    Column("status", String(10), nullable=False, comment="whether any board still lists it"),
    Column("quality", Json, nullable=False),
    Column("content_hash", String(64), nullable=False, comment="hash of the fields that filtering and scoring use"),
    Column("decision", String(10), comment="decision of the filter and the score; null: not evaluated yet"),
    Column("rules_hash", String(64), comment="hash of profile, rules and content that the decision is based on"),
    Column(
        "filter_result", Json, comment="as JSON: passed or not, strikes, items with reasons; null: not evaluated yet"
    ),
    Column(
        "match_result",
        Json,
        comment="as JSON: score of 100, adjustments, skills, also of what did not fit; null: not evaluated"
        " yet, or filtered",
    ),
    Column(
        "snapshot_id",
        Id,
        comment="body of the list that states it; null: the list has several pages, or it is older than lineage",
    ),
    Column("detail_snapshot_id", Id, comment="body of its own page; null: that was not read"),
    Column("ingestion_id", Id),
    Column("tracking_id", String(36), nullable=False),
    Column("first_seen_at", UtcDateTime, nullable=False, comment="when any board was first seen to list it, UTC"),
    Column("changed_at", UtcDateTime, nullable=False, comment="when what it says last changed, UTC"),
    Column("evaluated_at", UtcDateTime, comment="when it was last filtered or scored, UTC; null: not evaluated yet"),
    Column("closed_at", UtcDateTime, comment="when the last board took it down, UTC; null: it is open"),
    Column("closed_reason", Text, comment="why no board lists it, for people; null: it is open"),
    modified_at(),
    Index("uq_job_listings_url_key", "url_key", unique=True),
    Index("uq_job_listings_origin_key", "origin_key", unique=True),
    Index(None, "fingerprint"),
    Index(None, "company_id"),
    Index("ix_job_listings_judged", "rules_hash", "id", postgresql_where=LISTED, sqlite_where=LISTED),
    Index("ix_job_listings_valid_until", "valid_until", postgresql_where=LISTED, sqlite_where=LISTED),
)

listing_sources = Table(
    "listing_sources",
    metadata,
    Column("id", Id, primary_key=True),
    Column(
        "listing_id",
        Id,
        ForeignKey("job_listings.id"),
        nullable=False,
        comment="the job that the board lists (`job_listings.id`)",
    ),
    Column(
        "source_id",
        String(120),
        ForeignKey("sources.id"),
        nullable=False,
        comment="the board that lists it, which is the partition",
    ),
    Column(
        "external_key",
        Text,
        nullable=False,
        comment="what makes it one job on its board: the platform's id, else a hash of its address",
    ),
    Column("external_id", Text, comment="the platform's own id of the job; null: the platform gives none"),
    Column("url", Text, comment="where this board shows the job; null: its list links none"),
    Column("content_hash", String(64), nullable=False, comment="hash of the listing as this board states it"),
    # A letter for each field that a board must not lose: title, url, description, location.
    Column("stated", String(8), nullable=False, comment="a letter for each watched field that it states: t, u, d, l"),
    count("missing", "complete lists in a row that lacked it; 0 while it is listed"),
    Column(
        "available",
        Boolean,
        nullable=False,
        server_default=text("true"),
        comment="whether the board still lists it; false once enough complete lists lack it",
    ),
    Column("first_seen_at", UtcDateTime, nullable=False, comment="when this board was first seen to list it, UTC"),
    # Written when it goes missing or returns; until then the source's last complete listing.
    Column(
        "last_seen_at",
        UtcDateTime,
        nullable=False,
        comment="when it was last seen, UTC; written as it goes missing or returns",
    ),
    Column("ingestion_id", Id),
    modified_at(),
    UniqueConstraint("source_id", "external_key"),
    Index(None, "listing_id"),
)

job_matches = Table(
    "job_matches",
    metadata,
    Column("id", Id, primary_key=True),
    Column(
        "listing_id",
        Id,
        ForeignKey("job_listings.id"),
        nullable=False,
        comment="the job that fits (`job_listings.id`); one match at the most for each",
    ),
    Column(
        "source_id", String(120), nullable=False, comment="the board that listed the job first, which is the partition"
    ),
    Column("company_id", String(120)),
    Column("status", String(10), nullable=False, comment="new while it stands, withdrawn once the job no longer fits"),
    Column("score", Integer, nullable=False, comment="how well it fits, 0 to 100, adjustments included"),
    Column("base_score", Integer, nullable=False, comment="how well it fits before the adjustments, 0 to 100"),
    Column("rank_score", Float, comment="the score without limits, orders equal scores; null: not recorded then"),
    Column("priority", String(10), nullable=False, comment="how soon to look at it, by the score"),
    Column("method", String(10), nullable=False, comment="evaluated by: model or rules"),
    Column("model", Text, comment="name of the model that evaluated it; null: rules did"),
    Column("adjustments", Json, nullable=False, comment="points added and taken away, as JSON, each with its reason"),
    Column("skills_matched", Json, nullable=False, comment="skills of the profile that the listing names, as JSON"),
    Column(
        "skills_missing", Json, nullable=False, comment="skills that the listing wants and the profile lacks, as JSON"
    ),
    Column("reason", Text, nullable=False, comment="why it fits, in a sentence for people"),
    Column("grounding", Json, nullable=False, comment="as JSON by skill: the span of the listing's text that names it"),
    Column(
        "rules_hash",
        String(64),
        nullable=False,
        comment="hash of profile, rules and content that the score is based on",
    ),
    Column(
        "run_id",
        String(64),
        comment="the Dagster run that evaluated it last; null: a command did, or it is older than lineage",
    ),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    modified_at(),
    UniqueConstraint("listing_id"),
    Index(None, "source_id", "status"),
    Index(None, "score"),
)
