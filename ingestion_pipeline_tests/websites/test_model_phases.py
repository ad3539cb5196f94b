"""What a model adds to the phases: grounded facts, prompts, and sentiment."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from ingestion_pipeline.demo.model_server import Fail, ModelRequest, Say, ScriptedModel
from ingestion_pipeline.demo.model_server import Reply as ModelReply
from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.settings import Settings, Website
from ingestion_pipeline.store import Store
from ingestion_pipeline.websites.business import Informed, PromptedBy
from ingestion_pipeline.websites.customer_prompts import prompts_for
from ingestion_pipeline.websites.information import information
from ingestion_pipeline.websites.name_forms import Names
from ingestion_pipeline.websites.provider_analysis import proved_sentiment
from ingestion_pipeline_tests.reading.llm.model_questions import model_call_rows, settings_with_model
from ingestion_pipeline_tests.websites.provider_answers import ACME, always, run_analysis, settings_with_providers
from ingestion_pipeline_tests.websites.website_runs import HOME, page_visitor, site_page

T = TypeVar("T")
BODY = (
    "<p>Globex bakes rye bread in Leeds. Our bread is better than the bread of Initech.</p>"
    "<p>Bread, rolls and cakes.</p>"
)
MODEL_FACTS: dict[str, Any] = {
    "name": "Globex",
    "industry": "Aerospace",
    "description": "Globex bakes rye bread in Leeds.",
    "location": "Leeds",
    "keywords": ["rye bread", "rolls", "rockets"],
    "competitors": ["Initech", "Hooli"],
}


def call_with_model(store: Store, settings: Settings, call: Callable[[ModelClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with ModelClient(store, settings) as client:
            return await call(client)

    return asyncio.run(run())


def read_business(store: Store, settings: Settings, reply: ModelReply) -> Informed:
    with ScriptedModel(always(reply)) as server:
        return call_with_model(
            store,
            settings_with_model(server.base_url, settings),
            lambda client: information(
                HOME,
                visit=page_visitor({"/": site_page(BODY)}),
                settings=Website(),
                model=client,
                source_id="website:globex",
            ),
        )


def test_a_model_adds_grounded_facts_that_the_rules_lack(store: Store, settings: Settings) -> None:
    informed = read_business(store, settings, Say(text=json.dumps(MODEL_FACTS)))

    business = informed.business
    assert (business.name, business.location) == ("Globex", "Leeds")
    assert business.industry is None  # nothing on the page states it
    assert business.competitors == ("Initech",)
    assert "rockets" not in business.keywords
    assert "rye bread" in business.keywords
    assert business.evidence["location"]["status"] == "exact"
    assert business.evidence["name"]["method"] == "model"
    assert business.confidence >= 50
    assert "industry" in informed.problems[0].message
    assert {row.call_site for row in model_call_rows(store)} == {"website_info"}


@pytest.mark.parametrize("reply", [Fail(status=401), Say(text="no JSON"), Say(refusal="no")])
def test_a_failing_model_leaves_the_facts_of_the_rules(store: Store, settings: Settings, reply: ModelReply) -> None:
    informed = read_business(store, settings, reply)

    assert (informed.business.name, informed.business.confidence) == ("Acme Tools", 20)
    assert informed.problems


def test_a_model_forms_prompts_and_templates_fill_the_rest(store: Store, settings: Settings) -> None:
    questions = [f"Which tool number {n} in {n} shops is best?" for n in ("one", "three")]
    reply = json.dumps({"questions": [*questions, "Is Acme good?"]})
    with ScriptedModel(always(Say(text=reply))) as server:
        prompted = call_with_model(
            store,
            settings_with_model(server.base_url, settings),
            lambda client: prompts_for(ACME, settings=Website(), model=client),
        )

    by_model = [prompt.text for prompt in prompted.prompts if prompt.by is PromptedBy.MODEL]
    assert by_model == questions
    assert len(prompted.prompts) == 7


def test_a_model_that_fails_leaves_the_prompts_to_templates(
    store: Store, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedModel(always(Fail(status=401, message="bad key"))) as server:
        prompted = call_with_model(
            store,
            settings_with_model(server.base_url, settings),
            lambda client: prompts_for(ACME, settings=Website(), model=client),
        )

    assert len(prompted.prompts) == 7
    assert "bad key" in caplog.text


def test_sentiment_is_stored_with_a_quote_from_the_answer(store: Store, settings: Settings) -> None:
    good = {"sentiment": "positive", "quote": "Acme is the best of them"}

    def script(request: ModelRequest) -> ModelReply:
        if request.schema:
            return Say(text=json.dumps(good))
        return Say(text="Acme is the best of them." if "best" in request.text else "Nobody.")

    with ScriptedModel(script) as server:
        provider_settings = settings_with_providers(
            settings, {"one": server.base_url}, {"OPENAI_BASE_URL": server.base_url}
        )
        analysis = run_analysis(store, provider_settings, with_model=True)

    assert analysis.ranking.sentiments == {"positive": 1}
    assert [answer.sentiment for answer in analysis.answers] == ["positive", None, None]


ANSWER = "Globex is slow and dear.\n\nOthers are not.\n\nAcme is quick and cheap."


@pytest.mark.parametrize(
    ("sentiment", "quote", "expected"),
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
def test_a_quote_must_be_in_the_answer_and_about_the_business(
    sentiment: str | None, quote: str | None, expected: str | None
) -> None:
    assert proved_sentiment(sentiment, quote, ANSWER, Names.of("Acme"), "en") == expected
