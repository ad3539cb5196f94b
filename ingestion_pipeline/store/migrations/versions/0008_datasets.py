"""Datasets: recipes as detected, versions of a dataset, and their items with evidence."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import Id, Json, UtcDateTime

revision = "0008"
down_revision = "0007"


def _of_extractions() -> list[sa.Column[Any]]:
    return [
        sa.Column(
            "kind",
            sa.String(10),
            nullable=False,
            server_default="crawl",
            comment="crawl, api, rerun",
        ),
        sa.Column("entity_type", sa.String(60), nullable=False, server_default="course"),
        sa.Column("rerun_of", Id, comment="the extraction whose snapshots are read again"),
        sa.Column(
            "base_dataset_id", Id, comment="published when it began; unchanged pages come from it"
        ),
        sa.Column("dataset_id", Id, comment="what it built, or found to be unchanged"),
        sa.Column("summary", Json, comment="pages by step and state, items, cost: as last changed"),
        sa.Column("changed_at", UtcDateTime(), comment="when the summary last changed"),
        sa.Column("notified_at", UtcDateTime(), comment="when its end was told; once"),
    ]


def _of_pages() -> list[sa.Column[Any]]:
    return [
        sa.Column("item_count", sa.Integer(), comment="records it states; none before it was read"),
        sa.Column("rung", sa.String(20), comment="how its records were come by"),
        sa.Column(
            "read_as", sa.String(64), comment="hash of the entity's schema and of the reader"
        ),
        sa.Column("carried_from", Id, comment="the unchanged page whose items are its own"),
        sa.Column("reading_at", UtcDateTime(), comment="when its reading began"),
        sa.Column("read_at", UtcDateTime()),
    ]


def upgrade() -> None:
    for column in _of_extractions():
        op.add_column("extractions", column)
    for column in _of_pages():
        op.add_column("pages", column)
    _create_recipes()
    _create_datasets()
    _create_data_items()


def _create_recipes() -> None:
    op.create_table(
        "recipes",
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("status", sa.String(12), nullable=False, comment="WAITING to SUCCESS or ERROR"),
        sa.Column("recipe", Json, comment="as detected: the last that was found to be right"),
        sa.Column("message", sa.Text(), comment="for people: how it was found, or why not"),
        sa.Column("evidence", Json, comment="platform, rules and votes that decided"),
        sa.Column(
            "detected_for", sa.String(64), comment="hash of the URL and configuration it was for"
        ),
        sa.Column("notified_at", UtcDateTime()),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name="fk_recipes_source_id_sources"),
        sa.PrimaryKeyConstraint("source_id", name="pk_recipes"),
    )


def _create_datasets() -> None:
    op.create_table(
        "datasets",
        sa.Column("id", Id, nullable=False),
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("extraction_id", Id, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False, comment="of the source, from 1"),
        sa.Column("entity_type", sa.String(60), nullable=False),
        sa.Column(
            "read_as", sa.String(64), nullable=False, comment="hash of the schema and of the reader"
        ),
        sa.Column(
            "status",
            sa.String(12),
            nullable=False,
            comment="building, published, quarantined, ...",
        ),
        sa.Column(
            "item_count",
            sa.Integer(),
            nullable=False,
            server_default="0",
            comment="each record once",
        ),
        sa.Column(
            "flagged_count",
            sa.Integer(),
            nullable=False,
            server_default="0",
            comment="not exported",
        ),
        sa.Column("findings", Json, comment="what the quality gates found"),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("published_at", UtcDateTime()),
        sa.Column(
            "confirmed_at", UtcDateTime(), comment="when an extraction last found it unchanged"
        ),
        sa.ForeignKeyConstraint(
            ["source_id"], ["sources.id"], name="fk_datasets_source_id_sources"
        ),
        sa.ForeignKeyConstraint(
            ["extraction_id"], ["extractions.id"], name="fk_datasets_extraction_id_extractions"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_datasets"),
        sa.UniqueConstraint("source_id", "version", name="uq_datasets_source_id_version"),
    )
    op.create_index("ix_datasets_extraction_id", "datasets", ["extraction_id"])


def _create_data_items() -> None:
    op.create_table(
        "data_items",
        sa.Column("id", Id, nullable=False),
        sa.Column("dataset_id", Id, nullable=False),
        sa.Column("page_id", Id, nullable=False),
        sa.Column("snapshot_id", Id, comment="the content that states it"),
        sa.Column("entity_type", sa.String(60), nullable=False),
        sa.Column(
            "item_key", sa.Text(), nullable=False, comment="its natural key, for people to read"
        ),
        sa.Column("position", sa.Integer(), nullable=False, comment="on its page"),
        sa.Column("data", Json, nullable=False),
        sa.Column("grounding", Json, nullable=False, comment="status, start and end by field"),
        sa.Column("rung", sa.String(20), nullable=False),
        sa.Column("model", sa.Text(), comment="that read it, if one did"),
        sa.Column("confidence", sa.Float(), nullable=False),
        sa.Column(
            "is_flagged", sa.Boolean(), nullable=False, comment="a required field is not proved"
        ),
        sa.Column("is_repeat", sa.Boolean(), nullable=False, comment="another page states it, too"),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name="fk_data_items_dataset_id_datasets"
        ),
        sa.ForeignKeyConstraint(["page_id"], ["pages.id"], name="fk_data_items_page_id_pages"),
        sa.PrimaryKeyConstraint("id", name="pk_data_items"),
        sa.UniqueConstraint(
            "dataset_id", "page_id", "item_key", name="uq_data_items_dataset_id_page_id_item_key"
        ),
    )
    op.create_index("ix_data_items_dataset_id_item_key", "data_items", ["dataset_id", "item_key"])
    op.create_index("ix_data_items_page_id", "data_items", ["page_id"])
