"""Define the `Reader` protocol for stored pages, its implementation and content selectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from ingestion_pipeline.catalogs.extraction.page_result import ExtractionOverBudget, ExtractionResult, PageContent
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
    """Reader of one page; every failure is raised as a `WorkError`."""

    async def read(self, config: EntityConfig, page: PageContent, billing: Billing) -> ExtractionResult | OverBudget:
        """Return every record of the configured entity on the page; no record is no error."""
        ...


class PipelineReader:
    """Reader that uses rules, then models for what is left open; without a client, rules alone."""

    def __init__(self, settings: Settings, now: Callable[[], datetime], client: ModelClient | None = None) -> None:
        self._settings = settings
        self._now = now
        self._client = client

    async def read(self, config: EntityConfig, page: PageContent, billing: Billing) -> ExtractionResult | OverBudget:
        """Return the records of the cheapest method that reads the page well."""
        try:
            return await read_page(
                config.kind,
                page,
                client=self._client,
                billing=billing,
                settings=self._settings,
                now=self._now(),
                selectors=config.selectors,
                learned=config.learned,
            )
        except ExtractionOverBudget as error:
            return error.over


def restrict_to_selector(page: PageContent, selector: str) -> PageContent:
    """Return the first matching element as a page of its own, with the offset of its text.

    Raises:
        Permanent: `content_selector` if nothing matches, or the match is empty.
    """
    body = content_of(parse_html(page.body), selector).html or ""
    text = cleaned_text(body)
    starts_at = page.text.find(text)
    if starts_at < 0:  # the stored text has other line breaks: use all of it as evidence
        return replace(page, body=body)
    return replace(page, body=body, text=text, starts_at=starts_at)


def with_page_offsets(reading: ExtractionResult, page: PageContent) -> ExtractionResult:
    """Return the reading with spans of the whole stored text, of which the page may be a part."""
    if not page.starts_at:
        return reading
    records = tuple(_shift_evidence(record, page.starts_at) for record in reading.records)
    return replace(reading, records=records)


def _shift_evidence(record: Record, offset: int) -> Record:
    evidence = {
        name: grounding
        if grounding.start is None or grounding.end is None
        else Grounding(grounding.status, grounding.start + offset, grounding.end + offset)
        for name, grounding in record.evidence.items()
    }
    return replace(record, evidence=evidence)


def content_selectors(recipe: Mapping[str, Any]) -> Iterator[str]:
    """Yield the content selector of each level of a stored recipe."""
    yield str(recipe.get("content_selector") or "")
    if (links := as_mapping(recipe.get("links"))) is not None:
        yield from content_selectors(links)
