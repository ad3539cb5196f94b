"""Tables of operations: settings, audit log, reported health, heartbeats."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, String, Table, Text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import Id, Json, UtcDateTime

settings = Table(
    "settings",
    metadata,
    Column("key", String(80), primary_key=True, comment="name of the setting"),
    Column("value", Text, nullable=False, comment="value as text"),
    Column("value_type", String(10), nullable=False, comment="type of the value"),
    Column("description", Text, nullable=False, comment="what the setting does"),
    Column("updated_at", UtcDateTime, nullable=False),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", UtcDateTime, nullable=False, comment="when it was done, UTC"),
    Column("actor", Text, nullable=False, comment="who did it: a user, a command or a job"),
    Column("action", String(60), nullable=False, comment="what was done, as noun.verb"),
    Column("subject", Text, nullable=False, comment="the id of what it was done to"),
    Column("detail", Json, nullable=False, comment="arguments and results, as JSON; no secrets"),
    Index(None, "subject", "at"),
)

source_health = Table(
    "source_health",
    metadata,
    Column("source_id", String(120), primary_key=True, comment="the source; no row: it was never unhealthy"),
    Column("state", String(12), nullable=False, comment="health state last reported"),
    Column("since", UtcDateTime, nullable=False, comment="when that state began, UTC"),
    Column("reason", Text, nullable=False, comment="reason as text"),
    Column("changes", Integer, nullable=False, comment="number of state changes; identifies the last one"),
    Column(
        "success_before", UtcDateTime, comment="last success at that time, UTC; only a newer one restores the source"
    ),
)

observed_health = Table(
    "observed_health",
    metadata,
    Column("source_id", String(120), primary_key=True, comment="the source"),
    Column("state", String(12), nullable=False, comment="health as maintenance last computed it"),
    Column("since", UtcDateTime, nullable=False, comment="when maintenance first computed that state, UTC"),
)

service_heartbeats = Table(
    "service_heartbeats",
    metadata,
    Column("name", String(40), primary_key=True, comment="the service, for example the Dagster daemon"),
    Column("at", UtcDateTime, nullable=False, comment="last heartbeat, UTC"),
)
