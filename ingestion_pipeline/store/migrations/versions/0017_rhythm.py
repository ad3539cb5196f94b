"""The rhythm of a source's changes, and what is found by measuring: prices, rates, paces."""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import Json, UtcDateTime

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.add_column(
        "sources",
        sa.Column(
            "rhythm", Json, comment="of its changes: gaps, days of the week, hours of the day"
        ),
    )
    op.add_column(
        "sources",
        sa.Column(
            "changes_per_day", sa.Float(), comment="the estimate, once it decides the next check"
        ),
    )
    op.add_column(
        "sources",
        sa.Column(
            "checks_per_day", sa.Float(), comment="as often as that estimate has it checked now"
        ),
    )
    op.create_table(
        "tunings",
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column(
            "value", sa.Float(), nullable=False, comment="found by measuring, never set by hand"
        ),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_tunings"),
    )
