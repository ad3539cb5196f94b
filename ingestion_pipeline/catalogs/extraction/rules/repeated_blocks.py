"""Find the repeated blocks of a page's lines: a record each, whatever the layout.

Lines at the same place of the page's structure begin records: titles of cards, cells of a column, headings. The block
of a record is the largest element around its first line that holds no other's; where the layout is flat, the lines from
one beginning to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.extraction.rules.page_lines import Line

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

MIN_BLOCKS = 3  # two alike are no list
MAX_FORMS = 20  # the most frequent places of lines that may begin a record; a page has 3 to 15
MAX_LEVELS = 4  # of elements around a line that may hold a record
MAX_DEPTH = 60

Form = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The lines of a record; `start` is the position of the one that all records have at the same place."""

    lines: Sequence[Line]
    forms: Sequence[Form]
    start: int

    @property
    def first(self) -> Line:
        """The line that all records have at the same place."""
        return self.lines[self.start]


class PageForms:
    """The place of each line in the page's structure: the tags around it, its class, and the column in a table."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines
        self.paths = [_path(line.node) for line in lines]
        self._names: dict[int, object] = {}
        self._classes = Counter(path[0].attrs.get("class") for path in self.paths if path)
        self.forms = [self._form(line, path) for line, path in zip(lines, self.paths, strict=True)]

    def _form(self, line: Line, path: Sequence[LexborNode]) -> Form:
        own = path[0].attrs.get("class") if path else None
        own = own if self._classes[own] >= MIN_BLOCKS else None  # style sheets made by programs name each element
        is_marked = bool(line.lead) and line.lead == line.text
        return (own, line.is_heading, is_marked, *(self._name(node) for node in path))

    def _name(self, node: LexborNode) -> object:
        if (name := self._names.get(node.mem_id)) is None:
            name = self._names[node.mem_id] = (node.tag, _column(node)) if node.tag in {"td", "th"} else node.tag
        return name

    def hypotheses(self, may_start: Callable[[Line], bool], *, least: int = MIN_BLOCKS) -> Iterator[list[Block]]:
        """Yield the blocks that begin at each form of such lines, the most frequent forms first."""
        places: dict[Form, list[int]] = {}
        for place, form in enumerate(self.forms):
            if may_start(self.lines[place]):
                places.setdefault(form, []).append(place)
        frequent = sorted((starts for starts in places.values() if len(starts) >= least), key=len, reverse=True)
        for starts in frequent[:MAX_FORMS]:
            tried: set[int] = set()
            for chosen in (starts, *(self._one_each(starts, level) for level in range(1, MAX_LEVELS))):
                if len(chosen) >= least and len(chosen) not in tried:
                    tried.add(len(chosen))
                    yield self.blocks(chosen)

    def _one_each(self, starts: Sequence[int], level: int) -> list[int]:
        """Return the first of the lines in each element of that level: of cards whose parts are alike, the titles."""
        firsts: dict[int, int] = {}
        for place in starts:
            path = self.paths[place]
            firsts.setdefault(path[level].mem_id if level < len(path) else 0, place)
        return list(firsts.values())

    def blocks(self, starts: Sequence[int]) -> list[Block]:
        """Return the block of each of these first lines."""
        held: Counter[int] = Counter(node.mem_id for place in starts for node in self.paths[place])
        tops = [self._top(place, held) for place in starts]
        return [self._block(place, *self._range(number, starts, tops)) for number, place in enumerate(starts)]

    def _top(self, place: int, held: Counter[int]) -> int:
        """Return the largest element around the line that holds no other first line; 0 without one."""
        top = 0
        for node in self.paths[place]:
            if held[node.mem_id] > 1:
                break
            top = node.mem_id
        return top

    def _range(self, number: int, starts: Sequence[int], tops: Sequence[int]) -> tuple[int, int]:
        """Return the lines of a block: those in its element, and in a flat layout those up to the next one's."""
        start, top = starts[number], tops[number]
        begin = start
        while begin > 0 and self._is_in(begin - 1, top):
            begin -= 1
        end = start + 1
        while end < len(self.lines) and self._is_in(end, top):
            end += 1
        around = self._parent_of(start, top)
        limit = starts[number + 1] if number + 1 < len(starts) else len(self.lines)
        while end < limit and not (number + 1 < len(starts) and self._is_in(end, tops[number + 1])):
            if around is not None and not self._is_in(end, around):
                break
            end += 1
        return begin, end

    def _parent_of(self, place: int, top: int) -> int | None:
        path = self.paths[place]
        at = next((number for number, node in enumerate(path) if node.mem_id == top), None)
        return path[at + 1].mem_id if at is not None and at + 1 < len(path) else None

    def _is_in(self, place: int, node_id: int) -> bool:
        return any(node.mem_id == node_id for node in self.paths[place])

    def _block(self, place: int, begin: int, end: int) -> Block:
        return Block(lines=self.lines[begin:end], forms=self.forms[begin:end], start=place - begin)


def _path(node: LexborNode | None) -> list[LexborNode]:
    """Return the element and those around it, the innermost first."""
    path: list[LexborNode] = []
    while node is not None and len(path) < MAX_DEPTH and node.tag != "body":
        path.append(node)
        node = node.parent
    return path


def _column(node: LexborNode) -> int:
    column = 0
    while (before := node.prev) is not None:
        node, column = before, column + before.is_element_node
    return column
