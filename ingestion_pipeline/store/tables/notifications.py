"""Tables of notifications: outbox, recipients, follows and notices."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, String, Table, Text, UniqueConstraint, text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import Id, Json, UtcDateTime, count

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
    Column("subject_kind", String(40), nullable=False, comment="kind of event"),
    Column("subject_id", Text, nullable=False, comment="what the event is about"),
    Column("payload", Json, nullable=False, comment="content of the event, as JSON"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("handled_at", UtcDateTime, comment="when it was expanded into notices, UTC; null: not yet"),
    UniqueConstraint("subject_kind", "subject_id"),
    Index("ix_outbox_unhandled", "id", postgresql_where=UNHANDLED, sqlite_where=UNHANDLED),
)

recipients = Table(
    "recipients",
    metadata,
    Column("id", String(120), primary_key=True, comment="slug of the recipient"),
    Column("address_url", Text, nullable=False, comment="Apprise URL or webhook"),
    Column("secret", Text, comment="key that signs the webhook"),
    Column("kinds", Json, nullable=False, comment="subject kinds that the recipient subscribes to"),
    Column("mode", String(10), nullable=False, comment="immediate or digest"),
    Column("language", String(20), comment="preferred language; null: any"),
    Column("origin", Text, nullable=False, comment="the file that declares it, or 'row'"),
    count("failures", "failed deliveries in a row"),
    Column("not_before", UtcDateTime, comment="no delivery before this time, UTC, after failures"),
    Column("last_sent_at", UtcDateTime, comment="last delivery, UTC"),
    Column("last_error", Text, comment="last delivery error"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
)

follows = Table(
    "follows",
    metadata,
    Column("recipient_id", String(120), ForeignKey("recipients.id"), primary_key=True, comment="the follower"),
    Column("series_id", String(120), primary_key=True, comment="the followed series"),
    Column("mode", String(10), comment="immediate, digest or muted; null: the recipient's"),
    Column("language", String(20), comment="preferred language; null: the recipient's"),
    Column("origin", Text, nullable=False, comment="the file that declares it, or 'row'"),
    Column("created_at", UtcDateTime, nullable=False),
    Index(None, "series_id"),
)

notices = Table(
    "notices",
    metadata,
    Column("id", Id, primary_key=True),
    Column(
        "recipient",
        String(120),
        nullable=False,
        comment="who is notified (`recipients.id`); kept when the recipient is removed",
    ),
    Column(
        "subject_kind", String(40), nullable=False, comment="what it is about: chapter, job_match, or a kind of alert"
    ),
    Column("subject_id", Text, nullable=False, comment="which one; with recipient and kind it occurs once, for ever"),
    Column("status", String(10), nullable=False, comment="whether it is pending, sent, failed or muted"),
    Column("mode", String(10), nullable=False, comment="delivery mode of the recipient when it was written"),
    Column("series_id", String(120), comment="the series of the chapter; null: it is about something else"),
    Column("payload", Json, nullable=False, comment="content of the message, as JSON"),
    Column(
        "delivery_id", String(36), comment="UUID of the message it goes in, the idempotency key; null: in none so far"
    ),
    Column("created_at", UtcDateTime, nullable=False, comment="when it was written, UTC"),
    Column("sent_at", UtcDateTime, comment="when the recipient's server accepted it, UTC; null: it did not"),
    Column("error", Text, comment="error of the last attempt; null: it did not fail"),
    UniqueConstraint("recipient", "subject_kind", "subject_id"),
    Index("ix_notices_pending", "recipient", "created_at", postgresql_where=UNSENT, sqlite_where=UNSENT),
    Index("ix_notices_failed", "recipient", postgresql_where=GIVEN_UP, sqlite_where=GIVEN_UP),
    Index(None, "recipient", "sent_at", postgresql_where=SENT, sqlite_where=SENT),
    Index(None, "subject_kind", "subject_id"),
)
