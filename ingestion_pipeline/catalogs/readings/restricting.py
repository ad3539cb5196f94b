"""The part of a page that counts, where its recipe names one: read alone, proved in the whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ingestion_pipeline.catalogs.entities.page_reading import PageContent, PageReading
from ingestion_pipeline.catalogs.entities.record import Record
from ingestion_pipeline.catalogs.recipes.fields import as_mapping
from ingestion_pipeline.catalogs.recipes.seen import content_of
from ingestion_pipeline.reading.cleaning import cleaned_text
from ingestion_pipeline.reading.grounding import Grounding
from ingestion_pipeline.reading.markup import parse_html


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
