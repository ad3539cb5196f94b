"""The demo's course catalogues: a college with an annex and a members' area, two APIs, and a small school.

Harbour College has numbered pages that link to a page for each course; its Annex asks for a crawl
delay and has a slow page and a decompression bomb; the members' area requires a login. The learning
outcomes are in prose which no rule extracts.
"""

import gzip
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from typing import Any
from urllib.parse import unquote

from pydantic import TypeAdapter

from ingestion_pipeline.demo.content import (
    HTML,
    PUBLISHED,
    DemoContent,
    DemoState,
    Query,
    error_page,
    html_page,
    int_parameter,
    json_page,
    moved,
    plain,
)


@dataclass(frozen=True, slots=True)
class Course:
    """A course as the college describes it."""

    code: str
    title: str
    credits: str
    description: str
    prerequisites: str | None = None

    @property
    def path(self) -> str:
        """Return the path of its page."""
        return f"/courses/{self.code.lower().replace(' ', '-')}"


def published(catalogue: str) -> tuple[Course, ...]:
    """Return the courses of a catalogue as shipped."""
    return TypeAdapter(tuple[Course, ...]).validate_python(PUBLISHED["courses"][catalogue])


COLLEGE_COURSES = published("college")
WEAVING, PATIENCE = published("annex")
COLLEGE_CHANGED = "CS 101"
CHANGES = 4  # number of different credits that mutations cycle through


def courses(state: DemoState) -> Sequence[Course]:
    """Return the courses of the shipped catalogue with the mutations applied."""
    return mutated(COLLEGE_COURSES, state, changes=COLLEGE_CHANGED)


def mutated(shipped: Sequence[Course], state: DemoState, *, changes: str) -> list[Course]:
    """Return the courses with one more for each mutation, and other credits for one."""
    count = state.new_chapters
    result = [
        replace(course, credits=str(int(course.credits) + count % CHANGES)) if course.code == changes else course
        for course in shipped
    ]
    for number in range(1, count + 1):
        about = f"What the college talks about in term {number}."
        result.append(Course(f"SEM {400 + number}", f"Seminar of Term {number}", "1", about))
    return result


OUTCOMES_PATH = "/outcomes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Programme:
    """A page of outcomes; each learned outcome is a literal part of one of its paragraphs."""

    name: str
    title: str
    paragraphs: tuple[str, ...]
    learned: tuple[str, ...]

    @property
    def path(self) -> str:
        """Return the path of its page."""
        return f"{OUTCOMES_PATH}/{self.name}"


PROGRAMMES = NAVIGATION, TIDAL_BIOLOGY = TypeAdapter(tuple[Programme, Programme]).validate_python(
    PUBLISHED["programmes"]
)


def outcomes(path: str, *, footer: str) -> DemoContent:
    """Return the list of the outcome pages, or one of them."""
    if path == OUTCOMES_PATH:
        rows = "".join(
            f'<li class="outcomes"><a href="{programme.path}">{escape(programme.title)}</a></li>'
            for programme in PROGRAMMES
        )
        return html_page("Outcomes", f"<h1>Outcomes</h1><ul>{rows}</ul>", footer=footer)
    programme = {programme.path: programme for programme in PROGRAMMES}.get(path)
    if programme is None:
        return plain(404, "Not Found")
    paragraphs = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in programme.paragraphs)
    title = escape(programme.title)
    return html_page(title, f"<h1>{title}</h1>{paragraphs}", footer=footer)


COLLEGE_HOST = "catalog.demo.test"
ANNEX_HOST = "annex.demo.test"
MEMBERS_HOST = "members.demo.test"

COURSES_ON_A_PAGE = 5  # twelve leave room on the third: a new course changes that page alone
ANNEX_DELAY_SECONDS = 0.5  # long enough to measure, short enough to wait
SLOW_SECONDS = 0.7
BOMB_BYTES = 64_000_000  # of zeros; some 62 kB on the wire
ARCHIVE_PATH = "/courses/archive/"

