"""First light: the engine's tables, and those of series and chapters."""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import ExactDecimal, Id, Json, UtcDateTime

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", Id, nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.String(length=60), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("detail", Json, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
    )
    op.create_index(op.f("ix_audit_log_subject_at"), "audit_log", ["subject", "at"], unique=False)
    op.create_table(
        "batch_items",
        sa.Column("batch_id", sa.String(length=36), nullable=False),
        sa.Column("task_id", Id, nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("source_id", sa.String(length=120), nullable=False),
        sa.Column("fetched", Json, nullable=False, comment="the bodies in the content store"),
        sa.Column(
            "reading",
            sa.String(length=64),
            nullable=True,
            comment="the reading in the content store",
        ),
        sa.Column("fetched_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("batch_id", "task_id", name=op.f("pk_batch_items")),
    )
    op.create_table(
        "dead_letters",
        sa.Column("id", Id, nullable=False),
        sa.Column("task_id", Id, nullable=False),
        sa.Column("task_kind", sa.String(length=40), nullable=False),
        sa.Column("source_id", sa.String(length=120), nullable=True),
        sa.Column("payload", Json, nullable=False),
        sa.Column("stage", sa.String(length=40), nullable=True),
        sa.Column("error_class", sa.String(length=20), nullable=False),
        sa.Column("error_code", sa.String(length=40), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("stack", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("occurrences", sa.Integer(), server_default="1", nullable=False),
        sa.Column("tracking_id", sa.String(length=36), nullable=False),
        sa.Column("failed_at", UtcDateTime(), nullable=False, comment="the last time"),
        sa.Column("replayed_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dead_letters")),
    )
    op.create_index(op.f("ix_dead_letters_failed_at"), "dead_letters", ["failed_at"], unique=False)
    op.create_index(op.f("ix_dead_letters_source_id"), "dead_letters", ["source_id"], unique=False)
    op.create_index(
        "uq_dead_letters_open",
        "dead_letters",
        ["task_id", "error_code"],
        unique=True,
        postgresql_where=sa.text("replayed_at IS NULL"),
        sqlite_where=sa.text("replayed_at IS NULL"),
    )
    op.create_table(
        "hosts",
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("next_allowed_at", UtcDateTime(), nullable=True),
        sa.Column("lease_owner", sa.String(length=36), nullable=True),
        sa.Column("lease_until", UtcDateTime(), nullable=True),
        sa.Column("leased_at", UtcDateTime(), nullable=True),
        sa.Column(
            "wanted_at", UtcDateTime(), nullable=True, comment="another run waits for the lease"
        ),
        sa.Column("crawl_delay_seconds", sa.Float(), nullable=True),
        sa.Column("robots_fetched_at", UtcDateTime(), nullable=True),
        sa.Column("blocked_reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("host", name=op.f("pk_hosts")),
    )
    op.create_table(
        "outbox",
        sa.Column("id", Id, nullable=False),
        sa.Column("subject_kind", sa.String(length=40), nullable=False),
        sa.Column("subject_id", sa.Text(), nullable=False),
        sa.Column("payload", Json, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("handled_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
        sa.UniqueConstraint(
            "subject_kind", "subject_id", name=op.f("uq_outbox_subject_kind_subject_id")
        ),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("lease_owner", sa.String(length=36), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("lease_until", UtcDateTime(), nullable=False),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_lease_until"), "runs", ["lease_until"], unique=False)
    op.create_table(
        "series",
        sa.Column("id", sa.String(length=120), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("latest_chapter", ExactDecimal(), nullable=True),
        sa.Column("last_chapter_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_series")),
    )
    op.create_table(
        "settings",
        sa.Column("key", sa.String(length=80), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("value_type", sa.String(length=10), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_settings")),
    )
    op.create_table(
        "snapshots",
        sa.Column("id", Id, nullable=False),
        sa.Column("source_id", sa.String(length=120), nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("content_type", sa.Text(), nullable=True),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=False),
        sa.Column("fetched_at", UtcDateTime(), nullable=False),
        sa.Column("etag", sa.Text(), nullable=True),
        sa.Column("last_modified", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_snapshots")),
    )
    op.create_index(op.f("ix_snapshots_content_hash"), "snapshots", ["content_hash"], unique=False)
    op.create_index(
        op.f("ix_snapshots_source_id_fetched_at"),
        "snapshots",
        ["source_id", "fetched_at"],
        unique=False,
    )
    op.create_table(
        "sources",
        sa.Column("id", sa.String(length=120), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("platform", sa.String(length=40), nullable=True),
        sa.Column("config", Json, nullable=False),
        sa.Column("series_id", sa.String(length=120), nullable=True),
        sa.Column("company_id", sa.String(length=120), nullable=True),
        sa.Column(
            "origin", sa.Text(), nullable=False, comment="the file that declares it, or 'row'"
        ),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column(
            "shard", sa.Integer(), nullable=False, comment="hash of the host; modulo the shards"
        ),
        sa.Column("tier", sa.String(length=4), nullable=False),
        sa.Column("tier_pinned", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("status_reason", sa.Text(), nullable=True),
        sa.Column("failure_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_check_at", UtcDateTime(), nullable=True),
        sa.Column("last_checked_at", UtcDateTime(), nullable=True),
        sa.Column("last_success_at", UtcDateTime(), nullable=True),
        sa.Column("last_changed_at", UtcDateTime(), nullable=True),
        sa.Column(
            "last_new_at",
            UtcDateTime(),
            nullable=True,
            comment="last new record: what warms a source",
        ),
        sa.Column(
            "reported_at",
            UtcDateTime(),
            nullable=True,
            comment="changes up to here are Dagster events",
        ),
        sa.Column(
            "synced_at",
            UtcDateTime(),
            nullable=True,
            comment="first successful sync; before it nobody is told",
        ),
        sa.Column(
            "last_outcome",
            sa.Text(),
            nullable=True,
            comment="what the last poll came to, for people",
        ),
        sa.Column("last_error_class", sa.String(length=20), nullable=True),
        sa.Column(
            "content_hash",
            sa.String(length=64),
            nullable=True,
            comment="of the listing last ingested",
        ),
        sa.Column(
            "reader",
            sa.Text(),
            nullable=True,
            comment="platform, version and configuration that read it",
        ),
        sa.Column("etag", sa.Text(), nullable=True),
        sa.Column("last_modified", sa.Text(), nullable=True),
        sa.Column("needs_full_read", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("accepts_drop", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("record_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tracking_id", sa.String(length=36), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sources")),
    )
    op.create_index(op.f("ix_sources_created_at"), "sources", ["created_at"], unique=False)
    op.create_index(op.f("ix_sources_kind"), "sources", ["kind"], unique=False)
    op.create_index(
        "ix_sources_unreported", "sources", ["last_changed_at", "reported_at"], unique=False
    )
    op.create_table(
        "tasks",
        sa.Column("id", Id, nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("dedupe_key", sa.Text(), nullable=False),
        sa.Column("source_id", sa.String(length=120), nullable=True),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("payload", Json, nullable=False),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column(
            "stage",
            sa.String(length=40),
            nullable=True,
            comment="last known step, for people and for dead letters",
        ),
        sa.Column("state", Json, nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("not_before", UtcDateTime(), nullable=False),
        sa.Column("lease_owner", sa.String(length=36), nullable=True),
        sa.Column("lease_until", UtcDateTime(), nullable=True),
        sa.Column("fence", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tracking_id", sa.String(length=36), nullable=False),
        sa.Column("parent_id", Id, nullable=True),
        sa.Column("ancestry", Json, nullable=False, comment="task ids from the root to the parent"),
        sa.Column("spawn_depth", sa.Integer(), server_default="0", nullable=False),
        sa.Column("error_class", sa.String(length=20), nullable=True),
        sa.Column("error_code", sa.String(length=40), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint(
            "status <> 'PROCESSING' OR lease_until IS NOT NULL", name=op.f("ck_tasks_leased")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
    )
    op.create_index(
        "ix_tasks_due",
        "tasks",
        ["kind", "priority", "not_before", "created_at"],
        unique=False,
        postgresql_where=sa.text("status IN ('PENDING', 'PROCESSING')"),
        sqlite_where=sa.text("status IN ('PENDING', 'PROCESSING')"),
    )
    op.create_index(
        "ix_tasks_ended",
        "tasks",
        ["status", "updated_at"],
        unique=False,
        postgresql_where=sa.text("status NOT IN ('PENDING', 'PROCESSING')"),
        sqlite_where=sa.text("status NOT IN ('PENDING', 'PROCESSING')"),
    )
    op.create_index(op.f("ix_tasks_lease_owner"), "tasks", ["lease_owner"], unique=False)
    op.create_index(
        op.f("ix_tasks_source_id_kind_status"),
        "tasks",
        ["source_id", "kind", "status"],
        unique=False,
    )
    op.create_index(op.f("ix_tasks_tracking_id"), "tasks", ["tracking_id"], unique=False)
    op.create_index(
        "uq_tasks_active",
        "tasks",
        ["kind", "dedupe_key"],
        unique=True,
        postgresql_where=sa.text("status IN ('PENDING', 'PROCESSING')"),
        sqlite_where=sa.text("status IN ('PENDING', 'PROCESSING')"),
    )
    op.create_table(
        "chapters",
        sa.Column("id", Id, nullable=False),
        sa.Column("series_id", sa.String(length=120), nullable=False),
        sa.Column(
            "key", sa.Text(), nullable=False, comment="canonical decimal, or source id # its own id"
        ),
        sa.Column("number", ExactDecimal(), nullable=True),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("published_at", UtcDateTime(), nullable=True),
        sa.Column("first_detected_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["series_id"], ["series.id"], name=op.f("fk_chapters_series_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chapters")),
        sa.UniqueConstraint("series_id", "key", name=op.f("uq_chapters_series_id_key")),
    )
    op.create_table(
        "chapter_sources",
        sa.Column("id", Id, nullable=False),
        sa.Column("chapter_id", Id, nullable=False),
        sa.Column("source_id", sa.String(length=120), nullable=False),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("source_chapter_id", sa.Text(), nullable=True),
        sa.Column("volume", sa.Text(), nullable=True),
        sa.Column("language", sa.Text(), nullable=True),
        sa.Column("scanlation_group", sa.Text(), nullable=True),
        sa.Column("releases", Json, nullable=False),
        sa.Column(
            "fingerprint",
            sa.String(length=64),
            nullable=False,
            comment="of all the source says of it",
        ),
        sa.Column("detected_at", UtcDateTime(), nullable=False),
        sa.Column(
            "last_seen_at",
            UtcDateTime(),
            nullable=True,
            comment="null: in the source's last complete listing",
        ),
        sa.Column("missed_listings", sa.Integer(), server_default="0", nullable=False),
        sa.Column("available", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.ForeignKeyConstraint(
            ["chapter_id"], ["chapters.id"], name=op.f("fk_chapter_sources_chapter_id")
        ),
        sa.ForeignKeyConstraint(
            ["source_id"], ["sources.id"], name=op.f("fk_chapter_sources_source_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chapter_sources")),
        sa.UniqueConstraint(
            "source_id", "chapter_id", name=op.f("uq_chapter_sources_source_id_chapter_id")
        ),
    )
    op.create_index(
        op.f("ix_chapter_sources_chapter_id"), "chapter_sources", ["chapter_id"], unique=False
    )
