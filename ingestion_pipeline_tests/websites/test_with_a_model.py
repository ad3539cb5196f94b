"""What a model adds to the phases: facts that the text proves, prompts, and sentiment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from ingestion_pipeline.demo.model_server import Fail, ModelRequest, Say, ScriptedModel
from ingestion_pipeline.demo.model_server import Reply as Said
from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.settings import Settings, Website
from ingestion_pipeline.store import Store
from ingestion_pipeline.websites.analysis import WebsiteAnalysed
from ingestion_pipeline.websites.information import information
from ingestion_pipeline.websites.naming import Names
from ingestion_pipeline.websites.prompts import prompts_for
from ingestion_pipeline.websites.states import Informed, Prompted, PromptedBy
from ingestion_pipeline.websites.visibility import proved_sentiment
from ingestion_pipeline_tests.reading.models.asking import leading_to, ledger
from ingestion_pipeline_tests.websites.asking import ACME, always, analysed, led_to
from ingestion_pipeline_tests.websites.sites import HOME, site_page, visits

T = TypeVar("T")
BODY = (
    "<p>Globex bakes rye bread in Leeds. Our bread is better than the bread of Initech.</p>"
    "<p>Bread, rolls and cakes.</p>"
)
SAID: dict[str, Any] = {
    "name": "Globex",
    "industry": "Aerospace",
    "description": "Globex bakes rye bread in Leeds.",
    "location": "Leeds",
    "keywords": ["rye bread", "rolls", "rockets"],
    "competitors": ["Initech", "Hooli"],
}


@pytest.fixture
def database() -> str:
    return "sqlite"


def with_model(store: Store, settings: Settings, do: Callable[[ModelClient], Awaitable[T]]) -> T:
    async def doing() -> T:
        async with ModelClient(store, settings) as client:
            return await do(client)

    return asyncio.run(doing())


def read(store: Store, settings: Settings, reply: Said) -> Informed:
    with ScriptedModel(always(reply)) as server:
        outcome = with_model(
            store,
            leading_to(server.base_url, settings),
            lambda client: information(
                HOME, visit=visits({"/": site_page(BODY)}), settings=Website(), model=client, source_id="website:globex"
            ),
        )
    assert isinstance(outcome, Informed)
    return outcome


def test_a_model_fills_what_rules_left_open_as_far_as_the_text_proves_it(store: Store, settings: Settings) -> None:
    found = read(store, settings, Say(text=json.dumps(SAID)))

    business = found.business
    assert (business.name, business.location) == ("Globex", "Leeds")
    assert business.industry is None  # nothing on the page says so
    assert business.competitors == ("Initech",)
    assert "rockets" not in business.keywords
    assert "rye bread" in business.keywords
    assert business.evidence["location"]["status"] == "exact"
    assert business.evidence["name"]["rung"] == "model"
    assert business.confidence >= 50
    assert "industry" in found.problems[0].message
    assert {row.call_site for row in ledger(store)} == {"website_info"}


@pytest.mark.parametrize("reply", [Fail(status=401), Say(text="no JSON"), Say(refusal="no")])
def test_a_model_that_does_not_help_leaves_what_rules_found(store: Store, settings: Settings, reply: Said) -> None:
    found = read(store, settings, reply)

    assert (found.business.name, found.business.confidence) == ("Acme Tools", 20)
    assert found.problems


def test_a_model_forms_prompts_and_templates_make_up_for_the_rest(store: Store, settings: Settings) -> None:
    questions = [f"Which tool number {n} in {n} shops is best?" for n in ("one", "three")]
    said = json.dumps({"questions": [*questions, "Is Acme good?"]})
    with ScriptedModel(always(Say(text=said))) as server:
        found = with_model(
            store,
            leading_to(server.base_url, settings),
            lambda client: prompts_for(ACME, settings=Website(), model=client),
        )

    assert isinstance(found, Prompted)
    by_model = [one.text for one in found.prompts if one.by is PromptedBy.MODEL]
    assert by_model == questions
    assert len(found.prompts) == 7


def test_a_model_that_fails_leaves_the_prompts_to_templates(store: Store, settings: Settings) -> None:
    with ScriptedModel(always(Fail(status=401, message="bad key"))) as server:
        found = with_model(
            store,
            leading_to(server.base_url, settings),
            lambda client: prompts_for(ACME, settings=Website(), model=client),
        )

    assert isinstance(found, Prompted)
    assert len(found.prompts) == 7
    assert "bad key" in found.problems[0].message


def test_sentiment_is_taken_with_a_quote_that_the_answer_has(store: Store, settings: Settings) -> None:
    good = {"sentiment": "positive", "quote": "Acme is the best of them"}

    def script(asked: ModelRequest) -> Said:
        if asked.schema:
            return Say(text=json.dumps(good))
        return Say(text="Acme is the best of them." if "best" in asked.text else "Nobody.")

    with ScriptedModel(script) as server:
        led = led_to(settings, {"one": server.base_url}, {"OPENAI_BASE_URL": server.base_url})
        found = analysed(store, led, with_model=True)

    assert isinstance(found, WebsiteAnalysed)
    assert found.ranking.sentiments == {"positive": 1}
    assert [answer.sentiment for answer in found.answers] == ["positive", None, None]


ANSWER = "Globex is slow and dear.\n\nOthers are not.\n\nAcme is quick and cheap."


@pytest.mark.parametrize(
    ("sentiment", "quote", "taken"),
    [
        ("positive", "Acme is quick and cheap.", "positive"),
        ("positive", "quick and cheap", "positive"),
        ("positive", "Acme is the best there is", None),
        ("negative", "Globex is slow and dear.", None),
        ("negative", None, None),
        ("negative", "dear", None),
        ("great", "Acme is quick and cheap.", None),
        (None, "Acme is quick and cheap.", None),
    ],
)
def test_a_quote_must_be_the_answers_own_and_about_the_business(
    sentiment: str | None, quote: str | None, taken: str | None
) -> None:
    assert proved_sentiment(sentiment, quote, ANSWER, Names.of("Acme"), "en") == taken