RENDERED = "ART 204"  # its page is empty until its script has run
FORWARDED = "HIST 110"  # its address leads to another, and that to a third
IN_SHIFT_JIS = "JPN 101"
LOST = "NAV 300"  # an error page while the site is broken
MOVED_ONCE, MOVED_TWICE = "/c/110", "/courses/hist-110-harbour"
FOOTER = "Harbour College, on the quay"


def college(state: DemoState, path: str, query: Mapping[str, Sequence[str]]) -> DemoContent:
    """Return what Harbour College serves at a path."""
    if path == "/robots.txt":
        return plain(200, f"User-agent: *\nDisallow: {ARCHIVE_PATH}")
    if path == "/courses":
        return _course_list(courses(state), query.get("page", ["1"])[-1])
    if path.startswith(OUTCOMES_PATH):
        return outcomes(path, footer=FOOTER)
    return moved(MOVED_TWICE) if path == MOVED_ONCE else _course_at(state, path)


def _course_at(state: DemoState, path: str) -> DemoContent:
    by_path = {course.path: course for course in courses(state)}
    course = by_path["/courses/hist-110"] if path == MOVED_TWICE else by_path.get(path)
    if course is None:
        return plain(404, "Not Found")
    if course.code == LOST and state.is_broken:
        return error_page(state)
    if course.code == FORWARDED and path != MOVED_TWICE:
        return moved(MOVED_ONCE)
    return _course_page(course)


def annex(_state: DemoState, path: str, _query: Mapping[str, Sequence[str]]) -> DemoContent:
    """Return what the Annex serves: a crawl delay of half a second, and two bad pages."""
    match path:
        case "/robots.txt":
            return plain(200, f"User-agent: *\nCrawl-delay: {ANNEX_DELAY_SECONDS}")
        case "/evening":
            return _annex_list()
        case "/evening/weaving":
            return _course_page(WEAVING)
        case "/evening/slow":
            return replace(_course_page(PATIENCE), delay_seconds=SLOW_SECONDS)
        case "/evening/endless":
            return DemoContent(body=_bomb(), content_type=HTML, content_encoding="gzip")
        case _:
            return plain(404, "Not Found")


def members(_state: DemoState, path: str, _query: Mapping[str, Sequence[str]]) -> DemoContent:
    """Return a login form, whatever is requested."""
    if path == "/robots.txt":
        return plain(404, "Not Found")
    return _html("Sign in", PUBLISHED["pages"]["members"]["/"])


def _course_list(listed: Sequence[Course], number: str) -> DemoContent:
    starts = range(0, len(listed), COURSES_ON_A_PAGE)
    if number not in map(str, range(1, len(starts) + 1)):
        return plain(404, "Not Found")
    start = starts[int(number) - 1]
    rows = [_row(course) for course in listed[start : start + COURSES_ON_A_PAGE]]
    if int(number) == len(starts):
        rows.append(f'<li class="course"><a href="{ARCHIVE_PATH}1962">The catalogue of 1962</a></li>')
    pages = " ".join(f'<a href="/courses?page={page + 1}">{page + 1}</a>' for page in range(len(starts)))
    return _html("Courses, Harbour College", f"<h1>Courses</h1><ul>{''.join(rows)}</ul><nav>{pages}</nav>")


def _row(course: Course) -> str:
    title = escape(f"{course.code}: {course.title}")
    return f'<li class="course"><a href="{course.path}?utm_source=list">{title}</a></li>'


def _course_page(course: Course) -> DemoContent:
    needed = course.prerequisites
    body = (
        f'<article class="course"><h1>{escape(f"{course.code}: {course.title}")}</h1>'
        f'<p class="credits">{course.credits} credits</p>'
        f'<p class="description">{escape(course.description)}</p>'
        + (f'<p class="prerequisites">Prerequisites: {escape(needed)}.</p>' if needed else "")
        + "</article>"
    )
    title = escape(f"{course.code}, Harbour College")
    if course.code == RENDERED:
        return DemoContent(body=_shell(title, body), content_type=HTML)
    if course.code == IN_SHIFT_JIS:
        text = _html(title, body).body.decode().replace("utf-8", "Shift_JIS")
        return DemoContent(body=text.encode("shift_jis"), content_type="text/html")
    return _html(title, body)


