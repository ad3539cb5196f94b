"""What was told of each source's health, signs of life, and polls counted for good."""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import UtcDateTime

revision = "0014"
down_revision = "0013"

COUNTS = {
    "poll_count": "polls that ended",
    "change_count": "that found news",
    "strike_count": "that failed",
}


def upgrade() -> None:
    for name, comment in COUNTS.items():
        op.add_column(
            "sources",
            sa.Column(name, sa.Integer(), nullable=False, server_default="0", comment=comment),
        )
    op.create_table(
        "source_health",
        sa.Column(
            "source_id", sa.String(120), primary_key=True, comment="none: it was never unwell"
        ),
        sa.Column("state", sa.String(12), nullable=False, comment="as it was told last"),
        sa.Column("since", UtcDateTime(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False, comment="for people"),
        sa.Column(
            "changes",
            sa.Integer(),
            nullable=False,
            comment="of state so far; the name of the last",
        ),
        sa.Column(
            "success_before",
            UtcDateTime(),
            nullable=True,
            comment="last success by then; only a newer one counts",
        ),
    )
    op.create_table(
        "pulses",
        sa.Column("name", sa.String(40), primary_key=True, comment="who gives a sign of life"),
        sa.Column("at", UtcDateTime(), nullable=False),
    )
