"""What is made of a saved web page: no network, no database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingestion_pipeline.pages.appearance import Content, WrongType, appearance_of
from ingestion_pipeline.reading.decode import decode
from ingestion_pipeline.reading.page import Page, read_page
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.urls import checked_url
from ingestion_pipeline.work.errors import WorkError

_Rows = list[dict[str, Any]]


class NoConfig(ValueError):
    """A config was given to a reader that has none."""


def read_saved(
    platform: str,
    kind: Kind,  # noqa: ARG001 - every reader takes it: one may read several kinds
    body: bytes,
    url: str,
    config: Mapping[str, Any],
) -> tuple[_Rows, _Rows]:
    """The page as one record, and what is wrong with it; a bad URL or config raises ValueError."""
    if config:
        raise NoConfig(f"{platform} takes no config; remove {', '.join(sorted(config))}")
    if url:
        checked_url(url)
    if not body.strip(b"\0\t\n\r "):
        return [], [_problem("empty_body", "the body is empty; fetch the page again")]
    try:
        page = read_page(decode(body), url=url or None)
        seen = appearance_of(url, 200, {}, body, text=page.text)
    except WorkError as error:
        return [], [_problem(error.code, error.text)]
    if isinstance(seen, WrongType):
        return [], [_problem("not_html", f"{seen.reason}; only web pages are read")]
    doubts = [] if isinstance(seen, Content) else [_problem(_slug(seen), seen.reason)]
    return [page_as_dict(page)], doubts


def page_as_dict(page: Page) -> dict[str, Any]:
    """The page in plain values, as `ingest read` shows it."""
    return {
        "title": page.title,
        "canonical_url": page.canonical_url,
        "language": page.language,
        "links": list(page.links),
        "markdown": page.markdown,
        "text": page.text,
    }


def _problem(code: str, message: str) -> dict[str, Any]:
    return {"where": "body", "code": code, "message": message}


def _slug(seen: object) -> str:
    name = type(seen).__name__
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip(
        "_"
    )