def _shell(title: str, body: str) -> bytes:
    """Return a page whose content is only in its script, encoded so that no parser finds it."""
    codes = ",".join(str(ord(character)) for character in body)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
        '<body><div id="root"></div><noscript>This page needs JavaScript.</noscript><script>'
        f'document.getElementById("root").innerHTML = String.fromCharCode({codes});'
        "</script></body></html>\n"
    ).encode()


def _annex_list() -> DemoContent:
    rows = "".join(
        f'<li class="course"><a href="/evening/{name}">{title}</a></li>'
        for name, title in (
            ("weaving", f"{WEAVING.code}: {WEAVING.title}"),
            ("slow", f"{PATIENCE.code}: {PATIENCE.title}"),
            ("endless", "EVE 30: The Endless Page"),
        )
    )
    return _html("Evening courses", f"<h1>Evening</h1><ul>{rows}</ul>")


def _html(title: str, body: str) -> DemoContent:
    return html_page(title, body, footer=FOOTER)


@cache
def _bomb() -> bytes:
    return gzip.compress(bytes(BOMB_BYTES), mtime=0)


LANTERN_HOST = "lantern.demo.test"
API_BASE = f"http://{LANTERN_HOST}/api/v1"
SCHOOL = "lantern_demo"
DAY, EVENING = "dayCatalog2026", "eveCatalog2026"
DEFAULT_LIMIT = 20  # Coursedog's own
COURSEDOG_MAX_LIMIT = 500
COURSEDOG_CHANGED = "GLA 101"
IN_BOTH = ("GLA 101", "OPT 101")
LANTERN: Mapping[str, Any] = PUBLISHED["lantern"]  # each subject has a course of each level

_CATALOGS = re.compile(r"(?:/api/v1)?/ca/([^/]+)/catalogs")
_COURSES = re.compile(r"(?:/api/v1)?/cm/([^/]+)/courses/search/\$filters")


def _courses_of(subjects: Mapping[str, str]) -> tuple[Course, ...]:
    return tuple(
        Course(
            code=f"{subject} {level['number']}",
            title=level["title"].format(name),
            credits=level["credits"],
            description=level["description"].format(name.lower()),
        )
        for subject, name in subjects.items()
        for level in LANTERN["levels"]
    )


def lantern_courses(state: DemoState) -> Mapping[str, Sequence[Course]]:
    """Return the courses of each catalogue; mutations add to the first."""
    by_day = mutated(_courses_of(LANTERN["by_day"]), state, changes=COURSEDOG_CHANGED)
    repeated = [course for course in by_day if course.code in IN_BOTH]
    return {DAY: by_day, EVENING: [*repeated, *_courses_of(LANTERN["by_evening"])]}


def lantern(state: DemoState, path: str, query: Query) -> DemoContent:
    """Return a response of the API, or the catalogue's front page."""
    path = unquote(path)
    if path == "/":
        # As Coursedog's are: the courses are loaded by a script.
        head, body = LANTERN["head"].format(school=SCHOOL), LANTERN["body"]
        return html_page("Lantern College", body, footer="Lantern College", head=head)
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
    if skip is None or not limit or limit > COURSEDOG_MAX_LIMIT:
        return json_page({"error": f"skip counts from 0, limit from 1 to {COURSEDOG_MAX_LIMIT}"}, 400)
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


TIDEWATER_HOST = "tidewater.demo.test"
TIDEWATER_LIST_PATH = "/catalog"
LIMIT = 8  # twenty-two leave room on the third page, for two mutations
TIDEWATER_MAX_LIMIT = 50
TIDEWATER_CHANGED = "OCE 201"
LOST_OFFSET = LIMIT  # the second page fails while the site is broken

TIDEWATER_COURSES = published("tidewater")


