"""Manners: what the robots.txt of a host says, kept in its row."""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import Json

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column(
        "hosts",
        sa.Column(
            "robots", Json, comment="by origin: what robots.txt tells us, and until when it holds"
        ),
    )
