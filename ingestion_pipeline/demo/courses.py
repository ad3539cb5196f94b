"""The courses that the demo's catalogues describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
EVENING = Course(
    code="EVE 10",
    title="Weaving",
    credits="0",
    description="Warp and weft on Tuesday evenings. Not for credit.",
)


def courses(state: DemoState) -> Sequence[Course]:
    """Those of the shipped catalogue, and one more for each mutation."""
    return [*COURSES, *(_added(number) for number in range(1, state.new_chapters + 1))]


def _added(number: int) -> Course:
    return Course(
        code=f"SEM {400 + number}",
        title=f"Seminar of Term {number}",
        credits="1",
        description=f"What the college talks about in term {number}.",
    )
