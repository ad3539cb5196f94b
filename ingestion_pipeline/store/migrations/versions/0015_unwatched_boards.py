"""Why a listing is closed, and by what a company was scored."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column(
        "job_listings",
        sa.Column("closed_reason", sa.Text(), nullable=True, comment="why no board lists it"),
    )
    op.add_column(
        "companies",
        sa.Column(
            "scored_as", sa.String(64), nullable=True, comment="hash of ranks and points it got"
        ),
    )
    op.create_index("ix_companies_scored_as", "companies", ["scored_as"])
