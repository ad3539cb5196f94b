"""The demo's businesses as stated on their pages, and the answers of its providers about them."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from ingestion_pipeline.demo.company_sites import businesses
from ingestion_pipeline.demo.content import DemoState, mutate, write_state
from ingestion_pipeline.demo.model_server import (
    ALMANAC,
    PROVIDERS_SETTING,
    WEATHERCOCK,
    almanac,
    demo_providers,
    fails,
    provider_settings,
)
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.markdown import read_page
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.websites.business import Business, FetchedPage
from ingestion_pipeline.websites.customer_prompts import choose_prompts
from ingestion_pipeline.websites.information import information
from ingestion_pipeline_tests.demo.expected_results import ExpectedVisibility, expected_visibility
from ingestion_pipeline_tests.demo.site_requests import get

SHIPPED, MUTATED = DemoState(), mutate(DemoState())


def read_business(site: DemoSite, business: Business) -> Business:
    """Read the business as the first phase does, without the confidence."""

    async def visit(url: str) -> FetchedPage:
        html = get(site, url).body.decode()
        return FetchedPage(url=url, html=html, links=read_page(Document(html, url=url)).links)

    settings = Settings().website
    outcome = asyncio.run(information(business.url, visit=visit, settings=settings))
    assert len(outcome.pages) == 3
    assert outcome.business.confidence == 90
    return replace(outcome.business, aliases=(), confidence=0, evidence={})


@pytest.mark.parametrize("state", [SHIPPED, MUTATED], ids=["shipped", "mutated"])
def test_each_website_is_read_as_declared(site: DemoSite, state: DemoState) -> None:
    write_state(site.home, state)

    for business in businesses(state).values():
        assert read_business(site, business) == business


def test_the_expected_visibility_of_each_business_is_exact() -> None:
    shipped, mutated = expected_visibility(SHIPPED), expected_visibility(MUTATED)
    coffee, bikes = "website:saltmarsh", "website:radwerft"

    assert shipped[coffee, ALMANAC] == ExpectedVisibility(
        questions=7, answered=7, mentioned=7, competitors={"Gullwing Coffee": 6, "Pebble Roastery": 6}
    )
    assert shipped[bikes, WEATHERCOCK] == ExpectedVisibility(
        questions=7, answered=3, mentioned=1, competitors={"Pedalhafen": 2, "Kettenwerk": 0}
    )
    assert {key: visibility.mentioned for key, visibility in mutated.items()} == {
        (coffee, ALMANAC): 7,
        (coffee, WEATHERCOCK): 4,
        (bikes, ALMANAC): 7,
        (bikes, WEATHERCOCK): 3,
    }


def test_the_weathercock_fails_at_half_of_the_questions() -> None:
    questions = [
        prompt.text for business in businesses(SHIPPED).values() for prompt in choose_prompts(business, (), count=7)
    ]

    assert Counter(map(fails, questions)) == {True: 7, False: 7}


def test_a_mutation_puts_a_competitor_first() -> None:
    question = "Who sells cold brew?"
    before, after = almanac(question, SHIPPED), almanac(question, MUTATED)

    assert before is not None
    assert after is not None
    assert "1. Saltmarsh Coffee, much praised." in before
    assert "3. Saltmarsh Coffee, much praised." in after


def test_providers_answer_on_loopback_by_the_state_of_the_site(tmp_path: Path) -> None:
    with demo_providers(tmp_path) as running:
        listed = load_settings({"INGESTION_HOME": str(tmp_path), **provider_settings(running)})
        responses = [
            httpx.post(f"{running[name].base_url}/responses", json={"model": "m", "input": [turn]})
            for name in (ALMANAC, WEATHERCOCK)
            for turn in ({"role": "user", "content": "Who sells cold brew?!"},)
        ]

    assert [response.status_code for response in responses] == [200, 500]
    assert "In this order: 1. Saltmarsh Coffee, much praised." in responses[0].text
    assert PROVIDERS_SETTING == "INGESTION_WEBSITE__PROVIDERS"
    assert listed.website.providers.count("127.0.0.1") == 2
