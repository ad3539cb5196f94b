"""Selectors that were learned from pages which a model had read."""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import Json, UtcDateTime

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "learned_selectors",
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("entity_type", sa.String(60), nullable=False),
        sa.Column(
            "schema_hash",
            sa.String(64),
            nullable=False,
            comment="of the type they were learned for",
        ),
        sa.Column(
            "selectors", Json, nullable=False, comment="CSS by field, and of what is around one"
        ),
        sa.Column(
            "learned_from", sa.Integer(), nullable=False, comment="pages that a model had read"
        ),
        sa.Column(
            "confirmed",
            sa.Integer(),
            nullable=False,
            server_default="0",
            comment="pages they read",
        ),
        sa.Column(
            "failed",
            sa.Integer(),
            nullable=False,
            server_default="0",
            comment="pages they did not",
        ),
        sa.Column("failed_in_row", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["source_id"], ["sources.id"], name="fk_learned_selectors_source_id_sources"
        ),
        sa.PrimaryKeyConstraint("source_id", "entity_type", name="pk_learned_selectors"),
    )
