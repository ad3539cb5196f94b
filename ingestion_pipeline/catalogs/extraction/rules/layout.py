"""Extract courses by layout alone: a line that begins with a course code and the lines below."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ingestion_pipeline.catalogs.extraction.record import MAX_PAGE_RECORDS, CandidateRecord
from ingestion_pipeline.catalogs.extraction.rules.course_building import (
    Slots,
    build_course,
    is_catalogue,
    is_first_described_alone,
    may_name,
    own_lines,
)
from ingestion_pipeline.catalogs.extraction.rules.course_code import (
    read_heading,
    reversed_heading,
    split_heading,
)
from ingestion_pipeline.catalogs.extraction.rules.course_parts import label_of, labelled_text
from ingestion_pipeline.catalogs.extraction.rules.course_words import CoursePart, names_section
from ingestion_pipeline.catalogs.extraction.rules.page_lines import Line

MAX_BODY_LINES = 80  # of one course; what follows is another part of the page
CONFIDENCE = 0.75
_FIGURE = re.compile("[0-9]")


@dataclass(slots=True)
class _Course:
    """A course while its lines are collected, its first line among them.

    Where that is only a code, the title may stand `above` it, or below it as a heading.
    """

    heading: str
    lines: list[Line]
    rest: str = ""  # text after the heading on the first line
    has_title: bool = True
    above: str | None = None
    has_heading_below: bool = False
    title: str | None = None


def courses_by_layout(lines: Sequence[Line]) -> list[CandidateRecord]:
    """Return the courses of repeated lines; none if the page does not look like a catalogue."""
    courses = _split(lines)
    _give_titles(courses)
    if courses:
        courses[-1].lines = own_lines([course.lines for course in courses])
    pairs: list[tuple[_Course, CandidateRecord]] = []
    for course in courses:
        slots = Slots(heading=course.heading, title=course.title)
        body = [course.rest] if course.rest else []
        body += [labelled_text(line) for line in course.lines[1:]]
        record = build_course(slots, body, confidence=CONFIDENCE)
        if record is not None and record.fields.get("course_name"):
            pairs.append((course, record))
    records = [record for _, record in pairs]
    return records if is_catalogue(records) else _catalogues_by_form(pairs)


def _catalogues_by_form(pairs: Sequence[tuple[_Course, CandidateRecord]]) -> list[CandidateRecord]:
    """Return the courses of each form that is a catalogue by itself.

    A page about one course may list others beside it, with another layout, or only their names.
    """
    forms: dict[object, list[CandidateRecord]] = {}
    for course, record in pairs:
        forms.setdefault(_form(course.lines[0]), []).append(record)
    catalogues = [record for group in forms.values() if is_catalogue(group) for record in group]
    records = [record for _, record in pairs]
    return catalogues or (records[:1] if is_first_described_alone(records) else [])


def _form(line: Line) -> tuple[str | None, str | None, bool]:
    """Return the line's form: its element, its class, and whether it is a heading."""
    node = line.node
    return (node.tag, node.attrs.get("class"), line.is_heading) if node else (None, None, False)


def _split(lines: Sequence[Line]) -> list[_Course]:
    courses: list[_Course] = []
    is_open = is_list = False
    last: Line | None = None
    for line in lines:
        course, last, above = _course_start(line), line, last
        is_marked = line.is_heading or bool(line.lead)
        if course is not None and (is_marked or not is_list or _is_set_alike(line, courses)):
            if len(courses) > MAX_PAGE_RECORDS:
                break
            is_title = above is not None and (above.is_heading or above.lead == above.text) and may_name(above)
            course.above = above.text if above is not None and is_title else None
            courses.append(course)
            is_open, is_list = True, False
            continue
        if is_marked or label_of(line.text)[0] is not None:
            is_list = _opens_list(line)
        is_open = is_open and not _ends(line, courses[-1])
        if is_open:
            course = courses[-1]
            is_next = line.is_heading and len(course.lines) == 1
            course.has_heading_below |= is_next and label_of(line.text)[0] is None
            course.lines.append(line)
    return courses


def _is_set_alike(line: Line, courses: Sequence[_Course]) -> bool:
    """Return whether the line has the tag and class of the last course's first line."""
    if not courses or line.node is None or courses[-1].lines[0].node is None:
        return False
    before = courses[-1].lines[0].node
    name = line.node.attrs.get("class")
    return bool(name) and name == before.attrs.get("class") and line.node.tag == before.tag


def _give_titles(courses: Sequence[_Course]) -> None:
    """Give codes without title the titles above them, where every one of them has one.

    A page's own title stands above the first course, too: one course with a heading below its code
    is enough to tell that titles stand there.
    """
    alone = [number for number, course in enumerate(courses) if not course.has_title]
    if any(courses[number].above is None or courses[number].has_heading_below for number in alone):
        return
    for number in alone:
        course, before = courses[number], courses[number - 1].lines if number else []
        if len(before) > 1 and before[-1].text == course.above:  # bold ended no course
            before.pop()
        course.title = course.above


def _ends(line: Line, course: _Course) -> bool:
    """Return whether another part of the page begins with the line."""
    is_title = line.is_heading and label_of(line.text)[0] is None and (bool(course.rest) or len(course.lines) > 1)
    return is_title or len(course.lines) > MAX_BODY_LINES


def _opens_list(line: Line) -> bool:
    """Return whether courses below the line are requirements of another one."""
    part, rest = label_of(line.text)
    is_label = part in {CoursePart.PREREQUISITES, CoursePart.OTHER} and not rest
    return is_label and not names_section(line.text)  # Course offerings


def _course_start(line: Line) -> _Course | None:
    """Return the course that the line begins, with the rest of the line; None if it begins none."""
    if not _FIGURE.search(line.text) or _is_labelled(line):
        return None
    lead = read_heading(line.lead) if line.lead and line.lead != line.text else None
    if lead is not None and lead.title:
        return _Course(line.lead, [line], rest=line.rest.lstrip(" .:\u2013\u2014-"))
    if line.is_heading and (turned := reversed_heading(line.text)):
        return _Course(turned, [line])
    heading = read_heading(line.text)
    has_credits = heading is not None and heading.credits is not None
    if not has_credits and (parts := split_heading(line.text)):
        return _Course(parts[0], [line], rest=parts[1])
    if heading is None:
        return None
    has_place = line.is_heading or bool(line.lead) or has_credits
    is_one = has_place or not heading.title.rstrip().endswith((".", ",", ";"))
    return _Course(line.text, [line], has_title=bool(heading.title)) if is_one else None


def _is_labelled(line: Line) -> bool:
    """Return whether the line is a label with its value, "ECTS: 6", which may look like a code."""
    part, rest = label_of(labelled_text(line))
    return part not in {None, CoursePart.UNNAMED} and bool(rest) and not line.is_heading
