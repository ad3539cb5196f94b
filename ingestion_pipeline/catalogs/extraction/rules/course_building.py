"""Build course records from their first line and body, and check that they form a catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.extraction.record import CandidateRecord
from ingestion_pipeline.catalogs.extraction.rules.course_code import (
    Heading,
    clean_title,
    is_title,
    read_code,
    read_heading,
)
from ingestion_pipeline.catalogs.extraction.rules.course_parts import (
    Parts,
    is_prose,
    label_of,
    length_in_words,
    read_parts,
)
from ingestion_pipeline.catalogs.extraction.rules.course_words import names_section
from ingestion_pipeline.catalogs.extraction.rules.credits import Credits, heading_credits
from ingestion_pipeline.catalogs.extraction.rules.page_lines import Line

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

MIN_DESCRIPTION_WORDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Texts of elements made for a part of a course; None where a layout has no such element."""

    code: str | None = None
    title: str | None = None
    heading: str | None = None
    credits: Credits | None = None
    description: str | None = None
    prerequisites: str | None = None


def build_course(
    slots: Slots, lines: Iterable[str], *, confidence: float, otherwise: Credits | None = None
) -> CandidateRecord | None:
    """Return the course that slots and lines describe; None if they name none.

    `otherwise` are credits that the description mentions, used if there are no others.
    """
    rest = list(lines)
    parts = read_parts(rest)
    heading = _heading(slots, parts)
    if heading is None:
        return None
    title, below = heading.title or parts.title, None
    if not title:
        title, below = _title_below(parts)
    description = slots.description or parts.text() or ""
    is_sentence = description.endswith(".") and " " in description
    is_description = is_sentence or length_in_words(description) >= MIN_DESCRIPTION_WORDS
    stated = slots.credits or heading.credits or parts.credits or below or otherwise
    return CandidateRecord(
        fields={
            "course_id": heading.code,
            "course_name": title or None,
            "course_description": description if is_description else None,
            "course_prerequisites": slots.prerequisites or parts.required_before(),
            **credit_fields(stated),
        },
        quotes=credit_quotes(stated),
        confidence=confidence,
    )


def _title_below(parts: Parts) -> tuple[str | None, Credits | None]:
    """Return the title on the line after the code, and the credits at its end.

    It is removed from the description.
    """
    lines = parts.before or parts.description
    if not lines or lines[0].endswith(".") or not is_title(lines[0]):
        return None, None
    stated, title = heading_credits(lines.pop(0))
    return clean_title(title), stated


def credit_fields(stated: Credits | None) -> dict[str, str | bool | Decimal | None]:
    """Return the credit fields of a course."""
    if stated is None:
        return {}
    return {
        "course_non_credit": True if stated.non_credit else None,
        "course_credits_min": stated.low,
        "course_credits_max": stated.high,
        "course_credits_type": stated.kind,
        "course_ceu_credits": stated.ceu,
    }


def credit_quotes(stated: Credits | None) -> dict[str, str]:
    """Return the words that prove inferred values, which are not on the page themselves."""
    if stated is None:
        return {}
    concluded = {"course_non_credit": stated.quote, "course_credits_type": stated.quote}
    return concluded | ({"course_credits_max": stated.quote} if stated.is_sum else {})


def _heading(slots: Slots, parts: Parts) -> Heading | None:
    read = read_heading(slots.heading) if slots.heading else None
    stated = slots.code or parts.code
    if stated is not None and (code := read_code(stated, is_sure=slots.code is not None)):
        title = clean_title(slots.title or parts.title or "")
        if not title and slots.heading:
            title = read.title if read else clean_title(slots.heading.replace(stated, "", 1))
        return Heading(code=code, title=title, credits=read.credits if read else None)
    if read is not None and slots.title:
        named = read_heading(slots.title)  # an element for titles may repeat the code
        title = named.title if named else clean_title(slots.title)
        return Heading(code=read.code, title=title, credits=read.credits)
    return read


ENOUGH_COURSES = 20  # enough to recognize the layout of the page's courses

_Kind = tuple[str | None, str | None]


def own_lines(courses: Sequence[Sequence[Line]]) -> list[Line]:
    """Return the lines of the last course that have the same layout as those of the others.

    A single course is compared with itself: a line is dropped if it is outside the element around
    the first line and the first prose, and has no label.
    """
    *others, last = courses
    if len(last) <= 1:
        return list(last)
    return _lines_set_alike(others[:ENOUGH_COURSES], last) if others else _in_one_element(last)


