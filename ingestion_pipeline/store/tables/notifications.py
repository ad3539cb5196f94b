"""Tables of notifications: outbox, recipients, follows and notices."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint, text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import Id, Json, UtcDateTime

# The same condition is in the partial indexes and in the statements that use them: SQLite uses a
# partial index only if the query repeats its condition literally.
UNSENT = text("status = 'pending'")
GIVEN_UP = text("status = 'failed'")
UNHANDLED = text("handled_at IS NULL")
# An index of all that was ever sent would tempt SQLite to look for what is pending in it.
SENT = text("sent_at IS NOT NULL")

outbox = Table(
    "outbox",
    metadata,
    Column("id", Id, primary_key=True),
    Column("subject_kind", String(40), nullable=False),
    Column("subject_id", Text, nullable=False),
    Column("payload", Json, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("handled_at", UtcDateTime),
    UniqueConstraint("subject_kind", "subject_id"),
    Index("ix_outbox_unhandled", "id", postgresql_where=UNHANDLED, sqlite_where=UNHANDLED),
)

recipients = Table(
    "recipients",
    metadata,
    Column("id", String(120), primary_key=True),
    Column("address_url", Text, nullable=False),
    Column("secret", Text, comment="signs the webhook"),
    Column("kinds", Json, nullable=False, comment="the subject kinds they want to hear of"),
    Column("mode", String(10), nullable=False),
    Column("language", String(20), comment="preferred; none means any"),
    Column("origin", Text, nullable=False, comment="the file that declares it, or 'row'"),
    Column("failures", Integer, nullable=False, server_default="0", comment="in a row"),
    Column("not_before", UtcDateTime, comment="a dead endpoint is left alone until then"),
    Column("last_sent_at", UtcDateTime),
    Column("last_error", Text),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

follows = Table(
    "follows",
    metadata,
    Column("recipient_id", String(120), ForeignKey("recipients.id"), primary_key=True),
    Column("series_id", String(120), primary_key=True),
    Column("mode", String(10), comment="none means the recipient's"),
    Column("language", String(20), comment="none means the recipient's"),
    Column("origin", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Index(None, "series_id"),
)

notices = Table(
    "notices",
    metadata,
    Column("id", Id, primary_key=True),
    Column("recipient", String(120), nullable=False, comment="kept when the recipient is gone"),
    Column("subject_kind", String(40), nullable=False),
    Column("subject_id", Text, nullable=False),
    Column("status", String(10), nullable=False),
    Column("mode", String(10), nullable=False, comment="as it was when the notice was written"),
    Column("series_id", String(120)),
    Column("payload", Json, nullable=False),
    Column("delivery_id", String(36), comment="the message it is sent in: the idempotency key"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("sent_at", UtcDateTime),
    Column("error", Text),
    UniqueConstraint("recipient", "subject_kind", "subject_id"),
    Index("ix_notices_pending", "recipient", "created_at", postgresql_where=UNSENT, sqlite_where=UNSENT),
    Index("ix_notices_failed", "recipient", postgresql_where=GIVEN_UP, sqlite_where=GIVEN_UP),
    Index(None, "recipient", "sent_at", postgresql_where=SENT, sqlite_where=SENT),
    Index(None, "subject_kind", "subject_id"),
)
