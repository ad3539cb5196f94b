"""The tables, in the order of the data's way; alembic's migrations create exactly these."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from ingestion_pipeline.store.types import ExactDecimal, Id, Json, UtcDateTime

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# The same words stand in the partial indexes and in the statements that want them: SQLite uses a
# partial index only if the query repeats its condition literally.
ACTIVE = text("status IN ('PENDING', 'PROCESSING')")
OPEN = text("replayed_at IS NULL")
ENDED = text("status NOT IN ('PENDING', 'PROCESSING')")

sources = Table(
    "sources",
    metadata,
    Column("id", String(120), primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("url", Text, nullable=False),
    Column("name", Text),
    Column("platform", String(40)),
    Column("config", Json, nullable=False),
    Column("series_id", String(120)),
    Column("company_id", String(120)),
    Column("origin", Text, nullable=False, comment="the file that declares it, or 'row'"),
    Column("host", Text, nullable=False),
    Column("shard", Integer, nullable=False, comment="hash of the host; modulo the shards"),
    Column("tier", String(4), nullable=False),
    Column("tier_pinned", Boolean, nullable=False, server_default=text("false")),
    Column("status", String(20), nullable=False),
    Column("status_reason", Text),
    Column("failure_count", Integer, nullable=False, server_default="0"),
    Column("next_check_at", UtcDateTime),
    Column("last_checked_at", UtcDateTime),
    Column("last_success_at", UtcDateTime),
    Column("last_changed_at", UtcDateTime),
    Column("last_new_at", UtcDateTime, comment="last new record: what warms a source"),
    Column("reported_at", UtcDateTime, comment="changes up to here are Dagster events"),
    Column("synced_at", UtcDateTime, comment="first successful sync; before it nobody is told"),
    Column("last_outcome", Text, comment="what the last poll came to, for people"),
    Column("last_error_class", String(20)),
    Column("content_hash", String(64), comment="of the listing last ingested"),
    Column("reader", Text, comment="platform, version and configuration that read it"),
    Column("etag", Text),
    Column("last_modified", Text),
    Column("needs_full_read", Boolean, nullable=False, server_default=text("false")),
    Column("accepts_drop", Boolean, nullable=False, server_default=text("false")),
    Column("record_count", Integer, nullable=False, server_default="0"),
    Column("tracking_id", String(36), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Index(None, "kind"),
    Index(None, "created_at"),
    Index("ix_sources_unreported", "last_changed_at", "reported_at"),
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", Id, primary_key=True),
    Column("kind", String(40), nullable=False),
    Column("dedupe_key", Text, nullable=False),
    Column("source_id", String(120)),
    Column("url", Text),
    Column("payload", Json, nullable=False),
    Column("status", String(10), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("shard", Integer, nullable=False),
    Column("stage", String(40), comment="last known step, for people and for dead letters"),
    Column("state", Json),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("not_before", UtcDateTime, nullable=False),
    Column("lease_owner", String(36)),
    Column("lease_until", UtcDateTime),
    Column("fence", Integer, nullable=False, server_default="0"),
    Column("tracking_id", String(36), nullable=False),
    Column("parent_id", Id),
    Column("ancestry", Json, nullable=False, comment="task ids from the root to the parent"),
    Column("spawn_depth", Integer, nullable=False, server_default="0"),
    Column("error_class", String(20)),
    Column("error_code", String(40)),
    Column("error", Text),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    CheckConstraint("status <> 'PROCESSING' OR lease_until IS NOT NULL", name="leased"),
    Index(
        "ix_tasks_due",
        "kind",
        "priority",
        "not_before",
        "created_at",
        postgresql_where=ACTIVE,
        sqlite_where=ACTIVE,
    ),
    Index(
        "uq_tasks_active",
        "kind",
        "dedupe_key",
        unique=True,
        postgresql_where=ACTIVE,
        sqlite_where=ACTIVE,
    ),
    Index(None, "source_id", "kind", "status"),
    Index(None, "tracking_id"),
    Index(None, "lease_owner"),
    Index("ix_tasks_ended", "status", "updated_at", postgresql_where=ENDED, sqlite_where=ENDED),
)

batch_items = Table(
    "batch_items",
    metadata,
    Column("batch_id", String(36), primary_key=True),
    Column("task_id", Id, primary_key=True),
    Column("fence", Integer, nullable=False),
    Column("source_id", String(120), nullable=False),
    Column("fetched", Json, nullable=False, comment="the bodies in the content store"),
    Column("reading", String(64), comment="the reading in the content store"),
    Column("fetched_at", UtcDateTime, nullable=False),
)

hosts = Table(
    "hosts",
    metadata,
    Column("host", Text, primary_key=True),
    Column("next_allowed_at", UtcDateTime),
    Column("lease_owner", String(36)),
    Column("lease_until", UtcDateTime),
    Column("leased_at", UtcDateTime),
    Column("wanted_at", UtcDateTime, comment="another run waits for the lease"),
    Column("crawl_delay_seconds", Float),
    Column("robots_fetched_at", UtcDateTime),
    Column("blocked_reason", Text),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", Id, primary_key=True),
    Column("source_id", String(120)),
    Column("url", Text, nullable=False),
    Column("content_hash", String(64), nullable=False),
    Column("content_type", Text),
    Column("size_bytes", Integer, nullable=False),
    Column("status_code", Integer, nullable=False),
    Column("fetched_at", UtcDateTime, nullable=False),
    Column("etag", Text),
    Column("last_modified", Text),
    Index(None, "source_id", "fetched_at"),
    Index(None, "content_hash"),
)

series = Table(
    "series",
    metadata,
    Column("id", String(120), primary_key=True),
    Column("title", Text, nullable=False),
    Column("latest_chapter", ExactDecimal),
    Column("last_chapter_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
)

chapters = Table(
    "chapters",
    metadata,
    Column("id", Id, primary_key=True),
    Column("series_id", String(120), ForeignKey("series.id"), nullable=False),
    Column("key", Text, nullable=False, comment="canonical decimal, or source id # its own id"),
    Column("number", ExactDecimal),
    Column("title", Text),
    Column("published_at", UtcDateTime),
    Column("first_detected_at", UtcDateTime, nullable=False),
    UniqueConstraint("series_id", "key"),
)

chapter_sources = Table(
    "chapter_sources",
    metadata,
    Column("id", Id, primary_key=True),
    Column("chapter_id", Id, ForeignKey("chapters.id"), nullable=False),
    Column("source_id", String(120), ForeignKey("sources.id"), nullable=False),
    Column("url", Text),
    Column("source_chapter_id", Text),
    Column("volume", Text),
    Column("language", Text),
    Column("scanlation_group", Text),
    Column("releases", Json, nullable=False),
    Column("fingerprint", String(64), nullable=False, comment="of all the source says of it"),
    Column("detected_at", UtcDateTime, nullable=False),
    Column("last_seen_at", UtcDateTime, comment="null: in the source's last complete listing"),
    Column("missed_listings", Integer, nullable=False, server_default="0"),
    Column("available", Boolean, nullable=False, server_default=text("true")),
    UniqueConstraint("source_id", "chapter_id"),
    Index(None, "chapter_id"),
)

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
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", Id, primary_key=True),
    Column("task_id", Id, nullable=False),
    Column("task_kind", String(40), nullable=False),
    Column("source_id", String(120)),
    Column("payload", Json, nullable=False),
    Column("stage", String(40)),
    Column("error_class", String(20), nullable=False),
    Column("error_code", String(40), nullable=False),
    Column("error", Text, nullable=False),
    Column("stack", Text),
    Column("attempts", Integer, nullable=False),
    Column("occurrences", Integer, nullable=False, server_default="1"),
    Column("tracking_id", String(36), nullable=False),
    Column("failed_at", UtcDateTime, nullable=False, comment="the last time"),
    Column("replayed_at", UtcDateTime),
    Index(
        "uq_dead_letters_open",
        "task_id",
        "error_code",
        unique=True,
        postgresql_where=OPEN,
        sqlite_where=OPEN,
    ),
    Index(None, "failed_at"),
    Index(None, "source_id"),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", String(64), primary_key=True),
    Column("lease_owner", String(36), nullable=False),
    Column("job", Text, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("lease_until", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    Index(None, "lease_until"),
)

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
