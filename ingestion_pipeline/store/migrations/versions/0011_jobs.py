"""Companies, job listings with the boards that list them, and matches."""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import Id, Json, UtcDateTime

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    _create_companies()
    _create_job_listings()
    _create_listing_sources()
    _create_job_matches()


def _create_companies() -> None:
    op.create_table(
        "companies",
        sa.Column("id", sa.String(120), nullable=False, comment="as sources and listings name it"),
        sa.Column("name", sa.Text(), comment="null until somebody states it"),
        sa.Column("website", sa.Text()),
        sa.Column("website_key", sa.String(64), comment="sha256 of the canonical website"),
        sa.Column("source_id", sa.String(120), comment="the source of kind company, if it has one"),
        sa.Column(
            "status", sa.String(12), nullable=False, comment="pending, analyzing, active, failed"
        ),
        sa.Column("about", sa.Text()),
        sa.Column("culture", sa.Text()),
        sa.Column("mission", sa.Text()),
        sa.Column("size", sa.Text(), comment="as stated"),
        sa.Column("employees_low", sa.Integer()),
        sa.Column("employees_high", sa.Integer()),
        sa.Column(
            "size_category", sa.String(10), comment="large, medium, small; null if not stated"
        ),
        sa.Column("headquarters", sa.Text()),
        sa.Column("industry", sa.Text()),
        sa.Column("founded", sa.Integer(), comment="year"),
        sa.Column("is_remote_first", sa.Boolean()),
        sa.Column("tech_stack", Json, comment="technologies by group"),
        sa.Column(
            "boards", Json, comment="boards that its pages lead to, each with its confidence"
        ),
        sa.Column("score", sa.Integer(), comment="null until analysed"),
        sa.Column("score_parts", Json, comment="what the score is made of"),
        sa.Column("tier", sa.String(1), comment="S, A, B, C, D"),
        sa.Column("quality", Json, nullable=False, comment="what is missing or thin"),
        sa.Column("evidence", Json, comment="by field: page, rung, status, start and end"),
        sa.Column(
            "discovered_by", sa.Text(), nullable=False, comment="the source or listing, or operator"
        ),
        sa.Column("tracking_id", sa.String(36), nullable=False),
        sa.Column("failure", sa.Text()),
        sa.Column("analyzed_at", UtcDateTime()),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_companies"),
    )
    op.create_index("ix_companies_source_id", "companies", ["source_id"])
    op.create_index("uq_companies_website_key", "companies", ["website_key"], unique=True)


def _create_job_listings() -> None:
    op.create_table(
        "job_listings",
        sa.Column("id", Id, nullable=False),
        sa.Column(
            "source_id", sa.String(120), nullable=False, comment="the board that listed it first"
        ),
        sa.Column("company_id", sa.String(120), comment="null until the company is known"),
        sa.Column("company_name", sa.Text(), comment="as listed"),
        sa.Column("company_website", sa.Text(), comment="as listed"),
        sa.Column("url", sa.Text()),
        sa.Column("url_key", sa.String(64), comment="sha256 of the canonical URL"),
        sa.Column(
            "fingerprint", sa.String(64), nullable=False, comment="of title, company, beginning"
        ),
        sa.Column("origin_key", sa.String(64)),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("location", sa.Text()),
        sa.Column("other_locations", Json),
        sa.Column("remote", sa.String(10), comment="remote, hybrid, on_site; null if not stated"),
        sa.Column("department", sa.Text()),
        sa.Column("employment_type", sa.Text()),
        sa.Column("description", sa.Text(), comment="Markdown"),
        sa.Column("salary", Json),
        sa.Column("posted_at", UtcDateTime()),
        sa.Column("valid_until", UtcDateTime()),
        sa.Column("status", sa.String(10), nullable=False, comment="open or closed"),
        sa.Column("quality", Json, nullable=False, comment="what is missing or thin"),
        sa.Column(
            "content_hash", sa.String(64), nullable=False, comment="of what a judgement looks at"
        ),
        sa.Column("verdict", sa.String(10), comment="filtered, skipped, matched; null: not judged"),
        sa.Column(
            "judged_as", sa.String(64), comment="hash of profile, rules and content at the verdict"
        ),
        sa.Column("filter_result", Json, comment="passed, totals, and each item with its reason"),
        sa.Column(
            "match_result", Json, comment="score, adjustments, skills; also of what did not fit"
        ),
        sa.Column("snapshot_id", Id, comment="the body that states it"),
        sa.Column("tracking_id", sa.String(36), nullable=False),
        sa.Column("first_seen_at", UtcDateTime(), nullable=False),
        sa.Column("changed_at", UtcDateTime(), nullable=False),
        sa.Column("judged_at", UtcDateTime()),
        sa.Column("closed_at", UtcDateTime()),
        sa.PrimaryKeyConstraint("id", name="pk_job_listings"),
    )
    op.create_index("ix_job_listings_company_id", "job_listings", ["company_id"])
    op.create_index("ix_job_listings_fingerprint", "job_listings", ["fingerprint"])
    op.create_index(
        "ix_job_listings_judged",
        "job_listings",
        ["judged_as", "id"],
        postgresql_where=sa.text("status = 'open'"),
        sqlite_where=sa.text("status = 'open'"),
    )
    op.create_index("uq_job_listings_origin_key", "job_listings", ["origin_key"], unique=True)
    op.create_index("uq_job_listings_url_key", "job_listings", ["url_key"], unique=True)


