"""Terms, places, work mode and pay in the text of a listing: no "go" in "go to market"."""

from typing import Any

import pytest

from ingestion_pipeline.companies.job_listing import Remote, salary_in_description
from ingestion_pipeline.companies.matching.listed_job import (
    Text,
    find,
    find_phrase,
    places,
    places_in_text,
    work_mode_in,
)
from ingestion_pipeline.companies.matching.listing_rules import filter_listing
from ingestion_pipeline.companies.matching.profile import Allowed, WorkModes
from ingestion_pipeline.companies.platforms import platform
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.companies.cases import with_cases
from ingestion_pipeline_tests.companies.matching.listings import MATCHING_TEXT, a_listing, a_profile
from ingestion_pipeline_tests.samples import sample


@with_cases("term", "text")
def test_part_of_a_word_or_another_meaning_is_not_found(term: str, text: str) -> None:
    assert find(term, Text.of(text)) is None


@with_cases("term", "text", "expected")
def test_a_whole_word_is_found_at_its_position(term: str, text: str, expected: str) -> None:
    span = find(term, Text.of(text))

    assert span is not None
    assert text[slice(*span)] == expected


def test_a_phrase_matches_partial_words_and_a_single_word_only_whole() -> None:
    assert find_phrase("security clear", Text.of("needs a Security clearance"))
    assert find_phrase("clearance", Text.of("needs a Security clearance"))
    assert not find_phrase("clear", Text.of("needs a Security clearance"))


@pytest.mark.parametrize("name", ["greenhouse/anthropic_4", "lever/spotify_4", "ashby/ramp_4"])
def test_short_terms_have_no_false_hits_in_real_listings(name: str) -> None:
    body = sample(f"jobs/{name}.json").read_bytes()
    board = platform(name.partition("/")[0]).configure("", {})
    listings = board.read([body], content_types=["application/json"]).records

    texts = [Text.of(listing.title, listing.description) for listing in listings]
    hits = {
        term: {text.text[slice(*span)] for text in texts for span in places(term, text)}
        for term in ("Go", "R", "C", "k", "AI")
    }

    # The samples mention 401(k), email, go-to-market, R&D, Series C and AI.
    assert hits == {"Go": set(), "R": set(), "C": set(), "k": set(), "AI": hits["AI"] & {"AI"}}


LIMITS = load_settings({}).filter


def rejected_by(text: str, profile: Any = None, **changes: Any) -> str | None:
    listing = a_listing(description=f"{MATCHING_TEXT}\n\n{text}", **changes)
    return filter_listing(listing, profile or a_profile(), LIMITS, at=NOON).rejected_by


@with_cases("text")
def test_a_text_that_says_on_site_is_filtered(text: str) -> None:
    assert work_mode_in(text) is Remote.ON_SITE
    assert rejected_by(text) == "work_mode"


@pytest.mark.parametrize(
    "text",
    [
        "This is a hybrid role in our Berlin office.",
        "We work hybrid in Berlin: three days a week in the office.",
        "Location: Berlin, Germany. 3 days on-site, 2 days remote.",
        "Hybrid (Berlin)",
    ],
)
def test_a_text_that_says_hybrid_elsewhere_is_filtered(text: str) -> None:
    assert work_mode_in(text) is Remote.HYBRID
    assert rejected_by(text) == "work_mode"


def test_a_hybrid_job_in_the_home_city_passes() -> None:
    assert rejected_by("This is a hybrid role in our Portland, OR office.") is None
    assert rejected_by("Location: Portland, Oregon (hybrid)") is None
    assert rejected_by("This is a hybrid role.") is None


@with_cases("text", "mode")
def test_ambiguous_words_state_no_work_mode(text: str, mode: str | None) -> None:
    assert work_mode_in(text) == mode
    assert rejected_by(text) is None


def test_the_boards_work_mode_takes_precedence_over_the_text() -> None:
    assert rejected_by("The role is fully onsite.", remote=Remote.REMOTE) is None


def test_the_title_states_the_work_mode() -> None:
    assert rejected_by("", title="Senior Python Engineer (On-site)") == "work_mode"
    assert rejected_by("", title="Senior Python Engineer - Hybrid, Berlin") == "work_mode"


@with_cases("text", "place")
def test_a_text_states_the_place_of_the_job(text: str, place: str | None) -> None:
    assert next(iter(places_in_text(text)), None) == place


def test_an_on_site_job_passes_only_in_the_home_city() -> None:
    home_city_profile = a_profile(work_modes=WorkModes(on_site=Allowed.HOME_CITY))

    assert rejected_by("This is an on-site role in our Chicago office.", home_city_profile) == "work_mode"
    assert rejected_by("This is an on-site role in our Portland office.", home_city_profile) is None
    chicago = {"locations": ("Chicago, IL",)}
    assert rejected_by("An on-site role in Portland.", home_city_profile, **chicago) == "work_mode"


@with_cases("text", "most")
def test_low_pay_stated_in_the_text_is_filtered(text: str, most: str) -> None:
    pay = salary_in_description(text)

    assert pay is not None
    assert str(pay.maximum or pay.minimum) == most
    assert rejected_by(text) == "salary"


@with_cases("text")
def test_amounts_that_are_not_pay_are_ignored(text: str) -> None:
    assert salary_in_description(text) is None
    assert rejected_by(text) is None


def test_sufficient_pay_passes_and_another_currency_is_not_compared() -> None:
    assert rejected_by("We pay $160k to $190k.") is None
    assert rejected_by("We pay 50.000 € a year.") is None
    salary = {"minimum": None, "maximum": "180000", "currency": "USD", "period": "year"}
    assert rejected_by("We pay $90k.", salary=salary) is None


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("Jahresgehalt 60.000 Euro", 60_000, None),
        ("60.000 - 70.000 EUR", 60_000, 70_000),
        ("60 000 € par an", 60_000, None),
    ],
)
def test_pay_is_parsed_in_other_countries_formats(text: str, least: int, most: int | None) -> None:
    pay = salary_in_description(text)

    assert pay is not None
    assert (pay.minimum, pay.maximum, pay.currency) == (least, most, "EUR")
