"""Tables of sources, tasks, batches, runs, ingestions and exports, and of the hosts and snapshots that polls fetch."""

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
from ingestion_pipeline.store.types import (
    Id,
    Json,
    UtcDateTime,
    count,
    flag,
    modified_at,
    optional,
    partial_index,
    required,
    starting,
)

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
    required("kind", String(20), "what it lists: catalog, website, company, job_board or series"),
    required("url", Text, "address that is polled"),
    optional("name", Text, "what people call it; null: it has no name"),
    optional("platform", String(40), "parser of its responses, such as rss; null: its kind needs none"),
    required("config", Json, "settings of the adapter, as JSON"),
    optional("series_id", String(120), "the series that its chapters go to; null: it is of another kind"),
    optional(
        "assigned_series_id",
        String(120),
        "the series that an operator assigned, overriding its file; null: the file applies",
    ),
    optional("company_id", String(120), "the company that the file names; null: it belongs to none"),
    optional("max_delay_seconds", Integer, "its freshness objective: checked at least this often; null: it has none"),
    required("origin", Text, "file that declares it, or `row` if a command added it"),
    required("host", Text, "server that is polled, under its lease and delay"),
    required("shard", Integer, "hash of the host; modulo the number of shards it names the run that polls it"),
    required("tier", String(4), "how often it is checked"),
    flag("tier_pinned", "whether the tier was set by hand and does not change by itself"),
    required("status", String(20), "whether it is polled; open: its breaker is, one probe at the next check"),
    optional("status_reason", Text, "why it is not active, for people; null: it is, or no reason was given"),
    count("failure_count", "failed polls in a row; 0 after a success"),
    optional("next_check_at", UtcDateTime, "when it is due, by change model or tier, UTC; null: not planned yet"),
    optional("last_checked_at", UtcDateTime, "when a poll of it last ended, UTC; null: never"),
    optional("last_success_at", UtcDateTime, "when a poll of it last succeeded, UTC; null: never"),
    optional("last_changed_at", UtcDateTime, "when a poll last found it changed, UTC; null: never"),
    optional("last_new_at", UtcDateTime, "when it last had a new record, UTC: this raises its tier; null: never"),
    optional("reported_at", UtcDateTime, "changes up to here are events in Dagster, UTC; null: never"),
    # What the next event will count, so that no poll is missing from the plots.
    count("unreported_polls", "polls since the last Dagster event"),
    count("unreported_changes", "changes since the last Dagster event"),
    count("unreported_updated", "updated records since the last Dagster event"),
    count("unreported_withdrawn", "withdrawn records since the last Dagster event"),
    # Totals since the source was added; they only ever grow.
    count("poll_count", "polls that ended since it was added"),
    count("change_count", "polls that found news since it was added"),
    count("strike_count", "polls that failed since it was added"),
    optional(
        "synced_at", UtcDateTime, "when its first poll succeeded, UTC; older records are not notified; null: none did"
    ),
    optional("synced_version", Integer, "the config_version that its last listing was read by; null: none was"),
    optional("last_outcome", Text, "outcome of its last poll, for people; null: never polled"),
    optional("last_error_class", String(20), "class of the last poll's error, such as transient; null: it had none"),
    optional("content_hash", String(64), "hash of the feed last ingested"),
    optional("parser_version", Text, "platform, version and configuration that parsed it"),
    optional("etag", Text, "ETag for the next conditional request"),
    optional("last_modified", Text, "Last-Modified for the next conditional request"),
    flag("needs_full_read", "whether the next poll must read all pages, not only what is new"),
    flag("accepts_drop", "whether an operator allowed the next poll to lose most records"),
    count("record_count", "records that its last complete listing had"),
    optional(
        "change_model",
        Json,
        "as JSON: how long it was quiet between changes, on which days and at which hours they came;"
        " null: no change is known",
    ),
    optional("changes_per_day", Float, "changes a day that are expected; null: the tier decides, not this"),
    optional("checks_per_day", Float, "checks a day that this leads to now; null: the tier decides"),
    required("tracking_id", String(36)),
    count("config_version", "how often its address, platform or configuration was another, from 1", start=1),
    required("created_at", UtcDateTime, "when it was added, UTC"),
    required("updated_at", UtcDateTime),
    modified_at(),
    Index(None, "kind"),
    Index("ix_sources_counts", "created_at", "status"),
    Index("ix_sources_unreported", "last_changed_at", "reported_at"),
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", Id, primary_key=True),
    required("kind", String(40), "kind of work"),
    required("dedupe_key", Text, "identity of the work: at most one active task per kind and key"),
    optional("source_id", String(120), "the source it is for; null: none"),
    optional("url", Text, "the URL to fetch; null: none"),
    required("payload", Json, "arguments, as JSON"),
    required("status", String(10), "PENDING, PROCESSING, SUCCESS, FILTERED, SKIPPED, FAILED or CANCELLED"),
    required("priority", Integer, "lower is claimed first"),
    required("shard", Integer, "hash of the host: runs claim by shard"),
    optional("stage", String(40), "last known step, for people and for dead letters"),
    optional("state", Json, "progress that the next attempt resumes from, as JSON"),
    count("attempts", "claims that were not given back"),
    count(
        "suspicion",
        "how far it may have killed its worker: 0 not, 1 with many others, 2 with few, 3 alone, 4 alone and counted",
    ),
    required("not_before", UtcDateTime, "not claimed before this time, UTC"),
    optional("lease_owner", String(36), "worker that holds the claim; null: unclaimed"),
    optional("lease_until", UtcDateTime, "when the claim expires, UTC; afterwards any worker may claim it"),
    count("fence", "number of claims: a result with an older fence is refused"),
    required("tracking_id", String(36), "UUID of the root task, shared by all tasks spawned from it"),
    optional("parent_id", Id, "the task that spawned it; null: a root"),
    required("ancestry", Json, "task ids from the root to the parent"),
    count("spawn_depth", "number of ancestors"),
    optional("error_class", String(20), "class of the last error"),
    optional("error_code", String(40), "machine-readable code of the last error"),
    optional("error", Text, "message of the last error"),
    required("created_at", UtcDateTime),
    required("updated_at", UtcDateTime),
    # A claim leaves it as it is. While no index names a column that a claim changes, the status
    # above all, PostgreSQL writes no index entry for one (a heap-only update).
    Column("ended_at", UtcDateTime, Computed(_ENDED_AT), comment="when it reached a final status, UTC; null: active"),
    CheckConstraint("status <> 'PROCESSING' OR lease_until IS NOT NULL", name="leased"),
    partial_index("ix_tasks_due", "kind", "priority", "not_before", "created_at", where=ACTIVE),
    # One active task per kind and key: the poll task of a source has the source's id as its key.
    partial_index("uq_tasks_active", "kind", "dedupe_key", unique=True, where=ACTIVE),
    partial_index("ix_tasks_source", "source_id", "kind", where=OF_A_SOURCE),
    partial_index("ix_tasks_frontier", "kind", "source_id", "priority", "not_before", "created_at", where=FRONTIER),
    partial_index("ix_tasks_spawned", "tracking_id", "url", where=SPAWNED),
    partial_index("ix_tasks_ended", "ended_at", where=ENDED),
)

