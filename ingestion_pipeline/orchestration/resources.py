"""The one resource: a run's workshop, from the environment and the settings table."""

from contextlib import AbstractContextManager

import dagster as dg

from ingestion_pipeline.assembly import open_workshop
from ingestion_pipeline.pages.workshop import Workshop


class WorkshopResource(dg.ConfigurableResource["WorkshopResource"]):
    """Settings are read once per step; the store is closed when the step ends."""

    def open(self) -> AbstractContextManager[Workshop]:
        """Everything a run works with."""
        return open_workshop()
