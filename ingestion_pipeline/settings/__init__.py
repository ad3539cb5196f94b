"""Every variable and every constant: typed, frozen, read once per run and handed over.

A setting is found in the environment, else in the `settings` table, else at its default. Its name
in the table is `group.name`; its variable is `INGESTION_GROUP__NAME`. What is needed to reach the
table (`INGESTION_DATABASE_URL`, `INGESTION_HOME`, ...) comes from the environment alone.
What a value does belongs to whoever reads it.
"""

from ingestion_pipeline.settings.groups import Ingest, Notices, Work
from ingestion_pipeline.settings.loading import (
    BadSetting,
    Settings,
    check_override,
    load_settings,
    setting_fields,
    unknown_variables,
    value_type,
    variables,
)

__all__ = [
    "BadSetting",
    "Ingest",
    "Notices",
    "Settings",
    "Work",
    "check_override",
    "load_settings",
    "setting_fields",
    "unknown_variables",
    "value_type",
    "variables",
]
