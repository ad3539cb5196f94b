"""Tables of series and those who follow them: chapters and their sources; outbox, recipients, follows, notices."""

from sqlalchemy import Column, ForeignKey, Index, String, Table, Text, UniqueConstraint, text

from ingestion_pipeline.store.changes import SERIES, recorded
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
    partial_index,
    required,
)

series = Table(
    "series",
    metadata,
    Column("id", String(120), primary_key=True, comment="slug of the series, as sources and followers name it"),
    required("title", Text, "what people call the series"),
    optional("latest_chapter", ExactDecimal, "highest chapter number that a source has; null: none is numbered"),
    optional(
        "last_chapter_at",
        UtcDateTime,
        "since when that chapter is the latest, UTC: when it was found, or at a first sync when it was"
        " published; null: none is numbered",
    ),
    optional("merged_into", String(120), "the series it was merged into, which replaces it; null: it was not merged"),
    required("created_at", UtcDateTime),
    modified_at(),
    info=recorded({"id": SERIES}),
)

chapters = Table(
    "chapters",
    metadata,
    Column("id", Id, primary_key=True),
    required(
        "series_id", String(120), "the work it belongs to (`series.id`), whatever source has it", references="series.id"
    ),
    required(
        "key",
        Text,
        "what makes it one chapter within its series: its number as a canonical decimal, or the source's id"
        " and its own for one without number",
    ),
    optional("number", ExactDecimal, "chapter number, exact, such as 10.5; null: the chapter has none"),
    optional("title", Text, "title as a source last stated it; null: none does"),
    optional("published_at", UtcDateTime, "date of publication as a source last stated it, UTC; null: none does"),
    required("first_detected_at", UtcDateTime, "when we first saw it on any source, UTC"),
    optional("rejected_at", UtcDateTime, "when an operator said that there is no such chapter, UTC; null: it counts"),
    flag(
        "unannounced",
        "whether followers are notified once another source lists it: the first sync that brought it notified nobody",
    ),
    modified_at(),
    UniqueConstraint("series_id", "key"),
    info=recorded({"series_id": SERIES}),
)

chapter_sources = Table(
    "chapter_sources",
    metadata,
    Column("id", Id, primary_key=True),
    required("chapter_id", Id, "the chapter that the source has (`chapters.id`)", references="chapters.id"),
    required("source_id", String(120), references="sources.id"),
    optional("url", Text, "where the source shows the chapter; null: its listing links none"),
    optional("source_chapter_id", Text, "the source's own id of the chapter; null: its listing has none"),
    optional("volume", Text, "volume it is in, as the source words it; null: not stated"),
    optional("language", Text, "language of the first release, as the source words it; null: not stated"),
    optional("scanlation_group", Text, "who made the first release; null: not stated"),
    required("releases", Json, "every release that the source lists of the number, as JSON, in its order"),
    required("fingerprint", String(64), "hash of everything the source states about the chapter"),
    required("detected_at", UtcDateTime, "when this source was first seen to have it, UTC; never moves"),
    optional(
        "last_seen_at",
        UtcDateTime,
        "last complete listing that had it, UTC, once it is missing; null: the source's last complete listing has it",
    ),
    count("missed_listings", "complete listings in a row that lacked it; 0 while it is listed"),
    flag("available", "whether the source still has it; false once enough complete listings lack it", start="true"),
    optional("ingestion_id", Id),
    modified_at(),
    UniqueConstraint("source_id", "chapter_id"),
    Index(None, "chapter_id"),
    info=recorded({"source_id": ""}),
)

UNSENT = text("status = 'pending'")
GIVEN_UP = text("status = 'failed'")
UNHANDLED = text("handled_at IS NULL")
# An index of all that was ever sent would tempt SQLite to look for what is pending in it.
SENT = text("sent_at IS NOT NULL")

