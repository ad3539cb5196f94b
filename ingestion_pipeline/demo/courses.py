"""The courses and outcomes of Harbour College, and mutations of any demo catalogue."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from ingestion_pipeline.demo.content import DemoContent, html_page, plain
from ingestion_pipeline.demo.state import DemoState


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


def listed(lines: str) -> tuple[Course, ...]:
    """Parse courses from lines: code, title, credits, description, prerequisites, by bars."""
    return tuple(Course(*line.split("|")) for line in lines.strip().splitlines())


COURSES = listed("""
ART 204|Drawing Ships|3|Hulls, rigging and water from observation, in pencil and in ink.
BIO 120|Life of the Tidal Flat|4|Worms, waders and weeds between high and low water, with six field days.
BIO 121|Laboratory for Life of the Tidal Flat|1|Sampling, sorting and counting what the field days bring home.|\
BIO 120, which may be taken in the same term
CS 101|Programs and What They Mean|3|Values, functions and proofs about them; no experience is expected.
CS 240|Machines That Wait|3-4|Queues, leases and clocks that disagree: how work is done once.|\
CS 101 with a grade of C or better
ECON 115|The Price of Fish|3|Markets that open at four in the morning, and what they know by six.
ENG 130|Letters from Abroad|3|Reading and writing what is sent home, from Mary Montagu to the telegram.
HIST 110|The Harbour and the Sea|3|A thousand years of one town and the water in front of it.
JPN 101|日本語入門 Japanese for Beginners|4|ひらがなとカタカナ、買い物。 Both syllabaries and first conversations.
MATH 150|Calculus with Tides|4|Derivatives and sums, from the tide table to the turning of the moon.
MATH 151|More Calculus with Tides|4|Series, several variables, and why the second high water is the lower.|MATH 150
NAV 300|Finding the Way|2.5|Charts, stars and dead reckoning; the final is held at sea.|MATH 150 and HIST 110
""")
WEAVING, PATIENCE = listed("""
EVE 10|Weaving|0|Warp and weft on Tuesday evenings. Not for credit.
EVE 20|Patience|1|Worth the wait: one lecture, begun late and never hurried.
""")
CHANGED = "CS 101"
CHANGES = 4  # number of different credits that mutations cycle through


def courses(state: DemoState) -> Sequence[Course]:
    """Return the courses of the shipped catalogue with the mutations applied."""
    return mutated(COURSES, state, changes=CHANGED)


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
