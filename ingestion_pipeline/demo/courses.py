"""The courses of Harbour College, and what a mutation does to the courses of any demo catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from ingestion_pipeline.demo.content import DemoContent, html_page, plain
from ingestion_pipeline.demo.state import DemoState


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One course as the college describes it."""

    code: str
    title: str
    credits: str
    description: str
    prerequisites: str | None = None

    @property
    def path(self) -> str:
        """Where its page is."""
        return f"/courses/{self.code.lower().replace(' ', '-')}"


COURSES = (
    Course(
        code="ART 204",
        title="Drawing Ships",
        credits="3",
        description="Hulls, rigging and water from observation, in pencil and in ink.",
    ),
    Course(
        code="BIO 120",
        title="Life of the Tidal Flat",
        credits="4",
        description="Worms, waders and weeds between high and low water, with six field days.",
    ),
    Course(
        code="BIO 121",
        title="Laboratory for Life of the Tidal Flat",
        credits="1",
        description="Sampling, sorting and counting what the field days bring home.",
        prerequisites="BIO 120, which may be taken in the same term",
    ),
    Course(
        code="CS 101",
        title="Programs and What They Mean",
        credits="3",
        description="Values, functions and proofs about them; no experience is expected.",
    ),
    Course(
        code="CS 240",
        title="Machines That Wait",
        credits="3-4",
        description="Queues, leases and clocks that disagree: how work is done once.",
        prerequisites="CS 101 with a grade of C or better",
    ),
    Course(
        code="ECON 115",
        title="The Price of Fish",
        credits="3",
        description="Markets that open at four in the morning, and what they know by six.",
    ),
    Course(
        code="ENG 130",
        title="Letters from Abroad",
        credits="3",
        description="Reading and writing what is sent home, from Mary Montagu to the telegram.",
    ),
    Course(
        code="HIST 110",
        title="The Harbour and the Sea",
        credits="3",
        description="A thousand years of one town and the water in front of it.",
    ),
    Course(
        code="JPN 101",
        title="日本語入門 Japanese for Beginners",
        credits="4",
        description="ひらがなとカタカナ、買い物。 Both syllabaries and first conversations.",
    ),
    Course(
        code="MATH 150",
        title="Calculus with Tides",
        credits="4",
        description="Derivatives and sums, from the tide table to the turning of the moon.",
    ),
    Course(
        code="MATH 151",
        title="More Calculus with Tides",
        credits="4",
        description="Series, several variables, and why the second high water is the lower.",
        prerequisites="MATH 150",
    ),
    Course(
        code="NAV 300",
        title="Finding the Way",
        credits="2.5",
        description="Charts, stars and dead reckoning; the final is held at sea.",
        prerequisites="MATH 150 and HIST 110",
    ),
)
WEAVING = Course(
    code="EVE 10",
    title="Weaving",
    credits="0",
    description="Warp and weft on Tuesday evenings. Not for credit.",
)
PATIENCE = Course(
    code="EVE 20",
    title="Patience",
    credits="1",
    description="Worth the wait: one lecture, begun late and never hurried.",
)
CHANGED = "CS 101"
CHANGES = 4  # credits that a changed course has in turn: each mutation gives it others


def courses(state: DemoState) -> Sequence[Course]:
    """Those of the shipped catalogue, and what mutations made of them."""
    return mutated(COURSES, state, changes=CHANGED)


def mutated(shipped: Sequence[Course], state: DemoState, *, changes: str) -> list[Course]:
    """One course more for each mutation, at the end, and other credits for one that was there."""
    count = state.new_chapters
    kept = [_with_more_credits(one, count) if one.code == changes else one for one in shipped]
    return [*kept, *(_added(number) for number in range(1, count + 1))]


def listed(lines: str) -> tuple[Course, ...]:
    """Courses as lines: code, title, credits, description and perhaps prerequisites, by bars."""
    return tuple(_listed(line) for line in lines.strip().splitlines())


def _listed(line: str) -> Course:
    code, title, credit_hours, description, *needed = line.split("|")
    return Course(
        code=code,
        title=title,
        credits=credit_hours,
        description=description,
        prerequisites=needed[0] if needed else None,
    )


def _with_more_credits(course: Course, count: int) -> Course:
    return replace(course, credits=str(int(course.credits) + count % CHANGES))


def _added(number: int) -> Course:
    return Course(
        code=f"SEM {400 + number}",
        title=f"Seminar of Term {number}",
        credits="1",
        description=f"What the college talks about in term {number}.",
    )


OUTCOMES_PATH = "/outcomes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Programme:
    """A page of outcomes: each learned thing stands word for word in one of its paragraphs."""

    name: str
    title: str
    paragraphs: Sequence[str]
    learned: Sequence[str]

    @property
    def path(self) -> str:
        """Where its page is."""
        return f"{OUTCOMES_PATH}/{self.name}"


NAVIGATION = Programme(
    name="navigation",
    title="What navigators of Harbour College can do",
    paragraphs=(
        "Whoever finishes the programme can plot a course on a paper chart, by day and by night,"
        " and will correct a magnetic compass for variation and deviation before relying on it.",
        "On the last voyage they fix the ship's position from three star sights, without help.",
    ),
    learned=(
        "plot a course on a paper chart",
        "correct a magnetic compass for variation and deviation",
        "fix the ship's position from three star sights",
    ),
)
TIDAL_BIOLOGY = Programme(
    name="tidal-biology",
    title="What students of the tidal flat take home",
    paragraphs=(
        "After six field days everybody can name the wading birds of the flat by their calls.",
        "Back in the laboratory they estimate the density of lugworms from random samples, and"
        " say how far the estimate may be wrong.",
    ),
    learned=(
        "name the wading birds of the flat by their calls",
        "estimate the density of lugworms from random samples",
    ),
)
PROGRAMMES = (NAVIGATION, TIDAL_BIOLOGY)


def outcomes(path: str, *, footer: str) -> DemoContent:
    """The list of the pages, or one of them."""
    if path == OUTCOMES_PATH:
        rows = "".join(
            f'<li class="outcomes"><a href="{one.path}">{escape(one.title)}</a></li>'
            for one in PROGRAMMES
        )
        return html_page("Outcomes", f"<h1>Outcomes</h1><ul>{rows}</ul>", footer=footer)
    found = {one.path: one for one in PROGRAMMES}.get(path)
    if found is None:
        return plain(404, "Not Found")
    paragraphs = "".join(f"<p>{escape(one)}</p>" for one in found.paragraphs)
    title = escape(found.title)
    return html_page(title, f"<h1>{title}</h1>{paragraphs}", footer=footer)
