"""The demo's companies and businesses give what they declare."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingestion_pipeline.companies.job_listing import Listing, fingerprint, salary_as_dict
from ingestion_pipeline.companies.matching.listed_job import ListedJob
from ingestion_pipeline.companies.matching.listing_rules import filter_listing, match_result, rule_score, stopped
from ingestion_pipeline.companies.matching.profile import Profile, load_profile
from ingestion_pipeline.companies.platforms import platform
from ingestion_pipeline.demo.company_sites import (
    ADDED,
    API_PATH,
    BOARDS_HOST,
    CHANGED,
    GONE,
    KESTREL_HOST,
    PRIORITIES,
    SKIPPED,
    Opening,
    businesses,
    driftwood_openings,
    kestrel_openings,
    repeated,
)
from ingestion_pipeline.demo.content import DemoState, break_site, mutate, write_state
from ingestion_pipeline.demo.model_server import (
    ALMANAC,
    PROVIDERS_SETTING,
    WEATHERCOCK,
    almanac,
    demo_providers,
    fails,
    opinion,
    provider_settings,
)
from ingestion_pipeline.demo.site import DemoSite, demo_profile
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.markdown import read_page
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.websites.business import Business, FetchedPage, WebsiteConfig
from ingestion_pipeline.websites.customer_prompts import choose_prompts
from ingestion_pipeline.websites.information import information
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.demo.expected_results import (
    DRIFTWOOD_BOARD,
    KESTREL_BOARD,
    ExpectedJobs,
    ExpectedVisibility,
    expected_jobs,
    expected_visibility,
)
from ingestion_pipeline_tests.demo.site_requests import get

API, CAREERS = f"http://{BOARDS_HOST}{API_PATH}", f"http://{KESTREL_HOST}/careers"
SHIPPED, MUTATED = DemoState(), mutate(DemoState())


def listings(site: DemoSite, url: str, name: str) -> Sequence[Listing]:
    reply = get(site, url)
    config: dict[str, Any] = {"board_token": "driftwood"} if name == "greenhouse" else {}
    board = platform(name).configure(url, config)
    kind = reply.headers["Content-Type"]
    return board.read([reply.body], content_types=[kind], urls=[url], now=NOON).records


def evaluate(listing: Listing) -> str:
    """Return the result of the demo's profile: the filter's reason, `skipped`, or the priority of a match."""
    profile, settings = load_profile(demo_profile()), Settings()
    assert isinstance(profile, Profile)
    salary = listing.salary
    job = ListedJob(
        title=listing.title,
        url=listing.url,
        company=listing.company,
        locations=(listing.location,) if listing.location else (),
        remote=listing.remote,
        description=listing.description,
        employment_type=listing.employment_type,
        salary=salary_as_dict(salary) if salary else None,
        posted_at=listing.posted_at,
    )
    if stopped(profile, title=job.title, url=job.url, company=job.company):
        return SKIPPED
    if reason := filter_listing(job, profile, settings.filter, at=NOON).rejected_by:
        return reason
    match = match_result(job, profile, rule_score(job, profile), settings.match, at=NOON)
    return match.priority.value if match.is_match else SKIPPED


@pytest.mark.slow
@pytest.mark.parametrize("state", [SHIPPED, MUTATED], ids=["shipped", "mutated"])
def test_the_profile_gives_each_job_its_declared_outcome(site: DemoSite, state: DemoState) -> None:
    write_state(site.home, state)
    openings = driftwood_openings(state)

    found_listings = listings(site, API, "greenhouse")

    assert [listing.external_id for listing in found_listings] == [str(opening.id) for opening in openings]
    assert {listing.title: evaluate(listing) for listing in found_listings} == {
        opening.title: opening.outcome for opening in openings
    }


def test_every_outcome_occurs(site: DemoSite) -> None:
    reasons = ("job_type", "seniority", "keyword", "salary", "commission", "work_mode", "age")
    outcomes = {*PRIORITIES, SKIPPED, "strikes", "technology", *reasons}

    assert {evaluate(listing) for listing in listings(site, API, "greenhouse")} == outcomes


def test_four_strikes_pass_and_five_filter(site: DemoSite) -> None:
    profile, limits = load_profile(demo_profile()), Settings().filter
    assert isinstance(profile, Profile)
    listings_by_id = {listing.external_id: listing for listing in listings(site, API, "greenhouse")}

    def strikes(key: str) -> tuple[int, bool]:
        listing = listings_by_id[key]
        job = ListedJob(title=listing.title, description=listing.description)
        decision = filter_listing(job, profile, limits, at=NOON)
        return decision.strikes, decision.passed

    assert (strikes("106"), strikes("107")) == ((4, True), (5, False))


def test_a_posting_on_both_boards_has_one_fingerprint(site: DemoSite) -> None:
    kestrel_listings = listings(site, CAREERS, "jsonld")
    both = {
        fingerprint(listing.title, listing.company, listing.description)
        for listing in (*kestrel_listings, *listings(site, API, "greenhouse"))
        if listing.title == repeated().title
    }

    assert [listing.external_id for listing in kestrel_listings] == ["201", "202", "102"]
    assert [evaluate(listing) for listing in kestrel_listings[:2]] == [
        opening.outcome for opening in kestrel_openings()
    ]
    assert len(both) == 1


def test_each_of_kestrels_own_jobs_links_to_its_site(site: DemoSite) -> None:
    sites = [listing.company_website for listing in listings(site, CAREERS, "jsonld")]

    assert sites == [f"http://{KESTREL_HOST}/", f"http://{KESTREL_HOST}/", None]


def test_a_mutation_adds_changes_and_removes_a_job() -> None:
    before = {opening.id: opening for opening in driftwood_openings(SHIPPED)}
    after = {opening.id: opening for opening in driftwood_openings(MUTATED)}

    assert (after.keys() - before.keys(), before.keys() - after.keys()) == ({ADDED.id}, {GONE})
    assert [key for key in after.keys() & before.keys() if after[key] != before[key]] == [CHANGED]


def test_a_broken_site_has_an_api_with_other_field_names(site: DemoSite) -> None:
    write_state(site.home, break_site(SHIPPED))

    found_listings = listings(site, API, "greenhouse")

    assert {(listing.description, listing.location) for listing in found_listings} == {(None, None)}
    assert [listing.title for listing in found_listings] == [opening.title for opening in driftwood_openings(SHIPPED)]


def test_the_expected_results_of_each_board_are_exact() -> None:
    kestrel = ExpectedJobs(filtered=1, skipped=0, matched=2, repeats=1)
    driftwood = ExpectedJobs(filtered=9, skipped=3, matched=4)
    missing_once = ExpectedJobs(filtered=8, skipped=3, matched=6)

    assert expected_jobs(SHIPPED) == {DRIFTWOOD_BOARD: driftwood, KESTREL_BOARD: kestrel}
    assert expected_jobs(MUTATED, is_removal_confirmed=False)[DRIFTWOOD_BOARD] == missing_once
    assert expected_jobs(MUTATED)[DRIFTWOOD_BOARD] == replace(missing_once, matched=5)


@pytest.mark.parametrize("job", [*driftwood_openings(MUTATED), *kestrel_openings()])
def test_the_model_quotes_the_text_of_the_job(job: Opening) -> None:
    answer = opinion(f"{job.title}\n{job.text}")

    assert answer is not None
    quotes = [skill["quote"] for key in ("skills_matched", "skills_missing") for skill in answer[key]]
    assert [quote for quote in quotes if quote not in job.text] == []
    assert opinion("Gardener\nRoses.") is None


def read_business(site: DemoSite, business: Business) -> Business:
    """Read the business as the first phase does, without the confidence."""

    async def visit(url: str) -> FetchedPage:
        html = get(site, url).body.decode()
        return FetchedPage(url=url, html=html, links=read_page(Document(html, url=url)).links)

    outcome = asyncio.run(information(business.url, visit=visit, model=None, config=WebsiteConfig(), source_id=None))
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
