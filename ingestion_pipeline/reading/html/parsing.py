"""Parse HTML safely: estimate depth and cost by the tags alone before the parser runs."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from math import isqrt
from typing import TYPE_CHECKING, NoReturn

from ingestion_pipeline.tasks.errors import Permanent

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser


def named(words: str) -> frozenset[str]:
    """Return the names of elements, split at blanks."""
    return frozenset(words.split())


def refuse_depth(what: str) -> NoReturn:
    """Raise `Permanent`: the body does what no page needs."""
    raise Permanent(f"the body {what}; it is not read", code="too_deep")


MAX_DEPTH = 512  # browsers nest no deeper; real pages stay below 100
MAX_LOOSE = 5_000  # open inline elements, paragraphs, items, cells: 5,000 cost the parser 0.03 s
# Ancestors over all elements: the parser takes up to 25 ns for each, a selector 4 ns. 300,000
# elements at a depth of 30 have 9 million.
MAX_ANCESTORS = 20_000_000
# Copies of unclosed formatting that the parser makes: 370 bytes each. Tags that need not make it
# copy anything count as well, so that the limit is twice what a page may take.
MAX_REBUILT = 200_000
# Options of a list with each before it, which the parser takes 4 ns for: one list of 14,000.
MAX_OPTION_PAIRS = 100_000_000

VOID = named("area base br col embed frame hr img input link meta param source track wbr")
FORMATTING = named("a b big code em font i nobr s small strike strong tt u")
INLINE = FORMATTING | named("abbr label span sub sup")
TABLE_PARTS = named("caption colgroup tbody td tfoot th thead tr")
CELLS = ("caption", "td", "th")
_IMPLIED_END = named("dd dt li optgroup option p rp rt")
_LOOSE = INLINE | TABLE_PARTS | _IMPLIED_END
ONCE = named("body frameset head html")  # a second one is not nested
# They end a paragraph, and their end tags end all that they left open.
BLOCKS = named(
    "address article aside blockquote center details dialog dir div dl fieldset figcaption "
    "figure footer h1 h2 h3 h4 h5 h6 header hgroup listing main menu nav ol pre section summary "
    "ul"
)
END_PARAGRAPH = BLOCKS | named("dd dt hr li p")
MAY_END_PARAGRAPH = named("form plaintext search table xmp")
REPLACES = {"dd": ("dd", "dt"), "dt": ("dd", "dt"), "li": ("li",)}
MAX_SCANNED = 20
SCANNED_TAGS = ("address", "div", "p")  # by an item, for the one before
HEADINGS = named("h2 h3 h4 h5 h6")  # each end tag ends any of them
# They end one of these that nothing else is open in.
REPLACES_LAST = {"h1": ("h1",), "optgroup": ("option",), "option": ("option",)}
_STOPS = {"li": ("ol", "ul"), "p": ("button",)}
FOREIGN = ("math", "svg")
# They end an SVG picture or a formula in which they stand.
END_FOREIGN = (FORMATTING - {"a", "font"}) | named(
    "blockquote body br center dd div dl dt embed h1 head hr img li listing menu meta ol p pre "
    "ruby span sub sup table ul var"
)
# HTML again, within SVG and MathML.
ISLANDS = named("annotation-xml desc foreignobject mi mn mo ms mtext title")
# No end tag reaches across these.
SCOPE_BOUNDARIES = ISLANDS | named("applet caption marquee object select table td template th")
SCOPED = named("button dd dt li p")
SPECIAL = BLOCKS | TABLE_PARTS | SCOPE_BOUNDARIES | SCOPED | {"form"}  # an item does not look beyond these
# Closed by another end tag than their own, they still keep earlier formatting from being closed.
_MARKERS = named("applet marquee object template")
_PLAIN = named("optgroup option rp rt")  # the end tag of what is around ends them
_MANY_PLAIN = 8
_SAME_FORMATTING = 3  # the parser keeps no more of one name with the same attributes


class OpenElements:
    """The open elements of a document that need not be well formed."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._names: list[str] = []
        self._open_count: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._names)

    def open(self, name: str) -> None:
        """Open another one.

        Raises:
            Permanent: `too_deep`.
        """
        self._names.append(name)
        self._open_count[name] += 1
        if len(self._names) > self._max_depth:
            refuse_depth(f"nests more than {self._max_depth} elements")

    def close(self, name: str) -> None:
        """Close the innermost of that name and what it left open; a stray end means nothing."""
        closed = None
        while closed != name and self._open_count[name]:
            closed = self._names.pop()
            self._open_count[closed] -= 1


