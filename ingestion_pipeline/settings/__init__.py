"""Every variable and every constant: typed, frozen, read once per run and passed on.

A setting is read from the environment, else from the `settings` table, else its default is used. Its name in the table
is `group.name`; its variable is `INGESTION_GROUP__NAME` (the model provider's two keep the names of its own client,
`OPENAI_API_KEY` and `OPENAI_BASE_URL`). What is needed to reach the table (`INGESTION_DATABASE_URL`, `INGESTION_HOME`,
...) comes from the environment alone, which no other package reads. What a setting decides belongs to the package that
reads it.
"""

# pyright: reportUnusedImport=false

from ingestion_pipeline.settings.groups import (
    Models,
    Notices,
    Price,
    Provider,
    Website,
    Work,
    is_provider_list,
    limit_usd,
    price_table,
    provider_list,
    providers_of,
)
from ingestion_pipeline.settings.loading import (
    BadSetting,
    Settings,
    check_override,
    load_settings,
    secret_variable,
    setting_fields,
    unknown_variables,
    value_type,
    variables,
)
