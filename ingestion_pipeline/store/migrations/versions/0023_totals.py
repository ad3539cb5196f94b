"""Totals of the tasks that retention has deleted: rates of success are taken of them, too."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.create_table(
        "task_totals",
        sa.Column("kind", sa.String(40), primary_key=True),
        sa.Column("status", sa.String(10), primary_key=True, comment="as they ended"),
        sa.Column("error_class", sa.String(20), primary_key=True, comment="'none' without one"),
        sa.Column("tasks", sa.BigInteger, nullable=False, comment="that retention has deleted"),
        sa.Column("retries", sa.BigInteger, nullable=False, comment="attempts beyond their first"),
    )
