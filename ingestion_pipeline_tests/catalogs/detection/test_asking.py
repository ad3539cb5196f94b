"""A model's votes, by the bundled scripted server: counted, checked against the page, paid for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from ingestion_pipeline.catalogs.detection.detected import FoundRecipe, NotDetected
from ingestion_pipeline.catalogs.detection.detector import RecipeDetector, followed_links
from ingestion_pipeline.catalogs.detection.model_votes import ModelVoters, checked_pagination, checked_pattern
from ingestion_pipeline.catalogs.detection.page_analysis import analyze_page
from ingestion_pipeline.catalogs.extraction.entity_type import entity_type
from ingestion_pipeline.catalogs.recipes.patterns import simplified_markdown
from ingestion_pipeline.demo.model_server import ModelRequest, Say, ScriptedModel
from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.settings.systems import Detection
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import model_calls
from ingestion_pipeline_tests.catalogs.detection import sites
from ingestion_pipeline_tests.catalogs.detection.sites import HOME, SavedLook
from ingestion_pipeline_tests.pollers import rows

BADGE = "credential"  # rules see none on these pages


class Voting:
    """Answers each kind of question with its votes one by one, the last one for ever."""

    def __init__(self, **votes: Sequence[Mapping[str, Any]]) -> None:
        self._left = {name: list(answers) for name, answers in votes.items()}

    def __call__(self, asked: ModelRequest) -> Say:
        keys = set(asked.schema["properties"])
        name = next(one for one, key in KEYS.items() if key in keys)
        if name == "page_type" and "Badge for" in asked.text:
            return Say(text=json.dumps({"page_type": "DETAIL"}))
        left = self._left[name]
        return Say(text=json.dumps(left.pop(0) if len(left) > 1 else left[0]))


KEYS = {"page_type": "page_type", "pagination": "counts", "links": "pattern"}
NO_LIST = {"second_page_url": None, "counts": "none", "first_number": None, "second_number": None, "total_pages": None}


def badges() -> dict[str, str]:
    names = ("welder", "nurse", "baker", "tailor")
    links = {f"/badge/{one}": one.title() for one in names}
    site = {"/badges": sites.page(sites.anchors(links), title="Badges")}
    return site | {f"/badge/{one}": sites.page(f"<p>Badge for {one}s") for one in names}


def kinds(text: str) -> list[dict[str, str]]:
    names = {"D": "DETAIL", "L": "DETAIL_LINKS", "C": "CATEGORY_LINKS", "?": "UNKNOWN"}
    return [{"page_type": names[one]} for one in text]


PATTERN = {"pattern": "/badge/[a-z]+", "examples": ["/badge/welder", "/badge/nurse"]}


def settings_for(settings: Settings, model: ScriptedModel) -> Settings:
    return load_settings(
        {
            "INGESTION_HOME": str(settings.home),
            "INGESTION_DATABASE_URL": settings.database_url,
            "OPENAI_BASE_URL": model.base_url,
        }
    )


FEW = Detection(page_type_votes=2, pagination_votes=1, samples=2)
ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def detect(
    store: Store,
    settings: Settings,
    script: Callable[[ModelRequest], Say],
    site: Mapping[str, str] | None = None,
    detection: Detection = FEW,
) -> tuple[FoundRecipe, ScriptedModel]:
    async def run(configured: Settings) -> FoundRecipe:
        async with ModelClient(store, configured) as client:
            detective = RecipeDetector(
                fetcher=SavedLook(site or badges(), entity=BADGE),
                settings=detection,
                entity=BADGE,
                voters=ModelVoters(client, detection, source_id="catalog:x", entity=BADGE),
            )
            return await detective.detect(f"{HOME}/badges")

    with ScriptedModel(script) as model:
        return asyncio.run(run(settings_for(settings, model))), model


def test_where_rules_are_not_sure_a_model_decides(store: Store, settings: Settings) -> None:
    script = Voting(page_type=kinds("LLLDLLLCLL"), pagination=[NO_LIST], links=[PATTERN])

    votes = Detection(pagination_votes=2, samples=1)

    found, model = detect(store, settings, script, detection=votes)

    assert found.recipe == {
        "page_type": "DETAIL_LINKS",
        "link_pattern": "/badge/[a-z]+",
        "links": {"page_type": "DETAIL"},
    }
    assert "DETAIL_LINKS 8, CATEGORY_LINKS 1, DETAIL 1 of 10" in found.message
    asked = 10 + 2 + 3 + 10  # the page, its list, its links, and the page of a sample
    assert len(model.requests) == len(rows(store, model_calls)) == asked


@ON_SQLITE
def test_a_vote_that_decides_nothing_is_detail_links_with_a_word_on_it(store: Store, settings: Settings) -> None:
    script = Voting(page_type=kinds("LC"), pagination=[NO_LIST], links=[PATTERN])

    found, _ = detect(store, settings, script)

    assert found.recipe["page_type"] == "DETAIL_LINKS"
    assert "no majority: DETAIL_LINKS is assumed" in found.message


@ON_SQLITE
def test_a_pattern_that_does_not_find_its_own_examples_is_no_vote(store: Store, settings: Settings) -> None:
    invented = {"pattern": "/badge/[a-z]+", "examples": ["/badge/astronaut"]}
    script = Voting(page_type=kinds("L"), pagination=[NO_LIST], links=[invented])

    with pytest.raises(NotDetected, match=r"votes on the links of .* have no majority"):
        detect(store, settings, script)


@ON_SQLITE
def test_patterns_that_find_the_same_links_are_the_same_vote(store: Store, settings: Settings) -> None:
    other = PATTERN | {"pattern": "^/badge/"}
    menu = {"pattern": "/(admissions|library)", "examples": ["/library"]}
    script = Voting(page_type=kinds("L"), pagination=[NO_LIST], links=[PATTERN, menu, other])

    found, _ = detect(store, settings, script)

    assert found.recipe["link_pattern"] in {"/badge/[a-z]+", "^/badge/"}


@ON_SQLITE
def test_children_of_several_types_are_an_error_for_people(store: Store, settings: Settings) -> None:
    site = badges() | {"/badge/baker": sites.page("<p>Nothing here")}
    script = Voting(page_type=kinds("L"), pagination=[NO_LIST], links=[PATTERN])

    with pytest.raises(NotDetected, match="lead to pages of several types") as refused:
        detect(store, settings, script, site)

    assert f"{HOME}/badge/baker DETAIL_LINKS" in str(refused.value)


TRADES = {
    "building": ("welder", "mason", "roofer"),
    "health": ("nurse", "medic", "dentist"),
    "food": ("baker", "cook", "brewer"),
}


def badges_by_trade() -> dict[str, str]:
    site = {"/badges": sites.page(sites.anchors({f"/trade/{name}": name.title() for name in TRADES}), title="Trades")}
    for name, badges_of in TRADES.items():
        links = {f"/{name}/{one}": one.title() for one in badges_of}
        site[f"/trade/{name}"] = sites.page(f"<p>The trade of {name}</p>{sites.anchors(links)}", title=name.title())
        site |= {path: sites.page(f"<p>Badge for {path}s") for path in links}
    return site


def votes_of_the_page_at_hand(asked: ModelRequest) -> Say:
    """As a model sees it: the pattern of a trade's badges names the trade."""
    trade = next((name for name in TRADES if f"The trade of {name}" in asked.text), None)
    answers: dict[str, dict[str, Any]] = {
        "counts": NO_LIST,
        "page_type": {"page_type": "DETAIL_LINKS" if trade else "CATEGORY_LINKS"},
        "pattern": {"pattern": "/trade/[a-z]+", "examples": ["/trade/food", "/trade/health"]},
    }
    if trade:
        examples = [f"/{trade}/{one}" for one in TRADES[trade]]
        answers["pattern"] = {"pattern": f"/{trade}/[a-z]+", "examples": examples}
    if "Badge for" in asked.text:
        answers["page_type"] = {"page_type": "DETAIL"}
    return Say(text=json.dumps(next(answers[key] for key in asked.schema["properties"] if key in answers)))


