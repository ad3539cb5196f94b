"""Votes of a model, by the bundled scripted server: counted, and checked against the page."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from ingestion_pipeline.catalogs.detection.detector import FoundRecipe, RecipeDetector, matching_links
from ingestion_pipeline.catalogs.detection.model_votes import (
    DetectionLimits,
    ModelVoters,
    NotDetected,
    checked_pagination,
    checked_pattern,
    tally,
)
from ingestion_pipeline.catalogs.detection.page_analysis import analyze_page
from ingestion_pipeline.catalogs.extraction.entity_type import entity_type
from ingestion_pipeline.demo.model_server import ModelRequest, Say, ScriptedModel
from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import model_calls
from ingestion_pipeline_tests.catalogs.course_pages import expected_cases
from ingestion_pipeline_tests.catalogs.detection import sites
from ingestion_pipeline_tests.catalogs.detection.sites import HOME, SavedPages
from ingestion_pipeline_tests.polling_runs import rows

BADGE = "credential"  # rules find none on these pages


class VoteScript:
    """Answers each kind of question with its votes in turn, the last one for ever."""

    def __init__(self, **votes: Sequence[Mapping[str, Any]]) -> None:
        self._left = {name: list(answers) for name, answers in votes.items()}

    def __call__(self, request: ModelRequest) -> Say:
        keys = set(request.schema["properties"])
        name = next(question for question, key in KEYS.items() if key in keys)
        if name == "page_type" and "Badge for" in request.text:
            return Say(text=json.dumps({"page_type": "DETAIL"}))
        left = self._left[name]
        return Say(text=json.dumps(left.pop(0) if len(left) > 1 else left[0]))


KEYS = {"page_type": "page_type", "pagination": "counts", "links": "pattern"}
NO_LIST = {"second_page_url": None, "counts": "none", "first_number": None, "second_number": None, "total_pages": None}


def badge_site() -> dict[str, str]:
    names = ("welder", "nurse", "baker", "tailor")
    links = {f"/badge/{name}": name.title() for name in names}
    site = {"/badges": sites.page(sites.anchors(links), title="Badges")}
    return site | {f"/badge/{name}": sites.page(f"<p>Badge for {name}s") for name in names}


def page_type_votes(text: str) -> list[dict[str, str]]:
    names = {"D": "DETAIL", "L": "DETAIL_LINKS", "C": "CATEGORY_LINKS", "?": "UNKNOWN"}
    return [{"page_type": names[letter]} for letter in text]


PATTERN = {"pattern": "/badge/[a-z]+", "examples": ["/badge/welder", "/badge/nurse"]}


def model_settings(settings: Settings, model: ScriptedModel) -> Settings:
    return load_settings(
        {
            "INGESTION_HOME": str(settings.home),
            "INGESTION_DATABASE_URL": settings.database_url,
            "OPENAI_BASE_URL": model.base_url,
        }
    )


FEW_VOTES = DetectionLimits(page_type_votes=2, pagination_votes=1, samples=2)
ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def detect_with_votes(
    store: Store,
    settings: Settings,
    script: Callable[[ModelRequest], Say],
    site: Mapping[str, str] | None = None,
    detection: DetectionLimits = FEW_VOTES,
) -> tuple[FoundRecipe, ScriptedModel]:
    async def run(configured: Settings) -> FoundRecipe:
        async with ModelClient(store, configured) as client:
            detector = RecipeDetector(
                fetcher=SavedPages(site or badge_site(), entity=BADGE),
                limits=detection,
                entity=BADGE,
                voters=ModelVoters(client, detection, source_id="catalog:x", entity=BADGE),
            )
            return await detector.detect(f"{HOME}/badges")

    with ScriptedModel(script) as model:
        return asyncio.run(run(model_settings(settings, model))), model


@pytest.mark.slow
def test_a_model_decides_where_rules_are_not_sure(store: Store, settings: Settings) -> None:
    script = VoteScript(page_type=page_type_votes("LLLDLLLCLL"), pagination=[NO_LIST], links=[PATTERN])

    votes = DetectionLimits(pagination_votes=2, samples=1)

    detected, model = detect_with_votes(store, settings, script, detection=votes)

    assert detected.recipe == {
        "page_type": "DETAIL_LINKS",
        "link_pattern": "/badge/[a-z]+",
        "links": {"page_type": "DETAIL"},
    }
    assert "DETAIL_LINKS 8, CATEGORY_LINKS 1, DETAIL 1 of 10" in detected.message
    expected_calls = 10 + 2 + 3 + 10  # the page, its list, its links, and a sampled page
    assert len(model.requests) == len(rows(store, model_calls)) == expected_calls


@pytest.mark.slow
@ON_SQLITE
def test_a_vote_without_a_majority_assumes_detail_links_and_reports_it(store: Store, settings: Settings) -> None:
    script = VoteScript(page_type=page_type_votes("LC"), pagination=[NO_LIST], links=[PATTERN])

    detected, _ = detect_with_votes(store, settings, script)

    assert detected.recipe["page_type"] == "DETAIL_LINKS"
    assert "no majority: DETAIL_LINKS is assumed" in detected.message


@ON_SQLITE
def test_a_pattern_that_does_not_match_its_own_examples_is_no_vote(store: Store, settings: Settings) -> None:
    invented = {"pattern": "/badge/[a-z]+", "examples": ["/badge/astronaut"]}
    script = VoteScript(page_type=page_type_votes("L"), pagination=[NO_LIST], links=[invented])

    with pytest.raises(NotDetected, match=r"votes on the links of .* have no majority"):
        detect_with_votes(store, settings, script)


@pytest.mark.slow
@ON_SQLITE
def test_patterns_that_match_the_same_links_are_the_same_vote(store: Store, settings: Settings) -> None:
    other = PATTERN | {"pattern": "^/badge/"}
    menu = {"pattern": "/(admissions|library)", "examples": ["/library"]}
    script = VoteScript(page_type=page_type_votes("L"), pagination=[NO_LIST], links=[PATTERN, menu, other])

    detected, _ = detect_with_votes(store, settings, script)

    assert detected.recipe["link_pattern"] in {"/badge/[a-z]+", "^/badge/"}


@pytest.mark.slow
@ON_SQLITE
def test_children_of_several_types_are_refused(store: Store, settings: Settings) -> None:
    site = badge_site() | {"/badge/baker": sites.page("<p>Nothing here")}
    script = VoteScript(page_type=page_type_votes("L"), pagination=[NO_LIST], links=[PATTERN])

    with pytest.raises(NotDetected, match="lead to pages of several types") as refused:
        detect_with_votes(store, settings, script, site)

    assert f"{HOME}/badge/baker DETAIL_LINKS" in str(refused.value)


TRADES = {
    "building": ("welder", "mason", "roofer"),
    "health": ("nurse", "medic", "dentist"),
    "food": ("baker", "cook", "brewer"),
}


def badge_site_by_trade() -> dict[str, str]:
    site = {"/badges": sites.page(sites.anchors({f"/trade/{name}": name.title() for name in TRADES}), title="Trades")}
    for name, badges_of in TRADES.items():
        links = {f"/{name}/{badge}": badge.title() for badge in badges_of}
        site[f"/trade/{name}"] = sites.page(f"<p>The trade of {name}</p>{sites.anchors(links)}", title=name.title())
        site |= {path: sites.page(f"<p>Badge for {path}s") for path in links}
    return site


def vote_by_page(request: ModelRequest) -> Say:
    """Vote as a model does: the pattern for the badges of a trade contains the trade."""
    trade = next((name for name in TRADES if f"The trade of {name}" in request.text), None)
    answers: dict[str, dict[str, Any]] = {
        "counts": NO_LIST,
        "page_type": {"page_type": "DETAIL_LINKS" if trade else "CATEGORY_LINKS"},
        "pattern": {"pattern": "/trade/[a-z]+", "examples": ["/trade/food", "/trade/health"]},
    }
    if trade:
        examples = [f"/{trade}/{badge}" for badge in TRADES[trade]]
        answers["pattern"] = {"pattern": f"/{trade}/[a-z]+", "examples": examples}
    if "Badge for" in request.text:
        answers["page_type"] = {"page_type": "DETAIL"}
    return Say(text=json.dumps(next(answers[key] for key in request.schema["properties"] if key in answers)))


@pytest.mark.slow
@ON_SQLITE
def test_a_pattern_given_for_one_category_is_generalized_to_its_siblings(store: Store, settings: Settings) -> None:
    site = badge_site_by_trade()

    detected, _ = detect_with_votes(store, settings, vote_by_page, site)

    inner = detected.recipe["links"]
    saved_pages = SavedPages(site, entity=BADGE)
    pages = [asyncio.run(saved_pages.page(f"{HOME}/trade/{name}")) for name in TRADES]
    followed = {url for page in pages for url in matching_links(page, inner["link_pattern"])}
    assert followed == {f"{HOME}/{name}/{badge}" for name in TRADES for badge in TRADES[name]}


PAGE = analyze_page(
    sites.page(sites.anchors({"/l?p=2&x=9": "more", "/c/1": "One", "/c/2": "Two"})),
    f"{HOME}/l",
    kind=entity_type("course"),
)


@pytest.mark.parametrize(("answer", "expected"), expected_cases("pagination_votes"))
def test_a_pagination_must_be_on_the_page(answer: dict[str, Any], expected: object) -> None:
    assert checked_pagination(PAGE, answer) == expected


@pytest.mark.parametrize(
    ("pattern", "examples", "is_good"),
    [
        ("/c/[0-9]", ["/c/1"], True),
        ("/c/[0-9]", ["/c/1", "/c/7"], False),
        ("/d/[0-9]", ["/c/1"], False),
        ("/c/(?=1)", ["/c/1"], False),
        ("/c/[0-9]", [], False),
        (" ", ["/c/1"], False),
    ],
    ids=["found", "an example is not there", "not matched", "look-ahead", "no example", "blank"],
)
def test_a_pattern_must_match_its_examples(pattern: str, examples: list[str], is_good: bool) -> None:
    answer = {"pattern": pattern, "examples": examples}

    checked = checked_pattern(PAGE, answer)

    assert (checked is not None) == is_good


@pytest.mark.parametrize(("votes", "winner"), expected_cases("vote_counts"))
def test_more_than_half_of_the_votes_decide(votes: Sequence[str], winner: str | None) -> None:
    assert tally(list(votes)).winner == winner


def test_the_first_repeat_is_counted_once() -> None:
    """The original counted it twice: A, A, B, B, B was a tie that A won."""
    counted = tally(list("AABBB"))

    assert counted.counts == (("B", 3), ("A", 2))
    assert counted.winner == "B"


def test_a_tally_prints_its_counts() -> None:
    assert str(tally(["A", "B", "A", None])) == "A 2, B 1 of 4"
