"""What is made of a saved web page: no network, no database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingestion_pipeline.pages.visits.response_class import Content, WrongType, appearance_of
from ingestion_pipeline.reading.html.visible import WebPage, read_page
from ingestion_pipeline.reading.structured.items import Problem, Reading, SavedBody, SavedReading
from ingestion_pipeline.reading.text.decoding import decode
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.tasks.errors import Permanent, Transient
from ingestion_pipeline.urls import checked_url


class NoPageConfig(ValueError):
    """A config was given to a reader that has none."""


def read_saved(
    platform: str,
    kind: Kind,  # noqa: ARG001 - every system takes it: one may read several kinds
    saved: SavedBody,
    config: Mapping[str, Any],
) -> SavedReading:
    """The page as one record, and what is wrong with it; a bad URL or config raises ValueError."""
    if config:
        raise NoPageConfig(f"{platform} takes no config; remove {', '.join(sorted(config))}")
    if saved.url:
        checked_url(saved.url)
    return SavedReading.of(lambda: _reading(saved), page_as_dict)


def page_as_dict(page: WebPage) -> dict[str, Any]:
    """The page in plain values, as `ingest read` shows it."""
    return {
        "title": page.title,
        "canonical_url": page.canonical_url,
        "language": page.language,
        "links": list(page.links),
        "markdown": page.markdown,
        "text": page.text,
    }


def _reading(saved: SavedBody) -> Reading[WebPage]:
    if not saved.body.strip(b"\0\t\n\r "):
        raise Transient("the body is empty; fetch the page again", code="empty_body")
    page = read_page(decode(saved.body), url=saved.url or None)
    seen = appearance_of(saved.url, 200, {}, saved.body, text=page.text)
    if isinstance(seen, WrongType):
        raise Permanent(f"{seen.reason}; only web pages are read", code="not_html")
    if isinstance(seen, Content):
        return Reading(records=[page])
    doubt = Problem(where="body", message=seen.reason, code=_slug(seen), hides_record=False)
    return Reading(records=[page], problems=[doubt])


def _slug(seen: object) -> str:
    name = type(seen).__name__
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip(
        "_"
    )
