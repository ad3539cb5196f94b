"""What the systems bring, by kind of source: the one list that jobs and commands share."""

from __future__ import annotations

from collections.abc import Iterable

from ingestion_pipeline.catalogs.recipe import BadRecipe, recipe_of
from ingestion_pipeline.catalogs.system import CatalogSystem
from ingestion_pipeline.pages.crawled import CrawledSystem
from ingestion_pipeline.pages.system import PolledSystem
from ingestion_pipeline.series.platforms import platform as series_platform
from ingestion_pipeline.series.system import SeriesSystem
from ingestion_pipeline.sources import Definition, Kind
from ingestion_pipeline.sources.definition import BadField

POLLED: dict[Kind, PolledSystem] = {Kind.SERIES: SeriesSystem()}
CRAWLED: dict[Kind, CrawledSystem] = {Kind.CATALOG: CatalogSystem()}


def check_definition(definition: Definition) -> Iterable[BadField]:
    """What the system of a declared source has against its URL or configuration."""
    if definition.kind is Kind.SERIES:
        try:
            series_platform(definition.platform or "").configure(definition.url, definition.config)
        except ValueError as error:
            yield BadField("config", str(error))
    if definition.kind is Kind.CATALOG:
        try:
            recipe_of(definition.config)
        except BadRecipe as error:
            for problem in error.problems:
                yield BadField("config", f"{problem} ({definition.id})")
