"""A long page with several records as parts that a model reads one by one, none cut in two.

Records begin at repeated headings or at course codes. A set of beginnings is taken if there are as
many as the page announces; what stands before the first is no record and is left out. A part has
as many records as fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.entities.counting import is_count
from ingestion_pipeline.catalogs.entities.course_code import read_heading
from ingestion_pipeline.catalogs.entities.entity_type import EntityType
from ingestion_pipeline.reading.models.prices import estimated_usage

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

LONG_TOKENS = 1_000  # a longer page with several records is split
PART_TOKENS = 1_000  # of a part, unless one record has more
ONE_QUESTION_TOKENS = 12_000  # a longer page is split though nothing says where
_TAGS = ("h2", "h3", "h4", "h5", "dt", "h1", "summary", "th")
_COURSE = "course"


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePart:
    """A span of the text, and how many records begin in it; None where nobody knows."""

    start: int
    end: int
    expected: int | None = None


def tokens_of(text: str) -> int:
    """About how many tokens it has; rather too many."""
    return estimated_usage(input_bytes=len(text.encode()), output_tokens=0).input_tokens


def parts_of(
    kind: EntityType, text: str, tree: LexborHTMLParser, *, announced: int | None
) -> list[PagePart]:
    """The parts of a page that is long and has several records; else the page as one part.

    An empty list: it is to be split, and nothing shows where (see `next_part`).
    """
    tokens = tokens_of(text)
    if tokens <= LONG_TOKENS:
        return [PagePart(start=0, end=len(text), expected=announced)]
    starts = record_starts(kind, text, tree, announced=announced)
    if starts:
        return list(_grouped(text, starts))
    is_one = announced is None or announced <= 1
    if is_one and tokens <= ONE_QUESTION_TOKENS:
        return [PagePart(start=0, end=len(text), expected=announced)]
    return []


def record_starts(
    kind: EntityType, text: str, tree: LexborHTMLParser, *, announced: int | None
) -> list[int]:
    """Where the records begin; none if nothing shows it for certain."""
    codes = _code_lines(text) if kind.name == _COURSE else []
    if announced is None:
        return codes if len(codes) > 1 else []
    if announced <= 1:
        return []
    candidates = [codes, *(_heading_lines(text, tree, tag) for tag in _TAGS)]
    fitting = [one for one in candidates if is_count(len(one), announced)]
    return fitting[0] if fitting else []


def next_part(text: str, start: int, *, tokens: int = PART_TOKENS) -> PagePart:
    """The part that begins there and ends with a line, as long as it may be, by size alone."""
    end, size = start, 0
    for line in text[start:].splitlines(keepends=True):
        size += tokens_of(line)
        if size > tokens and end > start:
            break
        end += len(line)
    return PagePart(start=start, end=end)


def _grouped(text: str, starts: Sequence[int]) -> Iterator[PagePart]:
    """As many records to a part as it holds."""
    ends = [*starts[1:], len(text)]
    first, count, size = starts[0], 0, 0
    for start, end in zip(starts, ends, strict=True):
        tokens = tokens_of(text[start:end])
        if count and size + tokens > PART_TOKENS:
            yield PagePart(start=first, end=start, expected=count)
            first, count, size = start, 0, 0
        count, size = count + 1, size + tokens
    yield PagePart(start=first, end=len(text), expected=count)


def _code_lines(text: str) -> list[int]:
    """Lines that begin like a course: a code, a title, and credits or at least no sentence."""
    found: list[int] = []
    for start, line in _lines(text):
        heading = read_heading(line)
        if heading is None or not heading.title:
            continue
        if heading.credits is not None or not heading.title.rstrip().endswith((".", ",", ";")):
            found.append(start)
    return found


def _heading_lines(text: str, tree: LexborHTMLParser, tag: str) -> list[int]:
    """Where the elements of a tag stand in the text, in page order."""
    wanted = [" ".join(node.text(separator=" ").split()) for node in tree.css(tag)]
    wanted = [_bare(one) for one in wanted if one]
    found: list[int] = []
    lines = iter([(start, _bare(line)) for start, line in _lines(text)])
    for heading in wanted:
        start = next((place for place, line in lines if line == heading), None)
        if start is None:
            return []
        found.append(start)
    return found


def _bare(line: str) -> str:
    return "".join(line.split())


def _lines(text: str) -> Iterator[tuple[int, str]]:
    start = 0
    for line in text.split("\n"):
        yield start, line
        start += len(line) + 1
