"""The store that an environment names, and the settings with what its table says."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.store.engine import Store, open_store
from ingestion_pipeline.store.overrides import overrides


def open_from_environment(
    environment: Mapping[str, str] | None = None, *, migrate: bool = False
) -> tuple[Settings, Store]:
    """The store the environment names, the settings with what its table says, and our log level."""
    settings = load_settings(environment)
    logging.getLogger("ingestion_pipeline").setLevel(settings.log_level)
    store = open_store(settings.store_url, migrate=migrate)
    try:
        with store.read() as connection:
            changed = overrides(connection)
        return load_settings(environment, changed), store
    except BaseException:
        store.close()
        raise
