"""A page as Markdown: what a visitor sees, with its links, for people and for models."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from html import escape, unescape
from typing import TYPE_CHECKING

from ingestion_pipeline.reading.cleaning import (
    body_html,
    body_text,
    is_printable_text,
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
    from html_to_markdown._html_to_markdown import ConversionOptions
    from selectolax.lexbor import LexborHTMLParser

# Stored with each snapshot: another release or another cleaning makes other Markdown of a page.
MARKDOWN_VERSION = "html-to-markdown 3.19.0, cleaning 1"

# Markdown has more characters than text; where it has far fewer, the converter lost a part.
_LEAST_SHARE = 0.7

_KEPT_SCHEMES = ("mailto:", "tel:", "#")
_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:")
_EMPTY_LINES = re.compile(r"\n{3,}")
# As the parser serialises them: no `>` in an attribute, each value in quotation marks.
_LINK_OR_IMAGE = re.compile(r"<(/?a|img)(?=[ >])([^>]*+)>")
_LINK = re.compile(r'(<a(?: [^>]*?)??) href="([^"]*+)"([^>]*+)')
_PLAIN = re.compile(
    r"(https?://[\w.:-]++)?(/(?!/)(?:[\w~!$()*+,;=:@./?%-]|&amp;)*+(?:#[\w~!$()*+,;=:@./?%-]++)?+)",
    re.ASCII,
)
_TITLE = re.compile(r' title="[^"]*+"')
_ALT = re.compile(r' alt="([^"]*+)"')


def to_markdown(html: str, *, url: str | None = None) -> str:
    """The page's visible content as Markdown; links are absolute where the page's URL is given.

    Raises:
        Permanent: the page is a bomb (see `parse_html`).
    """
    return markdown_of(visible_tree(html), url=url)


def markdown_of(tree: LexborHTMLParser, *, url: str | None = None) -> str:
    """The Markdown of a cleaned tree."""
    html = body_html(tree)
    return body_markdown(html, text=body_text(html), base=base_of(tree, url))


def body_markdown(html: str, *, text: str, base: str | None) -> str:
    """The Markdown of what `body_html` gave, whose text is at hand.

    What the converter loses is not lost: then the plain text stands for the Markdown.
    """
    converted = _converted(_Prepared(base).html(html))
    if len(converted) >= _LEAST_SHARE * len(text):
        return converted
    letters = len(text) - text.count(" ") - text.count("\n")
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
        parts = _LINK.split(html)
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
        if len(written) > REMEMBERED_CHARACTERS:
            return _href.__wrapped__(self._base, written)
        if written.startswith(("/", "https://", "http://")):
            return _href(self._origin, written)
        if self._folder and OF_FOLDER.fullmatch(written):
            return _href(self._folder, written)
        return _href.__wrapped__(self._base, written)


def _described(html: str, *, is_in_link: bool = True) -> str:
    """Images in links as their descriptions; others are left to the converter, which skips them."""

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


def _converted(html: str) -> str:
    # Its Python side makes the options anew for each call, a twentieth of what a page takes.
    from html_to_markdown._html_to_markdown import convert

    try:
        content = convert(html, _options()).content or ""
    except Exception:  # a panic of the library is one, too; the text is the fallback
        return ""
    return _tidy(content).strip()


def _tidy(markdown: str) -> str:
    """Without characters that nobody sees, blanks at the end of a line, and many empty lines."""
    is_printable = is_printable_text(markdown.replace("\xa0", " "))
    if is_printable and " \n" in markdown:
        # A space is its only blank but for that one, and a line break has two of them.
        markdown = markdown.replace("  \n", "\n").replace(" \n", "\n")
    if not is_printable or " \n" in markdown or "\xa0\n" in markdown:
        lines = without_invisible(markdown).split("\n")
        markdown = "\n".join([line.rstrip() for line in lines])
    return _EMPTY_LINES.sub("\n\n", markdown) if "\n\n\n" in markdown else markdown


@cache
def _options() -> ConversionOptions:
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
    )
