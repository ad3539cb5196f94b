"""Dead letters that an operator has discarded, with his reason: they are open no more."""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import UtcDateTime

revision = "0013"
down_revision = "0012"

OPEN = sa.text("replayed_at IS NULL AND discarded_at IS NULL")


def upgrade() -> None:
    op.add_column("dead_letters", sa.Column("discarded_at", UtcDateTime(), nullable=True))
    op.add_column(
        "dead_letters",
        sa.Column(
            "discard_reason", sa.Text(), nullable=True, comment="why nobody has to look at it"
        ),
    )
    op.drop_index("uq_dead_letters_open", table_name="dead_letters")
    op.create_index(
        "uq_dead_letters_open",
        "dead_letters",
        ["task_id", "error_code"],
        unique=True,
        postgresql_where=OPEN,
        sqlite_where=OPEN,
    )
