"""Tables of sources and their versions, tasks, batches, dead letters, runs, ingestions, measurements, exports."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
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
from ingestion_pipeline.store.types import Id, Json, UtcDateTime, count, flag, modified_at

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
    Column(
        "id", String(120), primary_key=True, comment="kind and name, such as series:solo: the partition key, for ever"
    ),
    Column("kind", String(20), nullable=False, comment="what it lists: catalog, website, company, job_board or series"),
    Column("url", Text, nullable=False, comment="address that is polled"),
    Column("name", Text, comment="what people call it; null: it has no name"),
    Column("platform", String(40), comment="parser of its responses, such as rss; null: its kind needs none"),
    Column("config", Json, nullable=False, comment="settings of the adapter, as JSON"),
    Column("series_id", String(120), comment="the series that its chapters go to; null: it is of another kind"),
    Column(
        "assigned_series_id",
        String(120),
        comment="the series that an operator assigned, overriding its file; null: the file applies",
    ),
    Column("company_id", String(120), comment="the company that the file names; null: it belongs to none"),
    Column("origin", Text, nullable=False, comment="file that declares it, or `row` if a command added it"),
    Column("host", Text, nullable=False, comment="server that is polled, under its lease and delay"),
    Column(
        "shard",
        Integer,
        nullable=False,
        comment="hash of the host; modulo the number of shards it names the run that polls it",
    ),
    Column("tier", String(4), nullable=False, comment="how often it is checked"),
    flag("tier_pinned", "whether the tier was set by hand and does not change by itself"),
    Column(
        "status",
        String(20),
        nullable=False,
        comment="whether it is polled; open: its breaker is, one probe at the next check",
    ),
    Column("status_reason", Text, comment="why it is not active, for people; null: it is, or no reason was given"),
    count("failure_count", "failed polls in a row; 0 after a success"),
    Column("next_check_at", UtcDateTime, comment="when it is due, by change model or tier, UTC; null: not planned yet"),
    Column("last_checked_at", UtcDateTime, comment="when a poll of it last ended, UTC; null: never"),
    Column("last_success_at", UtcDateTime, comment="when a poll of it last succeeded, UTC; null: never"),
    Column("last_changed_at", UtcDateTime, comment="when a poll last found it changed, UTC; null: never"),
    Column("last_new_at", UtcDateTime, comment="when it last had a new record, UTC: this raises its tier; null: never"),
    Column("reported_at", UtcDateTime, comment="changes up to here are events in Dagster, UTC; null: never"),
    # What the next event will count, so that no poll is missing from the plots.
    count("unreported_polls", "polls since the last Dagster event"),
    count("unreported_changes", "changes since the last Dagster event"),
    count("unreported_updated", "updated records since the last Dagster event"),
    count("unreported_withdrawn", "withdrawn records since the last Dagster event"),
    # Totals since the source was added; they only ever grow.
    count("poll_count", "polls that ended since it was added"),
    count("change_count", "polls that found news since it was added"),
    count("strike_count", "polls that failed since it was added"),
    Column(
        "synced_at",
        UtcDateTime,
        comment="when its first poll succeeded, UTC; older records are not notified; null: none did",
    ),
    Column("synced_version", Integer, comment="the config_version that its last listing was read by; null: none was"),
    Column("last_outcome", Text, comment="outcome of its last poll, for people; null: never polled"),
    Column(
        "last_error_class", String(20), comment="class of the last poll's error, such as transient; null: it had none"
    ),
    Column("content_hash", String(64), comment="hash of the feed last ingested"),
    Column("parser_version", Text, comment="platform, version and configuration that parsed it"),
    Column("etag", Text, comment="ETag for the next conditional request"),
    Column("last_modified", Text, comment="Last-Modified for the next conditional request"),
    flag("needs_full_read", "whether the next poll must read all pages, not only what is new"),
    flag("accepts_drop", "whether an operator allowed the next poll to lose most records"),
    count("record_count", "records that its last complete listing had"),
    Column(
        "change_model",
        Json,
        comment="as JSON: how long it was quiet between changes, on which days and at which hours they came;"
        " null: no change is known",
    ),
    Column("changes_per_day", Float, comment="changes a day that are expected; null: the tier decides, not this"),
    Column("checks_per_day", Float, comment="checks a day that this leads to now; null: the tier decides"),
    Column("tracking_id", String(36), nullable=False),
    Column(
        "config_version",
        Integer,
        nullable=False,
        server_default="1",
        comment="how often its address, platform or configuration was another, from 1",
    ),
    Column("created_at", UtcDateTime, nullable=False, comment="when it was added, UTC"),
    Column("updated_at", UtcDateTime, nullable=False),
    modified_at(),
    Index(None, "kind"),
    Index("ix_sources_counts", "created_at", "status"),
    Index("ix_sources_unreported", "last_changed_at", "reported_at"),
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", Id, primary_key=True),
    Column("kind", String(40), nullable=False, comment="kind of work"),
    Column(
        "dedupe_key", Text, nullable=False, comment="identity of the work: at most one active task per kind and key"
    ),
    Column("source_id", String(120), comment="the source it is for; null: none"),
    Column("url", Text, comment="the URL to fetch; null: none"),
    Column("payload", Json, nullable=False, comment="arguments, as JSON"),
    Column(
        "status",
        String(10),
        nullable=False,
        comment="PENDING, PROCESSING, SUCCESS, FILTERED, SKIPPED, FAILED or CANCELLED",
    ),
    Column("priority", Integer, nullable=False, comment="lower is claimed first"),
    Column("shard", Integer, nullable=False, comment="hash of the host: runs claim by shard"),
    Column("stage", String(40), comment="last known step, for people and for dead letters"),
    Column("state", Json, comment="progress that the next attempt resumes from, as JSON"),
    count("attempts", "claims that were not given back"),
    count("suspicion", "how far it may have killed its worker: 0 not, 1 with many others, 2 with few, 3 alone"),
    Column("not_before", UtcDateTime, nullable=False, comment="not claimed before this time, UTC"),
    Column("lease_owner", String(36), comment="worker that holds the claim; null: unclaimed"),
    Column("lease_until", UtcDateTime, comment="when the claim expires, UTC; afterwards any worker may claim it"),
    count("fence", "number of claims: a result with an older fence is refused"),
    Column(
        "tracking_id", String(36), nullable=False, comment="UUID of the root task, shared by all tasks spawned from it"
    ),
    Column("parent_id", Id, comment="the task that spawned it; null: a root"),
    Column("ancestry", Json, nullable=False, comment="task ids from the root to the parent"),
    count("spawn_depth", "number of ancestors"),
    Column("error_class", String(20), comment="class of the last error"),
    Column("error_code", String(40), comment="machine-readable code of the last error"),
    Column("error", Text, comment="message of the last error"),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    # A claim leaves it as it is. While no index names a column that a claim changes, the status
    # above all, PostgreSQL writes no index entry for one (a heap-only update).
    Column("ended_at", UtcDateTime, Computed(_ENDED_AT), comment="when it reached a final status, UTC; null: active"),
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

# What a run has fetched and not yet ingested. A run that dies leaves its rows behind: they are deleted, not resumed.
batch_items = Table(
    "batch_items",
    metadata,
    Column("batch_id", String(36), primary_key=True, comment="UUID of the batch, passed between the ops of a run"),
    Column("task_id", Id, primary_key=True, comment="the claimed poll task"),
    Column("fence", Integer, nullable=False, comment="fence of the claim: a later claim makes the row obsolete"),
    Column("source_id", String(120), nullable=False, comment="the source that was polled"),
    Column(
        "fetched", Json, nullable=False, comment="fetched pages as JSON: URLs, content hashes, headers, parser version"
    ),
    Column(
        "parsed_hash",
        String(64),
        comment="object in the content store that holds the parsed feed; null: not parsed yet",
    ),
    Column("fetched_at", UtcDateTime, nullable=False, comment="when the pages were fetched, UTC"),
)

measurements = Table(
    "measurements",
    metadata,
    Column("name", String(80), primary_key=True, comment="what is measured"),
    Column("value", Float, nullable=False, comment="measured value, never set by hand"),
    Column("updated_at", UtcDateTime, nullable=False),
)

task_totals = Table(
    "task_totals",
    metadata,
    Column("kind", String(40), primary_key=True, comment="kind of the deleted tasks"),
    Column("status", String(10), primary_key=True, comment="final status of the deleted tasks"),
    Column("error_class", String(20), primary_key=True, comment="error class of the deleted tasks; 'none' without one"),
    Column("tasks", BigInteger, nullable=False, comment="tasks that retention has deleted"),
    Column("retries", BigInteger, nullable=False, comment="their attempts beyond the first"),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", Id, primary_key=True),
    Column("task_id", Id, nullable=False, comment="the task that failed"),
    Column("task_kind", String(40), nullable=False, comment="kind of that task"),
    Column("source_id", String(120), comment="the source it was for; null: none"),
    Column("payload", Json, nullable=False, comment="payload of the task, for replay; plus details of the failure"),
    Column("stage", String(40), comment="last known step of the task"),
    Column("error_class", String(20), nullable=False, comment="transient, permanent, resource or fatal"),
    Column("error_code", String(40), nullable=False, comment="machine-readable code of the error"),
    Column("error", Text, nullable=False, comment="message of the error"),
    Column("stack", Text, comment="stack trace; null for expected errors"),
    Column("attempts", Integer, nullable=False, comment="attempts made when it was dead-lettered"),
    Column(
        "occurrences",
        Integer,
        nullable=False,
        server_default="1",
        comment="how often the same task failed with the same code",
    ),
    Column("tracking_id", String(36), nullable=False),
    Column("failed_at", UtcDateTime, nullable=False, comment="last time it failed, UTC"),
    Column("replayed_at", UtcDateTime, comment="when it was replayed, UTC; null: not replayed"),
    Column("discarded_at", UtcDateTime, comment="when it was discarded, UTC; null: not discarded"),
    Column("discard_reason", Text, comment="why it needs no attention"),
    Index("uq_dead_letters_open", "task_id", "error_code", unique=True, postgresql_where=OPEN, sqlite_where=OPEN),
    Index(None, "failed_at"),
    Index(None, "source_id"),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", String(64), primary_key=True, comment="id of the Dagster run"),
    Column("lease_owner", String(36), nullable=False, comment="worker id of the run's process"),
    Column("job", Text, nullable=False, comment="name of the job"),
    Column("started_at", UtcDateTime, nullable=False, comment="when the run started, UTC"),
    Column(
        "lease_until", UtcDateTime, nullable=False, comment="heartbeat: the run is lost if this time has passed, UTC"
    ),
    Column("ended_at", UtcDateTime, comment="when the run ended, UTC; null: it has not"),
    Index(None, "lease_until"),
)


source_versions = Table(
    "source_versions",
    metadata,
    Column("source_id", String(120), ForeignKey("sources.id"), primary_key=True),
    Column("version", Integer, primary_key=True, comment="configuration version, from 1"),
    Column("url", Text, nullable=False, comment="URL in that version"),
    Column("platform", String(40), comment="platform in that version"),
    Column("config", Json, nullable=False, comment="adapter configuration in that version"),
    Column("since", UtcDateTime, nullable=False, comment="when that version was declared, UTC"),
)

# A row for each poll with results. Its id is drawn before anything is written, so
# that the rows of the same transaction can name it, and a poll without results writes none.
ingestions = Table(
    "ingestions",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=False),
    Column("source_id", String(120), nullable=False),
    Column("config_version", Integer, nullable=False),
    Column("run_id", String(64), comment="the Dagster run; null: not made by a run"),
    Column("parser_version", Text, nullable=False, comment="platform and version of the parser"),
    Column("snapshots", Json, nullable=False, comment="ids of the snapshots, in page order"),
    Column("outcome", Text, nullable=False, comment="result of the poll as text"),
    Column("tracking_id", String(36), nullable=False),
    Column("fetched_at", UtcDateTime, nullable=False),
    Column("ingested_at", UtcDateTime, nullable=False, comment="when the rows were written, UTC"),
    Index(None, "source_id", "ingested_at"),
    Index(None, "ingested_at"),
)

export_cursors = Table(
    "export_cursors",
    metadata,
    Column("name", String(200), primary_key=True, comment="the export, with its source"),
    Column("destination", Text, primary_key=True, comment="the folder that holds the files"),
    Column("since", UtcDateTime, nullable=False, comment="rows modified at or after this time are not exported yet"),
    Column("files", Integer, nullable=False, comment="files written so far"),
    Column("rows", Id, nullable=False, comment="rows written so far"),
    Column("updated_at", UtcDateTime, nullable=False),
)
