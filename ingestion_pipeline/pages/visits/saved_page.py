"""Parsing a saved web page for `ingest read`, without network or database."""

from collections.abc import Mapping
from typing import Any

from ingestion_pipeline.pages.visits.response_class import Content, WrongType, classify_response
from ingestion_pipeline.reading.html.visible import WebPage, read_page
from ingestion_pipeline.reading.structured.items import ParsedFeed, Problem, SavedBody, SavedBodyResult
from ingestion_pipeline.reading.text.decoding import decode
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.tasks.errors import Permanent, Transient
from ingestion_pipeline.urls import checked_url


class NoPageConfig(ValueError):
    """A config was passed to a parser that takes none."""


def read_saved(
    platform: str,
    kind: Kind,  # noqa: ARG001 - every system takes it: one may read several kinds
    saved: SavedBody,
    config: Mapping[str, Any],
) -> SavedBodyResult:
    """Return the page as one record, with problems; a bad URL or config raises ValueError."""
    if config:
        raise NoPageConfig(f"{platform} takes no config; remove {', '.join(sorted(config))}")
    if saved.url:
        checked_url(saved.url)
    return SavedBodyResult.of(lambda: _reading(saved), page_as_dict)


def page_as_dict(page: WebPage) -> dict[str, Any]:
    """Return the page in plain values, as `ingest read` prints it."""
    return {
        "title": page.title,
        "canonical_url": page.canonical_url,
        "language": page.language,
        "links": list(page.links),
        "markdown": page.markdown,
        "text": page.text,
    }


def _reading(saved: SavedBody) -> ParsedFeed[WebPage]:
    if not saved.body.strip(b"\0\t\n\r "):
        raise Transient("the body is empty; fetch the page again", code="empty_body")
    page = read_page(decode(saved.body), url=saved.url or None)
    response_class = classify_response(saved.url, 200, {}, saved.body, text=page.text)
    if isinstance(response_class, WrongType):
        raise Permanent(f"{response_class.reason}; only web pages are read", code="not_html")
    if isinstance(response_class, Content):
        return ParsedFeed(records=[page])
    problem = Problem(where="body", message=response_class.reason, code=response_class.code, hides_record=False)
    return ParsedFeed(records=[page], problems=[problem])
