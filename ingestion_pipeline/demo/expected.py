"""How many records the demo's catalogues and job boards state, by source: what a run must come to.

And how often its providers name its businesses. Counted from the content that the site serves in a
state, and never written down a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ingestion_pipeline.demo.businesses import businesses
from ingestion_pipeline.demo.college import LOST, RENDERED
from ingestion_pipeline.demo.coursedog import DEFAULT_LIMIT, lantern_courses
from ingestion_pipeline.demo.courses import PATIENCE, PROGRAMMES, WEAVING, courses
from ingestion_pipeline.demo.job_openings import (
    PRIORITIES,
    SKIPPED,
    Opening,
    driftwood_openings,
    kestrel_openings,
    repeated,
)
from ingestion_pipeline.demo.meadow import meadow_courses
from ingestion_pipeline.demo.model_script import INVENTED
from ingestion_pipeline.demo.providers import SPEAKERS, Speaker
from ingestion_pipeline.demo.state import DemoState
from ingestion_pipeline.demo.tidewater import LIMIT, LOST_OFFSET, tidewater_courses
from ingestion_pipeline.websites.business import Business
from ingestion_pipeline.websites.prompts import chosen

DRIFTWOOD_BOARD, KESTREL_BOARD = "job_board:greenhouse-driftwood", "job_board:kestrel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Records that are exported, each once, and the pages that state them.

    `repeats` are stated a second time by another page; `flagged` are not proved by their page.
    """

    items: int
    pages: int
    repeats: int = 0
    flagged: int = 0


def expected(state: DemoState, *, has_browser: bool) -> Mapping[str, Expected]:
    """What each catalogue states now; the outcomes as the bundled model reads them."""
    return {
        "catalog:harbour": _harbour(state, has_browser=has_browser),
        "catalog:harbour-annex": _each_on_a_page(len((WEAVING, PATIENCE))),
        "catalog:harbour-members": _each_on_a_page(0),
        "catalog:tidewater": _tidewater(state),
        "catalog:lantern": _lantern(state),
        "catalog:meadow": _each_on_a_page(len(meadow_courses(state))),
        "catalog:harbour-outcomes": Expected(
            items=sum(len(one.learned) for one in PROGRAMMES),
            pages=len(PROGRAMMES),
            flagged=len(INVENTED),
        ),
    }


def _each_on_a_page(count: int) -> Expected:
    return Expected(items=count, pages=count)


def _harbour(state: DemoState, *, has_browser: bool) -> Expected:
    unseen = {LOST} if state.is_broken else set[str]()
    if not has_browser:
        unseen.add(RENDERED)
    return _each_on_a_page(sum(one.code not in unseen for one in courses(state)))


def _tidewater(state: DemoState) -> Expected:
    count = len(tidewater_courses(state))
    starts = [one for one in range(0, count, LIMIT) if not (state.is_broken and one == LOST_OFFSET)]
    return Expected(items=sum(min(LIMIT, count - one) for one in starts), pages=len(starts))


def _lantern(state: DemoState) -> Expected:
    catalogs = lantern_courses(state).values()
    stated = sum(len(one) for one in catalogs)
    items = len({course.code for one in catalogs for course in one})
    pages = sum(-(-len(one) // DEFAULT_LIMIT) for one in catalogs)
    return Expected(items=items, pages=pages, repeats=stated - items)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedJobs:
    """What the demo's profile makes of a board's jobs; `repeats` are another board's, too."""

    filtered: int
    skipped: int
    matched: int
    repeats: int = 0

    @property
    def jobs(self) -> int:
        """All that the board lists."""
        return self.filtered + self.skipped + self.matched


def expected_jobs(state: DemoState, *, is_gone_believed: bool = True) -> dict[str, ExpectedJobs]:
    """By board; a job that is gone is believed to be after a second listing without it."""
    listed = list(driftwood_openings(state))
    if not is_gone_believed:
        here = {one.id for one in listed}
        listed += [one for one in driftwood_openings(DemoState()) if one.id not in here]
    return {
        DRIFTWOOD_BOARD: _judged(listed),
        KESTREL_BOARD: _judged([*kestrel_openings(), repeated()], repeats=1),
    }


def _judged(listed: Sequence[Opening], repeats: int = 0) -> ExpectedJobs:
    matched = sum(one.outcome in PRIORITIES for one in listed)
    skipped = sum(one.outcome == SKIPPED for one in listed)
    return ExpectedJobs(
        filtered=len(listed) - matched - skipped,
        skipped=skipped,
        matched=matched,
        repeats=repeats,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedVisibility:
    """What one provider says of one business: in how many of its answers each is named."""

    asked: int
    answered: int
    mentioned: int
    competitors: Mapping[str, int]

    @property
    def visibility(self) -> float:
        """The share of its answers that name the business."""
        return self.mentioned / self.answered


def expected_visibility(
    state: DemoState, *, prompts: int = 7
) -> dict[tuple[str, str], ExpectedVisibility]:
    """By source and provider, without a model: so the questions come from templates."""
    return {
        (source_id, name): _named(business, speaker, state, prompts)
        for source_id, business in businesses(state).items()
        for name, speaker in SPEAKERS.items()
    }


def _named(
    business: Business, speaker: Speaker, state: DemoState, prompts: int
) -> ExpectedVisibility:
    questions = [one.text for one in chosen(business, (), count=prompts)]
    spoken = [one for one in (speaker(text, state) for text in questions) if one is not None]
    return ExpectedVisibility(
        asked=len(questions),
        answered=len(spoken),
        mentioned=sum(business.name in one.names for one in spoken),
        competitors={
            name: sum(name in one.names for one in spoken) for name in business.competitors
        },
    )
