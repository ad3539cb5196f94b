"""Who reads a stored page: the slice that reads pages knows no rung, whoever is a `Reader` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from ingestion_pipeline.catalogs.extraction.page_result import (
    ExtractionOverBudget,
    PageContent,
    PageReading,
)
from ingestion_pipeline.catalogs.extraction.pipeline import read_page
from ingestion_pipeline.catalogs.extraction.record import Record
from ingestion_pipeline.catalogs.extraction.source_config import EntityConfig
from ingestion_pipeline.catalogs.recipes.config_fields import as_mapping
from ingestion_pipeline.catalogs.recipes.page_source import content_of
from ingestion_pipeline.reading.evidence.grounding import Grounding
from ingestion_pipeline.reading.html.cleaning import cleaned_text
from ingestion_pipeline.reading.html.parsing import parse_html
from ingestion_pipeline.reading.llm import Billing, ModelClient, OverBudget
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


def restricted(page: PageContent, selector: str) -> PageContent:
    """The first element that matches, as a page of its own that knows where its text begins.

    Raises:
        Permanent: `content_selector` if nothing matches, or what does is empty.
    """
    body = content_of(parse_html(page.body), selector).html or ""
    text = cleaned_text(body)
    starts_at = page.text.find(text)
    if starts_at < 0:  # the stored text breaks its lines otherwise: then the whole has to prove it
        return replace(page, body=body)
    return replace(page, body=body, text=text, starts_at=starts_at)


def in_the_whole(reading: PageReading, page: PageContent) -> PageReading:
    """The reading with spans of the stored text, of which the page may be a part."""
    if not page.starts_at:
        return reading
    records = tuple(_moved(record, page.starts_at) for record in reading.records)
    return replace(reading, records=records)


def _moved(record: Record, by: int) -> Record:
    evidence = {
        name: one
        if one.start is None or one.end is None
        else Grounding(one.status, one.start + by, one.end + by)
        for name, one in record.evidence.items()
    }
    return replace(record, evidence=evidence)


def content_selectors(recipe: Mapping[str, Any]) -> Iterator[str]:
    """What each level of a recipe, as its row keeps it, calls its content."""
    yield str(recipe.get("content_selector") or "")
    if (links := as_mapping(recipe.get("links"))) is not None:
        yield from content_selectors(links)