def _lines_set_alike(others: Sequence[Sequence[Line]], last: Sequence[Line]) -> list[Line]:
    starts = [_path(course[0]) for course in (*others, last)]
    depth = _shared(starts)
    shared = starts[0][depth - 1].mem_id if depth else None
    known_kinds = {_kind(line, depth, shared) for course in others for line in course}
    own: list[Line] = []
    for line in last:
        kind = _kind(line, depth, shared)
        if own and (kind is None or kind not in known_kinds):
            break
        own.append(line)
    return own


def _in_one_element(last: Sequence[Line]) -> list[Line]:
    prose = next((line for line in last[1:] if is_prose(line.text)), None)
    if prose is None:
        return list(last)
    paths = [_path(last[0]), _path(prose)]
    depth = _shared(paths)
    around = paths[0][depth - 1].mem_id if depth else None
    return [
        line
        for line in last
        if any(node.mem_id == around for node in upwards(line.node)) or label_of(line.text)[0] is not None
    ]


def _kind(line: Line, depth: int, shared: int | None) -> _Kind | None:
    """Return tag and class of the line's ancestor below the shared element; None if outside it."""
    path = _path(line)
    if shared is None or len(path) < depth or path[depth - 1].mem_id != shared:
        return None
    return (path[depth].tag, path[depth].attrs.get("class")) if len(path) > depth else ("", None)


def _shared(paths: Sequence[Sequence[LexborNode]]) -> int:
    """Return how many elements all paths have in common, from the page's root on."""
    levels = zip(*paths, strict=False)
    same = [len({node.mem_id for node in level}) == 1 for level in levels]
    return next((depth for depth, is_same in enumerate(same) if not is_same), len(same))


MIN_CATALOGUE_WORDS = 6  # fewer suffice for a course with credits or prerequisites
# Shares of courses with a description, and with credits or prerequisites, that make a catalogue.
MIN_STATED_SHARE = 0.5
MIN_DESCRIBED_SHARE = 0.5
# Or nearly all of several are described at length: some catalogues state credits elsewhere.
SEVERAL = 4
LENGTH_WORDS = 15
MIN_LONG_SHARE = 0.8


def is_catalogue(courses: Sequence[CandidateRecord]) -> bool:
    """Return whether most courses are described, and most of those have other facts."""
    described = [course for course in courses if _is_described(course)]
    if not described or len(described) < MIN_DESCRIBED_SHARE * len(courses):
        return False
    stated = sum(_states_something(course) for course in described)
    long = sum(_is_described(course, LENGTH_WORDS) for course in courses)
    codes = {course.fields["course_id"] for course in courses}
    is_long = len(codes) == len(courses) >= SEVERAL and long >= MIN_LONG_SHARE * len(courses)
    return stated >= MIN_STATED_SHARE * len(described) or is_long


def is_first_described_alone(courses: Sequence[CandidateRecord]) -> bool:
    """Return whether only the first has a description and facts, and the others only names."""
    is_any_other = any(_is_described(course, 1) or _states_something(course) for course in courses[1:])
    return is_catalogue(courses[:1]) and not is_any_other


def _is_described(course: CandidateRecord, least: int | None = None) -> bool:
    text = course.fields.get("course_description")
    if least is None:
        least = 1 if _states_something(course) else MIN_CATALOGUE_WORDS
    return isinstance(text, str) and length_in_words(text) >= least


def _states_something(course: CandidateRecord) -> bool:
    names = ("course_credits_min", "course_credits_max", "course_ceu_credits", "course_non_credit")
    return any(course.fields.get(name) is not None for name in (*names, "course_prerequisites"))


def _path(line: Line) -> list[LexborNode]:
    return list(upwards(line.node))[::-1]


def upwards(node: LexborNode | None) -> Iterator[LexborNode]:
    """Yield the element and those around it, the innermost first."""
    while node is not None:
        yield node
        node = node.parent


def may_name(line: Line) -> bool:
    """Return whether the line may be the title of a course."""
    is_section = names_section(line.text) or label_of(line.text)[0] is not None
    return not is_section and not line.is_term and is_title(line.text)