# What a run has fetched and not yet ingested. A run that dies leaves its rows behind: they are deleted, not resumed.
batch_items = Table(
    "batch_items",
    metadata,
    Column("batch_id", String(36), primary_key=True, comment="UUID of the batch, passed between the ops of a run"),
    Column("task_id", Id, primary_key=True, comment="the claimed poll task"),
    required("fence", Integer, "fence of the claim: a later claim makes the row obsolete"),
    required("source_id", String(120), "the source that was polled"),
    required("fetched", Json, "fetched pages as JSON: URLs, content hashes, headers, parser version"),
    optional("parsed_hash", String(64), "object in the content store that holds the parsed feed; null: not parsed yet"),
    required("fetched_at", UtcDateTime, "when the pages were fetched, UTC"),
)

measurements = Table(
    "measurements",
    metadata,
    Column("name", String(80), primary_key=True, comment="what is measured"),
    required("value", Float, "measured value, never set by hand"),
    required("updated_at", UtcDateTime),
)

task_totals = Table(
    "task_totals",
    metadata,
    Column("kind", String(40), primary_key=True, comment="kind of the deleted tasks"),
    Column("status", String(10), primary_key=True, comment="final status of the deleted tasks"),
    Column("error_class", String(20), primary_key=True, comment="error class of the deleted tasks; 'none' without one"),
    required("tasks", BigInteger, "tasks that retention has deleted"),
    required("retries", BigInteger, "their attempts beyond the first"),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", Id, primary_key=True),
    required("task_id", Id, "the task that failed"),
    required("task_kind", String(40), "kind of that task"),
    optional("source_id", String(120), "the source it was for; null: none"),
    required("payload", Json, "payload of the task, for replay; plus details of the failure"),
    optional("stage", String(40), "last known step of the task"),
    required("error_class", String(20), "transient, permanent, resource or fatal"),
    required("error_code", String(40), "machine-readable code of the error"),
    required("error", Text, "message of the error"),
    optional("stack", Text, "stack trace; null for expected errors"),
    required("attempts", Integer, "attempts made when it was dead-lettered"),
    count("occurrences", "how often the same task failed with the same code", start=1),
    required("tracking_id", String(36)),
    required("failed_at", UtcDateTime, "last time it failed, UTC"),
    optional("replayed_at", UtcDateTime, "when it was replayed, UTC; null: not replayed"),
    optional("discarded_at", UtcDateTime, "when it was discarded, UTC; null: not discarded"),
    optional("discard_reason", Text, "why it needs no attention"),
    partial_index("uq_dead_letters_open", "task_id", "error_code", unique=True, where=OPEN),
    Index(None, "failed_at"),
    Index(None, "source_id"),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", String(64), primary_key=True, comment="id of the Dagster run"),
    required("lease_owner", String(36), "worker id of the run's process"),
    required("job", Text, "name of the job"),
    required("started_at", UtcDateTime, "when the run started, UTC"),
    required("lease_until", UtcDateTime, "heartbeat: the run is lost if this time has passed, UTC"),
    optional("ended_at", UtcDateTime, "when the run ended, UTC; null: it has not"),
    Index(None, "lease_until"),
)


