"""The operator's own: settings and the audit log."""

from __future__ import annotations

from sqlalchemy import Column, Index, String, Table, Text

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
