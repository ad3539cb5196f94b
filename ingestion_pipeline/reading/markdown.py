"""A page as Markdown: what a visitor sees, with its links, for people and for models."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from html import escape, unescape
from typing import TYPE_CHECKING

from ingestion_pipeline.reading.cleaning import (
    body_html,
    is_printable_utf8,
    utf8_text,
    visible_tree,
    without_invisible,
)
from ingestion_pipeline.reading.links import (
    OF_FOLDER,
    REMEMBERED_CHARACTERS,
    absolute_link,
    base_of,
    folder_of,
    origin_of,
)
from ingestion_pipeline.urls import MAX_URL_CHARS

if TYPE_CHECKING:
    from html_to_markdown._html_to_markdown import ConversionOptions, TierStrategy
    from selectolax.lexbor import LexborHTMLParser

# Stored with each snapshot: another release or another cleaning makes other Markdown of a page.
MARKDOWN_VERSION = "html-to-markdown 3.19.0, cleaning 2"

# Markdown has more characters than text; where it has far fewer, the converter lost a part.
_LEAST_SHARE = 0.7

_KEPT_SCHEMES = ("mailto:", "tel:", "#")
_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:")
_NO_BREAK = re.compile("&(?=n)nbsp;")  # the quickest search: for its first character alone
_EMPTY_LINES = re.compile(b"\n{3,}")
_UNTIDY = re.compile(b"\n(?:(?<= \n)|\n\n)")
# As the parser serialises them: no `>` in an attribute, each value in quotation marks.
_LINK_OR_IMAGE = re.compile(r"<(/?a|img)(?=[ >])([^>]*+)>")
_LINK = re.compile(r'(<a(?: [^>]*?)??) href="([^"]*+)"([^>]*+)')
_PLAIN = re.compile(
    r"(https?://[\w.:-]++)?(/(?!/)(?:[\w~!$()*+,;=:@./?%-]|&amp;)*+(?:#[\w~!$()*+,;=:@./?%-]++)?+)",
    re.ASCII,
)
_TITLE = re.compile(r' title="[^"]*+"')
_ALT = re.compile(r' alt="([^"]*+)"')
# The converter sets these apart from what is beside them, and takes the slow way for a page that
# has any. A box in a list is an item of it that is done, or not.
_CONTROL = re.compile(
    r"<(?:/?(?:button|label|opt(?:group|ion)|select)(?=[ >])|input(?![^>]*checkbox))[^>]*+>"
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
    return utf8_markdown(html, text=utf8_text(html), base=base_of(tree, url)).decode()


def utf8_markdown(html: str, *, text: bytes, base: str | None) -> bytes:
    """The Markdown of what `body_html` gave, whose `utf8_text` is at hand.

    What the converter loses is not lost: then the plain text stands for the Markdown.
    """
    converted = _converted(_Prepared(base).html(html))
    if len(converted) >= _LEAST_SHARE * len(text):
        return converted
    letters = len(text) - text.count(b" ") - text.count(b"\n")
    return converted if len(converted) >= _LEAST_SHARE * letters else text


class _Prepared:
    """Links as they are to stand in the Markdown; an image in a link is its description.

    Done to the HTML that the text was taken from: the tree need not be written out again.
    """

    def __init__(self, base: str | None) -> None:
        self._base = base
        self._origin = f"{origin}/" if (origin := origin_of(base)) else base
        self._folder = folder_of(base or "")

    def html(self, html: str) -> str:
        """What the converter is given."""
        # What is before a link's tag, the tag up to its address, the address, the rest of the tag.
        parts = _LINK.split(_CONTROL.sub(" ", _NO_BREAK.sub(" ", html)))
        parts[2::4] = [self._href(written) for written in parts[2::4]]
        for place in (1, 3):
            parts[place::4] = [
                _TITLE.sub("", one, count=1) if ' title="' in one else one
                for one in parts[place::4]
            ]
        parts[4::4] = [_described(one) if "<img" in one else one for one in parts[4::4]]
        parts[0] = _described(parts[0], is_in_link=False) if "<img" in parts[0] else parts[0]
        return "".join(parts)

    def _href(self, written: str) -> str:
        """What a page leads to is remembered without its places: they are many, and seldom met."""
        page, _, place = written.partition("#")
        if page and place.isascii() and place.replace("-", "").isalnum():
            href = self._remembered(page)
            return href and f'{href[:-1]}#{place}"'
        return self._remembered(written)

    def _remembered(self, written: str) -> str:
        if len(written) > REMEMBERED_CHARACTERS:
            return _href.__wrapped__(self._base, written)
        if written.startswith(("/", "https://", "http://")):
            return _href(self._origin, written)
        if self._folder and OF_FOLDER.fullmatch(written):
            return _href(self._folder, written)
        return _href.__wrapped__(self._base, written)


def _described(html: str, *, is_in_link: bool = True) -> str:
    """Images in links as their descriptions; others are left to the converter, which skips them."""
    if is_in_link and html.startswith("><img ") and html.rfind("<img") == 1:
        # Most are the first in their link, and alone. No attribute holds a bracket.
        found = _ALT.search(html, 0, end := html.index(">", 1))
        return f">{found[1]}{html[end + 1 :]}" if found else html

    def replaced(tag: re.Match[str]) -> str:
        nonlocal is_in_link
        name, attributes = tag.groups()
        if name == "img":
            found = _ALT.search(attributes) if is_in_link else None
            return found[1] if found else tag[0]
        is_in_link = name == "a"
        return tag[0]

    return _LINK_OR_IMAGE.sub(replaced, html)


# The pages of a site have most of their links in common; of at most 200 characters each.
@lru_cache(maxsize=16_384)
def _href(base: str | None, written: str) -> str:
    """The attribute with the address as it is to stand in the Markdown; nothing leads nowhere."""
    # Most addresses are whole, or lack but their origin.
    plain = _PLAIN.fullmatch(written) if len(written) <= MAX_URL_CHARS else None
    if plain and (origin := plain[1] or origin_of(base)):
        return f' href="{origin}{plain[2]}"'
    target = _target(unescape(written).strip(), base)
    return "" if target is None else f' href="{escape(target)}"'


def _target(href: str, base: str | None) -> str | None:
    """What a link leads to; None for scripts, data and other schemes that lead nowhere."""
    if href.lower().startswith(_KEPT_SCHEMES):
        return href
    address = absolute_link(base, href)
    return address or (None if base or _SCHEME.match(href) else href)


def _converted(html: str) -> bytes:
    # Its Python side makes the options anew for each call, a twentieth of what a page takes.
    from html_to_markdown._html_to_markdown import convert

    try:
        written = _utf8(convert(html, _options()).content)
        if _DASHES in written:
            # What looks like a table in a listing of code is none: the slow way writes no other.
            is_sure = b"```" not in written
            written = _compact(written) if is_sure else _utf8(convert(html, _slow()).content)
    except Exception:  # a panic of the library is one, too; the text is the fallback
        return b""
    return _tidy(written).strip()


def _utf8(content: str | None) -> bytes:
    return (content or "").encode()


def _compact(markdown: bytes) -> bytes:
    """Tables without what makes their columns equally wide, which may be most of a page."""
    return _TABLE.sub(_compact_table, b"\n" + markdown)


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