source_versions = Table(
    "source_versions",
    metadata,
    Column("source_id", String(120), ForeignKey("sources.id"), primary_key=True),
    Column("version", Integer, primary_key=True, comment="configuration version, from 1"),
    required("url", Text, "URL in that version"),
    optional("platform", String(40), "platform in that version"),
    required("config", Json, "adapter configuration in that version"),
    required("since", UtcDateTime, "when that version was declared, UTC"),
)

# A row for each poll with results. Its id is drawn before anything is written, so
# that the rows of the same transaction can name it, and a poll without results writes none.
ingestions = Table(
    "ingestions",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=False),
    required("source_id", String(120)),
    required("config_version", Integer),
    optional("run_id", String(64), "the Dagster run; null: not made by a run"),
    required("parser_version", Text, "platform and version of the parser"),
    required("snapshots", Json, "ids of the snapshots, in page order"),
    required("outcome", Text, "result of the poll as text"),
    required("tracking_id", String(36)),
    required("fetched_at", UtcDateTime),
    required("ingested_at", UtcDateTime, "when the rows were written, UTC"),
    Index(None, "source_id", "ingested_at"),
    Index(None, "ingested_at"),
)

export_cursors = Table(
    "export_cursors",
    metadata,
    Column("name", String(200), primary_key=True, comment="the export, with its source"),
    Column("destination", Text, primary_key=True, comment="the folder that holds the files"),
    required("since", UtcDateTime, "rows modified at or after this time are not exported yet"),
    required("files", Integer, "files written so far"),
    required("rows", Id, "rows written so far"),
    required("updated_at", UtcDateTime),
)


hosts = Table(
    "hosts",
    metadata,
    Column("host", Text, primary_key=True, comment="host name with port"),
    optional(
        "next_allowed_at",
        UtcDateTime,
        "no process sends a request to the host before this time, UTC (also after a Retry-After)",
    ),
    optional("lease_owner", String(36), "worker that holds the host; null: free"),
    optional("lease_until", UtcDateTime, "when the lease expires, UTC"),
    optional("leased_at", UtcDateTime, "when the lease was taken, UTC"),
    optional(
        "requested_at", UtcDateTime, "when another worker first asked for the leased host, UTC; null: nobody waits"
    ),
    starting(
        "error_score",
        Float,
        "0",
        "recent failed requests, each weighing less with every later request; too many pause the host",
    ),
    optional("timed_out_at", UtcDateTime, "when the last request timed out, UTC; null: the last one did not"),
    optional("crawl_delay_seconds", Float, "crawl delay of robots.txt; null: none stated"),
    optional("robots_fetched_at", UtcDateTime, "when robots.txt was last fetched, UTC"),
    optional("robots", Json, "by origin: robots.txt rules and when they expire"),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", Id, primary_key=True),
    optional("source_id", String(120), "the source it was fetched for"),
    required("url", Text, "requested URL"),
    optional("url_key", String(64), "sha256 of the URL: an index takes no text of any length"),
    # Of a page's cleaned text without the day; of a listing's body.
    required("content_hash", String(64), "hash of the cleaned text"),
    optional("content_type", Text, "Content-Type of the response"),
    required("size_bytes", Integer, "size of the body"),
    required("status_code", Integer, "HTTP status"),
    required("fetched_at", UtcDateTime, "when it was last fetched, UTC"),  # when the content last changed
    optional("etag", Text, "ETag of the response"),
    optional("last_modified", Text, "Last-Modified of the response"),
    optional("final_url", Text, "URL after redirects"),
    optional("canonical_url", Text, "canonical URL that the page states, if on its own site"),
    optional("served_hash", String(64), "hash of the bytes last served over plain HTTP"),
    optional("links_hash", String(64), "hash of the set of links"),
    optional("rendered_at", UtcDateTime, "when a browser last rendered it, UTC; null: never"),
    optional("rendering_hash", String(64), "hash of the rendering configuration"),
    optional("discovered", Json, "URLs that only clicks in the browser revealed"),
    optional("body_hash", String(64), "object in the content store: the served body, or the rendered DOM"),
    optional("text_hash", String(64), "object in the content store: the cleaned text; null: a feed"),
    optional("markdown_hash", String(64), "object in the content store: the Markdown"),
    optional("markdown_version", Text, "version of the Markdown conversion"),
    optional("screenshot_hash", String(64), "object in the content store: the screenshot"),
    optional("failure", String(40), "why it could not be read; null: it is good"),
    optional("run_id", String(64), "the run that last fetched it"),
    optional("rights", Json, "what it says about its use by machines, by where; null: nothing"),
    Index("uq_snapshots_url_key_content_hash", "url_key", "content_hash", unique=True),
    Index(None, "source_id", "fetched_at"),
    Index(None, "content_hash"),
)
