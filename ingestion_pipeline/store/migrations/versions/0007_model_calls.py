"""Language models: the ledger of calls, what was spent, answers kept, and what servers can do."""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import ExactDecimal, Id, Json, UtcDateTime

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    _create_calls()
    op.create_table(
        "model_spending",
        sa.Column(
            "scope",
            sa.String(length=160),
            nullable=False,
            comment="month:2026-03, extraction:7, ...",
        ),
        sa.Column(
            "held_usd", ExactDecimal(), nullable=False, comment="settled costs and open reserves"
        ),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("scope", name=op.f("pk_model_spending")),
    )
    op.create_table(
        "model_answers",
        sa.Column("cache_key", sa.String(length=64), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("prompt_version", sa.String(length=60), nullable=False),
        sa.Column("answer", Json, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("cache_key", name=op.f("pk_model_answers")),
    )
    op.create_table(
        "model_endpoints",
        sa.Column("base_url", sa.Text(), nullable=False),
        sa.Column(
            "format",
            sa.String(length=20),
            nullable=False,
            comment="the strictest that the server takes",
        ),
        sa.Column("reason", sa.Text(), nullable=False, comment="what it said to a stricter one"),
        sa.Column("learned_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("base_url", name=op.f("pk_model_endpoints")),
    )


def _create_calls() -> None:
    op.create_table(
        "model_calls",
        sa.Column("id", Id, nullable=False),
        sa.Column("source_id", sa.String(length=120)),
        sa.Column("page_id", Id),
        sa.Column("extraction_id", Id),
        sa.Column(
            "call_site", sa.String(length=60), nullable=False, comment="what it was asked for"
        ),
        sa.Column("provider", sa.Text(), nullable=False, comment="the server's base URL"),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column(
            "format",
            sa.String(length=20),
            nullable=False,
            comment="how an answer by schema was asked for",
        ),
        sa.Column(
            "status",
            sa.String(length=10),
            nullable=False,
            comment="reserved, settled, failed or cached",
        ),
        sa.Column(
            "outcome", sa.String(length=40), comment="answered, refused, cut_off, http_429, ..."
        ),
        sa.Column("input_tokens", sa.Integer(), comment="cached ones included"),
        sa.Column("cached_input_tokens", sa.Integer()),
        sa.Column("output_tokens", sa.Integer()),
        sa.Column("usage_estimated", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "reserved_usd",
            ExactDecimal(),
            comment="estimate, counted until settled; null: no price",
        ),
        sa.Column("cost_usd", ExactDecimal(), comment="null: not settled, or no price is known"),
        sa.Column("latency_ms", sa.Integer()),
        sa.Column("cache_key", sa.String(length=64), nullable=False),
        sa.Column("prompt_version", sa.String(length=60), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("settled_at", UtcDateTime()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_calls")),
    )
    for columns in (["extraction_id", "created_at"], ["source_id", "created_at"], ["created_at"]):
        op.create_index(op.f(f"ix_model_calls_{'_'.join(columns)}"), "model_calls", columns)
