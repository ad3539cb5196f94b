"""Courses by labels: Course code, Credits, Description, each with its value beside or below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingestion_pipeline.catalogs.entities.catalogue_signs import is_catalogue
from ingestion_pipeline.catalogs.entities.course_code import is_title, read_code
from ingestion_pipeline.catalogs.entities.course_found import Slots, course_found
from ingestion_pipeline.catalogs.entities.course_parts import (
    is_prose,
    label_of,
    labelled_text,
    part_text,
)
from ingestion_pipeline.catalogs.entities.course_region import own_lines
from ingestion_pipeline.catalogs.entities.page_lines import Line
from ingestion_pipeline.catalogs.entities.record import RecordField
from ingestion_pipeline.catalogs.entities.words import CoursePart, names_section

MAX_LABELLED_CHARACTERS = 200  # a label with a code, a title or credits; a description may go on
MAX_BODY_LINES = 150  # of one course; what follows is another part of the page
CONFIDENCE = 0.8

_OPENING = frozenset(
    {CoursePart.CODE, CoursePart.TITLE, CoursePart.CREDITS, CoursePart.DESCRIPTION}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A line that says what it, or the next one, is about."""

    place: int
    part: CoursePart
    name: str
    value: str


def courses_by_labels(
    lines: Sequence[Line], labels: Sequence[Label], *, any_sign: bool = False
) -> list[RecordField]:
    """The courses whose codes stand under a label for codes; none where that is no catalogue.

    With `any_sign` what stands there counts for a code whatever it looks like: 61411.
    """
    codes = {one.place: code for one in labels if (code := _code(one, any_sign=any_sign))}
    if not codes:
        return []
    blocks = _blocks(lines, _starts(labels, len(codes)))
    found = [one for block in blocks if (one := _course(lines, block, labels, codes))]
    return found if is_catalogue(found) else []


def labels_of(lines: Sequence[Line]) -> Iterator[Label]:
    """The labels for what makes a course, in page order."""
    for place, line in enumerate(lines):
        text = labelled_text(line)
        part, rest = label_of(text[:MAX_LABELLED_CHARACTERS])
        if part in _OPENING:
            below = lines[place + 1].text if place + 1 < len(lines) else ""
            name = text[: len(text) - len(rest)] if rest else text
            yield Label(place=place, part=part, name=name.casefold(), value=rest or below)


def _code(label: Label, *, any_sign: bool) -> str | None:
    if label.part is not CoursePart.CODE:
        return None
    return read_code(label.value, is_sure=any_sign)


def _starts(labels: Sequence[Label], count: int) -> list[int]:
    """Where the courses begin: at the first label that recurs as often as their codes."""
    counts = Counter(one.name for one in labels)
    first = next((one.name for one in labels if counts[one.name] == count), None)
    return [one.place for one in labels if one.name == first]


def _blocks(lines: Sequence[Line], starts: Sequence[int]) -> Iterator[tuple[int | None, range]]:
    """The place of each course's title, if one stands above its labels, and those of its lines."""
    titles = [
        _title_above(lines, start, starts[number - 1] if number else -1)
        for number, start in enumerate(starts)
    ]
    for number, start in enumerate(starts):
        ends = [*titles[number + 1 : number + 2], *starts[number + 1 : number + 2], len(lines)]
        end = next(one for one in ends if one is not None)
        yield titles[number], range(start, min(end, start + MAX_BODY_LINES))


def _title_above(lines: Sequence[Line], start: int, after: int) -> int | None:
    """The nearest heading above that may name a course; for want of one, a line in bold."""
    above = range(start - 1, after, -1)
    headings = (place for place in above if lines[place].is_heading)
    bold = (place for place in above[:3] if lines[place].lead == lines[place].text)
    places = (place for kind in (headings, bold) for place in kind)
    return next((place for place in places if _may_name(lines[place])), None)


def _may_name(line: Line) -> bool:
    is_section = names_section(line.text) or label_of(line.text)[0] is not None
    return not is_section and not line.is_term and is_title(line.text)


def _course(
    lines: Sequence[Line],
    block: tuple[int | None, range],
    labels: Sequence[Label],
    codes: dict[int, str],
) -> RecordField | None:
    title, places = block
    code = next((codes[place] for place in places if place in codes), None)
    if code is None:
        return None
    has_title = any(one.part is CoursePart.TITLE and one.place in places for one in labels)
    heading = lines[title].text if title is not None and not has_title else None
    above = lines[title + 1 : places.start] if title is not None else ()
    prose = [line.text for line in above if is_prose(line.text)]
    body = [part_text(line) for line in own_lines([lines[places.start : places.stop]])]
    found = course_found(Slots(code=code, heading=heading), prose + body, confidence=CONFIDENCE)
    return found if found is not None and found.fields.get("course_name") else None
