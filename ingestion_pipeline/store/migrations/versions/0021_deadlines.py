"""Deadlines of listings by an index, and what orders matches of equal score."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.create_index(
        "ix_job_listings_valid_until",
        "job_listings",
        ["valid_until"],
        postgresql_where=sa.text("status = 'open'"),
        sqlite_where=sa.text("status = 'open'"),
    )
    op.add_column(
        "job_matches",
        sa.Column(
            "rank_score",
            sa.Float(),
            comment="the score before it is cut to 0..100; null: judged before it was kept",
        ),
    )
