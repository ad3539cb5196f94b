"""Companies and postings are known under one key, however a board spells them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.companies.names import clean_company_name, company_slug, fingerprint, url_key


@pytest.mark.parametrize(
    ("written", "cleaned"),
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
def test_a_company_loses_its_legal_form_and_what_says_that_it_hires(written: str, cleaned: str) -> None:
    assert clean_company_name(written) == cleaned


@pytest.mark.parametrize("written", ["Acme, Inc.", "ACME", "Acme Careers", "acme llc"])
def test_every_spelling_of_a_company_has_one_slug(written: str) -> None:
    assert company_slug(written) == "acme"


def test_a_name_in_no_latin_letters_has_a_slug_of_its_own() -> None:
    mercari, sony = company_slug("株式会社メルカリ"), company_slug("ソニー")

    assert mercari != sony
    assert re.fullmatch("[a-z0-9-]{1,80}", mercari)


@given(st.text(min_size=1))
def test_a_slug_is_always_an_id_and_the_slug_of_itself(name: str) -> None:
    slug = company_slug(name)

    assert re.fullmatch("[a-z0-9-]{1,80}", slug)


def test_a_posting_on_two_boards_has_one_fingerprint() -> None:
    here = fingerprint("Data Engineer", "Acme, Inc.", "We **build** pipes.\n\n" + "x " * 400)
    there = fingerprint("data engineer ", "Acme", "We build pipes. " + "x " * 500)

    assert here == there


def test_another_title_company_or_beginning_is_another_posting() -> None:
    one = fingerprint("Data Engineer", "Acme", "We build pipes.")

    assert one != fingerprint("Data Engineer II", "Acme", "We build pipes.")
    assert one != fingerprint("Data Engineer", "Bolt", "We build pipes.")
    assert one != fingerprint("Data Engineer", "Acme", "We build bridges.")
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
def test_case_of_the_path_and_what_selects_a_job_make_another_key(other: str) -> None:
    assert url_key(other) != url_key("https://jobs.test/acme/1")
