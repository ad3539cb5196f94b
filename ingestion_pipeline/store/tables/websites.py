"""Tables of websites: businesses, analyses, model answers, and rankings by day."""

from __future__ import annotations

from sqlalchemy import Column, Date, Float, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint, text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import ExactDecimal, Id, Json, UtcDateTime, count, flag, modified_at

# The same condition is in the partial index and in the statements that use it: SQLite uses a
# partial index only if the query repeats its condition literally.
UNFINISHED = text("finished_at IS NULL")

businesses = Table(
    "businesses",
    metadata,
    Column("id", Id, primary_key=True),
    Column("url", Text, nullable=False, comment="canonical address of its home page"),
    Column("url_key", String(64), nullable=False, comment="sha256 of the canonical URL"),
    Column("name", Text, nullable=False, comment="what it is called, without article and legal form"),
    Column("aliases", Json, nullable=False, comment="further names it is known by, as JSON"),
    Column("industry", Text),
    Column("description", Text, comment="what it offers, in words of its site; null: not stated"),
    Column("location", Text, comment="place it is at, as its site words it; null: not stated"),
    Column("keywords", Json, nullable=False, comment="words it wants to be found by, as JSON"),
    Column("language", String(12)),
    Column("competitors", Json, nullable=False, comment="rivals that the site or the operator names, as JSON"),
    Column("confidence", Integer, nullable=False, comment="how sure all this is, 0 to 100"),
    Column("evidence", Json),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    modified_at(),
    UniqueConstraint("url_key"),
)

website_analyses = Table(
    "website_analyses",
    metadata,
    Column("id", Id, primary_key=True),
    Column("source_id", String(120), ForeignKey("sources.id"), nullable=False),
    Column(
        "business_id", Id, comment="the business it is about (`businesses.id`); null until the first phase has ended"
    ),
    Column("url", Text, nullable=False, comment="address that was analysed"),
    Column("status", String(16), nullable=False, comment="how far it is"),
    Column("current_step", String(16), nullable=False, comment="the phase that the status is of"),
    Column(
        "priority",
        Integer,
        nullable=False,
        comment="urgency that it was started with; greater numbers go first, never below 0",
    ),
    Column("info", Json, comment="as JSON: what the first phase found or the operator gave; null until then"),
    Column("prompts", Json, comment="questions that models are asked, as JSON in order; null until they are formed"),
    Column(
        "analysis",
        Json,
        comment="as JSON: scores by provider and in all, competitors, failures; null until it is scored",
    ),
    count("progress_percent", "share that is done, in percent"),
    Column("progress_message", Text, comment="its current activity, for people; null: nothing yet"),
    flag("is_recurring", "whether the website had been analysed before"),
    flag("is_manual", "whether the operator, and not the site, describes the business"),
    Column("failure", Text),
    Column("tracking_id", String(36), nullable=False, comment="UUID that all its tasks have in logs"),
    Column("phase_times", Json, nullable=False, comment="as JSON by phase: began, ended (UTC), attempts"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime, comment="when its first phase began, UTC; null: it waits"),
    Column("finished_at", UtcDateTime, comment="when it ended, with success or not, UTC; null: it is running"),
    Column("config_version", Integer),
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
    Column(
        "analysis_id",
        Id,
        ForeignKey("website_analyses.id"),
        nullable=False,
        comment="the analysis it was asked for (`website_analyses.id`)",
    ),
    Column(
        "prompt_index", Integer, nullable=False, comment="place of the question among the analysis's, counted from 0"
    ),
    Column("prompt", Text, nullable=False, comment="question as it was asked, word for word"),
    Column("provider", String(60), nullable=False, comment="provider that was asked, by its name in the settings"),
    Column("model", Text, nullable=False, comment="name of the model that was asked for"),
    Column("model_version", Text, comment="model version that the provider reports; null: none, or it failed"),
    Column("status", String(10), nullable=False, comment="answered or failed"),
    Column("answer", Text, comment="words of the model; null: it failed"),
    Column("error", Text, comment="why there is no answer, for people; null: there is one"),
    Column("input_tokens", Integer, comment="tokens of the question; null: the provider does not say"),
    Column("output_tokens", Integer, comment="tokens of the answer; null: the provider does not say"),
    Column("cost_usd", ExactDecimal, comment="its cost in US dollars; null: no price is known"),
    Column("mentions", Json, comment="as JSON by name: count, rank, positions in the answer; null until scored"),
    Column(
        "run_id", String(64), comment="the Dagster run that asked; null: a command did, or it is older than lineage"
    ),
    Column("created_at", UtcDateTime, nullable=False),
    modified_at(),
    UniqueConstraint("analysis_id", "prompt_index", "provider"),
)

website_rankings = Table(
    "website_rankings",
    metadata,
    Column("id", Id, primary_key=True),
    Column(
        "business_id",
        Id,
        ForeignKey("businesses.id"),
        nullable=False,
        comment="the business that was searched for (`businesses.id`)",
    ),
    Column(
        "day", Date, nullable=False, comment="calendar day of the ranking, UTC, as text YYYY-MM-DD; one row for each"
    ),
    Column("analysis_id", Id, nullable=False, comment="last analysis of the day (`website_analyses.id`)"),
    Column("visibility", Float, nullable=False, comment="share of the answers that mention the business, 0 to 1"),
    Column("score", Integer, nullable=False, comment="points for being mentioned, and how early, 0 to 100"),
    Column("mentions", Integer, nullable=False, comment="how often all answers together name the business"),
    Column("prompts", Integer, nullable=False, comment="different questions that were put to providers"),
    Column("by_provider", Json, nullable=False, comment="the same figures as JSON by provider"),
    Column("competitors", Json, nullable=False, comment="how often and how early rivals are mentioned, as JSON"),
    Column(
        "cost_usd", ExactDecimal, comment="US dollars of all its replies, refused and empty ones too; null: no price"
    ),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    modified_at(),
    UniqueConstraint("business_id", "day"),
)
