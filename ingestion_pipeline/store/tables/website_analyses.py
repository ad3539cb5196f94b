"""Tables of websites: businesses, analyses, model answers, and rankings by day."""

from sqlalchemy import Column, Date, Float, Index, Integer, String, Table, Text, UniqueConstraint, text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import (
    ExactDecimal,
    Id,
    Json,
    UtcDateTime,
    count,
    flag,
    modified_at,
    optional,
    required,
)

# The same condition is in the partial index and in the statements that use it: SQLite uses a
# partial index only if the query repeats its condition literally.
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
    Index(
        "uq_website_analyses_unfinished", "source_id", unique=True, postgresql_where=UNFINISHED, sqlite_where=UNFINISHED
    ),
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
)
