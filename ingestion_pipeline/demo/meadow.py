"""Meadow School: numbered pages with detail links, without a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ingestion_pipeline.demo.content import DemoContent, Query, html_page, int_parameter, plain
from ingestion_pipeline.demo.courses import Course, listed, mutated
from ingestion_pipeline.demo.state import DemoState

MEADOW_HOST = "meadow.demo.test"
LIST_PATH = "/programme"
COURSES_ON_A_PAGE = 5  # fourteen leave room on the third page
CHANGED = "GRD 110"

MEADOW_COURSES = listed("""
BEE 101|The Hive in Spring|2|Opening, looking and closing again, with a veil and without haste.
BEE 201|Honey and Wax|2|From the comb to the jar and to the candle.|BEE 101
GRD 100|The Garden in a Year|3|What is done when, from the first frost to the last.
GRD 110|Soil and Seed|3|What soil is made of, and what it makes of a seed.
GRD 120|Pruning|1|Apples in February, plums in August, and why not the other way round.|GRD 100
GRD 210|Hedges and Walls|2|Keeping sheep out and wind down, with living and with dry material.
HRB 101|Herbs by Name|2|Two hundred plants of the meadow, by leaf, by flower and by smell.
HRB 150|Herbs in Use|3|Teas, oils and dyes, and what is better left alone.|HRB 101
SHP 110|Sheep|4|A flock through one winter: feeding, lambing and long nights.
SHP 120|Shearing|1|A whole fleece in one piece, and a sheep that is content afterwards.|SHP 110
SHP 210|Wool|3|Sorting, washing, carding and spinning what the flock has grown.
WOD 100|Trees by Their Bark|2|Thirty trees in winter, when nothing else tells them apart.
WOD 140|Green Woodworking|3|A stool and a spoon from one log, with an axe and a knife.
WOD 240|Coppice|2|A wood that is cut every ten years and older than any other.|WOD 100
""")


def meadow_courses(state: DemoState) -> Sequence[Course]:
    """Return the courses of the programme with the mutations applied."""
    return mutated(MEADOW_COURSES, state, changes=CHANGED)


def meadow(state: DemoState, path: str, query: Query) -> DemoContent:
    """Return what the school serves at a path."""
    courses = meadow_courses(state)
    if path == LIST_PATH:
        return _list(courses, int_parameter(query, "page", 1))
    course = {_path(course): course for course in courses}.get(path)
    return plain(404, "Not Found") if course is None else _detail(course)


def _list(courses: Sequence[Course], number: int | None) -> DemoContent:
    starts = range(0, len(courses), COURSES_ON_A_PAGE)
    if number is None or not 1 <= number <= len(starts):
        return plain(404, "Not Found")
    start = starts[number - 1]
    rows = "".join(
        f'<li><a href="{_path(course)}">{escape(f"{course.code} {course.title}")}</a></li>'
        for course in courses[start : start + COURSES_ON_A_PAGE]
    )
    pages = "".join(f'<li><a href="{LIST_PATH}?page={page}">{page}</a></li>' for page in range(1, len(starts) + 1))
    body = f'<h1>Programme</h1><ul>{rows}</ul><nav><ul class="pages">{pages}</ul></nav>'
    return _html("Programme of Meadow School", body)


def _detail(course: Course) -> DemoContent:
    title = escape(f"{course.code} {course.title}")
    facts = {"Credits": course.credits, "Description": course.description, "Prerequisites": course.prerequisites}
    rows = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.items() if value)
    return _html(title, f"<h1>{title}</h1><dl>{rows}</dl>")


def _path(course: Course) -> str:
    return f"{LIST_PATH}/{course.code.lower().replace(' ', '-')}"


def _html(title: str, body: str) -> DemoContent:
    return html_page(title, body, footer="Meadow School, behind the wood")
