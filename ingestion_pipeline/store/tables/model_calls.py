"""Tables of language models: calls and their costs, spending, cached answers, endpoints."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, String, Table, Text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import ExactDecimal, Id, Json, UtcDateTime, flag

model_calls = Table(
    "model_calls",
    metadata,
    Column("id", Id, primary_key=True),
    Column("source_id", String(120)),
    Column("page_id", Id, comment="the page it was for; null: none"),
    Column("extraction_id", Id, comment="the extraction it was for; null: none"),
    Column("call_site", String(60), nullable=False, comment="purpose of the call"),
    Column("provider", Text, nullable=False, comment="base URL of the server"),
    Column("model", Text, nullable=False, comment="requested model"),
    Column("format", String(20), nullable=False, comment="how the answer's schema was requested"),
    Column("status", String(10), nullable=False, comment="reserved, settled, failed or cached"),
    Column("outcome", String(40), comment="answered, refused, cut_off, http_429, ..."),
    Column("input_tokens", Integer, comment="input tokens, cached ones included"),
    Column("cached_input_tokens", Integer, comment="input tokens served from the provider's cache"),
    Column("output_tokens", Integer, comment="output tokens"),
    flag("usage_estimated", "whether the tokens are an estimate because the server reported none"),
    Column("reserved_usd", ExactDecimal, comment="estimated cost, counted until the call is settled; null: no price"),
    Column("cost_usd", ExactDecimal, comment="cost; null: not settled, or no price is known"),
    Column("latency_ms", Integer, comment="duration of the call"),
    Column("cache_key", String(64), nullable=False, comment="hash of model, prompt and schema"),
    Column("prompt_version", String(60), nullable=False, comment="version of the prompt"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("settled_at", UtcDateTime, comment="when the cost was recorded, UTC; null: not yet"),
    Index(None, "extraction_id", "created_at"),
    Index(None, "source_id", "created_at"),
    Index(None, "created_at"),
)

model_spending = Table(
    "model_spending",
    metadata,
    Column("scope", String(160), primary_key=True, comment="month:2026-03, extraction:7, ..."),
    Column("held_usd", ExactDecimal, nullable=False, comment="settled costs plus open reservations"),
    Column("updated_at", UtcDateTime, nullable=False),
)

model_answers = Table(
    "model_answers",
    metadata,
    Column("cache_key", String(64), primary_key=True, comment="hash of model, prompt and schema"),
    Column("model", Text, nullable=False, comment="model that answered"),
    Column("prompt_version", String(60), nullable=False, comment="version of the prompt"),
    Column("answer", Json, nullable=False, comment="the parsed answer"),
    Column("created_at", UtcDateTime, nullable=False),
)

model_endpoints = Table(
    "model_endpoints",
    metadata,
    Column("base_url", Text, primary_key=True, comment="base URL of the server"),
    Column("format", String(20), nullable=False, comment="strictest schema format that the server accepts"),
    Column("reason", Text, nullable=False, comment="the server's reply to a stricter format"),
    Column("learned_at", UtcDateTime, nullable=False, comment="when that was learned, UTC"),
)
