"""Create all tables and views.

SQLite refuses to rename a table while a view names one that is gone: a migration that rebuilds a
table (batch mode) drops the views on it first and creates them again.
"""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import ExactDecimal, Id, Json, UtcDateTime

revision = "0100"
down_revision = None

# Half of each page of `tasks` is left to new versions of its rows: claims write no index entries.
FILLFACTOR = 50
# Only proven values leave the database: `data` of the view holds no others.
DATASETS_CURRENT = """
CREATE VIEW v_datasets_current AS
SELECT
    i.id AS item_id,
    d.source_id,
    d.id AS dataset_id,
    d.version AS dataset_version,
    i.entity_type,
    i.item_key,
    ({proved}) AS data,
    p.url AS page_url,
    i.snapshot_id,
    i.extraction_method,
    i.model,
    i.confidence,
    d.published_at,
    COALESCE(p.read_at, i.created_at) AS read_at
FROM data_items AS i
JOIN datasets AS d ON d.id = i.dataset_id
JOIN pages AS p ON p.id = i.page_id
WHERE d.status = 'published'
  AND NOT i.is_repeat
  AND NOT i.is_flagged
  AND NOT EXISTS (
    SELECT 1 FROM datasets AS newer
    WHERE newer.source_id = d.source_id
      AND newer.status = 'published'
      AND newer.version > d.version
  )
"""
ON_POSTGRESQL = """
    SELECT COALESCE(jsonb_object_agg(field.key, field.value), '{}'::jsonb)
    FROM jsonb_each(i.data) AS field
    WHERE i.grounding -> field.key ->> 'status' IN ('exact', 'fuzzy', 'value', 'source')
"""
ON_SQLITE = """
    SELECT json_group_object(field.key, json(i.data -> field.key))
    FROM json_each(i.data) AS field
    WHERE i.grounding -> field.key ->> 'status' IN ('exact', 'fuzzy', 'value', 'source')
"""
CHAPTERS_LATEST = """
CREATE VIEW v_chapters_latest AS
SELECT
    s.id AS series_id,
    s.title AS series_title,
    c.id AS chapter_id,
    c.number,
    c.title,
    c.published_at,
    c.first_detected_at,
    l.source_id,
    l.url,
    l.language,
    l.ingestion_id,
    i.run_id,
    i.config_version
FROM series AS s
JOIN chapters AS c ON c.series_id = s.id AND c.number = s.latest_chapter
LEFT JOIN chapter_sources AS l ON l.id = (
    SELECT MIN(one.id) FROM chapter_sources AS one
    WHERE one.chapter_id = c.id AND one.available
)
LEFT JOIN ingestions AS i ON i.id = l.ingestion_id
WHERE s.merged_into IS NULL AND c.rejected_at IS NULL
"""
JOB_MATCHES_OPEN = """
CREATE VIEW v_job_matches_open AS
SELECT
    m.id AS match_id,
    m.listing_id,
    j.source_id,
    m.company_id,
    j.company_name,
    j.title,
    j.url,
    j.location,
    j.remote,
    m.score,
    m.priority,
    m.method,
    m.reason,
    j.posted_at,
    m.created_at AS matched_at,
    j.snapshot_id,
    j.ingestion_id,
    m.run_id,
    i.config_version
FROM job_matches AS m
JOIN job_listings AS j ON j.id = m.listing_id
LEFT JOIN ingestions AS i ON i.id = j.ingestion_id
WHERE m.status = 'new' AND j.status = 'open'
"""
SOURCE_HEALTH = """
CREATE VIEW v_source_health AS
SELECT
    s.id AS source_id,
    s.kind,
    s.platform,
    s.tier,
    s.status,
    s.status_reason,
    w.state AS health,
    w.since AS health_since,
    s.failure_count,
    s.last_error_class,
    s.last_outcome,
    s.last_checked_at,
    s.last_success_at,
    s.last_changed_at,
    s.next_check_at,
    s.record_count,
    s.config_version,
    (
        SELECT COUNT(*) FROM dead_letters AS d
        WHERE d.source_id = s.id AND d.replayed_at IS NULL AND d.discarded_at IS NULL
    ) AS open_dead_letters,
    h.state AS reported_state,
    h.since AS reported_since,
    h.reason AS reported_reason
FROM sources AS s
LEFT JOIN observed_health AS w ON w.source_id = s.id
LEFT JOIN source_health AS h ON h.source_id = s.id
"""


def upgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    _create_tables(is_sqlite=is_sqlite)
    if not is_sqlite:
        op.execute(f"ALTER TABLE tasks SET (fillfactor = {FILLFACTOR})")
    # Not by format(): PostgreSQL's empty object has braces of its own.
    current = DATASETS_CURRENT.replace("{proved}", ON_SQLITE if is_sqlite else ON_POSTGRESQL)
    for view in (current, CHAPTERS_LATEST, JOB_MATCHES_OPEN, SOURCE_HEALTH):
        # A colon or a percent sign in it is the database's, not a parameter's.
        op.get_bind().exec_driver_sql(view if is_sqlite else view.replace("%", "%%"))


