"""Tables of companies and jobs: companies, listings, matches and profiles."""

from sqlalchemy import Boolean, Column, Float, Index, Integer, String, Table, Text, UniqueConstraint, text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import Id, Json, UtcDateTime, count, modified_at, optional, required

# The same condition is in the partial index and in the statements that use it: SQLite uses a
# partial index only if the query repeats its condition literally.
LISTED = text("status = 'open'")

companies = Table(
    "companies",
    metadata,
    Column("id", String(120), primary_key=True, comment="slug of the company, as sources and listings name it"),
    optional("name", Text, "what the company calls itself; null until it is stated"),
    optional("website", Text, "address of its home page; null: none is known"),
    optional(
        "website_key",
        String(64),
        "sha256 of the canonical website, by which two mentions are one company; null: no website is known",
    ),
    optional("source_id", String(120), "the source of kind company that it is analysed by; null: it has none"),
    required("status", String(12), "how far its analysis is"),
    optional("about", Text, "what it does, in its own words; null: not stated, or not analysed yet"),
    optional("culture", Text, "how it describes its work, in its own words; null: not stated, or not analysed yet"),
    optional("mission", Text, "its purpose, in its own words; null: not stated, or not analysed yet"),
    optional("size", Text, "headcount as the page words it; null: not stated, or not analysed yet"),
    optional(
        "employees_low", Integer, "least number of people that `size` means; null: not stated, or not analysed yet"
    ),
    optional(
        "employees_high", Integer, "greatest number of people that `size` means; null: not stated, or not analysed yet"
    ),
    optional(
        "size_category",
        String(10),
        "large, medium or small, by the number of people; null: not stated, or not analysed yet",
    ),
    optional("headquarters", Text, "place of its head office; null: not stated, or not analysed yet"),
    optional("industry", Text),
    optional("founded", Integer, "year it began in; null: not stated, or not analysed yet"),
    optional(
        "is_remote_first",
        Boolean,
        "whether it says that people work from anywhere; null: not stated, or not analysed yet",
    ),
    optional("tech_stack", Json, "technologies it names, as JSON by group; null: not stated, or not analysed yet"),
    optional(
        "boards",
        Json,
        "job boards that its pages lead to, as JSON, each with its confidence; null until it is analysed",
    ),
    optional("score", Integer, "points by your ranks, 0 and up; null until it is analysed"),
    optional("score_parts", Json, "what the score is made of, as JSON; null until it is analysed"),
    optional("tier", String(1), "grade by the score, S the best; null until it is analysed"),
    optional(
        "scoring_hash", String(64), "hash of the ranks and points that the score is by; null until it is analysed"
    ),
    required("quality", Json),
    optional("evidence", Json),
    required("discovered_by", Text, "what named it first: a source, a listing or an operator"),
    required("tracking_id", String(36)),
    optional("failure", Text),
    optional("analyzed_at", UtcDateTime, "when its pages were last read, UTC; null: never"),
    required("created_at", UtcDateTime),
    required("updated_at", UtcDateTime),
    modified_at(),
    Index("uq_companies_website_key", "website_key", unique=True),
    Index(None, "source_id"),
    Index(None, "scoring_hash"),
)

