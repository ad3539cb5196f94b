"""${message}."""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import ExactDecimal, Id, Json, UtcDateTime

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
