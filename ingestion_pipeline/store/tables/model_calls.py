"""Tables of language models: calls and their costs, spending, cached answers, endpoints."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Index, Integer, String, Table, Text, text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import ExactDecimal, Id, Json, UtcDateTime

model_calls = Table(
    "model_calls",
    metadata,
    Column("id", Id, primary_key=True),
    Column("source_id", String(120)),
    Column("page_id", Id),
    Column("extraction_id", Id),
    Column("call_site", String(60), nullable=False, comment="what it was asked for"),
    Column("provider", Text, nullable=False, comment="the server's base URL"),
    Column("model", Text, nullable=False),
    Column("format", String(20), nullable=False, comment="how an answer by schema was asked for"),
    Column("status", String(10), nullable=False, comment="reserved, settled, failed or cached"),
    Column("outcome", String(40), comment="answered, refused, cut_off, http_429, ..."),
    Column("input_tokens", Integer, comment="cached ones included"),
    Column("cached_input_tokens", Integer),
    Column("output_tokens", Integer),
    Column("usage_estimated", Boolean, nullable=False, server_default=text("false")),
    Column("reserved_usd", ExactDecimal, comment="estimate, counted until settled; null: no price"),
    Column("cost_usd", ExactDecimal, comment="null: not settled, or no price is known"),
    Column("latency_ms", Integer),
    Column("cache_key", String(64), nullable=False),
    Column("prompt_version", String(60), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("settled_at", UtcDateTime),
    Index(None, "extraction_id", "created_at"),
    Index(None, "source_id", "created_at"),
    Index(None, "created_at"),
)

model_spending = Table(
    "model_spending",
    metadata,
    Column("scope", String(160), primary_key=True, comment="month:2026-03, extraction:7, ..."),
    Column("held_usd", ExactDecimal, nullable=False, comment="settled costs and open reserves"),
    Column("updated_at", UtcDateTime, nullable=False),
)

model_answers = Table(
    "model_answers",
    metadata,
    Column("cache_key", String(64), primary_key=True),
    Column("model", Text, nullable=False),
    Column("prompt_version", String(60), nullable=False),
    Column("answer", Json, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

model_endpoints = Table(
    "model_endpoints",
    metadata,
    Column("base_url", Text, primary_key=True),
    Column("format", String(20), nullable=False, comment="the strictest that the server takes"),
    Column("reason", Text, nullable=False, comment="what it said to a stricter one"),
    Column("learned_at", UtcDateTime, nullable=False),
)
