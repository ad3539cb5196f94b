"""The view `v_datasets_current`: items that may be shown, of what is published now.

SQLite refuses to rename a table while a view names one that is gone: a later migration that
rebuilds one of these tables (batch mode) drops the view first and creates it again.
"""

from alembic import op

revision = "0009"
down_revision = "0008"

# A value that nothing proves does not leave the house; `data` holds the others.
VIEW = """
CREATE VIEW v_datasets_current AS
SELECT
    i.id AS item_id,
    d.source_id,
    d.id AS dataset_id,
    d.version AS dataset_version,
    i.entity_type,
    i.item_key,
    ({proved}) AS data,
    p.url AS page_url,
    i.snapshot_id,
    i.rung,
    i.model,
    i.confidence,
    d.published_at,
    COALESCE(p.read_at, i.created_at) AS read_at
FROM data_items AS i
JOIN datasets AS d ON d.id = i.dataset_id
JOIN pages AS p ON p.id = i.page_id
WHERE d.status = 'published'
  AND NOT i.is_repeat
  AND NOT i.is_flagged
  AND NOT EXISTS (
    SELECT 1 FROM datasets AS newer
    WHERE newer.source_id = d.source_id
      AND newer.status = 'published'
      AND newer.version > d.version
  )
"""
ON_POSTGRESQL = """
    SELECT COALESCE(jsonb_object_agg(field.key, field.value), '{}'::jsonb)
    FROM jsonb_each(i.data) AS field
    WHERE i.grounding -> field.key ->> 'status' IN ('exact', 'fuzzy', 'value', 'source')
"""
ON_SQLITE = """
    SELECT json_group_object(field.key, json(i.data -> field.key))
    FROM json_each(i.data) AS field
    WHERE i.grounding -> field.key ->> 'status' IN ('exact', 'fuzzy', 'value', 'source')
"""


def upgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    # Not by format(): PostgreSQL's empty object has braces of its own.
    op.execute(VIEW.replace("{proved}", ON_SQLITE if is_sqlite else ON_POSTGRESQL))
