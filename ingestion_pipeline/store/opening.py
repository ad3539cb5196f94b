"""The store that an environment names, and the settings with what its table says."""

from __future__ import annotations

from collections.abc import Mapping

from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.settings.logs import configure
from ingestion_pipeline.store.engine import Store, open_store
from ingestion_pipeline.store.overrides import overrides


def open_from_environment(
    environment: Mapping[str, str] | None = None, *, migrate: bool = False
) -> tuple[Settings, Store]:
    """The store the environment names, the settings with what its table says, and our log."""
    settings = load_settings(environment)
    configure(settings.log_level, settings.log_format)
    store = open_store(settings.store_url, migrate=migrate)
    try:
        with store.read() as connection:
            changed = overrides(connection)
        return load_settings(environment, changed), store
    except BaseException:
        store.close()
        raise