def _create_tables(*, is_sqlite: bool) -> None:  # noqa: PLR0915 - a statement for each table
    op.create_table(
        "audit_log",
        sa.Column("id", Id, nullable=False),
        sa.Column("at", UtcDateTime, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.String(60), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("detail", Json, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_subject_at", "audit_log", ["subject", "at"])
    op.create_table(
        "batch_items",
        sa.Column("batch_id", sa.String(36), nullable=False),
        sa.Column("task_id", Id, nullable=False),
        sa.Column("fence", sa.Integer, nullable=False),
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("fetched", Json, nullable=False),
        sa.Column("parsed_hash", sa.String(64)),
        sa.Column("fetched_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("batch_id", "task_id", name="pk_batch_items"),
    )
    op.create_table(
        "businesses",
        sa.Column("id", Id, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("url_key", sa.String(64), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("aliases", Json, nullable=False),
        sa.Column("industry", sa.Text),
        sa.Column("description", sa.Text),
        sa.Column("location", sa.Text),
        sa.Column("keywords", Json, nullable=False),
        sa.Column("language", sa.String(12)),
        sa.Column("competitors", Json, nullable=False),
        sa.Column("confidence", sa.Integer, nullable=False),
        sa.Column("evidence", Json),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("modified_at", UtcDateTime),
        sa.PrimaryKeyConstraint("id", name="pk_businesses"),
        sa.UniqueConstraint("url_key", name="uq_businesses_url_key"),
    )
    op.create_table(
        "companies",
        sa.Column("id", sa.String(120), nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("website", sa.Text),
        sa.Column("website_key", sa.String(64)),
        sa.Column("source_id", sa.String(120)),
        sa.Column("status", sa.String(12), nullable=False),
        sa.Column("about", sa.Text),
        sa.Column("culture", sa.Text),
        sa.Column("mission", sa.Text),
        sa.Column("size", sa.Text),
        sa.Column("employees_low", sa.Integer),
        sa.Column("employees_high", sa.Integer),
        sa.Column("size_category", sa.String(10)),
        sa.Column("headquarters", sa.Text),
        sa.Column("industry", sa.Text),
        sa.Column("founded", sa.Integer),
        sa.Column("is_remote_first", sa.Boolean),
        sa.Column("tech_stack", Json),
        sa.Column("boards", Json),
        sa.Column("score", sa.Integer),
        sa.Column("score_parts", Json),
        sa.Column("tier", sa.String(1)),
        sa.Column("scoring_hash", sa.String(64)),
        sa.Column("quality", Json, nullable=False),
        sa.Column("evidence", Json),
        sa.Column("discovered_by", sa.Text, nullable=False),
        sa.Column("tracking_id", sa.String(36), nullable=False),
        sa.Column("failure", sa.Text),
        sa.Column("analyzed_at", UtcDateTime),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("modified_at", UtcDateTime),
        sa.PrimaryKeyConstraint("id", name="pk_companies"),
    )
    op.create_index("ix_companies_scoring_hash", "companies", ["scoring_hash"])
    op.create_index("ix_companies_source_id", "companies", ["source_id"])
    op.create_index("uq_companies_website_key", "companies", ["website_key"], unique=True)
    op.create_table(
        "dead_letters",
        sa.Column("id", Id, nullable=False),
        sa.Column("task_id", Id, nullable=False),
        sa.Column("task_kind", sa.String(40), nullable=False),
        sa.Column("source_id", sa.String(120)),
        sa.Column("payload", Json, nullable=False),
        sa.Column("stage", sa.String(40)),
        sa.Column("error_class", sa.String(20), nullable=False),
        sa.Column("error_code", sa.String(40), nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("stack", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("occurrences", sa.Integer, server_default="1", nullable=False),
        sa.Column("tracking_id", sa.String(36), nullable=False),
        sa.Column("failed_at", UtcDateTime, nullable=False),
        sa.Column("replayed_at", UtcDateTime),
        sa.Column("discarded_at", UtcDateTime),
        sa.Column("discard_reason", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_dead_letters"),
    )
    op.create_index("ix_dead_letters_failed_at", "dead_letters", ["failed_at"])
    op.create_index("ix_dead_letters_source_id", "dead_letters", ["source_id"])
    op.create_index(
        "uq_dead_letters_open",
        "dead_letters",
        ["task_id", "error_code"],
        unique=True,
        postgresql_where=sa.text("replayed_at IS NULL AND discarded_at IS NULL"),
        sqlite_where=sa.text("replayed_at IS NULL AND discarded_at IS NULL"),
    )
    op.create_table(
        "export_cursors",
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("destination", sa.Text, nullable=False),
        sa.Column("since", UtcDateTime, nullable=False),
        sa.Column("files", sa.Integer, nullable=False),
        sa.Column("rows", Id, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("name", "destination", name="pk_export_cursors"),
    )
    op.create_table(
        "hosts",
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("next_allowed_at", UtcDateTime),
        sa.Column("lease_owner", sa.String(36)),
        sa.Column("lease_until", UtcDateTime),
        sa.Column("leased_at", UtcDateTime),
        sa.Column("requested_at", UtcDateTime),
        sa.Column("error_score", sa.Float, server_default="0", nullable=False),
        sa.Column("timed_out_at", UtcDateTime),
        sa.Column("crawl_delay_seconds", sa.Float),
        sa.Column("robots_fetched_at", UtcDateTime),
        sa.Column("robots", Json),
        sa.Column("blocked_reason", sa.Text),
        sa.PrimaryKeyConstraint("host", name="pk_hosts"),
    )
    op.create_table(
        "ingestions",
        sa.Column("id", Id, autoincrement=False, nullable=False),
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("config_version", sa.Integer, nullable=False),
        sa.Column("run_id", sa.String(64)),
        sa.Column("parser_version", sa.Text, nullable=False),
        sa.Column("snapshots", Json, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("tracking_id", sa.String(36), nullable=False),
        sa.Column("fetched_at", UtcDateTime, nullable=False),
        sa.Column("ingested_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ingestions"),
    )
    op.create_index("ix_ingestions_ingested_at", "ingestions", ["ingested_at"])
    op.create_index("ix_ingestions_source_id_ingested_at", "ingestions", ["source_id", "ingested_at"])
    op.create_table(
        "job_listings",
        sa.Column("id", Id, nullable=False),
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("company_id", sa.String(120)),
        sa.Column("company_name", sa.Text),
        sa.Column("company_website", sa.Text),
        sa.Column("url", sa.Text),
        sa.Column("url_key", sa.String(64)),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("origin_key", sa.String(64)),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("location", sa.Text),
        sa.Column("other_locations", Json),
        sa.Column("remote", sa.String(10)),
        sa.Column("department", sa.Text),
        sa.Column("employment_type", sa.Text),
        sa.Column("description", sa.Text),
        sa.Column("salary", Json),
        sa.Column("posted_at", UtcDateTime),
        sa.Column("valid_until", UtcDateTime),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("quality", Json, nullable=False),
        sa.Column("content_hash", sa.String(64), nullable=False),
        sa.Column("decision", sa.String(10)),
        sa.Column("rules_hash", sa.String(64)),
        sa.Column("filter_result", Json),
        sa.Column("match_result", Json),
        sa.Column("snapshot_id", Id),
        sa.Column("detail_snapshot_id", Id),
        sa.Column("ingestion_id", Id),
        sa.Column("tracking_id", sa.String(36), nullable=False),
        sa.Column("first_seen_at", UtcDateTime, nullable=False),
        sa.Column("changed_at", UtcDateTime, nullable=False),
        sa.Column("evaluated_at", UtcDateTime),
        sa.Column("closed_at", UtcDateTime),
        sa.Column("closed_reason", sa.Text),
        sa.Column("modified_at", UtcDateTime),
        sa.PrimaryKeyConstraint("id", name="pk_job_listings"),
    )
    op.create_index("ix_job_listings_company_id", "job_listings", ["company_id"])
    op.create_index("ix_job_listings_fingerprint", "job_listings", ["fingerprint"])
    op.create_index(
        "ix_job_listings_judged",
        "job_listings",
        ["rules_hash", "id"],
        postgresql_where=sa.text("status = 'open'"),
        sqlite_where=sa.text("status = 'open'"),
    )
    op.create_index(
        "ix_job_listings_valid_until",
        "job_listings",
        ["valid_until"],
        postgresql_where=sa.text("status = 'open'"),
        sqlite_where=sa.text("status = 'open'"),
    )
    op.create_index("uq_job_listings_origin_key", "job_listings", ["origin_key"], unique=True)
    op.create_index("uq_job_listings_url_key", "job_listings", ["url_key"], unique=True)
    op.create_table(
        "model_answers",
        sa.Column("cache_key", sa.String(64), nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("prompt_version", sa.String(60), nullable=False),
        sa.Column("answer", Json, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("cache_key", name="pk_model_answers"),
    )
    op.create_table(
        "model_calls",
        sa.Column("id", Id, nullable=False),
        sa.Column("source_id", sa.String(120)),
        sa.Column("page_id", Id),
        sa.Column("extraction_id", Id),
        sa.Column("call_site", sa.String(60), nullable=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("format", sa.String(20), nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("outcome", sa.String(40)),
        sa.Column("input_tokens", sa.Integer),
        sa.Column("cached_input_tokens", sa.Integer),
        sa.Column("output_tokens", sa.Integer),
        sa.Column("usage_estimated", sa.Boolean, server_default=sa.text("false"), nullable=False),
        sa.Column("reserved_usd", ExactDecimal),
        sa.Column("cost_usd", ExactDecimal),
        sa.Column("latency_ms", sa.Integer),
        sa.Column("cache_key", sa.String(64), nullable=False),
        sa.Column("prompt_version", sa.String(60), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("settled_at", UtcDateTime),
        sa.PrimaryKeyConstraint("id", name="pk_model_calls"),
    )
    op.create_index("ix_model_calls_created_at", "model_calls", ["created_at"])
    op.create_index("ix_model_calls_extraction_id_created_at", "model_calls", ["extraction_id", "created_at"])
    op.create_index("ix_model_calls_source_id_created_at", "model_calls", ["source_id", "created_at"])
    op.create_table(
        "model_endpoints",
        sa.Column("base_url", sa.Text, nullable=False),
        sa.Column("format", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("learned_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("base_url", name="pk_model_endpoints"),
    )
    op.create_table(
        "model_spending",
        sa.Column("scope", sa.String(160), nullable=False),
        sa.Column("held_usd", ExactDecimal, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("scope", name="pk_model_spending"),
    )
    op.create_table(
        "notices",
        sa.Column("id", Id, nullable=False),
        sa.Column("recipient", sa.String(120), nullable=False),
        sa.Column("subject_kind", sa.String(40), nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("mode", sa.String(10), nullable=False),
        sa.Column("series_id", sa.String(120)),
        sa.Column("payload", Json, nullable=False),
        sa.Column("delivery_id", sa.String(36)),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("sent_at", UtcDateTime),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_notices"),
        sa.UniqueConstraint(
            "recipient", "subject_kind", "subject_id", name="uq_notices_recipient_subject_kind_subject_id"
        ),
    )
    op.create_index(
        "ix_notices_failed",
        "notices",
        ["recipient"],
        postgresql_where=sa.text("status = 'failed'"),
        sqlite_where=sa.text("status = 'failed'"),
    )
    op.create_index(
        "ix_notices_pending",
        "notices",
        ["recipient", "created_at"],
        postgresql_where=sa.text("status = 'pending'"),
        sqlite_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "ix_notices_recipient_sent_at",
        "notices",
        ["recipient", "sent_at"],
        postgresql_where=sa.text("sent_at IS NOT NULL"),
        sqlite_where=sa.text("sent_at IS NOT NULL"),
    )
    op.create_index("ix_notices_subject_kind_subject_id", "notices", ["subject_kind", "subject_id"])
    op.create_table(
        "outbox",
        sa.Column("id", Id, nullable=False),
        sa.Column("subject_kind", sa.String(40), nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("payload", Json, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("handled_at", UtcDateTime),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
        sa.UniqueConstraint("subject_kind", "subject_id", name="uq_outbox_subject_kind_subject_id"),
    )
    op.create_index(
        "ix_outbox_unhandled",
        "outbox",
        ["id"],
        postgresql_where=sa.text("handled_at IS NULL"),
        sqlite_where=sa.text("handled_at IS NULL"),
    )
    op.create_table(
        "service_heartbeats",
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_pulses"),
    )
    op.create_table(
        "recipients",
        sa.Column("id", sa.String(120), nullable=False),
        sa.Column("address_url", sa.Text, nullable=False),
        sa.Column("secret", sa.Text),
        sa.Column("kinds", Json, nullable=False),
        sa.Column("mode", sa.String(10), nullable=False),
        sa.Column("language", sa.String(20)),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("failures", sa.Integer, server_default="0", nullable=False),
        sa.Column("not_before", UtcDateTime),
        sa.Column("last_sent_at", UtcDateTime),
        sa.Column("last_error", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_recipients"),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("lease_owner", sa.String(36), nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("started_at", UtcDateTime, nullable=False),
        sa.Column("lease_until", UtcDateTime, nullable=False),
        sa.Column("ended_at", UtcDateTime),
        sa.PrimaryKeyConstraint("run_id", name="pk_runs"),
    )
    op.create_index("ix_runs_lease_until", "runs", ["lease_until"])
    op.create_table(
        "series",
        sa.Column("id", sa.String(120), nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("latest_chapter", ExactDecimal),
        sa.Column("last_chapter_at", UtcDateTime),
        sa.Column("merged_into", sa.String(120)),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("modified_at", UtcDateTime),
        sa.PrimaryKeyConstraint("id", name="pk_series"),
    )
    op.create_table(
        "settings",
        sa.Column("key", sa.String(80), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("value_type", sa.String(10), nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_settings"),
    )
    op.create_table(
        "snapshots",
        sa.Column("id", Id, nullable=False),
        sa.Column("source_id", sa.String(120)),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("url_key", sa.String(64)),
        sa.Column("content_hash", sa.String(64), nullable=False),
        sa.Column("content_type", sa.Text),
        sa.Column("size_bytes", sa.Integer, nullable=False),
        sa.Column("status_code", sa.Integer, nullable=False),
        sa.Column("fetched_at", UtcDateTime, nullable=False),
        sa.Column("etag", sa.Text),
        sa.Column("last_modified", sa.Text),
        sa.Column("final_url", sa.Text),
        sa.Column("canonical_url", sa.Text),
        sa.Column("served_hash", sa.String(64)),
        sa.Column("links_hash", sa.String(64)),
        sa.Column("rendered_at", UtcDateTime),
        sa.Column("rendering_hash", sa.String(64)),
        sa.Column("discovered", Json),
        sa.Column("body_hash", sa.String(64)),
        sa.Column("text_hash", sa.String(64)),
        sa.Column("markdown_hash", sa.String(64)),
        sa.Column("markdown_version", sa.Text),
        sa.Column("screenshot_hash", sa.String(64)),
        sa.Column("failure", sa.String(40)),
        sa.Column("run_id", sa.String(64)),
        sa.PrimaryKeyConstraint("id", name="pk_snapshots"),
    )
    op.create_index("ix_snapshots_content_hash", "snapshots", ["content_hash"])
    op.create_index("ix_snapshots_source_id_fetched_at", "snapshots", ["source_id", "fetched_at"])
    op.create_index("uq_snapshots_url_key_content_hash", "snapshots", ["url_key", "content_hash"], unique=True)
    op.create_table(
        "source_health",
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("since", UtcDateTime, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("changes", sa.Integer, nullable=False),
        sa.Column("success_before", UtcDateTime),
        sa.PrimaryKeyConstraint("source_id", name="pk_source_health"),
    )
    op.create_table(
        "observed_health",
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("since", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("source_id", name="pk_source_words"),
    )
    op.create_table(
        "sources",
        sa.Column("id", sa.String(120), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("platform", sa.String(40)),
        sa.Column("config", Json, nullable=False),
        sa.Column("series_id", sa.String(120)),
        sa.Column("assigned_series_id", sa.String(120)),
        sa.Column("company_id", sa.String(120)),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("shard", sa.Integer, nullable=False),
        sa.Column("tier", sa.String(4), nullable=False),
        sa.Column("tier_pinned", sa.Boolean, server_default=sa.text("false"), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("status_reason", sa.Text),
        sa.Column("failure_count", sa.Integer, server_default="0", nullable=False),
        sa.Column("next_check_at", UtcDateTime),
        sa.Column("last_checked_at", UtcDateTime),
        sa.Column("last_success_at", UtcDateTime),
        sa.Column("last_changed_at", UtcDateTime),
        sa.Column("last_new_at", UtcDateTime),
        sa.Column("reported_at", UtcDateTime),
        sa.Column("unreported_polls", sa.Integer, server_default="0", nullable=False),
        sa.Column("unreported_changes", sa.Integer, server_default="0", nullable=False),
        sa.Column("unreported_updated", sa.Integer, server_default="0", nullable=False),
        sa.Column("unreported_withdrawn", sa.Integer, server_default="0", nullable=False),
        sa.Column("poll_count", sa.Integer, server_default="0", nullable=False),
        sa.Column("change_count", sa.Integer, server_default="0", nullable=False),
        sa.Column("strike_count", sa.Integer, server_default="0", nullable=False),
        sa.Column("synced_at", UtcDateTime),
        sa.Column("synced_version", sa.Integer),
        sa.Column("last_outcome", sa.Text),
        sa.Column("last_error_class", sa.String(20)),
        sa.Column("content_hash", sa.String(64)),
        sa.Column("parser_version", sa.Text),
        sa.Column("etag", sa.Text),
        sa.Column("last_modified", sa.Text),
        sa.Column("needs_full_read", sa.Boolean, server_default=sa.text("false"), nullable=False),
        sa.Column("accepts_drop", sa.Boolean, server_default=sa.text("false"), nullable=False),
        sa.Column("record_count", sa.Integer, server_default="0", nullable=False),
        sa.Column("change_model", Json),
        sa.Column("changes_per_day", sa.Float),
        sa.Column("checks_per_day", sa.Float),
        sa.Column("tracking_id", sa.String(36), nullable=False),
        sa.Column("config_version", sa.Integer, server_default="1", nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("modified_at", UtcDateTime),
        sa.PrimaryKeyConstraint("id", name="pk_sources"),
    )
    op.create_index("ix_sources_counts", "sources", ["created_at", "status"])
    op.create_index("ix_sources_kind", "sources", ["kind"])
    op.create_index("ix_sources_unreported", "sources", ["last_changed_at", "reported_at"])
    op.create_table(
        "task_totals",
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("error_class", sa.String(20), nullable=False),
        sa.Column("tasks", sa.BigInteger, nullable=False),
        sa.Column("retries", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("kind", "status", "error_class", name="pk_task_totals"),
    )
    op.create_table(
        "tasks",
        sa.Column("id", Id, nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("dedupe_key", sa.Text, nullable=False),
        sa.Column("source_id", sa.String(120)),
        sa.Column("url", sa.Text),
        sa.Column("payload", Json, nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("shard", sa.Integer, nullable=False),
        sa.Column("stage", sa.String(40)),
        sa.Column("state", Json),
        sa.Column("attempts", sa.Integer, server_default="0", nullable=False),
        sa.Column("suspicion", sa.Integer, server_default="0", nullable=False),
        sa.Column("not_before", UtcDateTime, nullable=False),
        sa.Column("lease_owner", sa.String(36)),
        sa.Column("lease_until", UtcDateTime),
        sa.Column("fence", sa.Integer, server_default="0", nullable=False),
        sa.Column("tracking_id", sa.String(36), nullable=False),
        sa.Column("parent_id", Id),
        sa.Column("ancestry", Json, nullable=False),
        sa.Column("spawn_depth", sa.Integer, server_default="0", nullable=False),
        sa.Column("error_class", sa.String(20)),
        sa.Column("error_code", sa.String(40)),
        sa.Column("error", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column(
            "ended_at",
            UtcDateTime,
            sa.Computed(
                "CASE WHEN status NOT IN ('PENDING', 'PROCESSING') THEN updated_at END",
                persisted=None if is_sqlite else True,
            ),
        ),
        sa.CheckConstraint("status <> 'PROCESSING' OR lease_until IS NOT NULL", name=op.f("ck_tasks_leased")),
        sa.PrimaryKeyConstraint("id", name="pk_tasks"),
    )
    op.create_index(
        "ix_tasks_due",
        "tasks",
        ["kind", "priority", "not_before", "created_at"],
        postgresql_where=sa.text("ended_at IS NULL"),
        sqlite_where=sa.text("ended_at IS NULL"),
    )
    op.create_index(
        "ix_tasks_ended",
        "tasks",
        ["ended_at"],
        postgresql_where=sa.text("ended_at IS NOT NULL"),
        sqlite_where=sa.text("ended_at IS NOT NULL"),
    )
    op.create_index(
        "ix_tasks_frontier",
        "tasks",
        ["kind", "source_id", "priority", "not_before", "created_at"],
        postgresql_where=sa.text("ended_at IS NULL AND kind <> 'poll'"),
        sqlite_where=sa.text("ended_at IS NULL AND kind <> 'poll'"),
    )
    op.create_index(
        "ix_tasks_source",
        "tasks",
        ["source_id", "kind"],
        postgresql_where=sa.text("source_id IS NOT NULL"),
        sqlite_where=sa.text("source_id IS NOT NULL"),
    )
    op.create_index(
        "ix_tasks_spawned",
        "tasks",
        ["tracking_id", "url"],
        postgresql_where=sa.text("parent_id IS NOT NULL"),
        sqlite_where=sa.text("parent_id IS NOT NULL"),
    )
    op.create_index(
        "uq_tasks_active",
        "tasks",
        ["kind", "dedupe_key"],
        unique=True,
        postgresql_where=sa.text("ended_at IS NULL"),
        sqlite_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "measurements",
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("value", sa.Float, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_tunings"),
    )
    op.create_table(
        "chapters",
        sa.Column("id", Id, nullable=False),
        sa.Column("series_id", sa.String(120), nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("number", ExactDecimal),
        sa.Column("title", sa.Text),
        sa.Column("published_at", UtcDateTime),
        sa.Column("first_detected_at", UtcDateTime, nullable=False),
        sa.Column("rejected_at", UtcDateTime),
        sa.Column("unannounced", sa.Boolean, server_default=sa.text("false"), nullable=False),
        sa.Column("modified_at", UtcDateTime),
        sa.ForeignKeyConstraint(["series_id"], ["series.id"], name="fk_chapters_series_id"),
        sa.PrimaryKeyConstraint("id", name="pk_chapters"),
        sa.UniqueConstraint("series_id", "key", name="uq_chapters_series_id_key"),
    )
    op.create_table(
        "extractions",
        sa.Column("id", Id, nullable=False),
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("status", sa.String(12), nullable=False),
        sa.Column("recipe", Json, nullable=False),
        sa.Column("tracking_id", sa.String(36), nullable=False),
        sa.Column("page_count", sa.Integer, server_default="0", nullable=False),
        sa.Column("too_deep", sa.Integer, server_default="0", nullable=False),
        sa.Column("over_budget", sa.Integer, server_default="0", nullable=False),
        sa.Column("failure", Json),
        sa.Column("kind", sa.String(10), server_default="crawl", nullable=False),
        sa.Column("entity_type", sa.String(60), server_default="course", nullable=False),
        sa.Column("rerun_of", Id),
        sa.Column("base_dataset_id", Id),
        sa.Column("dataset_id", Id),
        sa.Column("summary", Json),
        sa.Column("changed_at", UtcDateTime),
        sa.Column("notified_at", UtcDateTime),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("finished_at", UtcDateTime),
        sa.Column("config_version", sa.Integer),
        sa.Column("modified_at", UtcDateTime),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name="fk_extractions_source_id"),
        sa.PrimaryKeyConstraint("id", name="pk_extractions"),
    )
    op.create_index("ix_extractions_source_id_id", "extractions", ["source_id", "id"])
    op.create_index(
        "uq_extractions_crawling",
        "extractions",
        ["source_id"],
        unique=True,
        postgresql_where=sa.text("status IN ('WAITING', 'IN_PROGRESS')"),
        sqlite_where=sa.text("status IN ('WAITING', 'IN_PROGRESS')"),
    )
    op.create_table(
        "follows",
        sa.Column("recipient_id", sa.String(120), nullable=False),
        sa.Column("series_id", sa.String(120), nullable=False),
        sa.Column("mode", sa.String(10)),
        sa.Column("language", sa.String(20)),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.ForeignKeyConstraint(["recipient_id"], ["recipients.id"], name="fk_follows_recipient_id"),
        sa.PrimaryKeyConstraint("recipient_id", "series_id", name="pk_follows"),
    )
    op.create_index("ix_follows_series_id", "follows", ["series_id"])
    op.create_table(
        "job_matches",
        sa.Column("id", Id, nullable=False),
        sa.Column("listing_id", Id, nullable=False),
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("company_id", sa.String(120)),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("score", sa.Integer, nullable=False),
        sa.Column("base_score", sa.Integer, nullable=False),
        sa.Column("rank_score", sa.Float),
        sa.Column("priority", sa.String(10), nullable=False),
        sa.Column("method", sa.String(10), nullable=False),
        sa.Column("model", sa.Text),
        sa.Column("adjustments", Json, nullable=False),
        sa.Column("skills_matched", Json, nullable=False),
        sa.Column("skills_missing", Json, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("grounding", Json, nullable=False),
        sa.Column("rules_hash", sa.String(64), nullable=False),
        sa.Column("run_id", sa.String(64)),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("modified_at", UtcDateTime),
        sa.ForeignKeyConstraint(["listing_id"], ["job_listings.id"], name="fk_job_matches_listing_id"),
        sa.PrimaryKeyConstraint("id", name="pk_job_matches"),
        sa.UniqueConstraint("listing_id", name="uq_job_matches_listing_id"),
    )
    op.create_index("ix_job_matches_score", "job_matches", ["score"])
    op.create_index("ix_job_matches_source_id_status", "job_matches", ["source_id", "status"])
    op.create_table(
        "learned_selectors",
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("entity_type", sa.String(60), nullable=False),
        sa.Column("schema_hash", sa.String(64), nullable=False),
        sa.Column("selectors", Json, nullable=False),
        sa.Column("learned_from", sa.Integer, nullable=False),
        sa.Column("confirmed", sa.Integer, server_default="0", nullable=False),
        sa.Column("failed", sa.Integer, server_default="0", nullable=False),
        sa.Column("failed_in_row", sa.Integer, server_default="0", nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name="fk_learned_selectors_source_id"),
        sa.PrimaryKeyConstraint("source_id", "entity_type", name="pk_learned_selectors"),
    )
    op.create_table(
        "listing_sources",
        sa.Column("id", Id, nullable=False),
        sa.Column("listing_id", Id, nullable=False),
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("external_key", sa.Text, nullable=False),
        sa.Column("external_id", sa.Text),
        sa.Column("url", sa.Text),
        sa.Column("content_hash", sa.String(64), nullable=False),
        sa.Column("stated", sa.String(8), nullable=False),
        sa.Column("missing", sa.Integer, server_default="0", nullable=False),
        sa.Column("available", sa.Boolean, server_default=sa.text("true"), nullable=False),
        sa.Column("first_seen_at", UtcDateTime, nullable=False),
        sa.Column("last_seen_at", UtcDateTime, nullable=False),
        sa.Column("ingestion_id", Id),
        sa.Column("modified_at", UtcDateTime),
        sa.ForeignKeyConstraint(["listing_id"], ["job_listings.id"], name="fk_listing_sources_listing_id"),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name="fk_listing_sources_source_id"),
        sa.PrimaryKeyConstraint("id", name="pk_listing_sources"),
        sa.UniqueConstraint("source_id", "external_key", name="uq_listing_sources_source_id_external_key"),
    )
    op.create_index("ix_listing_sources_listing_id", "listing_sources", ["listing_id"])
    op.create_table(
        "recipes",
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("status", sa.String(12), nullable=False),
        sa.Column("recipe", Json),
        sa.Column("message", sa.Text),
        sa.Column("evidence", Json),
        sa.Column("detected_for", sa.String(64)),
        sa.Column("notified_at", UtcDateTime),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name="fk_recipes_source_id"),
        sa.PrimaryKeyConstraint("source_id", name="pk_recipes"),
    )
    op.create_table(
        "source_versions",
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("platform", sa.String(40)),
        sa.Column("config", Json, nullable=False),
        sa.Column("since", UtcDateTime, nullable=False),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name="fk_source_versions_source_id"),
        sa.PrimaryKeyConstraint("source_id", "version", name="pk_source_versions"),
    )
    op.create_table(
        "website_analyses",
        sa.Column("id", Id, nullable=False),
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("business_id", Id),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("current_step", sa.String(16), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("info", Json),
        sa.Column("prompts", Json),
        sa.Column("analysis", Json),
        sa.Column("progress_percent", sa.Integer, server_default="0", nullable=False),
        sa.Column("progress_message", sa.Text),
        sa.Column("is_recurring", sa.Boolean, server_default=sa.text("false"), nullable=False),
        sa.Column("is_manual", sa.Boolean, server_default=sa.text("false"), nullable=False),
        sa.Column("failure", sa.Text),
        sa.Column("tracking_id", sa.String(36), nullable=False),
        sa.Column("phase_times", Json, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("started_at", UtcDateTime),
        sa.Column("finished_at", UtcDateTime),
        sa.Column("config_version", sa.Integer),
        sa.Column("modified_at", UtcDateTime),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name="fk_website_analyses_source_id"),
        sa.PrimaryKeyConstraint("id", name="pk_website_analyses"),
    )
    op.create_index("ix_website_analyses_business_id", "website_analyses", ["business_id"])
    op.create_index("ix_website_analyses_finished_at", "website_analyses", ["finished_at"])
    op.create_index("ix_website_analyses_source_id_id", "website_analyses", ["source_id", "id"])
    op.create_index(
        "uq_website_analyses_unfinished",
        "website_analyses",
        ["source_id"],
        unique=True,
        postgresql_where=sa.text("finished_at IS NULL"),
        sqlite_where=sa.text("finished_at IS NULL"),
    )
    op.create_table(
        "website_rankings",
        sa.Column("id", Id, nullable=False),
        sa.Column("business_id", Id, nullable=False),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("analysis_id", Id, nullable=False),
        sa.Column("visibility", sa.Float, nullable=False),
        sa.Column("score", sa.Integer, nullable=False),
        sa.Column("mentions", sa.Integer, nullable=False),
        sa.Column("prompts", sa.Integer, nullable=False),
        sa.Column("by_provider", Json, nullable=False),
        sa.Column("competitors", Json, nullable=False),
        sa.Column("cost_usd", ExactDecimal),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("modified_at", UtcDateTime),
        sa.ForeignKeyConstraint(["business_id"], ["businesses.id"], name="fk_website_rankings_business_id"),
        sa.PrimaryKeyConstraint("id", name="pk_website_rankings"),
        sa.UniqueConstraint("business_id", "day", name="uq_website_rankings_business_id_day"),
    )
    op.create_table(
        "chapter_sources",
        sa.Column("id", Id, nullable=False),
        sa.Column("chapter_id", Id, nullable=False),
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("url", sa.Text),
        sa.Column("source_chapter_id", sa.Text),
        sa.Column("volume", sa.Text),
        sa.Column("language", sa.Text),
        sa.Column("scanlation_group", sa.Text),
        sa.Column("releases", Json, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("detected_at", UtcDateTime, nullable=False),
        sa.Column("last_seen_at", UtcDateTime),
        sa.Column("missed_listings", sa.Integer, server_default="0", nullable=False),
        sa.Column("available", sa.Boolean, server_default=sa.text("true"), nullable=False),
        sa.Column("ingestion_id", Id),
        sa.Column("modified_at", UtcDateTime),
        sa.ForeignKeyConstraint(["chapter_id"], ["chapters.id"], name="fk_chapter_sources_chapter_id"),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name="fk_chapter_sources_source_id"),
        sa.PrimaryKeyConstraint("id", name="pk_chapter_sources"),
        sa.UniqueConstraint("source_id", "chapter_id", name="uq_chapter_sources_source_id_chapter_id"),
    )
    op.create_index("ix_chapter_sources_chapter_id", "chapter_sources", ["chapter_id"])
    op.create_table(
        "crawl_steps",
        sa.Column("id", Id, nullable=False),
        sa.Column("extraction_id", Id, nullable=False),
        sa.Column("parent_id", Id),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("page_type", sa.String(20), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.ForeignKeyConstraint(["extraction_id"], ["extractions.id"], name="fk_crawl_steps_extraction_id"),
        sa.PrimaryKeyConstraint("id", name="pk_crawl_steps"),
        sa.UniqueConstraint("extraction_id", "key", name="uq_crawl_steps_extraction_id_key"),
    )
    op.create_table(
        "datasets",
        sa.Column("id", Id, nullable=False),
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("extraction_id", Id, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("entity_type", sa.String(60), nullable=False),
        sa.Column("reader_hash", sa.String(64), nullable=False),
        sa.Column("status", sa.String(12), nullable=False),
        sa.Column("item_count", sa.Integer, server_default="0", nullable=False),
        sa.Column("flagged_count", sa.Integer, server_default="0", nullable=False),
        sa.Column("findings", Json),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("published_at", UtcDateTime),
        sa.Column("confirmed_at", UtcDateTime),
        sa.Column("modified_at", UtcDateTime),
        sa.ForeignKeyConstraint(["extraction_id"], ["extractions.id"], name="fk_datasets_extraction_id"),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name="fk_datasets_source_id"),
        sa.PrimaryKeyConstraint("id", name="pk_datasets"),
        sa.UniqueConstraint("source_id", "version", name="uq_datasets_source_id_version"),
    )
    op.create_index("ix_datasets_extraction_id", "datasets", ["extraction_id"])
    op.create_table(
        "website_answers",
        sa.Column("id", Id, nullable=False),
        sa.Column("analysis_id", Id, nullable=False),
        sa.Column("prompt_index", sa.Integer, nullable=False),
        sa.Column("prompt", sa.Text, nullable=False),
        sa.Column("provider", sa.String(60), nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("model_version", sa.Text),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("answer", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("input_tokens", sa.Integer),
        sa.Column("output_tokens", sa.Integer),
        sa.Column("cost_usd", ExactDecimal),
        sa.Column("mentions", Json),
        sa.Column("run_id", sa.String(64)),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("modified_at", UtcDateTime),
        sa.ForeignKeyConstraint(["analysis_id"], ["website_analyses.id"], name="fk_website_answers_analysis_id"),
        sa.PrimaryKeyConstraint("id", name="pk_website_answers"),
        sa.UniqueConstraint(
            "analysis_id", "prompt_index", "provider", name="uq_website_answers_analysis_id_prompt_index_provider"
        ),
    )
    op.create_table(
        "pages",
        sa.Column("id", Id, nullable=False),
        sa.Column("extraction_id", Id, nullable=False),
        sa.Column("step_id", Id, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("page_type", sa.String(20), nullable=False),
        sa.Column("position", sa.Integer),
        sa.Column("snapshot_id", Id),
        sa.Column("outcome", sa.String(10)),
        sa.Column("failure", Json),
        sa.Column("size_bytes", sa.Integer),
        sa.Column("elapsed_ms", sa.Integer),
        sa.Column("item_count", sa.Integer),
        sa.Column("extraction_method", sa.String(20)),
        sa.Column("reader_hash", sa.String(64)),
        sa.Column("carried_from", Id),
        sa.Column("read_started_at", UtcDateTime),
        sa.Column("read_at", UtcDateTime),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("visited_at", UtcDateTime),
        sa.Column("run_id", sa.String(64)),
        sa.Column("modified_at", UtcDateTime),
        sa.ForeignKeyConstraint(["extraction_id"], ["extractions.id"], name="fk_pages_extraction_id"),
        sa.ForeignKeyConstraint(["step_id"], ["crawl_steps.id"], name="fk_pages_step_id"),
        sa.PrimaryKeyConstraint("id", name="pk_pages"),
        sa.UniqueConstraint("extraction_id", "key", name="uq_pages_extraction_id_key"),
    )
    op.create_index("ix_pages_extraction_id_status", "pages", ["extraction_id", "status"])
    op.create_index("ix_pages_snapshot_id", "pages", ["snapshot_id"])
    op.create_table(
        "data_items",
        sa.Column("id", Id, nullable=False),
        sa.Column("dataset_id", Id, nullable=False),
        sa.Column("page_id", Id, nullable=False),
        sa.Column("snapshot_id", Id),
        sa.Column("entity_type", sa.String(60), nullable=False),
        sa.Column("item_key", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("data", Json, nullable=False),
        sa.Column("grounding", Json, nullable=False),
        sa.Column("extraction_method", sa.String(20), nullable=False),
        sa.Column("model", sa.Text),
        sa.Column("confidence", sa.Float, nullable=False),
        sa.Column("is_flagged", sa.Boolean, nullable=False),
        sa.Column("is_repeat", sa.Boolean, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name="fk_data_items_dataset_id"),
        sa.ForeignKeyConstraint(["page_id"], ["pages.id"], name="fk_data_items_page_id"),
        sa.PrimaryKeyConstraint("id", name="pk_data_items"),
        sa.UniqueConstraint("dataset_id", "page_id", "item_key", name="uq_data_items_dataset_id_page_id_item_key"),
    )
    op.create_index("ix_data_items_dataset_id_item_key", "data_items", ["dataset_id", "item_key"])
    op.create_index("ix_data_items_page_id", "data_items", ["page_id"])
