"""HTML to a tree, after a look at the text alone: what would blow up a parser never reaches one.

The parser (lexbor) is quadratic in nested blocks and in the attributes of one element: 100,000 of
either cost it minutes. Unclosed formatting it opens anew in each block that follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isqrt
from typing import TYPE_CHECKING

from ingestion_pipeline.reading import nesting
from ingestion_pipeline.reading.nesting import FORMATTING, MAX_REBUILT, OpenTags
from ingestion_pipeline.work.errors import Permanent

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

MAX_CHARACTERS = 10_000_000  # what a fetch lets through at the most
MAX_TAGS = 400_000  # to look them over takes a second; the largest of our samples has 10,000
MAX_ATTRIBUTES = 500  # of one element; real ones have up to 40

# Below these no page can take the parser longer than 0.2 s, so that nothing is counted.
_HARMLESS_CHARACTERS = 200_000
_HARMLESS_TAGS = 3_000
_HARMLESS_TAG_CHARACTERS = 4_000
_HARMLESS_ROOTS = 20  # `<html>` and `<body>`: the first gets the attributes of all
_HARMLESS_STARTS = 2 * isqrt(MAX_REBUILT)  # worst: half of them formatting, each repeated in half
_FORMATTING = re.compile(
    r"<(?:b(?:ig)?|code|em|font|i|s(?:mall|trike|trong)?|tt|u)[ \t\n\r\f/]",
    re.IGNORECASE | re.ASCII,
)
_BARE_FORMATTING = 3 * len(FORMATTING)  # without attributes the parser keeps three of each

# A quotation mark counts only where a value begins: `<a ">` is whole. `<?x` goes up to a `>`.
_TAG = re.compile(
    r"<(?:(!--)|(/?)([a-z][^ \t\n\r\f/>]*+)("
    r"(?:[ \t\n\r\f/]++|[^ \t\n\r\f/>][^ \t\n\r\f/>=]*+"
    r"(?:[ \t\n\r\f]*+=[ \t\n\r\f]*+"
    r"(?:\"[^\"]*+\"|'[^']*+'|[^ \t\n\r\f>\"'][^ \t\n\r\f>]*+)?+)?+)*+"
    r")|[!?/][^>]*+)",
    re.IGNORECASE | re.ASCII,
)
_COMMENT_END = re.compile(r"(?<=<!--)-?>|--!?>")
# Within a comment in a script, another script hides the end of the outer one.
_SCRIPT = re.compile("<script", re.IGNORECASE)
# What is long up to the next tag is a tag or, more often, the text of a script. Then its tag is
# plain: few attributes, and no quotation mark by which the parser might see another end.
_PLAIN_TAG = re.compile(
    rf"/?[a-z][^\s/>\"']{{0,20}}+(?:[^<>\"'=]|=\"[^<>\"]*+\"(?=[\s/>])|='[^<>']*+'(?=[\s/>])"
    rf"|=[^\s<>\"'=]++(?=[\s>])){{0,{MAX_ATTRIBUTES}}}+>",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"\"[^\"]*+\"|'[^']*+'")
_RAW = frozenset({"iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp"})


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
    _refuse_more(len(text), MAX_CHARACTERS, "characters")
    if not _is_harmless(text):
        _take_tags("<".join(text.split("<", MAX_TAGS)[:MAX_TAGS]), HtmlTags())
        _refuse_more(text.count("<"), MAX_TAGS, "tags")


def _refuse_more(count: int, most: int, what: str) -> None:
    if count > most:
        said = f"the page has {count} {what}, more than {most}; it is not read"
        raise Permanent(said, code="too_large")


def _is_harmless(text: str) -> bool:
    if len(text) > _HARMLESS_CHARACTERS or (tag_count := text.count("<")) > _HARMLESS_TAGS:
        return False
    lowered = text.lower()
    if lowered.count("<html") + lowered.count("<body") > _HARMLESS_ROOTS:
        return False
    if tag_count > _HARMLESS_STARTS and _may_rebuild_much(text, tag_count):
        return False
    return all(_PLAIN_TAG.match(text, start + 1, end) for start, end in _long_tags(text))


def _may_rebuild_much(text: str, tag_count: int) -> bool:
    """Whether the tags can open formatting, and blocks that repeat it, often enough to matter."""
    formatting_count = len(_FORMATTING.findall(text)) + _BARE_FORMATTING
    if formatting_count * tag_count <= MAX_REBUILT:
        return False
    return formatting_count * (tag_count - text.count("</")) > MAX_REBUILT


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


def _take_tags(text: str, tags: HtmlTags) -> None:
    position = once_count = 0
    keeps_raw = True
    while tag := _TAG.search(text, position):
        comment, slash, name, attributes = tag.groups()
        if tag.start() > position + 1:
            tags.text()
        position = tag.end()
        if comment:
            position = _after_comment(text, position)
        if not name:
            tags.text()
            continue
        name = name.lower() if name.isascii() else name
        once_count = _checked_attributes(name, attributes, once_count)
        if slash:
            tags.close(name)
        elif name not in _RAW or tags.has_foreign or not keeps_raw:
            tags.open(name, attributes)
        else:
            tags.text()
            start, position = position, _after_raw(text, name, position)
            keeps_raw = name != "script" or not _hides_its_end(text, start, position)


def _hides_its_end(text: str, start: int, end: int) -> bool:
    comment = text.find("<!--", start, end)
    return comment >= 0 and _SCRIPT.search(text, comment, end) is not None


def _checked_attributes(name: str, attributes: str, once_count: int) -> int:
    """Refuse too many of them; return how many the elements have that stand in a page once.

    The parser gives the attributes of every `<body>` to the first.
    """
    if name in nesting.ONCE:
        once_count += _pieces(attributes)
        _refuse_many_attributes(once_count)
    elif len(attributes) > 2 * MAX_ATTRIBUTES:
        _refuse_many_attributes(_pieces(attributes))
    return once_count


def _pieces(attributes: str) -> int:
    """Count what attributes are made of; one has at most its name, a lone `=` and its value."""
    bare, quoted = _QUOTED.subn(" ", attributes)
    return quoted + len(bare.replace("/", " ").split())


def _refuse_many_attributes(piece_count: int) -> None:
    if piece_count > 3 * MAX_ATTRIBUTES:
        raise Permanent(
            f"an element of the page has more than {MAX_ATTRIBUTES} attributes; it is not read",
            code="too_many_attributes",
        )


def _after_comment(text: str, position: int) -> int:
    found = _COMMENT_END.search(text, position)
    return found.end() if found else len(text)


def _after_raw(text: str, name: str, position: int) -> int:
    found = re.compile(rf"</{name}(?=[ \t\n\r\f/>])", re.IGNORECASE).search(text, position)
    return found.end() if found else len(text)


class HtmlTags(OpenTags):
    """The tags of an HTML page, in their order."""

    @property
    def has_foreign(self) -> bool:
        """Whether an SVG picture or a formula may be open."""
        return bool(self._foreign)

    def open(self, name: str, attributes: str) -> None:
        """Take a start tag.

        Raises:
            Permanent: `too_deep`.
        """
        self._now += 1
        depth = len(self._names) - self._closed_count + self._formatting.count
        self._ancestors += depth // 4 if name in nesting.VOID else depth  # only selectors go up
        if self._ancestors > nesting.MAX_ANCESTORS:
            nesting.refuse_depth("nests too many elements too deeply")
        self._count_option(name)
        name = "h1" if name in nesting.HEADINGS else name
        if name in nesting.INLINE or name in nesting.VOID:
            self.text()
        else:
            self._at_new_block = True
        if name in nesting.FOREIGN and attributes.endswith("/"):
            return
        if not self._foreign or not self._may_be_foreign(name):
            self._open_html(name, attributes)
        elif not (self._foreign[-1][1] and attributes.endswith("/")):
            self._push(name)

    def _count_option(self, name: str) -> None:
        """Count an option with those before it: the parser looks at each of a list again."""
        if name == "select" and not self._foreign:  # within a picture it begins no other list
            self._options = 0
        elif name in ("option", "optgroup"):
            self._options += 1
            self._option_pairs += self._options
            if self._option_pairs > nesting.MAX_OPTION_PAIRS:
                nesting.refuse_depth("has too many options in its lists")

    def close(self, name: str) -> None:
        """Take an end tag."""
        name = "h1" if name in nesting.HEADINGS else name
        if self._foreign and name in ("p", "br") and self._foreign[-1][1]:
            self._leave_foreign()
        if name in FORMATTING and not self._is_in_foreign(name):
            self._close_formatting(name)
            return
        self._at_new_block = True
        if name in nesting.TABLE_PARTS:
            self._close_part(name)
        elif not self._places[name]:
            return
        elif name in nesting.BLOCKS or name in nesting.SCOPED:
            self._close_scoped(name)
        elif name in nesting.WALLS or name in nesting.FOREIGN:
            self._close_wall(name, self._places[name][-1])
        else:
            self._close_other(self._places[name][-1])

    def _open_html(self, name: str, attributes: str) -> None:
        if name in FORMATTING:
            if name in ("a", "nobr"):
                self._close_formatting(name)
            self._formatting.open(name, attributes, now=self._now)
            self._check_loose()
            return
        if name in nesting.TABLE_PARTS and not (self._places["table"] or self._places["template"]):
            return
        if name in ("input", "select"):
            self._doubt_all(("select",))
        if name not in nesting.INLINE:
            self._end_implied(name)
        if name not in nesting.VOID and name not in nesting.ONCE:
            self._push(name)

    def _may_be_foreign(self, name: str) -> bool:
        """Whether a start tag of that name may be one of SVG or MathML."""
        place, is_foreign = self._foreign[-1]
        if name in nesting.END_FOREIGN:
            if is_foreign:
                self._leave_foreign()
            return False
        if is_foreign and name == "font":  # its attributes decide
            self._foreign[-1] = (place, None)
        return is_foreign is not False

    def _is_in_foreign(self, name: str) -> bool:
        """Whether that formatting is a link of an SVG picture; else its end may end the picture."""
        if not self._foreign:
            return False
        place, is_foreign = self._foreign[-1]
        if self._places[name] and self._places[name][-1] > place:
            return True
        if is_foreign:
            self._foreign[-1] = (place, None)
            self._doubt(place)
        return False

    def _leave_foreign(self) -> None:
        place, _ = self._foreign[-1]
        self._foreign[-1] = (place, False)
        self._doubt(place)

    def _close_wall(self, name: str, place: int) -> None:
        if name == "table":
            templates = self._places["template"]
            is_sure = not templates or templates[-1] < place
        elif name in nesting.FOREIGN:
            is_sure = bool(self._foreign) and self._foreign[-1] == (place, True)
        elif name in nesting.ISLANDS:
            is_sure = place == len(self._names) - 1
        else:
            is_sure = place == self._walls[-1]
        if is_sure:
            self._close_at(name, place)
        else:
            self._doubt(place)

    def _close_part(self, name: str) -> None:
        table = self._sure_table()
        place = self._places[name][-1] if self._places[name] else -1
        if table < 0:
            if place >= 0 and place == self._solid[-1] and place not in self._doubtful:
                self._forget(place)  # without a table, the parser took no notice of it
            elif place >= 0:
                self._doubt(place)
        elif name in ("tbody", "tfoot", "thead"):
            if self._is_in_cell(table):
                self._doubt(table)
        elif place > table:
            self._end_cell(place)
        elif name == "tr" and self._is_in_cell(table):
            self._end_cell(table + 1)

    def _sure_table(self) -> int:
        """Where the table is that the next row or cell belongs to; -1 if there may be none."""
        place = self._levels[-1] if self._levels else -1
        is_sure = place >= 0 and self._names[place] == "table" and place not in self._doubtful
        return place if is_sure else -1

    def _is_in_cell(self, table: int) -> bool:
        return any(self._places[cell] and self._places[cell][-1] > table for cell in nesting.CELLS)

    def _end_cell(self, place: int) -> None:
        """Close the cell at that place, or after it, and with it the formatting within."""
        wall = self._walls[-1]
        if wall >= place and self._names[wall] in nesting.CELLS:
            self._formatting.close_all(since=self._times[wall])
        self._pop_to(place)

    def _end_implied(self, name: str) -> None:
        """Close what a start tag of that name closes."""
        table = self._sure_table() if name in nesting.TABLE_PARTS or name == "table" else -1
        if table >= 0 and name != "table":
            self._end_cell(table + 1)
        elif table >= 0 and not self._is_in_cell(table):
            self._doubt(table)  # it ends here, unless a cell is open
        if name in nesting.REPLACES:
            self._end_item(nesting.REPLACES[name])
        if name in nesting.END_PARAGRAPH:
            self._close_scoped("p")
        elif name in nesting.MAY_END_PARAGRAPH and self._places["p"]:
            self._doubt(self._places["p"][-1])
        if name == "button":
            self._close_scoped("button")
        elif name in nesting.REPLACES_LAST:
            self._replace_last(nesting.REPLACES_LAST[name])

    def _end_item(self, replaced: tuple[str, ...]) -> None:
        for place in reversed(self._solid[-nesting.MAX_LOOKED_THROUGH :]):
            name = self._names[place]
            if name in replaced:
                self._close_at(name, place)
                return
            if place in self._doubtful or name not in nesting.SPECIAL:
                break
            if name not in nesting.LOOKED_THROUGH:
                return
        self._doubt_all(replaced)

    def _replace_last(self, replaced: tuple[str, ...]) -> None:
        """Close one of these names if it is the innermost element, formatting included."""
        last = len(self._names) - 1
        if last < 0:
            return
        if last in self._doubtful or (self._names[last] in replaced and self._formatting.count):
            self._doubt_all(replaced)
        elif self._names[last] in replaced:
            self._pop_to(last)
