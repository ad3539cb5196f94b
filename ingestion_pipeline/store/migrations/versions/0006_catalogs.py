"""Catalogues: extractions, steps and pages; tasks found by lineage and URL, and by source."""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import Id, Json, UtcDateTime

revision = "0006"
down_revision = "0005"

CRAWLING = sa.text("status IN ('WAITING', 'IN_PROGRESS')")
FRONTIER = sa.text("ended_at IS NULL AND kind <> 'poll'")
SPAWNED = sa.text("parent_id IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "extractions",
        sa.Column("id", Id, nullable=False),
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("status", sa.String(12), nullable=False),
        sa.Column("recipe", Json, nullable=False, comment="as it was when the extraction began"),
        sa.Column("tracking_id", sa.String(36), nullable=False, comment="of all its tasks"),
        sa.Column(
            "page_count", sa.Integer, server_default="0", nullable=False, comment="found so far"
        ),
        sa.Column(
            "too_deep", sa.Integer, server_default="0", nullable=False, comment="links not followed"
        ),
        sa.Column(
            "over_budget", sa.Integer, server_default="0", nullable=False, comment="pages not taken"
        ),
        sa.Column("failure", Json, comment="why it ended without being complete"),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False, comment="last time a page changed"),
        sa.Column("finished_at", UtcDateTime),
        sa.PrimaryKeyConstraint("id", name="pk_extractions"),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name="fk_extractions_source_id"),
    )
    op.create_index("ix_extractions_source_id_id", "extractions", ["source_id", "id"])
    op.create_index(
        "uq_extractions_crawling",
        "extractions",
        ["source_id"],
        unique=True,
        postgresql_where=CRAWLING,
        sqlite_where=CRAWLING,
    )
    op.create_table(
        "crawl_steps",
        sa.Column("id", Id, nullable=False),
        sa.Column("extraction_id", Id, nullable=False),
        sa.Column("parent_id", Id),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column(
            "key", sa.Text, nullable=False, comment="the way to it in the recipe: root/pages/links"
        ),
        sa.Column("page_type", sa.String(20), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_crawl_steps"),
        sa.ForeignKeyConstraint(
            ["extraction_id"], ["extractions.id"], name="fk_crawl_steps_extraction_id"
        ),
        sa.UniqueConstraint("extraction_id", "key", name="uq_crawl_steps_extraction_id_key"),
    )
    op.create_table(
        "pages",
        sa.Column("id", Id, nullable=False),
        sa.Column("extraction_id", Id, nullable=False),
        sa.Column("step_id", Id, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column(
            "key",
            sa.Text,
            nullable=False,
            comment="canonical URL without a slash at its path's end",
        ),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("page_type", sa.String(20), nullable=False),
        sa.Column("position", sa.Integer, comment="in a list of pages"),
        sa.Column("snapshot_id", Id),
        sa.Column("outcome", sa.String(10), comment="of the last visit: new or same"),
        sa.Column("failure", Json, comment="class, code and message"),
        sa.Column("size_bytes", sa.Integer),
        sa.Column(
            "elapsed_ms", sa.Integer, comment="of the last visit, without waiting for a turn"
        ),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("visited_at", UtcDateTime),
        sa.PrimaryKeyConstraint("id", name="pk_pages"),
        sa.ForeignKeyConstraint(
            ["extraction_id"], ["extractions.id"], name="fk_pages_extraction_id"
        ),
        sa.ForeignKeyConstraint(["step_id"], ["crawl_steps.id"], name="fk_pages_step_id"),
        sa.UniqueConstraint("extraction_id", "key", name="uq_pages_extraction_id_key"),
    )
    op.create_index("ix_pages_extraction_id_status", "pages", ["extraction_id", "status"])
    op.create_index("ix_pages_snapshot_id", "pages", ["snapshot_id"])
    op.drop_index("ix_tasks_spawned", "tasks")
    op.create_index(
        "ix_tasks_spawned",
        "tasks",
        ["tracking_id", "url"],
        postgresql_where=SPAWNED,
        sqlite_where=SPAWNED,
    )
    op.create_index(
        "ix_tasks_frontier",
        "tasks",
        ["kind", "source_id", "priority", "not_before", "created_at"],
        postgresql_where=FRONTIER,
        sqlite_where=FRONTIER,
    )
