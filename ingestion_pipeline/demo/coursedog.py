"""Lantern College: catalogues served by an API in the shape of Coursedog's, twenty at a time.

Two catalogues of one school; the second repeats two courses of the first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from ingestion_pipeline.demo.content import DemoContent, Query, html_page, int_parameter, json_page, plain
from ingestion_pipeline.demo.courses import Course, mutated
from ingestion_pipeline.demo.state import DemoState

LANTERN_HOST = "lantern.demo.test"
API_BASE = f"http://{LANTERN_HOST}/api/v1"
SCHOOL = "lantern_demo"
DAY, EVENING = "dayCatalog2026", "eveCatalog2026"
DEFAULT_LIMIT = 20  # Coursedog's own
MAX_LIMIT = 500
CHANGED = "GLA 101"
IN_BOTH = ("GLA 101", "OPT 101")

_LEVELS = (
    ("101", "Introduction to {}", "3", "The first term: what {} is about, and how it is done."),
    ("150", "{} in Practice", "2", "Two afternoons a week at the bench, with {} in one's hands."),
    ("201", "The History of {}", "3", "Who thought of it first: {} through four centuries."),
    ("240", "Materials for {}", "3-4", "What {} is made with, what it costs and how it breaks."),
    ("310", "Seminar in {}", "1", "One question about {} for a whole term, and an essay on it."),
)
_BY_DAY = {
    "GLA": "Glass",
    "LMP": "Lamps",
    "MIR": "Mirrors",
    "OPT": "Optics",
    "SHA": "Shadows",
    "SIG": "Signals",
    "WCK": "Wicks and Oils",
}
_BY_EVENING = {"CND": "Candles", "FIR": "Fireworks"}

_CATALOGS = re.compile(r"(?:/api/v1)?/ca/([^/]+)/catalogs")
_COURSES = re.compile(r"(?:/api/v1)?/cm/([^/]+)/courses/search/\$filters")


def _courses_of(subjects: Mapping[str, str]) -> tuple[Course, ...]:
    return tuple(
        Course(
            code=f"{subject} {number}",
            title=title.format(name),
            credits=credit_hours,
            description=description.format(name.lower()),
        )
        for subject, name in subjects.items()
        for number, title, credit_hours, description in _LEVELS
    )


def lantern_courses(state: DemoState) -> Mapping[str, Sequence[Course]]:
    """Return the courses of each catalogue; mutations add to the first."""
    by_day = mutated(_courses_of(_BY_DAY), state, changes=CHANGED)
    repeated = [course for course in by_day if course.code in IN_BOTH]
    return {DAY: by_day, EVENING: [*repeated, *_courses_of(_BY_EVENING)]}


def lantern(state: DemoState, path: str, query: Query) -> DemoContent:
    """Return a response of the API, or the catalogue's front page."""
    path = unquote(path)
    if path == "/":
        return _front()
    if (match := _CATALOGS.fullmatch(path)) and match[1] == SCHOOL:
        return json_page([_catalog(DAY, "Day courses"), _catalog(EVENING, "Evening courses")])
    if (match := _COURSES.fullmatch(path)) and match[1] == SCHOOL:
        return _search(lantern_courses(state), query)
    if path.startswith("/api/"):
        return json_page({"error": "Not found"}, 404)
    return plain(404, "Not Found")


def _search(catalogs: Mapping[str, Sequence[Course]], query: Query) -> DemoContent:
    """Return a slice of a catalogue; of all if none is named, of none if it is unknown."""
    skip, limit = int_parameter(query, "skip", 0), int_parameter(query, "limit", DEFAULT_LIMIT)
    if skip is None or not limit or limit > MAX_LIMIT:
        return json_page({"error": f"skip counts from 0, limit from 1 to {MAX_LIMIT}"}, 400)
    names = query.get("catalogId", [*catalogs])
    courses = [course for name in names for course in catalogs.get(name, ())]
    items = [_item(course) for course in courses[skip : skip + limit]]
    return json_page({"listLength": len(courses), "data": items})


def _catalog(identity: str, name: str) -> dict[str, object]:
    started = {"archivedAt": None, "effectiveStartDate": "2026-08-01"}
    return {"_id": identity, "id": identity, "displayName": name, **started}


def _item(course: Course) -> dict[str, object]:
    subject, number = course.code.split()
    low, _, high = course.credits.partition("-")
    hours = {"min": float(low), "max": float(high or low)}
    return {
        "id": f"{subject}{number}-2026-08-01",
        "courseGroupId": f"{subject}{number}",
        "code": course.code,
        "subjectCode": subject,
        "courseNumber": number,
        "name": course.title[:30],
        "longName": course.title,
        "description": course.description,
        "credits": {"creditHours": hours},
        "status": "Active",
        "catalogPrint": True,
    }


def _front() -> DemoContent:
    """Return a front page as Coursedog's are: the courses are loaded by a script."""
    head = (
        f'<meta name="og:url" content="https://{SCHOOL}-catalog.coursedog.com/">'
        f'<script>window.catalog = {{school: "{SCHOOL}", maker: "coursedog"}};</script>'
    )
    body = (
        "<h1>Catalogue of Lantern College</h1>"
        "<p>Day and evening courses on all that shines; the list is loaded by the page.</p>"
    )
    return html_page("Lantern College", body, footer="Lantern College", head=head)
