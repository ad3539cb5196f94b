"""Claims: no index of `tasks` names a column that a claim changes."""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import UtcDateTime

revision = "0004"
down_revision = "0003"

# Half of each page is left to the second version of its rows, which then needs no index entry.
FILLFACTOR = 50
ENDED_AT = "CASE WHEN status NOT IN ('PENDING', 'PROCESSING') THEN updated_at END"


def upgrade() -> None:
    for index in (
        "ix_tasks_due",
        "uq_tasks_active",
        "ix_tasks_ended",
        "ix_tasks_lease_owner",
        "ix_tasks_source_id_kind_status",
        "ix_tasks_tracking_id",
    ):
        op.drop_index(index, table_name="tasks")
    is_postgresql = op.get_context().dialect.name == "postgresql"
    if is_postgresql:  # before the new column writes the table anew
        op.execute(f"ALTER TABLE tasks SET (fillfactor = {FILLFACTOR})")
    # SQLite adds only columns that it computes when they are read; an index stores them.
    ended_at = sa.Computed(ENDED_AT, persisted=True if is_postgresql else None)
    op.add_column("tasks", sa.Column("ended_at", UtcDateTime(), ended_at))
    due = ["kind", "priority", "not_before", "created_at"]
    _create_index("ix_tasks_due", due, "ended_at IS NULL")
    _create_index("uq_tasks_active", ["kind", "dedupe_key"], "ended_at IS NULL", unique=True)
    _create_index("ix_tasks_ended", ["ended_at"], "ended_at IS NOT NULL")
    _create_index("ix_tasks_source", ["source_id", "kind"], "source_id IS NOT NULL")
    _create_index("ix_tasks_spawned", ["tracking_id"], "parent_id IS NOT NULL")


def _create_index(name: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(
        name,
        "tasks",
        columns,
        unique=unique,
        postgresql_where=condition,
        sqlite_where=condition,
    )