class UnclosedFormatting:
    """The formatting elements that a parser reopens in each block until they are closed."""

    def __init__(self) -> None:
        self.count = 0
        self._open: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        self._alike: Counter[tuple[str, str]] = Counter()
        self._kept: defaultdict[tuple[str, str], deque[int]] = defaultdict(_last_alike)
        self._repeated = 0
        self._rebuilt = 0

    def open(self, name: str, attributes: str, *, now: int) -> None:
        """Record one that was opened `now`; the parser repeats at most three equal ones."""
        alike = name, attributes
        self._open[name].append((now, attributes))
        self._kept[alike].append(now)
        self._repeated += self._alike[alike] < _SAME_FORMATTING
        self._alike[alike] += 1
        self.count += 1

    def close(self, name: str, *, since: int, block_since: int) -> None:
        """Close the last of that name, if it was opened after `since`.

        One that the parser does not repeat has to be opened after `block_since`.
        """
        if not self._open[name]:
            return
        opened_at, attributes = self._open[name][-1]
        repeated_at = self._kept[name, attributes]
        is_kept = bool(repeated_at) and repeated_at[-1] == opened_at
        if opened_at <= (since if is_kept else block_since):
            return
        self._open[name].pop()
        if is_kept:
            repeated_at.pop()
        self._alike[name, attributes] -= 1
        self._repeated -= self._alike[name, attributes] < _SAME_FORMATTING
        self.count -= 1

    def close_all(self, *, since: int) -> None:
        """Close what was opened after `since`."""
        for name, opened in self._open.items():
            while opened and opened[-1][0] > since:
                self.close(name, since=since, block_since=since)

    def rebuild(self) -> None:
        """Record that text follows a new block or the end of one.

        Raises:
            Permanent: `too_deep`.
        """
        self._rebuilt += self._repeated
        if self._rebuilt > MAX_REBUILT:
            refuse_depth(f"repeats unclosed formatting more than {MAX_REBUILT} times")


def _last_alike() -> deque[int]:
    return deque(maxlen=_SAME_FORMATTING)


