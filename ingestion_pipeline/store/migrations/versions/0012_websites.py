"""Businesses, analyses of websites, what models answered, and rankings by day."""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import ExactDecimal, Id, Json, UtcDateTime

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    _create_businesses()
    _create_website_analyses()
    _create_website_answers()
    _create_website_rankings()


def _create_businesses() -> None:
    op.create_table(
        "businesses",
        sa.Column("id", Id, nullable=False),
        sa.Column("url", sa.Text(), nullable=False, comment="canonical, of the home page"),
        sa.Column("url_key", sa.String(64), nullable=False, comment="sha256 of the canonical URL"),
        sa.Column("name", sa.Text(), nullable=False, comment="without article and legal form"),
        sa.Column("aliases", Json, nullable=False, comment="other names it is known by"),
        sa.Column("industry", sa.Text()),
        sa.Column("description", sa.Text()),
        sa.Column("location", sa.Text()),
        sa.Column("keywords", Json, nullable=False),
        sa.Column("language", sa.String(12), comment="as in BCP 47, in lower case"),
        sa.Column(
            "competitors", Json, nullable=False, comment="named on the site or by the operator"
        ),
        sa.Column("confidence", sa.Integer(), nullable=False, comment="0 to 100"),
        sa.Column("evidence", Json, comment="by field: page, rung, status, start and end"),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_businesses"),
        sa.UniqueConstraint("url_key", name="uq_businesses_url_key"),
    )


def _create_website_analyses() -> None:
    op.create_table(
        "website_analyses",
        sa.Column("id", Id, nullable=False),
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("business_id", Id, comment="null until the first phase has ended"),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column(
            "status",
            sa.String(16),
            nullable=False,
            comment="not-started, prompt-forming, model-analysis, completed, failed",
        ),
        sa.Column(
            "current_step", sa.String(16), nullable=False, comment="the phase that the status is of"
        ),
        sa.Column(
            "priority", sa.Integer(), nullable=False, comment="as it was begun; higher goes first"
        ),
        sa.Column("info", Json, comment="what the first phase found, or the operator gave"),
        sa.Column("prompts", Json, comment="what models are asked, in order"),
        sa.Column("analysis", Json, comment="scores by provider and in all, competitors, failures"),
        sa.Column("progress_percent", sa.Integer(), server_default="0", nullable=False),
        sa.Column("progress_message", sa.Text()),
        sa.Column("is_recurring", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("is_manual", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("failure", sa.Text()),
        sa.Column("tracking_id", sa.String(36), nullable=False, comment="of all its tasks"),
        sa.Column("phase_times", Json, nullable=False, comment="by phase: began, ended, attempts"),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime()),
        sa.Column("finished_at", UtcDateTime()),
        sa.ForeignKeyConstraint(
            ["source_id"], ["sources.id"], name="fk_website_analyses_source_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_website_analyses"),
    )
    op.create_index("ix_website_analyses_business_id", "website_analyses", ["business_id"])
    op.create_index("ix_website_analyses_finished_at", "website_analyses", ["finished_at"])
    op.create_index("ix_website_analyses_source_id_id", "website_analyses", ["source_id", "id"])
    op.create_index(
        "uq_website_analyses_unfinished",
        "website_analyses",
        ["source_id"],
        unique=True,
        postgresql_where=sa.text("finished_at IS NULL"),
        sqlite_where=sa.text("finished_at IS NULL"),
    )


def _create_website_answers() -> None:
    op.create_table(
        "website_answers",
        sa.Column("id", Id, nullable=False),
        sa.Column("analysis_id", Id, nullable=False),
        sa.Column("prompt_index", sa.Integer(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("provider", sa.String(60), nullable=False),
        sa.Column("model", sa.Text(), nullable=False, comment="as asked for"),
        sa.Column("model_version", sa.Text(), comment="as the provider names what answered"),
        sa.Column("status", sa.String(10), nullable=False, comment="answered or failed"),
        sa.Column("answer", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("input_tokens", sa.Integer()),
        sa.Column("output_tokens", sa.Integer()),
        sa.Column("cost_usd", ExactDecimal(), comment="null: no price is known"),
        sa.Column("mentions", Json, comment="by name: count, rank, positions; null until scored"),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["analysis_id"], ["website_analyses.id"], name="fk_website_answers_analysis_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_website_answers"),
        sa.UniqueConstraint(
            "analysis_id",
            "prompt_index",
            "provider",
            name="uq_website_answers_analysis_id_prompt_index_provider",
        ),
    )


def _create_website_rankings() -> None:
    op.create_table(
        "website_rankings",
        sa.Column("id", Id, nullable=False),
        sa.Column("business_id", Id, nullable=False),
        sa.Column("day", sa.Date(), nullable=False, comment="UTC"),
        sa.Column("analysis_id", Id, nullable=False, comment="the last of the day"),
        sa.Column(
            "visibility", sa.Float(), nullable=False, comment="share of answers with a mention"
        ),
        sa.Column("score", sa.Integer(), nullable=False, comment="0 to 100"),
        sa.Column("mentions", sa.Integer(), nullable=False),
        sa.Column("prompts", sa.Integer(), nullable=False),
        sa.Column("by_provider", Json, nullable=False),
        sa.Column("competitors", Json, nullable=False),
        sa.Column("cost_usd", ExactDecimal()),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["business_id"], ["businesses.id"], name="fk_website_rankings_business_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_website_rankings"),
        sa.UniqueConstraint("business_id", "day", name="uq_website_rankings_business_id_day"),
    )
