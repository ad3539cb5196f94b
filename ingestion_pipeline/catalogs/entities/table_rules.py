"""Courses by tables: a row for each, its columns named by the first row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.entities.course_code import read_heading
from ingestion_pipeline.catalogs.entities.course_found import Slots, course_found
from ingestion_pipeline.catalogs.entities.course_parts import stated_prerequisites
from ingestion_pipeline.catalogs.entities.credits import slot_credits
from ingestion_pipeline.catalogs.entities.record import MAX_PAGE_RECORDS, RecordField
from ingestion_pipeline.catalogs.entities.words import CoursePart, part_named
from ingestion_pipeline.reading.cleaning import fragment_text

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

CONFIDENCE = 0.85
LEAST_DESCRIBED_SHARE = 0.5  # of its rows; a programme's table has a remark here and there

_COLUMNS = {
    "code": re.compile(
        r"(?:course )?(?:code|number|no\.?|#|id)|course|subject(?: code)?", re.IGNORECASE
    ),
    "title": re.compile(r"(?:course )?(?:title|name)|subject name", re.IGNORECASE),
    "credits": re.compile(
        r"(?:credit|semester|quarter)?\s?"
        r"(?:credits?|hours?|hrs?\.?|units?|cr\.?|ects|points?)(?: ?\(s\))?",
        re.IGNORECASE,
    ),
    "description": re.compile(
        r"(?:course )?(?:descriptions?|summary|content|details)", re.IGNORECASE
    ),
    "prerequisites": re.compile(r"(?:pre-?\s?)?requisites?(?:\(s\))?|prereqs?\.?", re.IGNORECASE),
}

_NAMED = {
    CoursePart.CODE: "code",
    CoursePart.TITLE: "title",
    CoursePart.CREDITS: "credits",
    CoursePart.DESCRIPTION: "description",
    CoursePart.PREREQUISITES: "prerequisites",
}


def courses_by_table(tree: LexborHTMLParser) -> list[RecordField]:
    """The courses of every table that has codes and descriptions; the tree is a cleaned one.

    A table without descriptions lists what a programme asks for, and describes no course.
    """
    return [found for table in tree.css("table") for found in _courses(table)]


def _courses(table: LexborNode) -> Iterator[RecordField]:
    rows = [_cells(row) for row in table.css("tr")[: MAX_PAGE_RECORDS + 2]]
    columns = _columns(rows)
    if columns is None:
        return
    start, places = columns
    if "description" not in places and not _describes_below(rows[start:]):
        return
    position = start
    while position < len(rows):
        cells = rows[position]
        position += 1
        below = None
        if "description" not in places and position < len(rows) and len(rows[position]) == 1:
            below = rows[position][0]
            position += 1
        if found := _course(cells, places, below):
            yield found


def _columns(rows: list[list[str]]) -> tuple[int, dict[str, int]] | None:
    """Where the rows of courses begin and which column is which."""
    for number, cells in enumerate(rows[:3]):
        places: dict[str, int] = {}
        for place, text in enumerate(cells):
            name = _column(text.strip(" :*"))
            if name and name not in places:
                places[name] = place
        describes = "description" in places or any(len(row) == 1 for row in rows[number + 1 :])
        if "code" in places and describes and len(places) > 1:
            return number + 1, places
    return None


def _describes_below(rows: list[list[str]]) -> bool:
    """Whether most rows of a course have one below them that describes it."""
    whole = [len(row) == 1 for row in rows]
    described = sum(is_below and not is_above for is_above, is_below in pairwise(whole))
    return described >= LEAST_DESCRIBED_SHARE * (len(rows) - sum(whole))


def _column(text: str) -> str | None:
    named = next((one for one, pattern in _COLUMNS.items() if pattern.fullmatch(text)), None)
    return named or _NAMED.get(part_named(text) or CoursePart.OTHER)


def _course(cells: list[str], places: dict[str, int], below: str | None) -> RecordField | None:
    stated = {name: cells[place] for name, place in places.items() if place < len(cells)}
    description = stated.get("description") or below
    code = stated.get("code", "")
    if not description or not code:
        return None
    heading = code if "title" not in stated and read_heading(code) else None
    credit_text = stated.get("credits", "")
    slots = Slots(
        code=None if heading else code,
        title=stated.get("title"),
        heading=heading,
        credits=slot_credits(credit_text) if credit_text else None,
        prerequisites=stated_prerequisites(stated.get("prerequisites")),
    )
    found = course_found(slots, [description], confidence=CONFIDENCE)
    return found if found and found.fields.get("course_name") else None


def _cells(row: LexborNode) -> list[str]:
    cells = [node for node in row.iter() if node.tag in {"td", "th"}]
    return [" ".join(fragment_text(node.html or "").split()) for node in cells]