class OpenTags:
    """The elements that a browser's parser has open after the tags so far, or more, never fewer.

    An end tag closes something here only if it surely does so there. Where that is in doubt, what
    the parser may have closed stays open until something around it is closed.
    """

    def __init__(self) -> None:
        self._names: list[str] = []  # "" is one that was closed while others within stay open
        self._times: list[int] = []
        self._places: defaultdict[str, list[int]] = defaultdict(list)
        self._levels: list[int] = []
        self._solid: list[int] = []  # all but the inline ones
        self._boundaries: list[int] = []
        self._foreign: list[tuple[int, bool | None]] = []  # False: HTML again; None: perhaps
        self._doubtful = range(0)
        self._closed_count = 0
        self._ancestors = 0
        self._now: int = 0
        self._marked_at = -1
        self._formatting = UnclosedFormatting()
        self._at_new_block = False
        self._options = self._option_pairs = 0  # of the list; with each before it, of all lists

    def _close_formatting(self, name: str) -> None:
        since = max(self._times[self._boundaries[-1]] if self._boundaries else -1, self._marked_at)
        block_since = self._times[self._solid[-1]] if self._solid else -1
        self._formatting.close(name, since=since, block_since=max(since, block_since))

    def _close_scoped(self, name: str) -> None:
        """Close the innermost of that name with all within, if no wall is between."""
        places = self._places[name]
        if not places:
            return
        stop = self._boundaries[-1] if self._boundaries else -1
        for other in _STOPS.get(name, ()):
            stop = max(stop, self._places[other][-1] if self._places[other] else -1)
        if places[-1] > stop:
            self._close_at(name, places[-1])
        elif stop in self._doubtful:
            self._doubt(places[-1])

    def _close_at(self, name: str, place: int) -> None:
        if place not in self._doubtful:
            self._pop_to(place)
            return
        sure = bisect_left(self._places[name], self._doubtful.start) - 1
        self._doubt(self._places[name][sure] if sure >= 0 else place)

    def _close_other(self, place: int) -> None:
        """Close that one alone: formatting within is repeated after it, and a form is taken out."""
        within = [other for other in self._solid[-_MANY_PLAIN:] if other > place]
        if place in self._doubtful or any(self._names[other] not in _PLAIN for other in within):
            self._doubt(place)
            return
        for other in reversed(within):
            self._forget(other)
        if not self._solid or place >= self._solid[-1]:
            self._forget(place)

    def _push(self, name: str) -> None:
        place = len(self._names)
        self._names.append(name)
        self._times.append(self._now)
        self._places[name].append(place)
        if name not in INLINE:
            self._solid.append(place)
        if name in SCOPE_BOUNDARIES:
            self._boundaries.append(place)
        if name in FOREIGN or (self._foreign and name in ISLANDS):
            self._foreign.append((place, True if name in FOREIGN else None))
        if name in _LOOSE:
            self._check_loose()
            return
        self._levels.append(place)
        if len(self._levels) > MAX_DEPTH:
            refuse_depth(f"nests more than {MAX_DEPTH} elements")

    def _check_loose(self) -> None:
        if len(self._names) - self._closed_count + self._formatting.count > MAX_LOOSE:
            refuse_depth(f"leaves more than {MAX_LOOSE} elements open")

    def _doubt(self, place: int) -> None:
        """Record that the parser may have closed what is open from that place on."""
        start = min(place, self._doubtful.start) if self._doubtful else place
        self._doubtful = range(start, len(self._names))

    def _doubt_all(self, replaced: tuple[str, ...]) -> None:
        for name in replaced:
            if self._places[name]:
                self._doubt(self._places[name][-1])

    def _forget(self, place: int) -> None:
        """Close one and nothing within: the last of its name, inline or the innermost other."""
        name = self._names[place]
        self._names[place] = ""
        self._closed_count += 1
        self._drop(name, place)
        while self._names and not self._names[-1]:
            self._pop_to(len(self._names) - 1)

    def _pop_to(self, place: int) -> None:
        while len(self._names) > place:
            name = self._names.pop()
            self._times.pop()
            if name:
                self._drop(name, len(self._names))
                if name in _MARKERS and len(self._names) > place:
                    self._marked_at = self._now
            else:
                self._closed_count -= 1
        if self._doubtful.stop > place:
            self._doubtful = range(self._doubtful.start, place)

    def _drop(self, name: str, place: int) -> None:
        self._places[name].pop()
        for places in (self._solid, self._levels, self._boundaries):
            if places and places[-1] == place:
                places.pop()
        if self._foreign and self._foreign[-1][0] == place:
            self._foreign.pop()

    def text(self) -> None:
        """Take text, or what stands in a line like text."""
        if self._at_new_block:
            self._formatting.rebuild()
            self._at_new_block = False


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
    r"<(?:b(?:ig)?|code|em|font|i|s(?:mall|trike|trong)?|tt|u)[ \t\n\r\f/]", re.IGNORECASE | re.ASCII
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
    """Return the tree that browsers build of the text; `utf8` is the same, if available.

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
        message = f"the page has {count} {what}, more than {most}; it is not read"
        raise Permanent(message, code="too_large")


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
    """Return whether formatting may be reopened in blocks often enough to matter."""
    formatting_count = len(_FORMATTING.findall(text)) + _BARE_FORMATTING
    if formatting_count * tag_count <= MAX_REBUILT:
        return False
    return formatting_count * (tag_count - text.count("</")) > MAX_REBUILT


def _long_tags(text: str) -> Iterator[tuple[int, int]]:
    """Yield each `<` that no other follows for long, and where one does.

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
    if name in ONCE:
        once_count += _token_count(attributes)
        _refuse_many_attributes(once_count)
    elif len(attributes) > 2 * MAX_ATTRIBUTES:
        _refuse_many_attributes(_token_count(attributes))
    return once_count


def _token_count(attributes: str) -> int:
    """Count the tokens of attributes; one has at most its name, a lone `=` and its value."""
    bare, quoted = _QUOTED.subn(" ", attributes)
    return quoted + len(bare.replace("/", " ").split())


def _refuse_many_attributes(token_count: int) -> None:
    if token_count > 3 * MAX_ATTRIBUTES:
        raise Permanent(
            f"an element of the page has more than {MAX_ATTRIBUTES} attributes; it is not read",
            code="too_many_attributes",
        )


def _after_comment(text: str, position: int) -> int:
    match = _COMMENT_END.search(text, position)
    return match.end() if match else len(text)


def _after_raw(text: str, name: str, position: int) -> int:
    match = re.compile(rf"</{name}(?=[ \t\n\r\f/>])", re.IGNORECASE).search(text, position)
    return match.end() if match else len(text)