outbox = Table(
    "outbox",
    metadata,
    Column("id", Id, primary_key=True),
    required("subject_kind", String(40), "kind of event"),
    required("subject_id", Text, "what the event is about"),
    required("payload", Json, "content of the event, as JSON"),
    required("created_at", UtcDateTime),
    optional("handled_at", UtcDateTime, "when it was expanded into notices, UTC; null: not yet"),
    UniqueConstraint("subject_kind", "subject_id"),
    partial_index("ix_outbox_unhandled", "id", where=UNHANDLED),
)

recipients = Table(
    "recipients",
    metadata,
    Column("id", String(120), primary_key=True, comment="slug of the recipient"),
    required("address_url", Text, "Apprise URL or webhook"),
    optional("secret", Text, "key that signs the webhook"),
    required("kinds", Json, "subject kinds that the recipient subscribes to"),
    required("mode", String(10), "immediate or digest"),
    optional("language", String(20), "preferred language; null: any"),
    required("origin", Text, "the file that declares it, or 'row'"),
    count("failures", "failed deliveries in a row"),
    optional("not_before", UtcDateTime, "no delivery before this time, UTC, after failures"),
    optional("last_sent_at", UtcDateTime, "last delivery, UTC"),
    optional("last_error", Text, "last delivery error"),
    required("created_at", UtcDateTime),
    required("updated_at", UtcDateTime),
)

follows = Table(
    "follows",
    metadata,
    Column("recipient_id", String(120), ForeignKey("recipients.id"), primary_key=True, comment="the follower"),
    Column("series_id", String(120), primary_key=True, comment="the followed series"),
    optional("mode", String(10), "immediate, digest or muted; null: the recipient's"),
    optional("language", String(20), "preferred language; null: the recipient's"),
    required("origin", Text, "the file that declares it, or 'row'"),
    required("created_at", UtcDateTime),
    Index(None, "series_id"),
)

change_follows = Table(
    "change_follows",
    metadata,
    Column("id", Id, primary_key=True),
    required("recipient_id", String(120), "the follower", references="recipients.id"),
    required("table_name", String(60), "table whose changes are followed, or type of items"),
    optional("field", Text, "the field whose updates are followed; null: any change of a row"),
    optional("source_id", String(120), "the source whose changes are followed; null: any"),
    optional("cause", String(20), "the cause of the changes that are followed; null: any but a first sync"),
    required("notified_until", UtcDateTime, "changes up to this moment are notices, UTC"),
    required("created_at", UtcDateTime, "since when it is followed, UTC; earlier changes are not notified"),
    Index(None, "recipient_id"),
)

notices = Table(
    "notices",
    metadata,
    Column("id", Id, primary_key=True),
    required("recipient", String(120), "who is notified (`recipients.id`); kept when the recipient is removed"),
    required("subject_kind", String(40), "what it is about: chapter, job_match, or a kind of alert"),
    required("subject_id", Text, "which one; with recipient and kind it occurs once, for ever"),
    required("status", String(10), "whether it is pending, sent, failed or muted"),
    required("mode", String(10), "delivery mode of the recipient when it was written"),
    optional("series_id", String(120), "the series of the chapter; null: it is about something else"),
    required("payload", Json, "content of the message, as JSON"),
    optional("delivery_id", String(36), "UUID of the message it goes in, the idempotency key; null: in none so far"),
    required("created_at", UtcDateTime, "when it was written, UTC"),
    optional("sent_at", UtcDateTime, "when the recipient's server accepted it, UTC; null: it did not"),
    optional("error", Text, "error of the last attempt; null: it did not fail"),
    UniqueConstraint("recipient", "subject_kind", "subject_id"),
    partial_index("ix_notices_pending", "recipient", "created_at", where=UNSENT),
    partial_index("ix_notices_failed", "recipient", where=GIVEN_UP),
    partial_index(None, "recipient", "sent_at", where=SENT),
    Index(None, "subject_kind", "subject_id"),
)