@ON_SQLITE
def test_a_pattern_that_a_model_gives_for_one_category_is_made_that_of_its_siblings(
    store: Store, settings: Settings
) -> None:
    site = badges_by_trade()

    found, _ = detect(store, settings, votes_of_the_page_at_hand, site)

    inner = found.recipe["links"]
    look = SavedLook(site, entity=BADGE)
    pages = [asyncio.run(look.page(f"{HOME}/trade/{name}")) for name in TRADES]
    followed = {url for page in pages for url in followed_links(page, inner)}
    assert followed == {f"{HOME}/{name}/{one}" for name in TRADES for one in TRADES[name]}


PAGE = analyze_page(
    sites.page(sites.anchors({"/l?p=2&x=9": "more", "/c/1": "One", "/c/2": "Two"})),
    f"{HOME}/l",
    kind=entity_type("course"),
)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            {"second_page_url": "/l?p=2&x=9", "counts": "page_num", "second_number": 2},
            {"url_pattern": "/l?p={page_num}&x=9", "total_pages": 2, "start_page": 1},
        ),
        ({"second_page_url": "/l?p=3&x=9", "counts": "page_num", "second_number": 3}, None),
        ({"second_page_url": "/l?p=2&x=9", "counts": "page_num", "second_number": 7}, None),
        ({"second_page_url": "/l?p=2&x=9", "counts": "none", "second_number": 2}, None),
        ({"second_page_url": None, "counts": "page_num", "second_number": 2}, None),
    ],
    ids=["on the page", "invented", "no such number", "no count", "no address"],
)
def test_a_pagination_must_stand_on_the_page(answer: dict[str, Any], expected: object) -> None:
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
def test_a_pattern_must_find_its_examples(pattern: str, examples: list[str], is_good: bool) -> None:
    answer = {"pattern": pattern, "examples": examples}

    found = checked_pattern(PAGE, simplified_markdown(PAGE.html), answer)

    assert (found is not None) == is_good
