"""Mentions of a business in an answer, and their rank."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.websites.mentions import Names, find_mentions, rank_at
from ingestion_pipeline_tests.reading.tables import table

ACME = Names.of("Acme")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An answer, a business, and the words in the answer that name it."""

    about: str
    answer: str
    names: Names
    expected: tuple[str, ...]
    language: str | None
    competitors: tuple[Names, ...]


def load_cases() -> list[Case]:
    """Return the cases of all groups of the file."""
    document = orjson.loads((Path(__file__).parent / "expected" / "mentions.json").read_bytes())
    businesses: dict[str, dict[str, Any]] = document["businesses"]
    return [
        Case(
            about=case["about"],
            answer=case["answer"],
            names=Names.of(**businesses.get(case["business"], {"name": case["business"]})),
            expected=tuple(case["mentions"]),
            language=case.get("language"),
            competitors=tuple(Names.of(name) for name in case.get("competitors", ())),
        )
        for cases in document["cases"].values()
        for case in cases
    ]


CASES = load_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.about)
def test_a_business_is_found_exactly_where_it_is_named(case: Case) -> None:
    mentions = find_mentions(case.answer, case.names, language=case.language, others=case.competitors)

    assert tuple(place.text for place in mentions.places) == case.expected
    assert all(case.answer[place.start : place.end] == place.text for place in mentions.places)


def test_the_mention_cases_are_many_and_distinct() -> None:
    assert len(CASES) >= 90
    assert sum(not case.expected for case in CASES) >= 30
    assert len({case.about for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    ("position", "rank"), [(0, 1), (49, 1), (50, 2), (149, 2), (150, 3), (299, 3), (300, 4), (499, 4), (500, 5)]
)
def test_the_rank_of_a_mention_follows_from_its_position(position: int, rank: int) -> None:
    assert rank_at(position) == rank
    assert find_mentions("x" * (position - 1) + " Acme"[not position :], ACME).rank == rank


def test_no_mention_has_no_rank() -> None:
    mentions = find_mentions("nothing", ACME)

    assert (mentions.rank, mentions.count, mentions.places, bool(mentions)) == (None, 0, (), False)


def test_a_similar_name_is_not_an_exact_mention() -> None:
    assert not find_mentions("Cloudfare", Names.of("Cloudflare")).is_exact
    assert find_mentions("Cloudflare", Names.of("Cloudflare")).is_exact


def test_a_stricter_threshold_finds_no_misspelling() -> None:
    assert not find_mentions("Cloudfare", Names.of("Cloudflare"), threshold=99)


@pytest.mark.parametrize(("answer", "affirmed"), table(__file__, "test_a_denial_is_marked_and_affirms_no_mention"))
def test_a_denial_is_marked_and_affirms_no_mention(answer: str, affirmed: int) -> None:
    mentions = find_mentions(answer, ACME, language="en")

    assert mentions
    assert mentions.affirmed.count == affirmed


@given(st.text(max_size=200), st.text(min_size=1, max_size=20))
def test_any_text_and_name_give_valid_spans(answer: str, name: str) -> None:
    mentions = find_mentions(answer, Names.of(name), language="pl")

    assert all(answer[place.start : place.end] == place.text for place in mentions.places)
    assert list(mentions.places) == sorted(mentions.places, key=lambda place: place.start)


@given(st.sampled_from([case for case in CASES if case.expected]))
def test_a_prefix_shifts_the_spans_and_changes_none(case: Case) -> None:
    plain = find_mentions(case.answer, case.names, language=case.language, others=case.competitors)
    shifted = find_mentions("...\n" + case.answer, case.names, language=case.language, others=case.competitors)

    assert [place.start + 4 for place in plain.places] == [place.start for place in shifted.places]


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["Target ", "a.", "a@", "A", " ", "**Target** "])
def test_only_the_beginning_of_a_megabyte_is_searched(piece: str) -> None:
    began = time.monotonic()
    mentions = find_mentions(piece * (1_000_000 // len(piece)), Names.of("Target"), language="en")

    assert time.monotonic() - began < 20  # seconds; quadratic time would take hours
    assert all(place.end <= 30_000 for place in mentions.places)
