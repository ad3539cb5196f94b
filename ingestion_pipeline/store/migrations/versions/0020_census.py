"""Sources are counted from an index: the sensor that asks every five seconds read every row."""

from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.drop_index("ix_sources_created_at", table_name="sources")
    op.create_index("ix_sources_census", "sources", ["created_at", "status"])