def tidewater_courses(state: DemoState) -> Sequence[Course]:
    """Return the courses of the list with the mutations applied."""
    return mutated(TIDEWATER_COURSES, state, changes=TIDEWATER_CHANGED)


def tidewater(state: DemoState, path: str, query: Query) -> DemoContent:
    """Return what the institute serves; past the last course a list is empty, not an error."""
    if path != TIDEWATER_LIST_PATH:
        return plain(404, "Not Found")
    offset, limit = int_parameter(query, "offset", 0), int_parameter(query, "limit", LIMIT)
    if offset is None or not limit or limit > TIDEWATER_MAX_LIMIT:
        return plain(400, f"offset counts from 0, limit from 1 to {TIDEWATER_MAX_LIMIT}")
    if state.is_broken and offset == LOST_OFFSET:
        return plain(500, "Internal Server Error")
    courses = tidewater_courses(state)
    entries = "".join(_entry(course) for course in courses[offset : offset + limit])
    starts = range(0, len(courses), limit)
    pages = " ".join(
        f'<a href="{TIDEWATER_LIST_PATH}?offset={start}&amp;limit={limit}">{start // limit + 1}</a>' for start in starts
    )
    body = f"<h1>All courses</h1>{entries or '<p>Nothing is listed here.</p>'}<nav>{pages}</nav>"
    return html_page("Courses, Tidewater Institute", body, footer="Tidewater Institute")


def _entry(course: Course) -> str:
    heading = escape(f"{course.code} {course.title} ({course.credits} credits)")
    needed = course.prerequisites
    return (
        f'<section class="entry"><h3>{heading}</h3><p>{escape(course.description)}</p>'
        + (f"<p>Prerequisites: {escape(needed)}</p>" if needed else "")
        + "</section>"
    )


MEADOW_HOST = "meadow.demo.test"
MEADOW_LIST_PATH = "/programme"
MEADOW_CHANGED = "GRD 110"

MEADOW_COURSES = published("meadow")


def meadow_courses(state: DemoState) -> Sequence[Course]:
    """Return the courses of the programme with the mutations applied."""
    return mutated(MEADOW_COURSES, state, changes=MEADOW_CHANGED)


def meadow(state: DemoState, path: str, query: Query) -> DemoContent:
    """Return what the school serves at a path."""
    courses = meadow_courses(state)
    if path == MEADOW_LIST_PATH:
        return _meadow_list(courses, int_parameter(query, "page", 1))
    course = {_path(course): course for course in courses}.get(path)
    return plain(404, "Not Found") if course is None else _detail(course)


def _meadow_list(courses: Sequence[Course], number: int | None) -> DemoContent:
    starts = range(0, len(courses), COURSES_ON_A_PAGE)
    if number is None or not 1 <= number <= len(starts):
        return plain(404, "Not Found")
    start = starts[number - 1]
    rows = "".join(
        f'<li><a href="{_path(course)}">{escape(f"{course.code} {course.title}")}</a></li>'
        for course in courses[start : start + COURSES_ON_A_PAGE]
    )
    pages = "".join(
        f'<li><a href="{MEADOW_LIST_PATH}?page={page}">{page}</a></li>' for page in range(1, len(starts) + 1)
    )
    body = f'<h1>Programme</h1><ul>{rows}</ul><nav><ul class="pages">{pages}</ul></nav>'
    return _meadow_html("Programme of Meadow School", body)


def _detail(course: Course) -> DemoContent:
    title = escape(f"{course.code} {course.title}")
    facts = {"Credits": course.credits, "Description": course.description, "Prerequisites": course.prerequisites}
    rows = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.items() if value)
    return _meadow_html(title, f"<h1>{title}</h1><dl>{rows}</dl>")


def _path(course: Course) -> str:
    return f"{MEADOW_LIST_PATH}/{course.code.lower().replace(' ', '-')}"


def _meadow_html(title: str, body: str) -> DemoContent:
    return html_page(title, body, footer="Meadow School, behind the wood")
