"""Notices: who follows a series and what they were told; series merged, split and corrected."""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import Id, Json, UtcDateTime

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column(
        "sources",
        sa.Column(
            "assigned_series_id",
            sa.String(length=120),
            comment="an operator's word; it beats the file's",
        ),
    )
    for name in ("untold_polls", "untold_changes", "untold_updated", "untold_withdrawn"):
        op.add_column("sources", sa.Column(name, sa.Integer(), server_default="0", nullable=False))
    op.add_column(
        "series",
        sa.Column(
            "merged_into",
            sa.String(length=120),
            comment="whoever names this one means that one",
        ),
    )
    op.add_column(
        "chapters",
        sa.Column(
            "rejected_at", UtcDateTime(), comment="an operator's word: there is no such chapter"
        ),
    )
    held = sa.text("status = 'PROCESSING'")
    op.drop_index("ix_tasks_lease_owner", table_name="tasks")
    op.create_index(
        "ix_tasks_lease_owner",
        "tasks",
        ["lease_owner"],
        postgresql_where=held,
        sqlite_where=held,
    )
    unhandled = sa.text("handled_at IS NULL")
    op.create_index(
        "ix_outbox_unhandled", "outbox", ["id"], postgresql_where=unhandled, sqlite_where=unhandled
    )
    _create_recipients()
    _create_follows()
    _create_notices()


def _create_recipients() -> None:
    op.create_table(
        "recipients",
        sa.Column("id", sa.String(length=120), nullable=False),
        sa.Column("address_url", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), comment="signs the webhook"),
        sa.Column("kinds", Json, nullable=False, comment="the subject kinds they want to hear of"),
        sa.Column("mode", sa.String(length=10), nullable=False),
        sa.Column("language", sa.String(length=20), comment="preferred; none means any"),
        sa.Column(
            "origin", sa.Text(), nullable=False, comment="the file that declares it, or 'row'"
        ),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False, comment="in a row"),
        sa.Column("not_before", UtcDateTime(), comment="a dead endpoint is left alone until then"),
        sa.Column("last_sent_at", UtcDateTime()),
        sa.Column("last_error", sa.Text()),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_recipients")),
    )


def _create_follows() -> None:
    op.create_table(
        "follows",
        sa.Column("recipient_id", sa.String(length=120), nullable=False),
        sa.Column("series_id", sa.String(length=120), nullable=False),
        sa.Column("mode", sa.String(length=10), comment="none means the recipient's"),
        sa.Column("language", sa.String(length=20), comment="none means the recipient's"),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["recipient_id"], ["recipients.id"], name=op.f("fk_follows_recipient_id")
        ),
        sa.PrimaryKeyConstraint("recipient_id", "series_id", name=op.f("pk_follows")),
    )
    op.create_index(op.f("ix_follows_series_id"), "follows", ["series_id"])


def _create_notices() -> None:
    op.create_table(
        "notices",
        sa.Column("id", Id, nullable=False),
        sa.Column(
            "recipient",
            sa.String(length=120),
            nullable=False,
            comment="kept when the recipient is gone",
        ),
        sa.Column("subject_kind", sa.String(length=40), nullable=False),
        sa.Column("subject_id", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column(
            "mode",
            sa.String(length=10),
            nullable=False,
            comment="as it was when the notice was written",
        ),
        sa.Column("series_id", sa.String(length=120)),
        sa.Column("payload", Json, nullable=False),
        sa.Column(
            "delivery_id",
            sa.String(length=36),
            comment="the message it is sent in: the idempotency key",
        ),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("sent_at", UtcDateTime()),
        sa.Column("error", sa.Text()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notices")),
        sa.UniqueConstraint(
            "recipient",
            "subject_kind",
            "subject_id",
            name=op.f("uq_notices_recipient_subject_kind_subject_id"),
        ),
    )
    unsent = sa.text("status = 'pending'")
    op.create_index(
        "ix_notices_pending",
        "notices",
        ["recipient", "created_at"],
        postgresql_where=unsent,
        sqlite_where=unsent,
    )
    given_up = sa.text("status = 'failed'")
    sent = sa.text("sent_at IS NOT NULL")
    op.create_index(
        "ix_notices_failed",
        "notices",
        ["recipient"],
        postgresql_where=given_up,
        sqlite_where=given_up,
    )
    op.create_index(
        op.f("ix_notices_recipient_sent_at"),
        "notices",
        ["recipient", "sent_at"],
        postgresql_where=sent,
        sqlite_where=sent,
    )
    op.create_index(
        op.f("ix_notices_subject_kind_subject_id"), "notices", ["subject_kind", "subject_id"]
    )
