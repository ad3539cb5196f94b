"""Create all tables, views and the triggers that record changes.

SQLite refuses to rename a table while a view names one that is gone: a migration that rebuilds a
table (batch mode) drops the views on it first and creates them again.
"""

import re
from pathlib import Path

from alembic import op

from ingestion_pipeline.store.changes import create_triggers
from ingestion_pipeline.store.history import create_history_views, create_items_view
from ingestion_pipeline.store.tables import metadata

revision = "0100"
down_revision = None

# The words of `0100_initial.sql` that differ between the databases.
WORDS = {
    "postgresql": {
        "SERIAL_ID": "BIGSERIAL",
        "BIG_ID": "BIGINT",
        "UTC_TIME": "TIMESTAMP WITH TIME ZONE",
        "JSON": "JSONB",
        "STORED": "STORED",
        # Half of each page is left to new versions of its rows: claims write no index entries.
        "HALF_FULL": "WITH (fillfactor = 50)",
        "EXPECTED_AT": "s.last_new_at + make_interval(secs => 86400 / s.changes_per_day)",
        "PROVEN_FIELDS": """
    SELECT COALESCE(jsonb_object_agg(field.key, field.value), '{}'::jsonb) FROM jsonb_each(i.data) AS field
    WHERE i.grounding -> field.key ->> 'status' IN ('exact', 'fuzzy', 'value', 'source')""",
    },
    "sqlite": {
        "SERIAL_ID": "INTEGER",
        "BIG_ID": "INTEGER",
        "UTC_TIME": "VARCHAR(32)",
        "JSON": "JSON",
        "STORED": "",
        "HALF_FULL": "",
        "EXPECTED_AT": """
    strftime('%Y-%m-%d %H:%M:%f000+00:00', s.last_new_at, (86400 / s.changes_per_day) || ' seconds')""",
        "PROVEN_FIELDS": """
    SELECT json_group_object(field.key, json(i.data -> field.key)) FROM json_each(i.data) AS field
    WHERE i.grounding -> field.key ->> 'status' IN ('exact', 'fuzzy', 'value', 'source')""",
    },
}


def upgrade() -> None:
    connection = op.get_bind()
    words = WORDS[connection.dialect.name]
    template = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")
    schema = re.sub(r"\b(" + "|".join(words) + r")\b", lambda word: words[word[0]], template)
    for statement in schema.split(";\n")[:-1]:
        connection.exec_driver_sql(statement)
    create_triggers(connection, metadata.sorted_tables)
    create_history_views(connection, metadata.sorted_tables)
    create_items_view(connection, metadata.sorted_tables)
