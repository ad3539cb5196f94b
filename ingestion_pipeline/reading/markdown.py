"""A page as Markdown: what a visitor sees, with its links, for people and for models."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from ingestion_pipeline.reading.cleaning import (
    body_html,
    is_printable_utf8,
    utf8_text,
    visible_tree,
    without_invisible,
)
from ingestion_pipeline.reading.linked_html import LinkedHtml
from ingestion_pipeline.reading.links import base_of

if TYPE_CHECKING:
    from html_to_markdown._html_to_markdown import ConversionOptions, TierStrategy
    from selectolax.lexbor import LexborHTMLParser

# Stored with each snapshot: another release or another cleaning makes other Markdown of a page.
MARKDOWN_VERSION = "html-to-markdown 3.19.0, cleaning 2"

# Markdown has more characters than text; where it has far fewer, the converter lost a part.
_LEAST_SHARE = 0.7

_NO_BREAK = re.compile(b"&(?=n)nbsp;")  # the quickest search: for its first character alone
_EMPTY_LINES = re.compile(b"\n{3,}")
_UNTIDY = re.compile(b"\n(?:(?<= \n)|\n\n)")
# As the parser serialises them: no `>` in an attribute, each value in quotation marks.
_LINK_OR_IMAGE = re.compile(rb"<(/?a|img)(?=[ >])([^>]*+)>")
_TITLE = re.compile(rb' title="[^"]*+"')
_ALT = re.compile(rb' alt="([^"]*+)"')
# The converter sets these apart from what is beside them, and takes the slow way for a page that
# has any. A box in a list is an item of it that is done, or not.
_CONTROL = re.compile(
    rb"<(?:/?(?:button|label|opt(?:group|ion)|select)(?=[ >])|input(?![^>]*checkbox))[^>]*+>"
)

# A table begins with a line of names and one of dashes; the quick way pads its columns.
_DASHES = b"| ---"
_TABLE = re.compile(rb"\n(([> ]*+)\|.*\n)(\2\|(?: -{3,} \|)+\n)((?:\2\|.*\n)*+)")
_PADDED = re.compile(rb"(?<=[^| ])  +\|")
_PADDED_EMPTY = re.compile(rb"\|   +(?=\|)")
_LONG_DASHES = re.compile(b"-{4,}")


def to_markdown(html: str, *, url: str | None = None) -> str:
    """The page's visible content as Markdown; links are absolute where the page's URL is given.

    Raises:
        Permanent: the page is a bomb (see `parse_html`).
    """
    return markdown_of(visible_tree(html), url=url)


def markdown_of(tree: LexborHTMLParser, *, url: str | None = None) -> str:
    """The Markdown of a cleaned tree."""
    html = body_html(tree)
    body = LinkedHtml(html, base_of(tree, url))
    return utf8_markdown(body, text=utf8_text(html)).decode()


def utf8_markdown(body: LinkedHtml, *, text: bytes) -> bytes:
    """The Markdown of a page whose `utf8_text` is at hand.

    What the converter loses is not lost: then the plain text stands for the Markdown.
    """
    converted = _converted(_prepared(body))
    if len(converted) >= _LEAST_SHARE * len(text):
        return converted
    letters = len(text) - text.count(b" ") - text.count(b"\n")
    return converted if len(converted) >= _LEAST_SHARE * letters else text


def _prepared(body: LinkedHtml) -> str:
    """What the converter is given: whole addresses; an image in a link is its description."""
    pieces = body.pieces.copy()
    pieces[2::4] = [lead.attribute for lead in body.leads]
    for place, bare in (1, b"<a"), (3, b""):
        pieces[place::4] = [
            one if one == bare else _TITLE.sub(b"", one, count=1) for one in pieces[place::4]
        ]
    # To ask whether bytes are in bytes is slow: Python asks first whether they are a number.
    pieces[4::4] = [one if one.find(b"<img") < 0 else _described(one) for one in pieces[4::4]]
    if pieces[0].find(b"<img") >= 0:
        pieces[0] = _described(pieces[0], is_in_link=False)
    return _CONTROL.sub(b" ", _NO_BREAK.sub(b" ", b"".join(pieces))).decode()


def _described(html: bytes, *, is_in_link: bool = True) -> bytes:
    """Images in links as their descriptions; others are left to the converter, which skips them."""
    if is_in_link and html.startswith(b"><img ") and html.rfind(b"<img") == 1:
        # Most are the first in their link, and alone. No attribute holds a bracket.
        found = _ALT.search(html, 0, end := html.index(b">", 1))
        return b">%b%b" % (found[1], html[end + 1 :]) if found else html

    def replaced(tag: re.Match[bytes]) -> bytes:
        nonlocal is_in_link
        name, attributes = tag.groups()
        if name == b"img":
            found = _ALT.search(attributes) if is_in_link else None
            return found[1] if found else tag[0]
        is_in_link = name == b"a"
        return tag[0]

    return _LINK_OR_IMAGE.sub(replaced, html)


def _converted(html: str) -> bytes:
    # Its Python side makes the options anew for each call, a twentieth of what a page takes.
    from html_to_markdown._html_to_markdown import convert

    try:
        written = _utf8(convert(html, _options()).content)
        if written.find(_DASHES) >= 0:
            # What looks like a table in a listing of code is none: the slow way writes no other.
            is_sure = written.find(b"`") < 0 or written.find(b"```") < 0
            written = _compact(written) if is_sure else _utf8(convert(html, _slow()).content)
    except Exception:  # a panic of the library is one, too; the text is the fallback
        return b""
    return _tidy(written).strip()


def _utf8(content: str | None) -> bytes:
    return (content or "").encode()


def _compact(markdown: bytes) -> bytes:
    """Tables without what makes their columns equally wide, which may be most of a page."""
    markdown = b"\n" + markdown
    kept: list[bytes] = []
    copied = place = 0
    while (place := markdown.find(_DASHES, place)) >= 0:
        # The line before the dashes has the names.
        start = markdown.rfind(b"\n", copied, markdown.rfind(b"\n", copied, place))
        found = _TABLE.match(markdown, start) if start >= 0 else None
        if found:
            kept += (markdown[copied:start], _compact_table(found))
            copied = place = found.end()
        else:
            place += len(_DASHES)
    return b"".join([*kept, markdown[copied:]]) if kept else markdown


def _compact_table(found: re.Match[bytes]) -> bytes:
    names, _, dashes, rows = found.groups()
    padded = b"\n" + names + _LONG_DASHES.sub(b"---", dashes) + rows
    return _PADDED_EMPTY.sub(b"|  ", _PADDED.sub(b" |", padded))


def _tidy(markdown: bytes) -> bytes:
    """Without characters that nobody sees, blanks at the end of a line, and many empty lines."""
    if not is_printable_utf8(markdown):
        lines = without_invisible(markdown.decode()).split("\n")
        markdown = "\n".join([line.rstrip() for line in lines]).encode()
    elif _UNTIDY.search(markdown):
        markdown = b"\n".join([line.rstrip() for line in markdown.split(b"\n")])
    else:
        return markdown
    return _EMPTY_LINES.sub(b"\n\n", markdown)


@cache
def _options() -> ConversionOptions:
    """The quick way: half of the time, and the same words; what it does not know takes the slow."""
    from html_to_markdown._html_to_markdown import TierStrategy

    return _with(tier_strategy=TierStrategy.TIER1)


@cache
def _slow() -> ConversionOptions:
    from html_to_markdown._html_to_markdown import TierStrategy

    return _with(tier_strategy=TierStrategy.TIER2)


def _with(*, tier_strategy: TierStrategy) -> ConversionOptions:
    from html_to_markdown._html_to_markdown import ConversionOptions, PreprocessingOptions

    return ConversionOptions(
        # Its default drops forms and navigation, 18 % of the words of our samples.
        preprocessing=PreprocessingOptions(enabled=False),
        extract_metadata=False,
        skip_images=True,
        autolinks=False,
        expand_abbreviations=False,
        bullets="-",
        compact_tables=True,
        tier_strategy=tier_strategy,
    )
