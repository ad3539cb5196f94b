"""How each source does in a word, kept for SQL; polls by their time, so that old ones can go."""

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import UtcDateTime

revision = "0019"
down_revision = "0018"

SOURCE_HEALTH = """
CREATE VIEW v_source_health AS
SELECT
    s.id AS source_id,
    s.kind,
    s.platform,
    s.tier,
    s.status,
    s.status_reason,
    w.word AS health,
    w.since AS health_since,
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
LEFT JOIN source_words AS w ON w.source_id = s.id
LEFT JOIN source_health AS h ON h.source_id = s.id
"""


def upgrade() -> None:
    op.create_table(
        "source_words",
        sa.Column("source_id", sa.String(120), nullable=False),
        sa.Column("word", sa.String(12), nullable=False, comment="as the last look found it"),
        sa.Column("since", UtcDateTime(), nullable=False, comment="the look that first found it"),
        sa.PrimaryKeyConstraint("source_id", name="pk_source_words"),
    )
    op.create_index("ix_ingestions_ingested_at", "ingestions", ["ingested_at"])
    # Its `state` was a rule of its own, which said "healthy" of what the program calls late.
    op.execute("DROP VIEW v_source_health")
    op.execute(SOURCE_HEALTH)
