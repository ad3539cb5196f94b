"""Tables of operations: settings, audit log, health, heartbeats, and the ledger of language models."""

from sqlalchemy import Column, Float, Index, Integer, String, Table, Text

from ingestion_pipeline.store.tables.metadata import metadata
from ingestion_pipeline.store.types import ExactDecimal, Id, Json, UtcDateTime, flag, optional, required

settings = Table(
    "settings",
    metadata,
    Column("key", String(80), primary_key=True, comment="name of the setting"),
    required("value", Text, "value as text"),
    required("value_type", String(10), "type of the value"),
    required("description", Text, "what the setting does"),
    required("updated_at", UtcDateTime),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("id", Id, primary_key=True),
    required("at", UtcDateTime, "when it was done, UTC"),
    required("actor", Text, "who did it: a user, a command or a job"),
    required("action", String(60), "what was done, as noun.verb"),
    required("subject", Text, "the id of what it was done to"),
    required("detail", Json, "arguments and results, as JSON; no secrets"),
    Index(None, "subject", "at"),
)

changes = Table(
    "changes",
    metadata,
    Column("id", Id, primary_key=True, comment="number of the change; a later change of a row has a greater one"),
    required("table_name", String(60), "table of the row that changed; of an item of a dataset, its type"),
    required("row_key", Text, "id of the row in that table, as text; of an item, its source, a slash and its key"),
    optional("source_id", String(120), "the source by which it changed; null: it is of several, or of none"),
    required("op", String(6), "insert, update or delete"),
    optional("before", Json, "as JSON: the fields that differ, before; all fields of a deleted row; null: inserted"),
    optional("after", Json, "as JSON: the fields that differ, after; all fields of an inserted row; null: deleted"),
    required("cause", String(20), "why it changed, such as source_changed, operator or retention"),
    optional("ingestion_id", Id, "the poll that changed it (`ingestions`, while it is kept); null: no poll did"),
    optional("snapshot_id", Id, "body that states an item; null: of other rows, whose poll names the bodies"),
    optional("run_id", String(64), "the Dagster run that changed it; null: a command did"),
    required("occurred_at", UtcDateTime, "when it changed, UTC"),
    Index(None, "occurred_at"),
    Index(None, "row_key", "table_name"),
    Index(None, "source_id", "occurred_at"),
)

source_health = Table(
    "source_health",
    metadata,
    Column("source_id", String(120), primary_key=True, comment="the source; no row: it was never unhealthy"),
    required("state", String(12), "health state last reported"),
    required("since", UtcDateTime, "when that state began, UTC"),
    required("reason", Text, "reason as text"),
    required("changes", Integer, "number of state changes; identifies the last one"),
    optional("success_before", UtcDateTime, "last success at that time, UTC; only a newer one restores the source"),
)

observed_health = Table(
    "observed_health",
    metadata,
    Column("source_id", String(120), primary_key=True, comment="the source"),
    required("state", String(12), "health as maintenance last computed it"),
    required("since", UtcDateTime, "when maintenance first computed that state, UTC"),
)

freshness_days = Table(
    "freshness_days",
    metadata,
    Column("source_id", String(120), primary_key=True, comment="a source with a freshness objective"),
    Column("day", String(10), primary_key=True, comment="day of the measurements, UTC, such as 2026-03-01"),
    required("measured_seconds", Float, "time of the day that was measured"),
    required("late_seconds", Float, "how much of it was later than the objective after the last success"),
    required("measured_until", UtcDateTime, "end of the last measurement, UTC"),
    required("fresh_at", UtcDateTime, "last success that was known then, UTC; before the first: when it was added"),
    flag("is_spent", "whether its error budget of 30 days was gone then; notified when it becomes so"),
)

service_heartbeats = Table(
    "service_heartbeats",
    metadata,
    Column("name", String(40), primary_key=True, comment="the service, for example the Dagster daemon"),
    required("at", UtcDateTime, "last heartbeat, UTC"),
)

