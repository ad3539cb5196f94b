"""URLs in an answer must stand on the page: what a model makes up, or a page plants, is dropped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from ingestion_pipeline.reading.models.question import PageText
from ingestion_pipeline.urls import BadUrl, canonical_url, without_credentials

# Addresses of every scheme, and what a browser would take for one.
_ADDRESS = re.compile(
    r"(?:[a-z][a-z0-9+.-]{1,20}:/{1,3}|//(?=[\w-]+\.)|\bwww\.|\b(?:javascript|data|mailto|tel|vbscript):)"
    r"[^\s<>\"'`\]})|]+",
    re.IGNORECASE,
)
_CLOSING = ".,;:!?"


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedUrl:
    """A value that is not in the answer any more, since its URL is not on the page."""

    path: str
    url: str


class PageUrls:
    """The URLs that a page has: those in its text and those it links to."""

    def __init__(self, page: PageText) -> None:
        written = {_bare(found[0]) for found in _ADDRESS.finditer(page.text)}
        self._known = {*written, *page.links}
        self._known |= {found for url in self._known if (found := _canonical(url))}

    def __contains__(self, url: str) -> bool:
        return url in self._known or _canonical(url) in self._known


def without_strange_urls(
    answer: dict[str, object], page: PageText
) -> tuple[dict[str, object], tuple[DroppedUrl, ...]]:
    """The answer with null for each value that holds a URL the page does not have; what those were.

    Null stands there even where the schema wants text: it reads as absent. Items of a list go.
    """
    dropped: list[DroppedUrl] = []
    known = PageUrls(page)
    kept = _kept(answer, "$", known, dropped)
    return cast("dict[str, object]", kept), tuple(dropped)


def _kept(value: object, path: str, known: PageUrls, dropped: list[DroppedUrl]) -> object:
    match value:
        case str():
            strange = next((url for url in _addresses(value) if url not in known), None)
            if strange is None:
                return value
            dropped.append(DroppedUrl(path=path, url=without_credentials(strange)))
            return None
        case dict():
            fields = cast("dict[str, object]", value).items()
            return {name: _kept(inner, f"{path}.{name}", known, dropped) for name, inner in fields}
        case list():
            items = [
                (item, _kept(item, f"{path}[{number}]", known, dropped))
                for number, item in enumerate(cast("list[object]", value))
            ]
            return [kept for item, kept in items if kept is not None or item is None]
        case _:
            return value


def _addresses(text: str) -> Iterator[str]:
    return (_bare(found[0]) for found in _ADDRESS.finditer(text))


def _bare(address: str) -> str:
    return address.rstrip(_CLOSING)


def _canonical(url: str) -> str | None:
    try:
        return canonical_url(url)
    except BadUrl:
        return None
