"""Courses by layout alone: a line that begins with a course code, and the lines under it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.entities.course_code import (
    Heading,
    read_heading,
    split_heading,
    turned_heading,
)
from ingestion_pipeline.catalogs.entities.course_found import Slots, course_found
from ingestion_pipeline.catalogs.entities.course_parts import label_of, labelled_text
from ingestion_pipeline.catalogs.entities.page_lines import Line, lines_of
from ingestion_pipeline.catalogs.entities.record import Found
from ingestion_pipeline.catalogs.entities.words import Part

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

MAX_COURSES = 5_000
MAX_LINES = 200_000
MAX_BODY_LINES = 80  # of one course; what follows is another part of the page
CONFIDENCE = 0.75
LEAST_DESCRIPTION_WORDS = 6
# So many of them must be described, and state credits or prerequisites, or it is no catalogue.
LEAST_STATED_SHARE = 0.5
LEAST_DESCRIBED_SHARE = 0.5

_ASIDE = (
    "nav, header, footer, aside, [role=navigation], [role=banner], [role=contentinfo], .breadcrumb"
)


@dataclass(slots=True)
class _Course:
    heading: str
    body: list[str]


def courses_by_layout(tree: LexborHTMLParser) -> list[Found]:
    """The courses that repeated lines show; none where the page does not look like a catalogue.

    The tree is a cleaned one, and loses its navigation.
    """
    for node in tree.css(_ASIDE):
        node.decompose()
    if tree.body is None:
        return []
    found = [
        one for course in _split(list(lines_of(tree.body))[:MAX_LINES]) if (one := _read(course))
    ]
    return found if _is_catalogue(found) else []


def _split(lines: list[Line]) -> list[_Course]:
    courses: list[_Course] = []
    is_open = is_list = False
    for line in lines:
        course = _begun(line)
        is_marked = line.is_heading or bool(line.lead)
        if course is not None and (is_marked or not is_list):
            if len(courses) == MAX_COURSES:
                break
            courses.append(course)
            is_open, is_list = True, False
            continue
        if is_marked or label_of(line.text)[0] is not None:
            is_list = _opens_list(line)
        is_open = is_open and not _ends(line, courses[-1])
        if is_open:
            courses[-1].body.append(labelled_text(line))
    return courses


def _ends(line: Line, course: _Course) -> bool:
    """Whether another part of the page begins with the line."""
    is_title = line.is_heading and label_of(line.text)[0] is None and bool(course.body)
    return is_title or len(course.body) >= MAX_BODY_LINES


def _opens_list(line: Line) -> bool:
    """Whether courses below the line are those that another one asks for."""
    part, rest = label_of(line.text)
    return part in {Part.PREREQUISITES, Part.OTHER} and not rest


def _begun(line: Line) -> _Course | None:
    """The course that the line begins, with what else the line says; None if it begins none."""
    if line.lead and line.lead != line.text and _names(read_heading(line.lead)):
        return _Course(line.lead, [line.rest.lstrip(" .:\u2013\u2014-")])
    if line.is_heading and (turned := turned_heading(line.text)):
        return _Course(turned, [])
    heading = read_heading(line.text)
    has_credits = heading is not None and heading.credits is not None
    if not has_credits and (parts := split_heading(line.text)):
        return _Course(parts[0], [parts[1]])
    if heading is None:
        return None
    has_place = line.is_heading or bool(line.lead) or has_credits
    is_one = has_place or _is_short(heading) or not heading.title
    return _Course(line.text, []) if is_one else None


def _names(heading: Heading | None) -> bool:
    return heading is not None and bool(heading.title)


def _is_short(heading: Heading) -> bool:
    return bool(heading.title) and not heading.title.rstrip().endswith((".", ",", ";"))


def _read(course: _Course) -> Found | None:
    found = course_found(Slots(heading=course.heading), course.body, confidence=CONFIDENCE)
    return found if found is not None and found.fields.get("course_name") else None


def _is_catalogue(found: list[Found]) -> bool:
    described = [one for one in found if _is_described(one)]
    if not described or len(described) < LEAST_DESCRIBED_SHARE * len(found):
        return False
    stated = sum(_states_something(one) for one in described)
    return stated >= LEAST_STATED_SHARE * len(described)


def _is_described(found: Found) -> bool:
    description = found.fields.get("course_description")
    return isinstance(description, str) and len(description.split()) >= LEAST_DESCRIPTION_WORDS


def _states_something(found: Found) -> bool:
    names = ("course_credits_min", "course_credits_max", "course_ceu_credits", "course_non_credit")
    return any(found.fields.get(name) is not None for name in (*names, "course_prerequisites"))
