"""A page of a company, read once: its text, its headed parts, its data and every address on it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ingestion_pipeline.companies.analysis.fact import CompanyPage
from ingestion_pipeline.companies.analysis.site import Role, anchors_of
from ingestion_pipeline.reading.embedded import embedded_of
from ingestion_pipeline.reading.head import feeds_of, title_of
from ingestion_pipeline.reading.links import base_of, linked_page
from ingestion_pipeline.reading.markdown import to_markdown
from ingestion_pipeline.reading.markup import parse_html
from ingestion_pipeline.reading.visible import visible_page

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

MAX_ADDRESSES = 2_000
MAX_SCRIPT_CHARACTERS = 300_000
_SOURCES = "iframe[src], iframe[data-src], script[src], embed[src], object[data], form[action]"
_IN_SCRIPTS = re.compile(r"https?:\\?/\\?/[\w.-]+\\?/[^\s\"'<>`)\]}]{1,300}")
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$")
_MARKDOWN = re.compile(
    r"!\[[^\[\]]*+\]\([^)\[]*+\)|\[([^\[\]]*+)\]\([^)\[]*+\)|[*_`]{1,3}|^\s*(?:[-*+>]|\d+\.)\s+"
)


def see_page(html: str, *, url: str, role: Role) -> CompanyPage:
    """What the page says, shows and leads to.

    Raises:
        Permanent: the page is a bomb (see `parse_html`).
    """
    tree = parse_html(html)
    return CompanyPage(
        url=url,
        role=role,
        title=title_of(tree),
        embedded=embedded_of(tree),
        anchors=tuple(anchors_of(tree, url)),
        embedded_urls=tuple(_embedded_urls(tree, url)),
        script_urls=tuple(_script_urls(tree)),
        feeds=tuple(one.url for one in feeds_of(tree, url)),
        text=visible_page(html, url=url).text,
        headed=tuple(_headed(to_markdown(html, url=url))),
    )


def _embedded_urls(tree: LexborHTMLParser, url: str) -> list[str]:
    """Return what the page embeds, each address once."""
    base = base_of(tree, url)
    urls: dict[str, None] = {}
    for node in tree.css(_SOURCES):
        stated = next(filter(None, map(node.attrs.get, ("src", "data-src", "data", "action"))), "")
        if address := linked_page(base, stated):
            urls[address] = None
    return list(urls)[:MAX_ADDRESSES]


def _script_urls(tree: LexborHTMLParser) -> list[str]:
    """Return what inline scripts mention: boards are often put in by a script."""
    urls: dict[str, None] = {}
    for script in tree.css("script:not([src])"):
        for match in _IN_SCRIPTS.finditer(script.text()[:MAX_SCRIPT_CHARACTERS]):
            urls[match[0].replace("\\/", "/")] = None
    return list(urls)[:MAX_ADDRESSES]


def _headed(markdown: str) -> Iterator[tuple[str, str]]:
    """Each heading with the text below it, up to the next heading; first what stands before any."""
    heading, lines = "", list[str]()
    for line in markdown.split("\n"):
        found = _HEADING.match(line)
        if found is None:
            if plain := _plain(line):
                lines.append(plain)
            continue
        if heading or lines:
            yield heading, "\n".join(lines)
        heading, lines = _plain(found[2]), []
    if heading or lines:
        yield heading, "\n".join(lines)


def _plain(line: str) -> str:
    return " ".join(_MARKDOWN.sub(lambda found: found[1] or "", line).replace("\\", "").split())
