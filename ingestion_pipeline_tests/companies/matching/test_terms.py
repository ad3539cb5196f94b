"""Whole words only: no "ai" in "email", no "go" in "go to market"."""

import pytest

from ingestion_pipeline.companies.matching.listed_job import Text, find, find_phrase, places
from ingestion_pipeline.companies.platforms import platform
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
