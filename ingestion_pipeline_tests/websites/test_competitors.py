"""Competitors that a website names itself."""

from __future__ import annotations

import pytest

from ingestion_pipeline.websites.facts import named_competitors
from ingestion_pipeline.websites.naming import Names

ACME = Names.of("Acme", url="https://acme.test")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("The best alternative to Globex for bakeries", ["Globex"]),
        ("Acme vs Globex: who is better?", ["Globex"]),
        ("Globex vs. Acme", ["Globex"]),
        ("Looking for a Globex alternative?", ["Globex"]),
        ("Compared to Globex and Initech we are quick", ["Globex", "Initech"]),
        ("Switching from Globex Cloud is easy", ["Globex Cloud"]),
        ("Die Alternative zu Globex", ["Globex"]),
        ("Une alternative à Globex", ["Globex"]),
        ("Unlike Globex Inc. we answer", ["Globex"]),
        ("Die beste Globex-Alternative", ["Globex"]),
        ("an alternative to spreadsheets", []),
        ("Compared to Spreadsheets it is quick", []),
        ("The alternative to The Others", []),
        ("Acme vs Acme Pro", []),
        ("There is no alternative.", []),
    ],
)
def test_a_competitor_is_whom_the_site_compares_itself_with(text: str, names: list[str]) -> None:
    assert list(named_competitors([text], [], ACME, most=5)) == names


def test_pages_that_compare_name_them_in_their_address() -> None:
    links = ["https://acme.test/vs/globex", "https://acme.test/acme-vs-initech", "/about"]

    assert named_competitors([], links, ACME, most=5) == ("Globex", "Initech")


def test_who_is_named_oftener_comes_first_and_only_so_many() -> None:
    texts = ["alternative to Globex", "Acme vs Initech", "unlike Initech"]

    assert named_competitors(texts, [], ACME, most=1) == ("Initech",)
