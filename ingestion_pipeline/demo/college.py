"""Three course catalogues: one with a few odd pages, a difficult one, and a closed one.

Harbour College has numbered pages that link to a page for each course; its Annex asks for a crawl
delay and has a slow page and a decompression bomb; the members' area requires a login. The learning
outcomes are in prose (see courses.py), which no rule extracts.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from html import escape

from ingestion_pipeline.demo.content import HTML, DemoContent, error_page, html_page, moved, plain, text_page
from ingestion_pipeline.demo.courses import OUTCOMES_PATH, PATIENCE, WEAVING, Course, courses, outcomes
from ingestion_pipeline.demo.state import DemoState

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
        return text_page(f"User-agent: *\nDisallow: {ARCHIVE_PATH}\n")
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
            return text_page(f"User-agent: *\nCrawl-delay: {ANNEX_DELAY_SECONDS}\n")
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
    form = (
        "<h1>Sign in</h1><p>Please sign in to see the members' courses.</p>"
        '<form action="/login" method="post"><label>Name <input name="name"></label>'
        '<label>Password <input type="password" name="password"></label>'
        "<button>Sign in</button></form>"
    )
    return _html("Sign in", form)


def _course_list(listed: Sequence[Course], number: str) -> DemoContent:
    starts = range(0, len(listed), COURSES_ON_A_PAGE)
    if number not in map(str, range(1, len(starts) + 1)):
        return plain(404, "Not Found")
    start = starts[int(number) - 1]
    rows = [_row(course) for course in listed[start : start + COURSES_ON_A_PAGE]]
    if int(number) == len(starts):
        rows.append(f'<li class="course"><a href="{ARCHIVE_PATH}1962">The catalogue of 1962</a></li>')
    pages = " ".join(f'<a href="/courses?page={page + 1}">{page + 1}</a>' for page in range(len(starts)))
    body = f"<h1>Courses</h1><ul>{''.join(rows)}</ul><nav>{pages}</nav>"
    return _html("Courses, Harbour College", body)


def _row(course: Course) -> str:
    title = escape(f"{course.code}: {course.title}")
    return f'<li class="course"><a href="{course.path}?utm_source=list">{title}</a></li>'


def _course_page(course: Course) -> DemoContent:
    body = _course_body(course)
    title = escape(f"{course.code}, Harbour College")
    if course.code == RENDERED:
        return DemoContent(body=_shell(title, body), content_type=HTML)
    if course.code == IN_SHIFT_JIS:
        text = _html(title, body).body.decode().replace("utf-8", "Shift_JIS")
        return DemoContent(body=text.encode("shift_jis"), content_type="text/html")
    return _html(title, body)


def _course_body(course: Course) -> str:
    needed = course.prerequisites
    return (
        f'<article class="course"><h1>{escape(f"{course.code}: {course.title}")}</h1>'
        f'<p class="credits">{course.credits} credits</p>'
        f'<p class="description">{escape(course.description)}</p>'
        + (f'<p class="prerequisites">Prerequisites: {escape(needed)}.</p>' if needed else "")
        + "</article>"
    )


def _shell(title: str, body: str) -> bytes:
    """Return a page whose content is only in its script, encoded so that no parser finds it."""
    codes = ",".join(str(ord(character)) for character in body)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        "</head>"
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
