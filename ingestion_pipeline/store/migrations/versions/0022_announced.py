"""Chapters that no follower was told of yet, and the configuration that a source was synced by."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.add_column(
        "chapters",
        sa.Column(
            "unannounced",
            sa.Boolean,
            nullable=False,
            server_default=sa.text("false"),
            comment="a silent sync added it to a series that had chapters:"
            " news once a source adds it",
        ),
    )
    op.add_column(
        "sources",
        sa.Column(
            "synced_version",
            sa.Integer,
            comment="config_version of the last listing that was read",
        ),
    )
    op.execute("UPDATE sources SET synced_version = config_version WHERE synced_at IS NOT NULL")
