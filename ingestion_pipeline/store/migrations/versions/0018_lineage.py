"""Lineage: versions of sources, ingestions, runs; when each exported row last changed; views.

Whoever rebuilds a table that a view names (batch mode on SQLite) drops the view before it.
"""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import Id, Json, UtcDateTime

revision = "0018"
down_revision = "0017"

MODIFIED = (
    *("sources", "series", "chapters", "chapter_sources", "companies", "job_listings"),
    *("listing_sources", "job_matches", "extractions", "pages", "datasets", "businesses"),
    *("website_analyses", "website_answers", "website_rankings"),
)
INGESTION = {
    "chapter_sources": "the poll that last wrote what the source says of it",
    "job_listings": "the poll that last wrote what it says",
    "listing_sources": "the poll that last wrote what the board says of it",
}
RUN = {
    "snapshots": "the run that fetched it last",
    "pages": "the run that read it last",
    "job_matches": "the run that judged it last",
    "website_answers": "the run that asked",
}


CHAPTERS_LATEST = """
CREATE VIEW v_chapters_latest AS
SELECT
    s.id AS series_id,
    s.title AS series_title,
    c.id AS chapter_id,
    c.number,
    c.title,
    c.published_at,
    c.first_detected_at,
    l.source_id,
    l.url,
    l.language,
    l.ingestion_id,
    i.run_id,
    i.config_version
FROM series AS s
JOIN chapters AS c ON c.series_id = s.id AND c.number = s.latest_chapter
LEFT JOIN chapter_sources AS l ON l.id = (
    SELECT MIN(one.id) FROM chapter_sources AS one
    WHERE one.chapter_id = c.id AND one.available
)
LEFT JOIN ingestions AS i ON i.id = l.ingestion_id
WHERE s.merged_into IS NULL AND c.rejected_at IS NULL
"""
JOB_MATCHES_OPEN = """
CREATE VIEW v_job_matches_open AS
SELECT
    m.id AS match_id,
    m.listing_id,
    j.source_id,
    m.company_id,
    j.company_name,
    j.title,
    j.url,
    j.location,
    j.remote,
    m.score,
    m.priority,
    m.method,
    m.reason,
    j.posted_at,
    m.created_at AS matched_at,
    j.snapshot_id,
    j.ingestion_id,
    m.run_id,
    i.config_version
FROM job_matches AS m
JOIN job_listings AS j ON j.id = m.listing_id
LEFT JOIN ingestions AS i ON i.id = j.ingestion_id
WHERE m.status = 'new' AND j.status = 'open'
"""
SOURCE_HEALTH = """
CREATE VIEW v_source_health AS
SELECT
    s.id AS source_id,
    s.kind,
    s.platform,
    s.tier,
    s.status,
    s.status_reason,
    CASE
        WHEN s.status <> 'active' THEN s.status
        WHEN s.failure_count > 0 THEN 'failing'
        WHEN s.last_success_at IS NULL THEN 'new'
        WHEN s.last_outcome LIKE 'quarantined%' THEN 'quarantined'
        ELSE 'healthy'
    END AS state,
    s.failure_count,
    s.last_error_class,
    s.last_outcome,
    s.last_checked_at,
    s.last_success_at,
    s.last_changed_at,
    s.next_check_at,
    s.record_count,
    s.config_version,
    (
        SELECT COUNT(*) FROM dead_letters AS d
        WHERE d.source_id = s.id AND d.replayed_at IS NULL AND d.discarded_at IS NULL
    ) AS open_dead_letters,
    h.state AS told_state,
    h.since AS told_since,
    h.reason AS told_reason
FROM sources AS s
LEFT JOIN source_health AS h ON h.source_id = s.id
"""


def upgrade() -> None:
    _create_tables()
    _add_columns()
    # What stands is the first version that is known of; nobody wrote down the ones before.
    op.execute(
        "INSERT INTO source_versions (source_id, version, url, platform, config, since)"
        " SELECT id, 1, url, platform, config, updated_at FROM sources"
    )
    for view in (CHAPTERS_LATEST, JOB_MATCHES_OPEN, SOURCE_HEALTH):
        # A colon or a percent sign in it is the database's, not a parameter's.
        op.get_bind().exec_driver_sql(view.replace("%", "%%") if _is_postgresql() else view)


def _is_postgresql() -> bool:
    return op.get_bind().dialect.name == "postgresql"


def _add_columns() -> None:
    version = sa.Column("config_version", sa.Integer(), nullable=False, server_default="1")
    op.add_column("sources", version)
    for table in ("extractions", "website_analyses"):
        began = sa.Column("config_version", sa.Integer(), comment="of the source, when it began")
        op.add_column(table, began)
    for table, comment in INGESTION.items():
        op.add_column(table, sa.Column("ingestion_id", Id, comment=comment))
    for table, comment in RUN.items():
        op.add_column(table, sa.Column("run_id", sa.String(64), comment=comment))
    comment = "last INSERT or UPDATE; null: before it was kept"
    for table in MODIFIED:
        op.add_column(table, sa.Column("modified_at", UtcDateTime(), comment=comment))


def _create_tables() -> None:
    op.create_table(
        "source_versions",
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("platform", sa.String(40)),
        sa.Column("config", Json, nullable=False),
        sa.Column("since", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name="fk_source_versions_source_id"),
        sa.PrimaryKeyConstraint("source_id", "version", name="pk_source_versions"),
    )
    op.create_table(
        "ingestions",
        sa.Column("id", Id, nullable=False, autoincrement=False),
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("config_version", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(64), comment="the run of Dagster; null: no run did it"),
        sa.Column(
            "reader", sa.Text(), nullable=False, comment="platform and version of its reader"
        ),
        sa.Column("snapshots", Json, nullable=False, comment="ids, in the order of the pages"),
        sa.Column("outcome", sa.Text(), nullable=False, comment="what it came to, for people"),
        sa.Column("tracking_id", sa.String(36), nullable=False),
        sa.Column("fetched_at", UtcDateTime(), nullable=False),
        sa.Column("ingested_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ingestions"),
    )
    op.create_index(
        "ix_ingestions_source_id_ingested_at", "ingestions", ["source_id", "ingested_at"]
    )
    op.create_table(
        "export_cursors",
        sa.Column(
            "name", sa.String(200), nullable=False, comment="what is exported, with its source"
        ),
        sa.Column(
            "destination", sa.Text(), nullable=False, comment="the folder that has the files"
        ),
        sa.Column(
            "since",
            UtcDateTime(),
            nullable=False,
            comment="what changed from here on is not told",
        ),
        sa.Column("files", sa.Integer(), nullable=False, comment="written so far"),
        sa.Column("rows", Id, nullable=False, comment="written so far"),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", "destination", name="pk_export_cursors"),
    )
