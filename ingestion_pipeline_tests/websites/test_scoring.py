"""How visible a business is in answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.websites.naming import Mentions, Names, find_mentions
from ingestion_pipeline.websites.visibility import (
    AnswerText,
    Ranking,
    mentions_in,
    ranking_of,
    relevance,
    visibility_of,
)

ACME, GLOBEX = Names.of("Acme"), Names.of("Globex")


def an_answer(text: str, index: int = 0, provider: str = "one", **more: Any) -> AnswerText:
    return AnswerText(prompt_index=index, provider=provider, text=text, **more)


def ranked(answers: list[AnswerText]) -> Ranking:
    return ranking_of(answers, mentions_in(answers, ACME, [GLOBEX], threshold=88), "Acme")


@pytest.mark.parametrize(
    ("answer", "points"),
    [
        ("nobody", 0),
        ("Acme", 12),
        ("Acme, Acme", 13),
        ("Acme " * 9, 15),
        ("x" * 60 + " Acme", 10),
        ("x" * 160 + " Acme", 8),
        ("x" * 310 + " Acme", 6),
        ("x" * 600 + " Acme", 4),
    ],
)
def test_an_answer_is_worth_more_the_earlier_and_oftener_it_names_the_business(answer: str, points: int) -> None:
    assert relevance(find_mentions(answer, ACME)) == points


def test_visibility_is_the_share_of_answers_with_a_mention() -> None:
    found = ranked([an_answer("Acme", 0), an_answer("no", 1), an_answer("no", 2)])

    assert found.overall.visibility == 0.3333
    assert (found.overall.answers, found.overall.mentioned, found.overall.best_rank) == (3, 1, 1)


def test_what_the_question_named_is_told_apart() -> None:
    found = ranked([an_answer("no", 0), an_answer("Acme", 1, is_direct=True)])

    assert (found.overall.visibility, found.overall.unprompted) == (0.5, 0.0)


def test_the_score_is_capped_at_a_hundred() -> None:
    found = ranked([an_answer("Acme Acme Acme Acme", number) for number in range(7)])

    assert found.overall.score == 100


def test_the_score_of_all_is_the_mean_of_the_providers() -> None:
    found = ranked([an_answer("Acme", 0, "one"), an_answer("no", 0, "two")])

    assert (found.by_provider["one"].score, found.by_provider["two"].score) == (12, 0)
    assert found.overall.score == 6


def test_competitors_are_scored_on_the_same_answers() -> None:
    found = ranked([an_answer("Globex, then Acme", 0), an_answer("Globex", 1)])

    assert found.competitors["Globex"].visibility == 1.0
    assert found.competitors["Globex"].score > found.overall.score


def test_nobody_is_found_inside_anothers_name() -> None:
    answers = [an_answer("Acme Brothers are good")]

    found = mentions_in(answers, ACME, [Names.of("Acme Brothers")], threshold=88)

    assert [bool(found[name][0]) for name in ("Acme", "Acme Brothers")] == [False, True]


def test_no_answers_are_no_visibility() -> None:
    nothing = visibility_of([])

    assert (nothing.visibility, nothing.score, nothing.unprompted) == (0.0, 0, None)


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 6)), max_size=10))
def test_a_score_is_never_beyond_its_bounds(placed: list[tuple[int, int]]) -> None:
    found = [
        (an_answer("", number), find_mentions("x" * at + " Acme" * times, ACME))
        for number, (at, times) in enumerate(placed)
    ]
    seen = visibility_of(found)

    assert 0 <= seen.score <= 100
    assert 0 <= seen.visibility <= 1
    more = visibility_of([*found, (an_answer("", 99), find_mentions("Acme", ACME))])
    assert more.score >= seen.score
    assert visibility_of([*found, (an_answer("", 99), Mentions())]).score == seen.score
