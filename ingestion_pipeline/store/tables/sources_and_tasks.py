"""Tables of sources and work: sources, tasks, batches, dead letters, runs."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    text,
)

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import Id, Json, UtcDateTime, modified_at

# The same condition is in the partial indexes and in the statements that use them: SQLite uses a
# partial index only if the query repeats its condition literally.
ACTIVE = text("ended_at IS NULL")
ENDED = text("ended_at IS NOT NULL")
OPEN = text("replayed_at IS NULL AND discarded_at IS NULL")
SPAWNED = text("parent_id IS NOT NULL")
OF_A_SOURCE = text("source_id IS NOT NULL")
# Polls are claimed by tier and there is one per source; other tasks are claimed by source.
FRONTIER = text("ended_at IS NULL AND kind <> 'poll'")

_ENDED_AT = "CASE WHEN status NOT IN ('PENDING', 'PROCESSING') THEN updated_at END"

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
    Column("assigned_series_id", String(120), comment="an operator's word; it beats the file's"),
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
    # What the next event will count, so that no poll is missing from the plots.
    Column("untold_polls", Integer, nullable=False, server_default="0"),
    Column("untold_changes", Integer, nullable=False, server_default="0"),
    Column("untold_updated", Integer, nullable=False, server_default="0"),
    Column("untold_withdrawn", Integer, nullable=False, server_default="0"),
    # Totals since the source was added; they only ever grow.
    Column("poll_count", Integer, nullable=False, server_default="0", comment="polls that ended"),
    Column("change_count", Integer, nullable=False, server_default="0", comment="that found news"),
    Column("strike_count", Integer, nullable=False, server_default="0", comment="that failed"),
    Column("synced_at", UtcDateTime, comment="first successful sync; before it nobody is told"),
    Column("synced_version", Integer, comment="config_version of the last listing that was read"),
    Column("last_outcome", Text, comment="what the last poll came to, for people"),
    Column("last_error_class", String(20)),
    Column("content_hash", String(64), comment="of the listing last ingested"),
    Column("reader", Text, comment="platform, version and configuration that read it"),
    Column("etag", Text),
    Column("last_modified", Text),
    Column("needs_full_read", Boolean, nullable=False, server_default=text("false")),
    Column("accepts_drop", Boolean, nullable=False, server_default=text("false")),
    Column("record_count", Integer, nullable=False, server_default="0"),
    Column("rhythm", Json, comment="of its changes: gaps, days of the week, hours of the day"),
    Column("changes_per_day", Float, comment="the estimate, once it decides the next check"),
    Column("checks_per_day", Float, comment="as often as that estimate has it checked now"),
    Column("tracking_id", String(36), nullable=False),
    Column("config_version", Integer, nullable=False, server_default="1"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    modified_at(),
    Index(None, "kind"),
    Index("ix_sources_census", "created_at", "status"),
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
    # A claim leaves it as it is. While no index names a column that a claim changes, the status
    # above all, PostgreSQL writes no index entry for one (a heap-only update).
    Column("ended_at", UtcDateTime, Computed(_ENDED_AT)),
    CheckConstraint("status <> 'PROCESSING' OR lease_until IS NOT NULL", name="leased"),
    Index("ix_tasks_due", "kind", "priority", "not_before", "created_at", postgresql_where=ACTIVE, sqlite_where=ACTIVE),
    Index("uq_tasks_active", "kind", "dedupe_key", unique=True, postgresql_where=ACTIVE, sqlite_where=ACTIVE),
    Index("ix_tasks_source", "source_id", "kind", postgresql_where=OF_A_SOURCE, sqlite_where=OF_A_SOURCE),
    Index(
        "ix_tasks_frontier",
        "kind",
        "source_id",
        "priority",
        "not_before",
        "created_at",
        postgresql_where=FRONTIER,
        sqlite_where=FRONTIER,
    ),
    Index("ix_tasks_spawned", "tracking_id", "url", postgresql_where=SPAWNED, sqlite_where=SPAWNED),
    Index("ix_tasks_ended", "ended_at", postgresql_where=ENDED, sqlite_where=ENDED),
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

tunings = Table(
    "tunings",
    metadata,
    Column("name", String(80), primary_key=True),
    Column("value", Float, nullable=False, comment="found by measuring, never set by hand"),
    Column("updated_at", UtcDateTime, nullable=False),
)

task_totals = Table(
    "task_totals",
    metadata,
    Column("kind", String(40), primary_key=True),
    Column("status", String(10), primary_key=True, comment="as they ended"),
    Column("error_class", String(20), primary_key=True, comment="'none' without one"),
    Column("tasks", BigInteger, nullable=False, comment="that retention has deleted"),
    Column("retries", BigInteger, nullable=False, comment="attempts beyond their first"),
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
    Column("discarded_at", UtcDateTime),
    Column("discard_reason", Text, comment="why nobody has to look at it"),
    Index("uq_dead_letters_open", "task_id", "error_code", unique=True, postgresql_where=OPEN, sqlite_where=OPEN),
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


source_versions = Table(
    "source_versions",
    metadata,
    Column("source_id", String(120), ForeignKey("sources.id"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("url", Text, nullable=False),
    Column("platform", String(40)),
    Column("config", Json, nullable=False),
    Column("since", UtcDateTime, nullable=False),
)

# A row for each poll with results. Its id is drawn before anything is written, so
# that the rows of the same transaction can name it, and a poll without results writes none.
ingestions = Table(
    "ingestions",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=False),
    Column("source_id", String(120), nullable=False),
    Column("config_version", Integer, nullable=False),
    Column("run_id", String(64), comment="the run of Dagster; null: no run did it"),
    Column("reader", Text, nullable=False, comment="platform and version of its reader"),
    Column("snapshots", Json, nullable=False, comment="ids, in the order of the pages"),
    Column("outcome", Text, nullable=False, comment="what it came to, for people"),
    Column("tracking_id", String(36), nullable=False),
    Column("fetched_at", UtcDateTime, nullable=False),
    Column("ingested_at", UtcDateTime, nullable=False),
    Index(None, "source_id", "ingested_at"),
    Index(None, "ingested_at"),
)

export_cursors = Table(
    "export_cursors",
    metadata,
    Column("name", String(200), primary_key=True, comment="what is exported, with its source"),
    Column("destination", Text, primary_key=True, comment="the folder that has the files"),
    Column("since", UtcDateTime, nullable=False, comment="what changed from here on is not told"),
    Column("files", Integer, nullable=False, comment="written so far"),
    Column("rows", Id, nullable=False, comment="written so far"),
    Column("updated_at", UtcDateTime, nullable=False),
)
