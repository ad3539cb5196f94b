"""Where an answer names a business, and how early."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.websites.naming import Names, find_mentions, rank_at
from ingestion_pipeline_tests.websites.mention_cases import CASES, Case

ACME = Names.of("Acme")


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.about)
def test_a_business_is_found_where_it_is_named_and_nowhere_else(one: Case) -> None:
    found = find_mentions(one.answer, one.names, language=one.language, others=one.others)

    assert tuple(place.text for place in found.places) == one.found
    assert all(one.answer[place.start : place.end] == place.text for place in found.places)


def test_the_table_is_long_enough_to_be_worth_something() -> None:
    assert len(CASES) >= 90
    assert sum(not one.found for one in CASES) >= 30
    assert len({one.about for one in CASES}) == len(CASES)


@pytest.mark.parametrize(
    ("position", "rank"), [(0, 1), (49, 1), (50, 2), (149, 2), (150, 3), (299, 3), (300, 4), (499, 4), (500, 5)]
)
def test_a_mention_ranks_by_how_early_it_comes(position: int, rank: int) -> None:
    assert rank_at(position) == rank
    assert find_mentions("x" * (position - 1) + " Acme"[not position :], ACME).rank == rank


def test_no_mention_has_no_rank() -> None:
    found = find_mentions("nothing", ACME)

    assert (found.rank, found.count, found.position, bool(found)) == (None, 0, None, False)


def test_a_name_found_by_likeness_is_not_called_exact() -> None:
    assert not find_mentions("Cloudfare", Names.of("Cloudflare")).is_exact
    assert find_mentions("Cloudflare", Names.of("Cloudflare")).is_exact


def test_a_stricter_threshold_finds_no_slips() -> None:
    assert not find_mentions("Cloudfare", Names.of("Cloudflare"), threshold=99)


@given(st.text(max_size=200), st.text(min_size=1, max_size=20))
def test_no_text_and_no_name_make_it_fail(answer: str, name: str) -> None:
    found = find_mentions(answer, Names.of(name), language="pl")

    assert all(answer[place.start : place.end] == place.text for place in found.places)
    assert list(found.places) == sorted(found.places, key=lambda place: place.start)


@given(st.sampled_from([one for one in CASES if one.found]))
def test_what_stands_before_an_answer_moves_its_places_and_changes_none(one: Case) -> None:
    plain = find_mentions(one.answer, one.names, language=one.language, others=one.others)
    moved = find_mentions("...\n" + one.answer, one.names, language=one.language, others=one.others)

    assert [place.start + 4 for place in plain.places] == [place.start for place in moved.places]


@pytest.mark.parametrize("piece", ["Target ", "a.", "a@", "A", " ", "**Target** "])
def test_a_megabyte_is_judged_by_its_beginning(piece: str) -> None:
    began = time.monotonic()
    found = find_mentions(piece * (1_000_000 // len(piece)), Names.of("Target"), language="en")

    assert time.monotonic() - began < 20  # seconds; a square of it would take hours
    assert all(place.end <= 30_000 for place in found.places)