model_calls = Table(
    "model_calls",
    metadata,
    Column("id", Id, primary_key=True),
    optional("source_id", String(120)),
    optional("page_id", Id, "the page it was for; null: none"),
    optional("extraction_id", Id, "the extraction it was for; null: none"),
    required("call_site", String(60), "purpose of the call"),
    required("provider", Text, "base URL of the server"),
    required("model", Text, "requested model"),
    required("format", String(20), "how the answer's schema was requested"),
    required("status", String(10), "reserved, settled, failed, cached, or unsent: a shadow would ask"),
    optional("outcome", String(40), "answered, refused, cut_off, http_429, ..."),
    optional("input_tokens", Integer, "input tokens, cached ones included"),
    optional("cached_input_tokens", Integer, "input tokens served from the provider's cache"),
    optional("output_tokens", Integer, "output tokens"),
    flag("usage_estimated", "whether the tokens are an estimate because the server reported none"),
    optional("reserved_usd", ExactDecimal, "estimated cost, counted until the call is settled; null: no price"),
    optional("cost_usd", ExactDecimal, "cost; null: not settled, or no price is known"),
    optional("latency_ms", Integer, "duration of the call"),
    required("cache_key", String(64), "hash of model, prompt and schema"),
    required("prompt_version", String(60), "version of the prompt"),
    required("created_at", UtcDateTime),
    optional("settled_at", UtcDateTime, "when the cost was recorded, UTC; null: not yet"),
    Index(None, "extraction_id", "created_at"),
    Index(None, "source_id", "created_at"),
    Index(None, "created_at"),
)

model_spending = Table(
    "model_spending",
    metadata,
    Column("scope", String(160), primary_key=True, comment="month:2026-03, extraction:7, ..."),
    required("held_usd", ExactDecimal, "settled costs plus open reservations"),
    required("updated_at", UtcDateTime),
)

model_answers = Table(
    "model_answers",
    metadata,
    Column("cache_key", String(64), primary_key=True, comment="hash of model, prompt and schema"),
    required("model", Text, "model that answered"),
    required("prompt_version", String(60), "version of the prompt"),
    required("answer", Json, "the parsed answer"),
    required("created_at", UtcDateTime),
)

model_endpoints = Table(
    "model_endpoints",
    metadata,
    Column("base_url", Text, primary_key=True, comment="base URL of the server"),
    required("format", String(20), "strictest schema format that the server accepts"),
    required("reason", Text, "the server's reply to a stricter format"),
    required("learned_at", UtcDateTime, "when that was learned, UTC"),
)

model_batches = Table(
    "model_batches",
    metadata,
    Column("id", Id, primary_key=True),
    required("provider", Text, "base URL of the server"),
    required("model", Text, "requested model"),
    required("format", String(20), "how the schema of its answers is requested"),
    required("status", String(12), "open, reserved, submitting, submitted or ended"),
    required("key", String(36), "UUID that the provider is given with it: a submission whose reply is lost is found"),
    required("line_count", Integer, "questions that were added"),
    optional("remote_file_id", Text, "the provider's id of the uploaded questions"),
    optional("remote_id", Text, "the provider's id of the batch"),
    optional("outcome", String(40), "completed, expired, unsupported, ...; null: not ended"),
    required("created_at", UtcDateTime),
    optional("submitted_at", UtcDateTime, "when it was submitted, UTC"),
    optional("ended_at", UtcDateTime, "when its last line was settled, UTC"),
    Index(None, "status", "provider", "model"),
)

model_batch_lines = Table(
    "model_batch_lines",
    metadata,
    Column("cache_key", String(64), primary_key=True, comment="hash of the question; its custom_id in the batch"),
    required("batch_id", Id, "the batch (`model_batches.id`)"),
    optional("call_id", Id, "its entry in the ledger (`model_calls.id`); null: not reserved yet"),
    optional("source_id", String(120)),
    optional("page_id", Id, "the page it is for; null: none"),
    optional("extraction_id", Id, "the extraction it is for; null: none"),
    required("call_site", String(60), "purpose of the call"),
    required("prompt_version", String(60), "version of the prompt"),
    optional("request", Json, "the request; null once the line has ended"),
    optional("outcome", String(40), "answered, violated, expired, ...; null: not ended"),
    optional("reply", Text, "a reply that was not accepted, for the second attempt"),
    optional("problems", Json, "why the reply was not accepted"),
    required("created_at", UtcDateTime),
    Index(None, "batch_id"),
    Index(None, "call_id"),
    Index(None, "source_id", "page_id"),
    Index(None, "extraction_id"),
)