def _create_listing_sources() -> None:
    op.create_table(
        "listing_sources",
        sa.Column("id", Id, nullable=False),
        sa.Column("listing_id", Id, nullable=False),
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column(
            "external_key",
            sa.Text(),
            nullable=False,
            comment="the platform's id, else hash of the URL",
        ),
        sa.Column("external_id", sa.Text()),
        sa.Column("url", sa.Text()),
        sa.Column(
            "content_hash",
            sa.String(64),
            nullable=False,
            comment="of the listing as this one states",
        ),
        sa.Column("stated", sa.String(8), nullable=False),
        sa.Column(
            "missing",
            sa.Integer(),
            server_default="0",
            nullable=False,
            comment="complete lists without",
        ),
        sa.Column("available", sa.Boolean(), server_default=sa.text("(true)"), nullable=False),
        sa.Column("first_seen_at", UtcDateTime(), nullable=False),
        sa.Column("last_seen_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["listing_id"], ["job_listings.id"], name="fk_listing_sources_listing_id"
        ),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name="fk_listing_sources_source_id"),
        sa.PrimaryKeyConstraint("id", name="pk_listing_sources"),
        sa.UniqueConstraint(
            "source_id", "external_key", name="uq_listing_sources_source_id_external_key"
        ),
    )
    op.create_index("ix_listing_sources_listing_id", "listing_sources", ["listing_id"])


def _create_job_matches() -> None:
    op.create_table(
        "job_matches",
        sa.Column("id", Id, nullable=False),
        sa.Column("listing_id", Id, nullable=False),
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("company_id", sa.String(120)),
        sa.Column("status", sa.String(10), nullable=False, comment="new, or withdrawn"),
        sa.Column("score", sa.Integer(), nullable=False),
        sa.Column("base_score", sa.Integer(), nullable=False, comment="before the adjustments"),
        sa.Column("priority", sa.String(10), nullable=False, comment="high, medium, low"),
        sa.Column("method", sa.String(10), nullable=False, comment="model or rules"),
        sa.Column("model", sa.Text()),
        sa.Column("adjustments", Json, nullable=False, comment="each with its reason and points"),
        sa.Column("skills_matched", Json, nullable=False),
        sa.Column("skills_missing", Json, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False, comment="for people"),
        sa.Column(
            "grounding", Json, nullable=False, comment="where the listing's text proves a skill"
        ),
        sa.Column(
            "judged_as", sa.String(64), nullable=False, comment="hash of profile, rules and content"
        ),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["listing_id"], ["job_listings.id"], name="fk_job_matches_listing_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_job_matches"),
        sa.UniqueConstraint("listing_id", name="uq_job_matches_listing_id"),
    )
    op.create_index("ix_job_matches_score", "job_matches", ["score"])
    op.create_index("ix_job_matches_source_id_status", "job_matches", ["source_id", "status"])
