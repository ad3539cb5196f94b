"""Tables of companies, listings and matches, and of the analyses of websites."""

from typing import Any

from sqlalchemy import Boolean, Column, Date, Float, Index, Integer, String, Table, Text, UniqueConstraint, text

from ingestion_pipeline.store.changes import LISTING, recorded
from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import (
    ExactDecimal,
    Id,
    Json,
    Kind,
    UtcDateTime,
    count,
    flag,
    modified_at,
    optional,
    partial_index,
    required,
)

LISTED = text("status = 'open'")


def _analysed(name: str, kind: Kind, comment: str) -> Column[Any]:
    return optional(name, kind, f"{comment}; null: not stated, or not analysed yet")


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
    _analysed("about", Text, "what it does, in its own words"),
    _analysed("culture", Text, "how it describes its work, in its own words"),
    _analysed("mission", Text, "its purpose, in its own words"),
    _analysed("size", Text, "headcount as the page words it"),
    _analysed("employees_low", Integer, "least number of people that `size` means"),
    _analysed("employees_high", Integer, "greatest number of people that `size` means"),
    _analysed("size_category", String(10), "large, medium or small, by the number of people"),
    _analysed("headquarters", Text, "place of its head office"),
    optional("industry", Text),
    _analysed("founded", Integer, "year it began in"),
    _analysed("is_remote_first", Boolean, "whether it says that people work from anywhere"),
    _analysed("tech_stack", Json, "technologies it names, as JSON by group"),
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
    info=recorded({"source_id": ""}),
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
    optional("places", Json, "its places as JSON: town, region, country by ISO code, remote; null: none is stated"),
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
    required("first_listed_at", UtcDateTime, "when the job was first seen to be listed, as a repost too, UTC"),
    optional("last_listed_at", UtcDateTime, "when it was last listed before it was closed, UTC; null: never closed"),
    count("times_reopened", "how often it was listed again after it had been closed"),
    optional("repost_of", Id, "the job of the same board that it repeats under a new id; null: no repost is known"),
    modified_at(),
    Index("uq_job_listings_url_key", "url_key", unique=True),
    Index("uq_job_listings_origin_key", "origin_key", unique=True),
    Index(None, "fingerprint"),
    Index(None, "company_id"),
    partial_index("ix_job_listings_judged", "rules_hash", "id", where=LISTED),
    partial_index("ix_job_listings_valid_until", "valid_until", where=LISTED),
    # The snapshot is filled in once the poll is written.
    info=recorded({"id": LISTING, "source_id": ""}, without=["snapshot_id"]),
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
    flag("available", "whether the board still lists it; false once enough complete lists lack it", start="true"),
    required("first_seen_at", UtcDateTime, "when this board was first seen to list it, UTC"),
    # Written when it goes missing or returns; until then the source's last complete listing.
    required("last_seen_at", UtcDateTime, "when it was last seen, UTC; written as it goes missing or returns"),
    optional("ingestion_id", Id),
    modified_at(),
    UniqueConstraint("source_id", "external_key"),
    Index(None, "listing_id"),
    info=recorded({"source_id": ""}),
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
    info=recorded({"listing_id": LISTING, "source_id": ""}),
)


UNFINISHED = text("finished_at IS NULL")

businesses = Table(
    "businesses",
    metadata,
    Column("id", Id, primary_key=True),
    required("url", Text, "canonical address of its home page"),
    required("url_key", String(64), "sha256 of the canonical URL"),
    required("name", Text, "what it is called, without article and legal form"),
    required("aliases", Json, "further names it is known by, as JSON"),
    optional("industry", Text),
    optional("description", Text, "what it offers, in words of its site; null: not stated"),
    optional("location", Text, "place it is at, as its site words it; null: not stated"),
    required("keywords", Json, "words it wants to be found by, as JSON"),
    optional("language", String(12)),
    required("competitors", Json, "rivals that the site or the operator names, as JSON"),
    required("confidence", Integer, "how sure all this is, 0 to 100"),
    optional("evidence", Json),
    required("created_at", UtcDateTime),
    required("updated_at", UtcDateTime),
    modified_at(),
    UniqueConstraint("url_key"),
    info=recorded({"url_key": ""}),
)

