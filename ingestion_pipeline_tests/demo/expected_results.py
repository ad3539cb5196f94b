"""The results that a demo run must produce, counted from the content the site serves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ingestion_pipeline.demo.catalog_sites import (
    DEFAULT_LIMIT,
    LIMIT,
    LOST,
    LOST_OFFSET,
    PATIENCE,
    PROGRAMMES,
    RENDERED,
    WEAVING,
    courses,
    lantern_courses,
    meadow_courses,
    tidewater_courses,
)
from ingestion_pipeline.demo.company_sites import (
    PRIORITIES,
    SKIPPED,
    Opening,
    businesses,
    driftwood_openings,
    kestrel_openings,
    repeated,
)
from ingestion_pipeline.demo.content import DemoState
from ingestion_pipeline.demo.model_server import INVENTED, SPEAKERS, Speaker
from ingestion_pipeline.websites.business import Business
from ingestion_pipeline.websites.customer_prompts import choose_prompts

DRIFTWOOD_BOARD, KESTREL_BOARD = "job_board:greenhouse-driftwood", "job_board:kestrel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The exported records of a catalogue, and the pages that state them.

    `repeats` are stated a second time by another page; `flagged` are not proved by their page.
    """

    items: int
    pages: int
    repeats: int = 0
    flagged: int = 0


def expected(state: DemoState, *, has_browser: bool) -> Mapping[str, Expected]:
    """Return what each catalogue states now; the outcomes as the bundled model extracts them."""
    return {
        "catalog:harbour": _harbour(state, has_browser=has_browser),
        "catalog:harbour-annex": _each_on_a_page(len((WEAVING, PATIENCE))),
        "catalog:harbour-members": _each_on_a_page(0),
        "catalog:tidewater": _tidewater(state),
        "catalog:lantern": _lantern(state),
        "catalog:meadow": _each_on_a_page(len(meadow_courses(state))),
        "catalog:harbour-outcomes": Expected(
            items=sum(len(programme.learned) for programme in PROGRAMMES), pages=len(PROGRAMMES), flagged=len(INVENTED)
        ),
    }


def _each_on_a_page(count: int) -> Expected:
    return Expected(items=count, pages=count)


def _harbour(state: DemoState, *, has_browser: bool) -> Expected:
    unseen = {LOST} if state.is_broken else set[str]()
    if not has_browser:
        unseen.add(RENDERED)
    return _each_on_a_page(sum(course.code not in unseen for course in courses(state)))


def _tidewater(state: DemoState) -> Expected:
    count = len(tidewater_courses(state))
    starts = [start for start in range(0, count, LIMIT) if not (state.is_broken and start == LOST_OFFSET)]
    return Expected(items=sum(min(LIMIT, count - start) for start in starts), pages=len(starts))


def _lantern(state: DemoState) -> Expected:
    catalogs = lantern_courses(state).values()
    stated = sum(len(listed) for listed in catalogs)
    items = len({course.code for listed in catalogs for course in listed})
    pages = sum(-(-len(listed) // DEFAULT_LIMIT) for listed in catalogs)
    return Expected(items=items, pages=pages, repeats=stated - items)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedJobs:
    """The decisions of the demo's profile about a board's jobs; `repeats` are listed twice."""

    filtered: int
    skipped: int
    matched: int
    repeats: int = 0

    @property
    def jobs(self) -> int:
        """Return all jobs of the board."""
        return self.filtered + self.skipped + self.matched


def expected_jobs(state: DemoState, *, is_removal_confirmed: bool = True) -> dict[str, ExpectedJobs]:
    """Return the decisions by board; a removal is confirmed by a second listing without it."""
    listed = list(driftwood_openings(state))
    if not is_removal_confirmed:
        here = {opening.id for opening in listed}
        listed += [opening for opening in driftwood_openings(DemoState()) if opening.id not in here]
    return {
        DRIFTWOOD_BOARD: _count_outcomes(listed),
        KESTREL_BOARD: _count_outcomes([*kestrel_openings(), repeated()], repeats=1),
    }


def _count_outcomes(listed: Sequence[Opening], repeats: int = 0) -> ExpectedJobs:
    matched = sum(opening.outcome in PRIORITIES for opening in listed)
    skipped = sum(opening.outcome == SKIPPED for opening in listed)
    return ExpectedJobs(filtered=len(listed) - matched - skipped, skipped=skipped, matched=matched, repeats=repeats)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedVisibility:
    """In how many of a provider's answers the business and its competitors are named."""

    questions: int
    answered: int
    mentioned: int
    competitors: Mapping[str, int]

    @property
    def visibility(self) -> float:
        """Return the share of answers that name the business."""
        return self.mentioned / self.answered


def expected_visibility(state: DemoState, *, prompts: int = 7) -> dict[tuple[str, str], ExpectedVisibility]:
    """Return by source and provider; without a model the questions come from templates."""
    return {
        (source_id, name): _count_mentions(business, speaker, state, prompts)
        for source_id, business in businesses(state).items()
        for name, speaker in SPEAKERS.items()
    }


def _count_mentions(business: Business, speaker: Speaker, state: DemoState, prompts: int) -> ExpectedVisibility:
    questions = [prompt.text for prompt in choose_prompts(business, (), count=prompts)]
    answers = [answer for answer in (speaker(text, state) for text in questions) if answer is not None]
    return ExpectedVisibility(
        questions=len(questions),
        answered=len(answers),
        mentioned=sum(business.name in answer for answer in answers),
        competitors={name: sum(name in answer for answer in answers) for name in business.competitors},
    )
