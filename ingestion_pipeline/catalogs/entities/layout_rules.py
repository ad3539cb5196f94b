"""Courses by layout alone: a line that begins with a course code, and the lines under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingestion_pipeline.catalogs.entities.catalogue_signs import is_catalogue
from ingestion_pipeline.catalogs.entities.course_code import (
    Heading,
    read_heading,
    split_heading,
    turned_heading,
)
from ingestion_pipeline.catalogs.entities.course_found import Slots, course_found
from ingestion_pipeline.catalogs.entities.course_parts import label_of, labelled_text
from ingestion_pipeline.catalogs.entities.page_lines import Line
from ingestion_pipeline.catalogs.entities.record import Found
from ingestion_pipeline.catalogs.entities.words import Part

MAX_COURSES = 5_000
MAX_BODY_LINES = 80  # of one course; what follows is another part of the page
CONFIDENCE = 0.75


@dataclass(slots=True)
class _Course:
    heading: str
    body: list[str]


def courses_by_layout(lines: Sequence[Line]) -> list[Found]:
    """The courses that repeated lines show; none where the page does not look like a catalogue."""
    found = [one for course in _split(lines) if (one := _read(course))]
    return found if is_catalogue(found) else []


def _split(lines: Sequence[Line]) -> list[_Course]:
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
