"""Companies and postings have one key for every spelling."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.companies.job_listing import clean_company_name, company_slug, fingerprint, url_key


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Acme, Inc.", "Acme"),
        ("Acme Corp", "Acme"),
        ("Müller GmbH & Co. KG", "Müller"),
        ("Zalando SE", "Zalando"),
        ("Foo Pty Ltd", "Foo"),
        ("Allegro Sp. z o.o.", "Allegro"),
        ("Acme Careers", "Acme"),
        ("Acme Inc. | Jobs", "Acme"),
        ("Acme is hiring!", "Acme"),
        ("Careers at Acme", "Acme"),
        ("  Acme \n Labs ", "Acme Labs"),
        ("Cosmo", "Cosmo"),
        ("Jobs", "Jobs"),
        ("Inc", "Inc"),
        ("Sega", "Sega"),
        ("Incubator Co", "Incubator"),
    ],
)
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
