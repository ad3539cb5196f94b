"""The page of its own that a listing's description was read from."""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import Id

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column(
        "job_listings",
        sa.Column(
            "detail_snapshot_id", Id, nullable=True, comment="its own page, if that was read"
        ),
    )