class HtmlTags(OpenTags):
    """The tags of an HTML page, in their order."""

    @property
    def has_foreign(self) -> bool:
        """Return whether SVG or MathML may be open."""
        return bool(self._foreign)

    def open(self, name: str, attributes: str) -> None:
        """Take a start tag.

        Raises:
            Permanent: `too_deep`.
        """
        self._now += 1
        depth = len(self._names) - self._closed_count + self._formatting.count
        self._ancestors += depth // 4 if name in VOID else depth  # only selectors go up
        if self._ancestors > MAX_ANCESTORS:
            refuse_depth("nests too many elements too deeply")
        self._count_option(name)
        name = "h1" if name in HEADINGS else name
        if name in INLINE or name in VOID:
            self.text()
        else:
            self._at_new_block = True
        if name in FOREIGN and attributes.endswith("/"):
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
            if self._option_pairs > MAX_OPTION_PAIRS:
                refuse_depth("has too many options in its lists")

    def close(self, name: str) -> None:
        """Take an end tag."""
        name = "h1" if name in HEADINGS else name
        if self._foreign and name in ("p", "br") and self._foreign[-1][1]:
            self._leave_foreign()
        if name in FORMATTING and not self._is_in_foreign(name):
            self._close_formatting(name)
            return
        self._at_new_block = True
        if name in TABLE_PARTS:
            self._close_part(name)
        elif not self._places[name]:
            return
        elif name in BLOCKS or name in SCOPED:
            self._close_scoped(name)
        elif name in SCOPE_BOUNDARIES or name in FOREIGN:
            self._close_boundary(name, self._places[name][-1])
        else:
            self._close_other(self._places[name][-1])

    def _open_html(self, name: str, attributes: str) -> None:
        if name in FORMATTING:
            if name in ("a", "nobr"):
                self._close_formatting(name)
            self._formatting.open(name, attributes, now=self._now)
            self._check_loose()
            return
        if name in TABLE_PARTS and not (self._places["table"] or self._places["template"]):
            return
        if name in ("input", "select"):
            self._doubt_all(("select",))
        if name not in INLINE:
            self._end_implied(name)
        if name not in VOID and name not in ONCE:
            self._push(name)

    def _may_be_foreign(self, name: str) -> bool:
        """Return whether a start tag of that name may be one of SVG or MathML."""
        place, is_foreign = self._foreign[-1]
        if name in END_FOREIGN:
            if is_foreign:
                self._leave_foreign()
            return False
        if is_foreign and name == "font":  # its attributes decide
            self._foreign[-1] = (place, None)
        return is_foreign is not False

    def _is_in_foreign(self, name: str) -> bool:
        """Return whether that formatting is a link inside SVG; else its end may end the SVG."""
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

    def _close_boundary(self, name: str, place: int) -> None:
        if name == "table":
            templates = self._places["template"]
            is_sure = not templates or templates[-1] < place
        elif name in FOREIGN:
            is_sure = bool(self._foreign) and self._foreign[-1] == (place, True)
        elif name in ISLANDS:
            is_sure = place == len(self._names) - 1
        else:
            is_sure = place == self._boundaries[-1]
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
        """Return the table that the next row or cell belongs to; -1 if there may be none."""
        place = self._levels[-1] if self._levels else -1
        is_sure = place >= 0 and self._names[place] == "table" and place not in self._doubtful
        return place if is_sure else -1

    def _is_in_cell(self, table: int) -> bool:
        return any(self._places[cell] and self._places[cell][-1] > table for cell in CELLS)

    def _end_cell(self, place: int) -> None:
        """Close the cell at that place, or after it, and with it the formatting within."""
        boundary = self._boundaries[-1]
        if boundary >= place and self._names[boundary] in CELLS:
            self._formatting.close_all(since=self._times[boundary])
        self._pop_to(place)

    def _end_implied(self, name: str) -> None:
        """Close what a start tag of that name closes."""
        table = self._sure_table() if name in TABLE_PARTS or name == "table" else -1
        if table >= 0 and name != "table":
            self._end_cell(table + 1)
        elif table >= 0 and not self._is_in_cell(table):
            self._doubt(table)  # it ends here, unless a cell is open
        if name in REPLACES:
            self._end_item(REPLACES[name])
        if name in END_PARAGRAPH:
            self._close_scoped("p")
        elif name in MAY_END_PARAGRAPH and self._places["p"]:
            self._doubt(self._places["p"][-1])
        if name == "button":
            self._close_scoped("button")
        elif name in REPLACES_LAST:
            self._replace_last(REPLACES_LAST[name])

    def _end_item(self, replaced: tuple[str, ...]) -> None:
        for place in reversed(self._solid[-MAX_SCANNED:]):
            name = self._names[place]
            if name in replaced:
                self._close_at(name, place)
                return
            if place in self._doubtful or name not in SPECIAL:
                break
            if name not in SCANNED_TAGS:
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
