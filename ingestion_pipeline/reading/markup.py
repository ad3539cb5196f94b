"""HTML to a tree, after a look at the text alone: what would blow up a parser never reaches one.

The parser (lexbor) takes quadratic time over nested blocks and over the attributes of one element:
100,000 of either cost it minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ingestion_pipeline.reading.nesting import OpenElements
from ingestion_pipeline.work.errors import Permanent

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

MAX_CHARACTERS = 10_000_000  # what a fetch lets through at the most
MAX_DEPTH = 512  # browsers nest no deeper; real pages stay below 100
MAX_ATTRIBUTES = 500  # of one element; real ones have up to 40

# Below these no page can take the parser longer than 0.2 s, so that nothing is counted.
_HARMLESS_CHARACTERS = 200_000
_HARMLESS_TAGS = 3_000
_HARMLESS_TAG_CHARACTERS = 4_000

_TAG = re.compile(
    r"<(?:(!--)|(/?)([a-z][^\s/>]*+)([^\"'>]*+(?:(?:\"[^\"]*+\"|'[^']*+')[^\"'>]*+)*+))",
    re.IGNORECASE,
)
# What is long up to the next tag is a tag or, more often, the text of a script. Then its tag is
# plain: few attributes, and no quotation mark by which the parser might see another end.
_PLAIN_TAG = re.compile(
    rf"/?[a-z][^\s/>\"']{{0,20}}+(?:[^<>\"'=]|=\"[^<>\"]*+\"(?=[\s/>])|='[^<>']*+'(?=[\s/>])"
    rf"|=[^\s<>\"'=]++(?=[\s>])){{0,{MAX_ATTRIBUTES}}}+>",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"\"[^\"]*+\"|'[^']*+'")
_RAW = frozenset(
    {"iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp"},
)
# Elements without an end, those whose end may be left out, and inline ones that pages forget to
# close: none of them makes a parser slow.
_VOID = {
    "area",
    "base",
    "br",
    "col",
    "embed",
    "hr",
    "img",
    "input",
    "link",
    "meta",
    "param",
    "source",
    "track",
    "wbr",
}
_OPTIONAL_END = {
    "colgroup",
    "dd",
    "dt",
    "li",
    "optgroup",
    "option",
    "p",
    "rp",
    "rt",
    "tbody",
    "td",
    "tfoot",
    "th",
    "thead",
    "tr",
}
_INLINE = {
    "a",
    "abbr",
    "b",
    "big",
    "code",
    "em",
    "font",
    "i",
    "label",
    "nobr",
    "s",
    "small",
    "span",
    "strike",
    "strong",
    "sub",
    "sup",
    "tt",
    "u",
}
_OPENS_NO_LEVEL = frozenset(_VOID | _OPTIONAL_END | _INLINE)


def parse_html(text: str, *, utf8: bytes | None = None) -> LexborHTMLParser:
    """The tree that browsers make of the text; `utf8` is the same, if it is at hand.

    Raises:
        Permanent: `too_large`, `too_deep` or `too_many_attributes`; no page needs that.
    """
    from selectolax.lexbor import LexborHTMLParser  # a megabyte of library; poll runs need none

    refuse_bombs(text)
    return LexborHTMLParser(text if utf8 is None else utf8)


def refuse_bombs(text: str) -> None:
    """Raise `Permanent` if the text is larger or deeper than any page, judged without parsing."""
    if len(text) > MAX_CHARACTERS:
        raise Permanent(
            f"the page has {len(text)} characters, more than {MAX_CHARACTERS}; it is not read",
            code="too_large",
        )
    if _is_harmless(text):
        return
    blocks = OpenElements(MAX_DEPTH)
    for is_end, name in _block_tags(text):
        blocks.close(name) if is_end else blocks.open(name)


def _is_harmless(text: str) -> bool:
    if len(text) > _HARMLESS_CHARACTERS or text.count("<") > _HARMLESS_TAGS:
        return False
    return all(_PLAIN_TAG.match(text, start + 1, end) for start, end in _long_tags(text))


def _long_tags(text: str) -> Iterator[tuple[int, int]]:
    """Each `<` that no other follows for long, and where one does.

    Such a stretch covers a whole step: no character of the others is looked at one by one.
    """
    step = _HARMLESS_TAG_CHARACTERS // 2
    place = 0
    while place + step <= len(text):
        if text.find("<", place, place + step) >= 0:
            place += step
            continue
        start, end = text.rfind("<", 0, place), text.find("<", place + step)
        end = len(text) if end < 0 else end
        if start >= 0 and end - start > _HARMLESS_TAG_CHARACTERS:
            yield start, end
        place = end


def _block_tags(text: str) -> Iterator[tuple[bool, str]]:
    """Whether it is an end tag, and its name, of each tag that opens or closes a level."""
    position = 0
    while tag := _TAG.search(text, position):
        comment, slash, name, attributes = tag.groups()
        position = tag.end()
        if comment:
            position = _after(text, "-->", tag.start() + 2)
            continue
        if len(attributes) > 2 * MAX_ATTRIBUTES:
            _refuse_many_attributes(attributes)
        name = name.lower()
        if name in _RAW and not slash:
            position = _after_raw(text, name, position)
        elif name not in _OPENS_NO_LEVEL and not attributes.endswith("/"):
            yield bool(slash), name


def _refuse_many_attributes(attributes: str) -> None:
    # An attribute is at most three pieces: its name, a lone `=`, its value.
    bare, quoted = _QUOTED.subn(" ", attributes)
    if quoted + len(bare.replace("/", " ").split()) > 3 * MAX_ATTRIBUTES:
        raise Permanent(
            f"an element of the page has more than {MAX_ATTRIBUTES} attributes; it is not read",
            code="too_many_attributes",
        )


def _after(text: str, end: str, position: int) -> int:
    found = text.find(end, position)
    return len(text) if found < 0 else found + len(end)


def _after_raw(text: str, name: str, position: int) -> int:
    found = re.compile(f"</{name}", re.IGNORECASE).search(text, position)
    return found.end() if found else len(text)
