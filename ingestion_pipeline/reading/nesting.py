"""How deep a document is, judged by its tags alone, before any parser gets it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from typing import NoReturn

from ingestion_pipeline.work.errors import Permanent


def named(words: str) -> frozenset[str]:
    """The names of elements, written one after another."""
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
MAX_LOOKED_THROUGH = 20
LOOKED_THROUGH = ("address", "div", "p")  # by an item, for the one before
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
WALLS = ISLANDS | named("applet caption marquee object select table td template th")
SCOPED = named("button dd dt li p")
SPECIAL = BLOCKS | TABLE_PARTS | WALLS | SCOPED | {"form"}  # an item does not look beyond these
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
    """The formatting that a parser opens anew in each block until its end tag comes."""

    def __init__(self) -> None:
        self.count = 0
        self._open: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        self._alike: Counter[tuple[str, str]] = Counter()
        self._kept: defaultdict[tuple[str, str], deque[int]] = defaultdict(_last_alike)
        self._repeated = 0
        self._rebuilt = 0

    def open(self, name: str, attributes: str, *, now: int) -> None:
        """Note one that was opened `now`; the parser repeats no more than three that are alike."""
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
        kept = self._kept[name, attributes]
        is_kept = bool(kept) and kept[-1] == opened_at
        if opened_at <= (since if is_kept else block_since):
            return
        self._open[name].pop()
        if is_kept:
            kept.pop()
        self._alike[name, attributes] -= 1
        self._repeated -= self._alike[name, attributes] < _SAME_FORMATTING
        self.count -= 1

    def close_all(self, *, since: int) -> None:
        """Close what was opened after `since`."""
        for name, opened in self._open.items():
            while opened and opened[-1][0] > since:
                self.close(name, since=since, block_since=since)

    def rebuild(self) -> None:
        """Note that text follows a new block or the end of one.

        Raises:
            Permanent: `too_deep`.
        """
        self._rebuilt += self._repeated
        if self._rebuilt > MAX_REBUILT:
            refuse_depth(f"repeats unclosed formatting more than {MAX_REBUILT} times")


def _last_alike() -> deque[int]:
    return deque(maxlen=_SAME_FORMATTING)


class OpenTags:
    """What a browser's parser has open after the tags so far, or more than that, never less.

    An end tag closes something here only if it surely does so there. Where that is in doubt, what
    the parser may have closed stays open until something around it is closed.
    """

    def __init__(self) -> None:
        self._names: list[str] = []  # "" is one that was closed while others within stay open
        self._times: list[int] = []
        self._places: defaultdict[str, list[int]] = defaultdict(list)
        self._levels: list[int] = []
        self._solid: list[int] = []  # all but the inline ones
        self._walls: list[int] = []
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
        since = max(self._times[self._walls[-1]] if self._walls else -1, self._marked_at)
        block_since = self._times[self._solid[-1]] if self._solid else -1
        self._formatting.close(name, since=since, block_since=max(since, block_since))

    def _close_scoped(self, name: str) -> None:
        """Close the innermost of that name with all within, if no wall is between."""
        places = self._places[name]
        if not places:
            return
        stop = self._walls[-1] if self._walls else -1
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
        if name in WALLS:
            self._walls.append(place)
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
        """Note that the parser may have closed what is open from that place on."""
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
        for places in (self._solid, self._levels, self._walls):
            if places and places[-1] == place:
                places.pop()
        if self._foreign and self._foreign[-1][0] == place:
            self._foreign.pop()

    def text(self) -> None:
        """Take text, or what stands in a line like text."""
        if self._at_new_block:
            self._formatting.rebuild()
            self._at_new_block = False
