"""A page as Markdown: what a visitor sees, with its links, for people and for models."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from ingestion_pipeline.reading.cleaning import (
    body_html,
    visible_text,
    visible_tree,
    without_invisible,
)
from ingestion_pipeline.reading.links import absolute_link, base_of

if TYPE_CHECKING:
    from html_to_markdown import ConversionOptions
    from selectolax.lexbor import LexborHTMLParser

# Stored with each snapshot: another release or another cleaning makes other Markdown of a page.
MARKDOWN_VERSION = "html-to-markdown 3.19.0, cleaning 1"

# Markdown has more characters than text; where it has far fewer, the converter lost a part.
_LEAST_SHARE = 0.7

_KEPT_SCHEMES = ("mailto:", "tel:", "#")
_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:")
_EMPTY_LINES = re.compile(r"\n{3,}")


def to_markdown(html: str, *, url: str | None = None) -> str:
    """The page's visible content as Markdown; links are absolute where the page's URL is given.

    Raises:
        Permanent: the page is a bomb (see `parse_html`).
    """
    return markdown_of(visible_tree(html), url=url)


def markdown_of(tree: LexborHTMLParser, *, url: str | None = None) -> str:
    """The Markdown of a cleaned tree, which is changed by it.

    What the converter loses is not lost: then the plain text stands for the Markdown.
    """
    words = (tree.body.text() if tree.body is not None else "").split()
    _prepare(tree, base_of(tree, url))
    converted = _converted(body_html(tree))
    is_whole = len(converted) >= _LEAST_SHARE * sum(map(len, words))
    return converted if is_whole else visible_text(tree)


def _prepare(tree: LexborHTMLParser, base: str | None) -> None:
    """Links as they are to stand in the Markdown; an image in a link is its description."""
    for link in tree.css("a[href]"):
        href = link.attrs.get("href") or ""
        target = _target(href.strip(), base)
        if target is None:
            del link.attrs["href"]
        elif target != href:
            link.attrs["href"] = target
        if "title" in link.attrs:
            del link.attrs["title"]
    for image in tree.css("a img[alt]"):
        image.replace_with(image.attrs.get("alt") or "")


def _target(href: str, base: str | None) -> str | None:
    """What a link leads to; None for scripts, data and other schemes that lead nowhere."""
    if href.lower().startswith(_KEPT_SCHEMES):
        return href
    address = absolute_link(base, href)
    return address or (None if base or _SCHEME.match(href) else href)


def _converted(html: str) -> str:
    from html_to_markdown import convert

    try:
        content = convert(html, _options()).content or ""
    except Exception:  # a panic of the library is one, too; the text is the fallback
        return ""
    lines = "\n".join([line.rstrip() for line in without_invisible(content).split("\n")])
    return (_EMPTY_LINES.sub("\n\n", lines) if "\n\n\n" in lines else lines).strip()


@cache
def _options() -> ConversionOptions:
    from html_to_markdown import ConversionOptions, PreprocessingOptions

    return ConversionOptions(
        # Its default drops forms and navigation, 18 % of the words of our samples.
        preprocessing=PreprocessingOptions(enabled=False),
        extract_metadata=False,
        skip_images=True,
        autolinks=False,
        expand_abbreviations=False,
        bullets="-",
        compact_tables=True,
    )
