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
from ingestion_pipeline_tests.companies.matching.listings import MATCHING_TEXT, a_listing, a_profile
from ingestion_pipeline_tests.samples import sample


@pytest.mark.parametrize(
    ("term", "text"),
    [
        ("AI", "send an email to us, and maintain it"),
        ("Go", "long ago, ready to go, go-to-market, GO to the office"),
        ("Go", "Go beyond what is asked. We Go the extra mile"),
        ("k", "401k, $150k, kind people"),
        ("Java", "JavaScript alone"),
        ("C", "C++ and C# and Series C funding, vitamin C deficiency"),
        ("R", "R&D, HR and PR"),
        ("R", "our R D team"),
        ("Rust", "a city in the rust belt"),
        ("Swift", "a swift answer"),
        ("Node.js", "a node of ours"),
        ("ML", "HTML pages"),
        ("Scala", "scalable"),
    ],
)
def test_part_of_a_word_or_another_meaning_is_not_found(term: str, text: str) -> None:
    assert find(term, Text.of(text)) is None


@pytest.mark.parametrize(
    ("term", "text", "expected"),
    [
        ("AI", "AI-powered tools", "AI"),
        ("ai", "we use AI.", "AI"),
        ("Go", "services in Go, Python", "Go"),
        ("Go", "- Go\n- Rust", "Go"),
        ("Go", "Python/Go developers", "Go"),
        ("Go", "written in golang", "golang"),
        ("C++", "modern C++17? C++!", "C++"),
        ("C#", "C#/.NET", "C#"),
        (".NET", "ASP.NET", ".NET"),
        ("R", "Python or R, and SQL", "R"),
        ("PostgreSQL", "Postgres", "Postgres"),
        ("Kubernetes", "k8s.", "k8s"),
        ("machine learning", "Machine\nlearning", "Machine\nlearning"),
        ("Node.js", "NodeJS", "NodeJS"),
    ],
)
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


@pytest.mark.parametrize(
    "text",
    [
        "This is an on-site position in our Chicago office.",
        "The role is fully onsite.",
        "Work arrangement: On-site",
        "On-site, five days a week.",
        "You must work in person with the team.",
        "This is not a remote position.",
        "Remote work is not possible for this role.",
        "No remote.",
        "You will be in the office 5 days a week.",
        "Arbeitsort: vor Ort in Graz",
        "We do not offer remote work.",
        "This role is not eligible for remote work.",
        "The job cannot be performed remotely.",
        "Unfortunately we don't support remote work.",
        "Remote not possible.",
        "You will work from our Denver office.",
        "You are expected in the office every day.",
        "This is an office-based role.",
        "Poste en présentiel.",
        "Trabajo presencial.",
    ],
)
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


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("This role is fully remote.", Remote.REMOTE),
        ("Remote, worldwide", Remote.REMOTE),
        ("You can work remotely.", Remote.REMOTE),
        ("You can work from our Denver office or from home.", None),
        ("You build hybrid-cloud products.", None),
        ("You can work from anywhere in Europe.", Remote.REMOTE),
        ("Remote or on-site, as you like.", None),
        ("Remote within Europe. Our hybrid policy: see below.", None),
        ("We work onsite with customers.", None),
        ("You may work from home, or on-site.", None),
        ("We have an on-site gym and free lunch.", None),
        ("After a call there is an on-site interview.", None),
        ("Occasional on-site visits to customers.", None),
        ("You work on site reliability and on sites.", None),
        ("You build remote control systems for hybrid cars.", None),
        ("Experience with hybrid cloud infrastructure and remote servers.", None),
        ("You help remote teams talk to each other.", None),
        ("Meet customers in person at events.", None),
        ("", None),
    ],
)
def test_ambiguous_words_state_no_work_mode(text: str, mode: Remote | None) -> None:
    assert work_mode_in(text) is mode
    assert rejected_by(text) is None


def test_the_boards_work_mode_takes_precedence_over_the_text() -> None:
    assert rejected_by("The role is fully onsite.", remote=Remote.REMOTE) is None


def test_the_title_states_the_work_mode() -> None:
    assert rejected_by("", title="Senior Python Engineer (On-site)") == "work_mode"
    assert rejected_by("", title="Senior Python Engineer - Hybrid, Berlin") == "work_mode"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("Location: Berlin, Germany\nMore", "Berlin, Germany"),
        ("This is an on-site role in our Chicago office.", "Chicago"),
        ("This position is based in Oslo.", "Oslo"),
        ("Hybrid in New York, NY.", "New York, NY"),
        ("You will work from our Denver office.", "Denver"),
        ("Work from our office in Munich.", "Munich"),
        ("Candidates must be located in Austin, TX.", "Austin, TX"),
        ("You work in our Data team.", None),
        ("Acme is based in Berlin and ships everywhere.", None),
    ],
)
def test_a_text_states_the_place_of_the_job(text: str, place: str | None) -> None:
    assert next(iter(places_in_text(text)), None) == place


def test_an_on_site_job_passes_only_in_the_home_city() -> None:
    home_city_profile = a_profile(work_modes=WorkModes(on_site=Allowed.HOME_CITY))

    assert rejected_by("This is an on-site role in our Chicago office.", home_city_profile) == "work_mode"
    assert rejected_by("This is an on-site role in our Portland office.", home_city_profile) is None
    chicago = {"locations": ("Chicago, IL",)}
    assert rejected_by("An on-site role in Portland.", home_city_profile, **chicago) == "work_mode"


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("We pay $90k.", "90000"),
        ("$90k", "90000"),
        ("Salary: $80,000 - $95,000 a year", "95000"),
        ("Compensation\n\n$85,000 to $90,000, 25 days of vacation", "90000"),
        ("Pay range: USD 70,000 \u2013 80,000 annually.", "80000"),
        ("The base salary is 80k USD.", "80000"),
        ("We offer $35 per hour.", "35"),
        ("Rate: $40/hr", "40"),
        ("Salary: 80-95k", "95000"),
        ("Compensation: 80,000 - 95,000 USD", "95000"),
        ("The annual pay is 90000 dollars.", "90000"),
        ("The wage is 25 dollars an hour.", "25"),
        ("Compensation starts at $90k with a bonus of $20k.", "90000"),
        ("Base pay of $70k-$90k plus a $20,000 signing bonus.", "90000"),
        ("In Ohio we pay $70k to $80k; in Oregon we pay $80k to $90k.", "90000"),
    ],
)
def test_low_pay_stated_in_the_text_is_filtered(text: str, most: str) -> None:
    pay = salary_in_description(text)

    assert pay is not None
    assert str(pay.maximum or pay.minimum) == most
    assert rejected_by(text) == "salary"


@pytest.mark.parametrize(
    "text",
    [
        "We raised $90k from friends and $5M from strangers.",
        "A $5,000 signing bonus and a $1,000 equipment budget.",
        "We process $90,000 in payments per hour.",
        "Our 401k plan matches 4%.",
        "Revenue grew by $50k a year.",
        "You handle deals worth $20k to $50k.",
        "Founded in 2019, 90000 users.",
        "A learning budget of 2.000 € per year.",
        "Annual bonus of up to $15k.",
        "Fertility benefits (up to $10,000 per year)",
        "You handle deals with $20k to $50k.",
        "You help 20 to 30k users.",
    ],
)
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
