"""A page as lines: one for each block that holds text, with what marks it as a heading."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestion_pipeline.reading.cleaning import readable

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

_INLINE = frozenset(
    {
        *("a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn"),
        *("em", "font", "i", "ins", "kbd", "label", "mark", "nobr", "q", "s", "samp", "small"),
        *("span", "strike", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr"),
    }
)
_BOLD = frozenset(
    {"b", "strong", "h1", "h2", "h3", "h4", "h5", "h6", "dt", "th", "caption", "summary"}
)
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a page; `lead` is as much of it as is set in bold at its beginning."""

    text: str
    lead: str
    is_heading: bool

    @property
    def rest(self) -> str:
        """What follows the bold beginning."""
        return self.text.removeprefix(self.lead).strip()


@dataclass(slots=True)
class _Gathering:
    pieces: list[str]
    lead: list[str]
    is_lead: bool
    is_heading: bool


def lines_of(root: LexborNode, *, without: Set[int] = frozenset()) -> Iterator[Line]:
    """The lines of a cleaned element, in page order, but not those of the nodes named by id."""
    line = _Gathering([], [], is_lead=True, is_heading=False)
    bold_depth = heading_depth = 0
    waiting: list[tuple[LexborNode, bool]] = [(root, False)]
    while waiting:
        node, is_end = waiting.pop()
        tag = node.tag or ""
        if tag == "-text":
            _gather(
                line, node.text_content or "", is_bold=bold_depth > 0, in_heading=heading_depth > 0
            )
            continue
        is_left_out = node.mem_id in without
        if tag not in _INLINE or is_left_out:
            yield from _finished(line)
        if is_left_out:
            continue
        change = -1 if is_end else 1
        bold_depth += change * (tag in _BOLD)
        heading_depth += change * (tag in _HEADINGS)
        if not is_end:
            waiting.append((node, True))
            children = list(node.iter(include_text=True))
            waiting.extend((child, False) for child in reversed(children))
    yield from _finished(line)


def _gather(line: _Gathering, text: str, *, is_bold: bool, in_heading: bool) -> None:
    line.pieces.append(text)
    if not text.strip():
        line.lead.append(text if line.is_lead else "")
        return
    line.is_lead = line.is_lead and is_bold
    line.is_heading = line.is_heading or in_heading
    if line.is_lead:
        line.lead.append(text)


def _finished(line: _Gathering) -> Iterator[Line]:
    text = readable("".join(line.pieces).replace("\n", " "))
    if text:
        lead = readable("".join(line.lead).replace("\n", " "))
        yield Line(text=text, lead=lead, is_heading=line.is_heading)
    line.pieces, line.lead, line.is_lead, line.is_heading = [], [], True, False
