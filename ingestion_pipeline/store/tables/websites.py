"""Tables of websites: businesses, analyses, model answers, and rankings by day."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Date,
    Float,
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
from ingestion_pipeline.store.types import ExactDecimal, Id, Json, UtcDateTime, modified_at

# The same condition is in the partial index and in the statements that use it: SQLite uses a
# partial index only if the query repeats its condition literally.
UNFINISHED = text("finished_at IS NULL")

businesses = Table(
    "businesses",
    metadata,
    Column("id", Id, primary_key=True),
    Column("url", Text, nullable=False, comment="canonical, of the home page"),
    Column("url_key", String(64), nullable=False, comment="sha256 of the canonical URL"),
    Column("name", Text, nullable=False, comment="without article and legal form"),
    Column("aliases", Json, nullable=False, comment="other names it is known by"),
    Column("industry", Text),
    Column("description", Text),
    Column("location", Text),
    Column("keywords", Json, nullable=False),
    Column("language", String(12), comment="as in BCP 47, in lower case"),
    Column("competitors", Json, nullable=False, comment="named on the site or by the operator"),
    Column("confidence", Integer, nullable=False, comment="0 to 100"),
    Column("evidence", Json, comment="by field: page, rung, status, start and end"),
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
    Column("business_id", Id, comment="null until the first phase has ended"),
    Column("url", Text, nullable=False),
    Column(
        "status", String(16), nullable=False, comment="not-started, prompt-forming, model-analysis, completed, failed"
    ),
    Column("current_step", String(16), nullable=False, comment="the phase that the status is of"),
    Column("priority", Integer, nullable=False, comment="as it was begun; higher goes first"),
    Column("info", Json, comment="what the first phase found, or the operator gave"),
    Column("prompts", Json, comment="what models are asked, in order"),
    Column("analysis", Json, comment="scores by provider and in all, competitors, failures"),
    Column("progress_percent", Integer, nullable=False, server_default="0"),
    Column("progress_message", Text),
    Column("is_recurring", Boolean, nullable=False, server_default=text("false")),
    Column("is_manual", Boolean, nullable=False, server_default=text("false")),
    Column("failure", Text),
    Column("tracking_id", String(36), nullable=False, comment="of all its tasks"),
    Column("phase_times", Json, nullable=False, comment="by phase: began, ended, attempts"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime),
    Column("finished_at", UtcDateTime),
    Column("config_version", Integer, comment="of the source, when it began"),
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
    Column("analysis_id", Id, ForeignKey("website_analyses.id"), nullable=False),
    Column("prompt_index", Integer, nullable=False),
    Column("prompt", Text, nullable=False),
    Column("provider", String(60), nullable=False),
    Column("model", Text, nullable=False, comment="as asked for"),
    Column("model_version", Text, comment="as the provider names what answered"),
    Column("status", String(10), nullable=False, comment="answered or failed"),
    Column("answer", Text),
    Column("error", Text),
    Column("input_tokens", Integer),
    Column("output_tokens", Integer),
    Column("cost_usd", ExactDecimal, comment="null: no price is known"),
    Column("mentions", Json, comment="by name: count, rank, positions; null until scored"),
    Column("run_id", String(64), comment="the run that asked"),
    Column("created_at", UtcDateTime, nullable=False),
    modified_at(),
    UniqueConstraint("analysis_id", "prompt_index", "provider"),
)

website_rankings = Table(
    "website_rankings",
    metadata,
    Column("id", Id, primary_key=True),
    Column("business_id", Id, ForeignKey("businesses.id"), nullable=False),
    Column("day", Date, nullable=False, comment="UTC"),
    Column("analysis_id", Id, nullable=False, comment="the last of the day"),
    Column("visibility", Float, nullable=False, comment="share of answers with a mention"),
    Column("score", Integer, nullable=False, comment="0 to 100"),
    Column("mentions", Integer, nullable=False),
    Column("prompts", Integer, nullable=False),
    Column("by_provider", Json, nullable=False),
    Column("competitors", Json, nullable=False),
    Column("cost_usd", ExactDecimal),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    modified_at(),
    UniqueConstraint("business_id", "day"),
)
