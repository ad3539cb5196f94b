"""Phase 2: the prompts that customers would ask."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from ingestion_pipeline.settings import Website
from ingestion_pipeline.websites.business import Business, Prompted, PromptedBy
from ingestion_pipeline.websites.customer_prompts import (
    TEMPLATES,
    choose_prompts,
    is_fit,
    prompts_for,
    unique_prompts,
)
from ingestion_pipeline.websites.mentions import find_mentions

ACME = Business(
    url="https://acme.test",
    name="Acme",
    industry="Accounting software",
    location="Köln",
    keywords=("invoicing", "payroll", "Acme Cloud"),
    language="en",
)


def form_prompts(business: Business = ACME, **changes: Any) -> Prompted:
    settings = changes.pop("settings", Website())
    return asyncio.run(prompts_for(business, settings=settings, **changes))


@pytest.mark.parametrize("language", [*sorted(TEMPLATES), "en-GB", "fi", None])
def test_seven_prompts_are_in_the_sites_language_and_one_names_the_business(language: str | None) -> None:
    prompted = form_prompts(replace(ACME, language=language))

    assert len(prompted.prompts) == 7
    assert [prompt.is_direct for prompt in prompted.prompts] == [False] * 6 + [True]
    assert all(prompt.by is PromptedBy.TEMPLATES for prompt in prompted.prompts)
    unnamed = [prompt.text for prompt in prompted.prompts[:-1]]
    assert not any("acme" in text.lower() for text in unnamed)
    assert find_mentions(prompted.prompts[-1].text, ACME.names)
    assert any("Köln" in text for text in unnamed)


@pytest.mark.parametrize("language", sorted(TEMPLATES))
def test_every_template_has_its_placeholders_and_is_unique(language: str) -> None:
    templates = TEMPLATES[language]
    texts = [*templates.general, *templates.local]

    assert len(unique_prompts(texts)) == len(texts) >= 9
    assert all("{topic}" in text for text in texts)
    assert all("{place}" in text for text in templates.local)
    assert "{name}" in templates.direct


def test_a_business_without_facts_gets_generic_prompts() -> None:
    prompted = form_prompts(Business(url="https://acme.test", name="Acme", language="de"))

    assert len(prompted.prompts) == 7
    assert "Online-Dienste" in prompted.prompts[0].text


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

    prompts = choose_prompts(ACME, questions, count=7)

    by_model = [prompt.text for prompt in prompts if prompt.by is PromptedBy.MODEL]
    assert by_model == [questions[0], questions[6]]
    assert len(prompts) == 7
    assert prompts[-1].is_direct


def test_a_prompt_with_the_plain_word_of_a_name_is_unsuitable() -> None:
    target = replace(ACME, name="Target", url="https://target.test").names

    assert not is_fit("What is a good target for me?", target)
    assert is_fit("Where do I buy socks?", target)


def test_prompts_that_differ_only_in_form_are_duplicates() -> None:
    prompts = ["Who  bakes bread?", "who bakes bread!", "Wer backt Brot?", "Who bakes breads?", " "]

    assert unique_prompts(prompts) == ["Who bakes bread?", "Wer backt Brot?"]
