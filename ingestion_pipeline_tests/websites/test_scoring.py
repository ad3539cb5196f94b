"""Scores of the visibility of a business in answers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.websites.business import AnswerStatus, ProviderAnswer
from ingestion_pipeline.websites.mentions import Mentions, find_mentions
from ingestion_pipeline.websites.name_forms import Names
from ingestion_pipeline.websites.provider_analysis import (
    Ranking,
    mentions_in,
    ranking_of,
    relevance,
    visibility_of,
)

ACME, GLOBEX = Names.of("Acme"), Names.of("Globex")


def an_answer(text: str, index: int = 0, provider: str = "one", **more: Any) -> ProviderAnswer:
    facts: dict[str, Any] = {"prompt": "", "model": "m", "status": AnswerStatus.ANSWERED}
    return ProviderAnswer(prompt_index=index, provider=provider, answer=text, **facts, **more)


def ranking(answers: list[ProviderAnswer]) -> Ranking:
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
def test_earlier_and_more_frequent_mentions_score_higher(answer: str, points: int) -> None:
    assert relevance(find_mentions(answer, ACME)) == points


def test_visibility_is_the_share_of_answers_with_a_mention() -> None:
    company_ranking = ranking([an_answer("Acme", 0), an_answer("no", 1), an_answer("no", 2)])

    assert company_ranking.overall.visibility == 0.3333
    assert (company_ranking.overall.answers, company_ranking.overall.mentioned, company_ranking.overall.best_rank) == (
        3,
        1,
        1,
    )


def test_direct_prompts_are_excluded_from_unprompted_visibility() -> None:
    company_ranking = ranking([an_answer("no", 0), an_answer("Acme", 1, is_direct=True)])

    assert (company_ranking.overall.visibility, company_ranking.overall.unprompted) == (0.5, 0.0)


def test_the_score_is_capped_at_a_hundred() -> None:
    company_ranking = ranking([an_answer("Acme Acme Acme Acme", number) for number in range(7)])

    assert company_ranking.overall.score == 100


def test_the_overall_score_is_the_mean_of_the_providers() -> None:
    company_ranking = ranking([an_answer("Acme", 0, "one"), an_answer("no", 0, "two")])

    assert (company_ranking.by_provider["one"].score, company_ranking.by_provider["two"].score) == (12, 0)
    assert company_ranking.overall.score == 6


def test_competitors_are_scored_on_the_same_answers() -> None:
    company_ranking = ranking([an_answer("Globex, then Acme", 0), an_answer("Globex", 1)])

    assert company_ranking.competitors["Globex"].visibility == 1.0
    assert company_ranking.competitors["Globex"].score > company_ranking.overall.score


def test_a_business_is_not_found_inside_another_name() -> None:
    answers = [an_answer("Acme Brothers are good")]

    mentions = mentions_in(answers, ACME, [Names.of("Acme Brothers")], threshold=88)

    assert [bool(mentions[name][0]) for name in ("Acme", "Acme Brothers")] == [False, True]


def test_without_answers_there_is_no_visibility() -> None:
    nothing = visibility_of([])

    assert (nothing.visibility, nothing.score, nothing.unprompted) == (0.0, 0, None)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 6)), max_size=10))
def test_a_score_stays_within_its_bounds(placements: list[tuple[int, int]]) -> None:
    answer_mentions = [
        (an_answer("", number), find_mentions("x" * at + " Acme" * times, ACME))
        for number, (at, times) in enumerate(placements)
    ]
    visibility = visibility_of(answer_mentions)

    assert 0 <= visibility.score <= 100
    assert 0 <= visibility.visibility <= 1
    more = visibility_of([*answer_mentions, (an_answer("", 99), find_mentions("Acme", ACME))])
    assert more.score >= visibility.score
    assert visibility_of([*answer_mentions, (an_answer("", 99), Mentions())]).score == visibility.score
