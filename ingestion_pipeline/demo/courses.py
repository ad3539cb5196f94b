"""The courses and outcomes of Harbour College, and mutations of any demo catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from ingestion_pipeline.demo.content import DemoContent, html_page, plain
from ingestion_pipeline.demo.state import DemoState


@dataclass(frozen=True, slots=True, kw_only=True)
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
    code="EVE 10", title="Weaving", credits="0", description="Warp and weft on Tuesday evenings. Not for credit."
)
PATIENCE = Course(
    code="EVE 20",
    title="Patience",
    credits="1",
    description="Worth the wait: one lecture, begun late and never hurried.",
)
CHANGED = "CS 101"
CHANGES = 4  # number of different credits that mutations cycle through


def courses(state: DemoState) -> Sequence[Course]:
    """Return the courses of the shipped catalogue with the mutations applied."""
    return mutated(COURSES, state, changes=CHANGED)


def mutated(shipped: Sequence[Course], state: DemoState, *, changes: str) -> list[Course]:
    """Return the courses with one more for each mutation, and other credits for one."""
    count = state.new_chapters
    changed = [_with_more_credits(course, count) if course.code == changes else course for course in shipped]
    return [*changed, *(_added(number) for number in range(1, count + 1))]


def listed(lines: str) -> tuple[Course, ...]:
    """Parse courses from lines: code, title, credits, description, prerequisites, by bars."""
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
    """A page of outcomes; each learned outcome is a literal part of one of its paragraphs."""

    name: str
    title: str
    paragraphs: Sequence[str]
    learned: Sequence[str]

    @property
    def path(self) -> str:
        """Return the path of its page."""
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
