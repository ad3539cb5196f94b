"""Phase 2: what customers ask."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from ingestion_pipeline.settings import Website
from ingestion_pipeline.websites.business import Business
from ingestion_pipeline.websites.naming import find_mentions
from ingestion_pipeline.websites.prompts import (
    TEMPLATES,
    choose_prompts,
    is_fit,
    prompts_for,
    templates_for,
    unique_prompts,
)
from ingestion_pipeline.websites.states import Prompted, PromptedBy

ACME = Business(
    url="https://acme.test",
    name="Acme",
    industry="Accounting software",
    location="Köln",
    keywords=("invoicing", "payroll", "Acme Cloud"),
    language="en",
)


def prompted(business: Business = ACME, **changes: Any) -> Prompted:
    settings = changes.pop("settings", Website())
    outcome = asyncio.run(prompts_for(business, settings=settings, **changes))
    assert isinstance(outcome, Prompted)
    return outcome


@pytest.mark.parametrize("language", [*sorted(TEMPLATES), "en-GB", "fi", None])
def test_seven_questions_are_asked_in_the_sites_language_and_one_names_the_business(language: str | None) -> None:
    found = prompted(replace(ACME, language=language))

    assert len(found.prompts) == 7
    assert [one.is_direct for one in found.prompts] == [False] * 6 + [True]
    assert all(one.by is PromptedBy.TEMPLATES for one in found.prompts)
    unnamed = [one.text for one in found.prompts[:-1]]
    assert not any("acme" in text.lower() for text in unnamed)
    assert find_mentions(found.prompts[-1].text, ACME.names)
    assert found.language == templates_for(language)[0]
    assert any("Köln" in text for text in unnamed)


@pytest.mark.parametrize("language", sorted(TEMPLATES))
def test_every_template_can_be_filled_and_none_is_there_twice(language: str) -> None:
    templates = TEMPLATES[language]
    texts = [*templates.general, *templates.local]

    assert len(unique_prompts(texts)) == len(texts) >= 9
    assert all("{topic}" in text for text in texts)
    assert all("{place}" in text for text in templates.local)
    assert "{name}" in templates.direct


def test_a_business_that_states_nothing_is_asked_about_all_the_same() -> None:
    found = prompted(Business(url="https://acme.test", name="Acme", language="de"))

    assert len(found.prompts) == 7
    assert "Online-Dienste" in found.prompts[0].text


@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_the_number_of_prompts_is_a_setting(count: int) -> None:
    assert len(prompted(settings=Website(prompts=count)).prompts) == count


def test_own_prompts_are_asked_as_they_are_each_once() -> None:
    own = ["Who bakes best?", "who bakes  best", "Is Acme any good?"]

    found = prompted(own=own)

    assert [(one.text, one.is_direct) for one in found.prompts] == [
        ("Who bakes best?", False),
        ("Is Acme any good?", True),
    ]
    assert {one.by for one in found.prompts} == {PromptedBy.OPERATOR}


def test_own_prompts_that_are_nearly_the_same_are_all_asked() -> None:
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

    assert [prompt.text for prompt in prompted(own=own).prompts] == own


def test_of_a_models_prompts_only_what_is_fit_is_taken() -> None:
    said = [
        "Which accounting software suits a bakery?",
        "Which accounting software suits a bakery",
        "Is ACME the best accounting software?",
        "See acme.test for more?",
        "Hm?",
        "x" * 500,
        "Who offers payroll for small shops?",
    ]

    found = choose_prompts(ACME, said, count=7)

    by_model = [one.text for one in found if one.by is PromptedBy.MODEL]
    assert by_model == [said[0], said[6]]
    assert len(found) == 7
    assert found[-1].is_direct


def test_a_name_that_is_a_plain_word_is_given_away_by_the_word() -> None:
    target = replace(ACME, name="Target", url="https://target.test").names

    assert not is_fit("What is a good target for me?", target)
    assert is_fit("Where do I buy socks?", target)


def test_prompts_in_another_dress_are_the_same() -> None:
    prompts = ["Who  bakes bread?", "who bakes bread!", "Wer backt Brot?", "Who bakes breads?", " "]

    assert unique_prompts(prompts) == ["Who bakes bread?", "Wer backt Brot?"]