website_analyses = Table(
    "website_analyses",
    metadata,
    Column("id", Id, primary_key=True),
    required("source_id", String(120), references="sources.id"),
    optional("business_id", Id, "the business it is about (`businesses.id`); null until the first phase has ended"),
    required("url", Text, "address that was analysed"),
    required("status", String(16), "how far it is"),
    required("current_step", String(16), "the phase that the status is of"),
    required("priority", Integer, "urgency that it was started with; greater numbers go first, never below 0"),
    optional("info", Json, "as JSON: what the first phase found or the operator gave; null until then"),
    optional("prompts", Json, "questions that models are asked, as JSON in order; null until they are formed"),
    optional(
        "analysis", Json, "as JSON: scores by provider and in all, competitors, failures; null until it is scored"
    ),
    count("progress_percent", "share that is done, in percent"),
    optional("progress_message", Text, "its current activity, for people; null: nothing yet"),
    flag("is_recurring", "whether the website had been analysed before"),
    flag("is_manual", "whether the operator, and not the site, describes the business"),
    optional("failure", Text),
    required("tracking_id", String(36), "UUID that all its tasks have in logs"),
    required("phase_times", Json, "as JSON by phase: began, ended (UTC), attempts"),
    required("created_at", UtcDateTime),
    required("updated_at", UtcDateTime),
    optional("started_at", UtcDateTime, "when its first phase began, UTC; null: it waits"),
    optional("finished_at", UtcDateTime, "when it ended, with success or not, UTC; null: it is running"),
    optional("config_version", Integer),
    modified_at(),
    partial_index("uq_website_analyses_unfinished", "source_id", unique=True, where=UNFINISHED),
    Index(None, "source_id", "id"),
    Index(None, "business_id"),
    Index(None, "finished_at"),
)

website_answers = Table(
    "website_answers",
    metadata,
    Column("id", Id, primary_key=True),
    required(
        "analysis_id", Id, "the analysis it was asked for (`website_analyses.id`)", references="website_analyses.id"
    ),
    required("prompt_index", Integer, "place of the question among the analysis's, counted from 0"),
    required("prompt", Text, "question as it was asked, word for word"),
    required("provider", String(60), "provider that was asked, by its name in the settings"),
    required("model", Text, "name of the model that was asked for"),
    optional("model_version", Text, "model version that the provider reports; null: none, or it failed"),
    required("status", String(10), "answered or failed"),
    optional("answer", Text, "words of the model; null: it failed"),
    optional("error", Text, "why there is no answer, for people; null: there is one"),
    optional("input_tokens", Integer, "tokens of the question; null: the provider does not say"),
    optional("output_tokens", Integer, "tokens of the answer; null: the provider does not say"),
    optional("cost_usd", ExactDecimal, "its cost in US dollars; null: no price is known"),
    optional("mentions", Json, "as JSON by name: count, rank, positions in the answer; null until scored"),
    optional("run_id", String(64), "the Dagster run that asked; null: a command did, or it is older than lineage"),
    required("created_at", UtcDateTime),
    modified_at(),
    UniqueConstraint("analysis_id", "prompt_index", "provider"),
)

website_rankings = Table(
    "website_rankings",
    metadata,
    Column("id", Id, primary_key=True),
    required("business_id", Id, "the business that was searched for (`businesses.id`)", references="businesses.id"),
    required("day", Date, "calendar day of the ranking, UTC, as text YYYY-MM-DD; one row for each"),
    required("analysis_id", Id, "last analysis of the day (`website_analyses.id`)"),
    required("visibility", Float, "share of the answers that mention the business, 0 to 1"),
    required("score", Integer, "points for being mentioned, and how early, 0 to 100"),
    required("mentions", Integer, "how often all answers together name the business"),
    required("prompts", Integer, "different questions that were put to providers"),
    required("by_provider", Json, "the same figures as JSON by provider"),
    required("competitors", Json, "how often and how early rivals are mentioned, as JSON"),
    optional("cost_usd", ExactDecimal, "US dollars of all its replies, refused and empty ones too; null: no price"),
    required("created_at", UtcDateTime),
    required("updated_at", UtcDateTime),
    modified_at(),
    UniqueConstraint("business_id", "day"),
    info=recorded({"business_id": ""}),
)
