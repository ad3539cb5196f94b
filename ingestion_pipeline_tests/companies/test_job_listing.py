"""Names, salaries and keys of postings: one key for every spelling, and the stored form of a parsed feed."""

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.companies import Salary
from ingestion_pipeline.companies.boards.board_plan import content_hash, feed_from_bytes, feed_to_bytes, quality_of
from ingestion_pipeline.companies.job_listing import (
    Listing,
    Remote,
    clean_company_name,
    company_slug,
    fingerprint,
    salary_in,
    stated_salary,
    url_key,
)
from ingestion_pipeline.companies.places import Place, places_as_dicts, places_in
from ingestion_pipeline.reading.structured.items import ParsedFeed, Problem
from ingestion_pipeline_tests.companies.cases import with_cases


@with_cases("name", "expected")
def test_legal_forms_and_hiring_phrases_are_removed_from_a_company_name(name: str, expected: str) -> None:
    assert clean_company_name(name) == expected


@pytest.mark.parametrize("name", ["Acme, Inc.", "ACME", "Acme Careers", "acme llc"])
def test_every_spelling_of_a_company_has_one_slug(name: str) -> None:
    assert company_slug(name) == "acme"


def test_a_name_without_latin_letters_has_its_own_slug() -> None:
    mercari, sony = company_slug("株式会社メルカリ"), company_slug("ソニー")

    assert mercari != sony
    assert re.fullmatch("[a-z0-9-]{1,80}", mercari)


@given(st.text(min_size=1))
def test_a_slug_is_always_a_valid_id(name: str) -> None:
    slug = company_slug(name)

    assert re.fullmatch("[a-z0-9-]{1,80}", slug)


def test_a_posting_on_two_boards_has_one_fingerprint() -> None:
    first = fingerprint("Data Engineer", "Acme, Inc.", "We **build** pipes.\n\n" + "x " * 400)
    second = fingerprint("data engineer ", "Acme", "We build pipes. " + "x " * 500)

    assert first == second


def test_another_title_company_or_opening_text_has_another_fingerprint() -> None:
    original = fingerprint("Data Engineer", "Acme", "We build pipes.")

    assert original != fingerprint("Data Engineer II", "Acme", "We build pipes.")
    assert original != fingerprint("Data Engineer", "Bolt", "We build pipes.")
    assert original != fingerprint("Data Engineer", "Acme", "We build bridges.")
    assert fingerprint("a", "b c", "d") != fingerprint("a b", "c", "d")


@pytest.mark.parametrize(
    "spelling",
    [
        "https://jobs.test/acme/1",
        "HTTPS://JOBS.test:443/acme/1/",
        "https://jobs.test/acme/1#apply",
        "https://jobs.test/acme/1?utm_source=x&gclid=1",
        "https://jobs.test/acme/1?ref=mail&source=feed&t=9&gh_src=a",
    ],
)
def test_every_spelling_of_a_url_has_one_key(spelling: str) -> None:
    assert url_key(spelling) == url_key("https://jobs.test/acme/1")


@pytest.mark.parametrize(
    "other", ["https://jobs.test/Acme/1", "https://jobs.test/acme/1?gh_jid=7", "https://jobs.test/acme/2", "no address"]
)
def test_path_case_and_job_parameters_change_the_key(other: str) -> None:
    assert url_key(other) != url_key("https://jobs.test/acme/1")


@with_cases("text", "low", "high", "currency", "period")
def test_a_salary_is_read_with_its_currency_and_period(
    text: str, low: str | int | None, high: int | None, currency: str | None, period: str | None
) -> None:
    assert salary_in(text) == Salary(
        minimum=None if low is None else Decimal(low),
        maximum=None if high is None else Decimal(high),
        currency=currency,
        period=period,
    )


@with_cases("text", "low", "high", "currency", "period")
def test_a_salary_of_any_locale_is_read(
    text: str, low: float | None, high: float | None, currency: str | None, period: str | None
) -> None:
    salary = salary_in(text)

    amounts = [None if amount is None else Decimal(str(amount)) for amount in (low, high)]
    expected = Salary(minimum=amounts[0], maximum=amounts[1], currency=currency, period=period)
    assert salary == (expected if any(amounts) else None)


@with_cases("text", "town", "region", "country", "is_remote")
def test_a_place_of_any_locale_is_read(
    text: str, town: str | None, region: str | None, country: str | None, is_remote: bool
) -> None:
    assert places_in(text)[0] == Place(town=town, region=region, country=country, is_remote=is_remote)


def test_every_place_of_a_text_is_read_once() -> None:
    dicts = places_as_dicts("Atlanta, GA; Denver, CO", None, "Denver, CO", "Remote (Canada)")

    assert dicts == [
        {"town": "Atlanta", "region": "GA", "country": "US"},
        {"town": "Denver", "region": "CO", "country": "US"},
        {"country": "CA", "is_remote": True},
    ]
    assert places_as_dicts("Multiple locations", "3 Locations", "-") == []


@pytest.mark.parametrize("text", ["", "Competitive", "401k match", "10% bonus", "5 years", "k", "-"])
def test_text_without_a_salary_gives_none(text: str) -> None:
    assert salary_in(text) is None


@pytest.mark.parametrize("amount", ["", "0", "-5", "NaN", "Infinity", "1e99", "many", "9" * 5_000])
def test_a_field_that_is_not_an_amount_gives_none(amount: str) -> None:
    assert stated_salary(amount, None, currency="EUR", period="year") is None


@given(st.text(max_size=80) | st.text("0123456789.,kKmM$€- '", max_size=40))
def test_any_text_gives_a_positive_salary_or_none(text: str) -> None:
    salary = salary_in(text)

    assert salary is None or (salary.minimum or salary.maximum or 0) > 0


POSTED = datetime(2026, 3, 1, tzinfo=UTC)
GOOD: dict[str, Any] = {
    "url": "https://a.test/1",
    "title": "Engineer",
    "company_name": "Acme",
    "description": "Requirements: pipes. " * 10,
    "location": "Oslo",
    "posted_at": POSTED,
    "salary": {"minimum": "1"},
}


@pytest.mark.parametrize(
    ("without", "level"),
    [
        ({}, "good"),
        ({"location": None}, "minimal"),
        ({"posted_at": None}, "minimal"),
        ({"description": "x" * 101}, "minimal"),
        ({"description": "x" * 100}, "thin"),
        ({"company_name": None}, "thin"),
        ({"url": None}, "thin"),
    ],
)
def test_a_listing_is_thin_minimal_or_good(without: dict[str, Any], level: str) -> None:
    quality = quality_of(GOOD | without)

    assert quality["level"] == level
    assert quality["missing"] == [name for name in without if without[name] is None]


def test_a_content_hash_covers_exactly_the_fields_that_are_evaluated() -> None:
    original = content_hash(GOOD)

    assert original == content_hash(GOOD | {"url": "https://b.test/", "department": "x"})
    for name, other in {"title": "x", "location": "x", "posted_at": None, "remote": "x"}.items():
        assert content_hash(GOOD | {name: other}) != original


def test_a_parsed_feed_survives_a_round_trip_through_the_content_store() -> None:
    listing = Listing(
        external_id="1",
        title="Engineer",
        url=None,
        posted_at=POSTED,
        remote=Remote.HYBRID,
        salary=salary_in("$120-150k a year"),
        other_locations=("Rome",),
        posted_is_relative=True,
    )
    problem = Problem(where="item 2", message="no id")
    reading = ParsedFeed(records=[listing], problems=[problem], is_complete=True, notes=["a part"])

    assert feed_from_bytes(feed_to_bytes(reading)) == reading
