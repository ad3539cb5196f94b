"""Who reads a stored page: the slice that reads pages knows no rung, whoever is a `Reader` does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from ingestion_pipeline.catalogs.entities.declared import EntityConfig
from ingestion_pipeline.catalogs.entities.page_reading import (
    ExtractionOverBudget,
    PageContent,
    PageReading,
)
from ingestion_pipeline.catalogs.entities.reader import read_page
from ingestion_pipeline.reading.models import Billing, ModelClient, OverBudget
from ingestion_pipeline.settings import Settings


class Reader(Protocol):
    """Reads one page; whatever goes wrong leaves as a `WorkError`."""

    async def read(
        self, wanted: EntityConfig, page: PageContent, billing: Billing
    ) -> PageReading | OverBudget:
        """Every record that the page states of what is wanted; none is no error."""
        ...


class PipelineReader:
    """Rules, and models for what rules leave open; without a client rules have the last word."""

    def __init__(
        self, settings: Settings, now: Callable[[], datetime], client: ModelClient | None = None
    ) -> None:
        self._settings = settings
        self._now = now
        self._client = client

    async def read(
        self, wanted: EntityConfig, page: PageContent, billing: Billing
    ) -> PageReading | OverBudget:
        """The records, by the cheapest rung that reads the page well."""
        try:
            return await read_page(
                wanted.kind,
                page,
                client=self._client,
                billing=billing,
                settings=self._settings,
                now=self._now(),
                selectors=wanted.selectors,
                learned=wanted.learned,
            )
        except ExtractionOverBudget as error:
            return error.over
