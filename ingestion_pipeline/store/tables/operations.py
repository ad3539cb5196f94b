"""Tables of operations: settings, audit log, reported health, heartbeats."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, String, Table, Text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import Id, Json, UtcDateTime

settings = Table(
    "settings",
    metadata,
    Column("key", String(80), primary_key=True),
    Column("value", Text, nullable=False),
    Column("value_type", String(10), nullable=False),
    Column("description", Text, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", String(60), nullable=False),
    Column("subject", Text, nullable=False),
    Column("detail", Json, nullable=False),
    Index(None, "subject", "at"),
)

source_health = Table(
    "source_health",
    metadata,
    Column("source_id", String(120), primary_key=True, comment="none: it was never unwell"),
    Column("state", String(12), nullable=False, comment="as it was told last"),
    Column("since", UtcDateTime, nullable=False),
    Column("reason", Text, nullable=False, comment="for people"),
    Column("changes", Integer, nullable=False, comment="of state so far; the name of the last"),
    Column("success_before", UtcDateTime, comment="last success by then; only a newer one counts"),
)

source_words = Table(
    "source_words",
    metadata,
    Column("source_id", String(120), primary_key=True),
    Column("word", String(12), nullable=False, comment="as the last look found it"),
    Column("since", UtcDateTime, nullable=False, comment="the look that first found it"),
)

pulses = Table(
    "pulses",
    metadata,
    Column("name", String(40), primary_key=True, comment="who gives a sign of life"),
    Column("at", UtcDateTime, nullable=False),
)