job_listings = Table(
    "job_listings",
    metadata,
    Column("id", Id, primary_key=True),
    required("source_id", String(120), "the board that listed it first, which is the partition"),
    optional("company_id", String(120)),
    optional("company_name", Text, "employer as the board words it; null: not stated"),
    optional("company_website", Text, "employer's address as the board gives it; null: not stated"),
    optional("url", Text),
    optional("url_key", String(64), "sha256 of the canonical URL"),
    required(
        "fingerprint",
        String(64),
        "hash of title, company and start of the description, to merge listings of several boards",
    ),
    # Of the board that listed it first and its key there: the one name of a new row.
    optional("origin_key", String(64), "hash of the board that first listed it and of its key there"),
    required("title", Text, "name of the job as listed"),
    optional("location", Text, "place of work as listed; null: not stated"),
    optional("other_locations", Json, "further places of work, as JSON; null: there is one at the most"),
    optional("remote", String(10), "remote, hybrid or on site; null: not stated"),
    optional("department", Text, "part of the company as listed; null: not stated"),
    optional("employment_type", Text, "full time, part time and the like, as listed; null: not stated"),
    optional("description", Text, "text of the posting as Markdown; null: neither list nor page has one"),
    optional("salary", Json, "pay as JSON: least, most, currency, period; null: not stated"),
    optional("posted_at", UtcDateTime, "when the board says it was posted, UTC; null: not stated"),
    optional("valid_until", UtcDateTime, "when the board says it ends, UTC; null: not stated"),
    required("status", String(10), "whether any board still lists it"),
    required("quality", Json),
    required("content_hash", String(64), "hash of the fields that filtering and scoring use"),
    optional("decision", String(10), "decision of the filter and the score; null: not evaluated yet"),
    optional("rules_hash", String(64), "hash of profile, rules and content that the decision is based on"),
    optional("filter_result", Json, "as JSON: passed or not, strikes, items with reasons; null: not evaluated yet"),
    optional(
        "match_result",
        Json,
        "as JSON: score of 100, adjustments, skills, also of what did not fit; null: not evaluated yet, or filtered",
    ),
    optional(
        "snapshot_id",
        Id,
        "body of the list that states it; null: the list has several pages, or it is older than lineage",
    ),
    optional("detail_snapshot_id", Id, "body of its own page; null: that was not read"),
    optional("ingestion_id", Id),
    required("tracking_id", String(36)),
    required("first_seen_at", UtcDateTime, "when any board was first seen to list it, UTC"),
    required("changed_at", UtcDateTime, "when what it says last changed, UTC"),
    optional("evaluated_at", UtcDateTime, "when it was last filtered or scored, UTC; null: not evaluated yet"),
    optional("closed_at", UtcDateTime, "when the last board took it down, UTC; null: it is open"),
    optional("closed_reason", Text, "why no board lists it, for people; null: it is open"),
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
    required("listing_id", Id, "the job that the board lists (`job_listings.id`)", references="job_listings.id"),
    required("source_id", String(120), "the board that lists it, which is the partition", references="sources.id"),
    required("external_key", Text, "what makes it one job on its board: the platform's id, else a hash of its address"),
    optional("external_id", Text, "the platform's own id of the job; null: the platform gives none"),
    optional("url", Text, "where this board shows the job; null: its list links none"),
    required("content_hash", String(64), "hash of the listing as this board states it"),
    # A letter for each field that a board must not lose: title, url, description, location.
    required("stated", String(8), "a letter for each watched field that it states: t, u, d, l"),
    count("missing", "complete lists in a row that lacked it; 0 while it is listed"),
    Column(
        "available",
        Boolean,
        nullable=False,
        server_default=text("true"),
        comment="whether the board still lists it; false once enough complete lists lack it",
    ),
    required("first_seen_at", UtcDateTime, "when this board was first seen to list it, UTC"),
    # Written when it goes missing or returns; until then the source's last complete listing.
    required("last_seen_at", UtcDateTime, "when it was last seen, UTC; written as it goes missing or returns"),
    optional("ingestion_id", Id),
    modified_at(),
    UniqueConstraint("source_id", "external_key"),
    Index(None, "listing_id"),
)

job_matches = Table(
    "job_matches",
    metadata,
    Column("id", Id, primary_key=True),
    required(
        "listing_id",
        Id,
        "the job that fits (`job_listings.id`); one match at the most for each",
        references="job_listings.id",
    ),
    required("source_id", String(120), "the board that listed the job first, which is the partition"),
    optional("company_id", String(120)),
    required("status", String(10), "new while it stands, withdrawn once the job no longer fits"),
    required("score", Integer, "how well it fits, 0 to 100, adjustments included"),
    required("base_score", Integer, "how well it fits before the adjustments, 0 to 100"),
    optional("rank_score", Float, "the score without limits, orders equal scores; null: not recorded then"),
    required("priority", String(10), "how soon to look at it, by the score"),
    required("method", String(10), "evaluated by: model or rules"),
    optional("model", Text, "name of the model that evaluated it; null: rules did"),
    required("adjustments", Json, "points added and taken away, as JSON, each with its reason"),
    required("skills_matched", Json, "skills of the profile that the listing names, as JSON"),
    required("skills_missing", Json, "skills that the listing wants and the profile lacks, as JSON"),
    required("reason", Text, "why it fits, in a sentence for people"),
    required("grounding", Json, "as JSON by skill: the span of the listing's text that names it"),
    required("rules_hash", String(64), "hash of profile, rules and content that the score is based on"),
    optional(
        "run_id", String(64), "the Dagster run that evaluated it last; null: a command did, or it is older than lineage"
    ),
    required("created_at", UtcDateTime),
    required("updated_at", UtcDateTime),
    modified_at(),
    UniqueConstraint("listing_id"),
    Index(None, "source_id", "status"),
    Index(None, "score"),
)
