"""The Tidewater Institute: one list by offset and limit, with several courses on a page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ingestion_pipeline.demo.content import DemoContent, Query, html_page, int_parameter, plain
from ingestion_pipeline.demo.courses import Course, listed, mutated
from ingestion_pipeline.demo.state import DemoState

TIDEWATER_HOST = "tidewater.demo.test"
LIST_PATH = "/catalog"
LIMIT = 8  # twenty-two leave room on the third page, for two mutations
MAX_LIMIT = 50
CHANGED = "OCE 201"
LOST_OFFSET = LIMIT  # the second page fails while the site is broken

TIDEWATER_COURSES = listed("""
BOA 101|Knots and Splices|1|Forty knots, eleven of which are ever used, and two splices.
BOA 110|Small Boats|2|Rowing, sculling and bailing in all weathers but one.
BOA 210|Sails|3|How cloth becomes a wing, with a sail of one's own at the end.|BOA 110
BOA 220|Engines Below Deck|3|Diesel, gearbox and shaft, taken apart and put together again.
CHT 100|Reading Charts|2|Soundings, marks and symbols of the paper chart and of the screen.
CHT 200|Drawing Charts|4|A survey of one bay, from the lead line to the printed sheet.|CHT 100
FSH 120|Nets and Lines|2|Gear that catches what is wanted and lets the rest go free.
FSH 130|Fish and Their Prices|3|From the quay to the counter, with an early auction each week.
FSH 240|Farming Mussels|3|Ropes, seed and patience; the harvest is weighed and eaten.
LAW 150|Law of the Sea|3|Who may sail, fish and drill where, and who says so.
LAW 250|Salvage and Wreck|2|What is found on the beach and whose it is.|LAW 150
MAT 120|Angles and Arcs|4|Trigonometry on a sphere, as far as a voyage needs it.
OCE 101|Currents and Gyres|3|What moves the water of the open sea, and what moves with it.
OCE 102|Laboratory for Currents|1|Drift bottles, salinity and a small wave tank.|OCE 101
OCE 201|Tides|3|From the moon's pull to the tide table of one harbour.|OCE 101 and MAT 120
OCE 230|Waves and Breakers|3-4|Swell from far away, and what the beach makes of it.|OCE 101
OCE 310|Ice|3|How the sea freezes, drifts and breaks, from satellites and from the deck.
RAD 110|Radio at Sea|1.5|Calling, listening and the phonetic alphabet, with a licence at the end.
SIG 100|Flags and Lamps|1|Signals that need no power, and the code book they are in.
WEA 140|Clouds and Fronts|3|The sky above the harbour, observed twice a day for a term.
WEA 240|Storms|3|Where they are born, how they turn and when to stay in port.|WEA 140
WEA 340|Forecasting|4|One's own forecast each morning, and the reckoning each evening.|WEA 240
""")


def tidewater_courses(state: DemoState) -> Sequence[Course]:
    """Return the courses of the list with the mutations applied."""
    return mutated(TIDEWATER_COURSES, state, changes=CHANGED)


def tidewater(state: DemoState, path: str, query: Query) -> DemoContent:
    """Return what the institute serves; past the last course a list is empty, not an error."""
    if path != LIST_PATH:
        return plain(404, "Not Found")
    offset, limit = int_parameter(query, "offset", 0), int_parameter(query, "limit", LIMIT)
    if offset is None or not limit or limit > MAX_LIMIT:
        return plain(400, f"offset counts from 0, limit from 1 to {MAX_LIMIT}")
    if state.is_broken and offset == LOST_OFFSET:
        return plain(500, "Internal Server Error")
    return _list(tidewater_courses(state), offset, limit)


def _list(courses: Sequence[Course], offset: int, limit: int) -> DemoContent:
    entries = "".join(_entry(course) for course in courses[offset : offset + limit])
    starts = range(0, len(courses), limit)
    pages = " ".join(
        f'<a href="{LIST_PATH}?offset={start}&amp;limit={limit}">{start // limit + 1}</a>' for start in starts
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
