"""Phase 2: the prompts that customers would ask; and what a model adds to each phase."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from ingestion_pipeline.demo.model_server import Fail, ModelRequest, Say, ScriptedModel
from ingestion_pipeline.demo.model_server import Reply as ModelReply
from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.settings import Settings, Website
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline.websites.business import Business, Informed, Prompted, PromptedBy, WebsiteConfig
from ingestion_pipeline.websites.customer_prompts import (
    TEMPLATES,
    choose_prompts,
    gives_away,
    is_fit,
    place_of,
    prompts_for,
    topics_of,
    unique_prompts,
)
from ingestion_pipeline.websites.information import information
from ingestion_pipeline.websites.mentions import Names, find_mentions
from ingestion_pipeline.websites.provider_analysis import proved_sentiment
from ingestion_pipeline_tests.reading.llm.model_questions import model_call_rows, settings_with_model
from ingestion_pipeline_tests.websites.provider_answers import always, run_analysis, settings_with_providers
from ingestion_pipeline_tests.websites.website_runs import HOME, page_visitor, site_page

CASES = yaml.safe_load((Path(__file__).parent / "expected" / "prompts.yaml").read_text(encoding="utf-8"))

ACCOUNTING = Business(
    url="https://acme.test",
    name="Acme",
    industry="Accounting software",
    location="Köln",
    keywords=("invoicing", "payroll", "Acme Cloud"),
    language="en",
)


def form_prompts(business: Business = ACCOUNTING, **changes: Any) -> Prompted:
    settings = changes.pop("settings", Website())
    inputs: dict[str, Any] = {"model": None, "own": (), "source_id": None} | changes
    return asyncio.run(prompts_for(business, settings=settings, **inputs))


@pytest.mark.parametrize("language", [*sorted(TEMPLATES), "en-GB", "fi", None])
def test_seven_prompts_are_in_the_sites_language_and_one_names_the_business(language: str | None) -> None:
    prompted = form_prompts(replace(ACCOUNTING, language=language))

    assert len(prompted.prompts) == 7
    assert [prompt.is_direct for prompt in prompted.prompts] == [False] * 6 + [True]
    assert all(prompt.by is PromptedBy.TEMPLATES for prompt in prompted.prompts)
    unnamed = [prompt.text for prompt in prompted.prompts[:-1]]
    assert not any("acme" in text.lower() for text in unnamed)
    assert find_mentions(prompted.prompts[-1].text, ACCOUNTING.names)
    assert any("Köln" in text for text in unnamed)


@pytest.mark.parametrize("language", sorted(TEMPLATES))
def test_every_template_has_its_placeholders_and_is_unique(language: str) -> None:
    templates = TEMPLATES[language]
    texts = [*templates.general, *templates.local]

    assert len(unique_prompts(texts)) == len(texts) >= 9
    assert all("{topic}" in text for text in texts)
    assert all("{place}" in text for text in templates.local)
    assert "{name}" in templates.direct


def test_a_business_without_facts_gets_only_the_prompt_that_names_it() -> None:
    prompted = form_prompts(Business(url="https://acme.test", name="Acme", location="Köln", language="de"))

    assert [prompt.is_direct for prompt in prompted.prompts] == [True]


@pytest.mark.parametrize(("location", "place"), CASES["a_prompt_has_a_place_and_nothing_else"])
def test_a_prompt_has_a_place_and_nothing_else(location: str, place: str | None) -> None:
    assert place_of(replace(ACCOUNTING, location=location)) == place


@pytest.mark.parametrize(("keyword", "changes"), CASES["a_prompt_has_no_doubtful_topic"])
def test_a_prompt_has_no_doubtful_topic(keyword: str, changes: dict[str, Any]) -> None:
    business = replace(ACCOUNTING, keywords=(keyword, "payroll"), **changes)

    assert topics_of(business) == ["Accounting software", "payroll"]


def test_a_trade_is_asked_for_where_the_business_is() -> None:
    dentist = replace(ACCOUNTING, industry="Real Estate Agent", keywords=(), location="Leeds")

    assert [prompt.text for prompt in form_prompts(dentist).prompts[:-1]] == [
        "Which real estate agent in Leeds would you recommend?",
        "I am looking for a good real estate agent in Leeds. What options do I have?",
        "How do I choose the right real estate agent in Leeds?",
    ]
    assert len(form_prompts(replace(dentist, location=None)).prompts) == 1
    assert len(form_prompts(replace(dentist, language="de")).prompts) == 1


@pytest.mark.parametrize(("name", "prompt"), CASES["a_name_in_another_form_or_script_gives_it_away"])
def test_a_name_in_another_form_or_script_gives_it_away(name: str, prompt: str) -> None:
    assert gives_away(prompt, Names.of(name))


@pytest.mark.parametrize("language", ["en", "ru", "ja", "zh"])
@pytest.mark.parametrize("name", ["Acme", "Bluefin Roasters", "Ромашка", "アクメ"])
def test_a_template_is_not_mistaken_for_a_name_in_another_script(name: str, language: str) -> None:
    business = replace(ACCOUNTING, name=name, language=language)

    assert len(form_prompts(business).prompts) == 7


@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_the_number_of_prompts_is_a_setting(count: int) -> None:
    assert len(form_prompts(settings=Website(prompts=count)).prompts) == count


def test_own_prompts_are_used_unchanged_without_duplicates() -> None:
    own = ["Who bakes best?", "who bakes  best", "Is Acme any good?"]

    prompted = form_prompts(own=own)

    assert [(prompt.text, prompt.is_direct) for prompt in prompted.prompts] == [
        ("Who bakes best?", False),
        ("Is Acme any good?", True),
    ]
    assert {prompt.by for prompt in prompted.prompts} == {PromptedBy.OPERATOR}


def test_similar_own_prompts_are_all_used() -> None:
    own = [
        "Which shop sells good running shoes for men?",
        "Which shop sells good running shoes for women?",
        "Who is the best accountant in Berlin?",
        "Who is the best accountant in Bern?",
        "Which software suits a company of 5 people?",
        "Which software suits a company of 50 people?",
        "Who teaches C?",
        "Who teaches C++?",
        "Wer verkauft Boden?",
        "Wer verkauft Böden?",
        "Welche Masse hat ein Ziegel?",
        "Welche Maße hat ein Ziegel?",
    ]

    assert [prompt.text for prompt in form_prompts(own=own).prompts] == own


def test_only_suitable_prompts_of_a_model_are_used() -> None:
    questions = [
        "Which accounting software suits a bakery?",
        "Which accounting software suits a bakery",
        "Is ACME the best accounting software?",
        "See acme.test for more?",
        "Hm?",
        "x" * 500,
        "Who offers payroll for small shops?",
    ]

    prompts = choose_prompts(ACCOUNTING, questions, count=7)

    by_model = [prompt.text for prompt in prompts if prompt.by is PromptedBy.MODEL]
    assert by_model == [questions[0], questions[6]]
    assert len(prompts) == 7
    assert prompts[-1].is_direct


def test_a_prompt_with_the_plain_word_of_a_name_is_unsuitable() -> None:
    target = replace(ACCOUNTING, name="Target", url="https://target.test").names

    assert not is_fit("What is a good target for me?", target)
    assert is_fit("Where do I buy socks?", target)


def test_prompts_that_differ_only_in_form_are_duplicates() -> None:
    prompts = ["Who  bakes bread?", "who bakes bread!", "Wer backt Brot?", "Who bakes breads?", " "]

    assert unique_prompts(prompts) == ["Who bakes bread?", "Wer backt Brot?"]


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


def test_the_prompts_of_a_website_wait_for_a_batch(store: Store, settings: Settings) -> None:
    with ScriptedModel(always(Say(text="{}"))) as server:
        with_batches = settings_with_model(server.base_url, settings, INGESTION_MODELS__BATCH="auto")

        with pytest.raises(Resource, match="waits in a batch"):
            call_with_model(
                store,
                with_batches,
                lambda model: prompts_for(ACCOUNTING, settings=Website(), model=model, own=(), source_id=None),
            )

        assert server.requests == []


def read_business(store: Store, settings: Settings, reply: ModelReply) -> Informed:
    with ScriptedModel(always(reply)) as server:
        return call_with_model(
            store,
            settings_with_model(server.base_url, settings),
            lambda client: information(
                HOME,
                visit=page_visitor({"/": site_page(BODY)}),
                model=client,
                config=WebsiteConfig(),
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
            lambda client: prompts_for(ACCOUNTING, settings=Website(), model=client, own=(), source_id=None),
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
            lambda client: prompts_for(ACCOUNTING, settings=Website(), model=client, own=(), source_id=None),
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
    ("sentiment", "quote", "expected"), CASES["a_quote_must_be_in_the_answer_and_about_the_business"]
)
def test_a_quote_must_be_in_the_answer_and_about_the_business(
    sentiment: str | None, quote: str | None, expected: str | None
) -> None:
    assert proved_sentiment(sentiment, quote, ANSWER, Names.of("Acme"), "en") == expected
