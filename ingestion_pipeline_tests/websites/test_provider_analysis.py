"""Phase 3: every prompt is sent to every provider, failures are recorded, and the visibility is scored."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.demo.model_server import Fail, Garble, ModelRequest, Say, ScriptedModel
from ingestion_pipeline.demo.model_server import Reply as ModelReply
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.claims import LostClaim
from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient
from ingestion_pipeline.websites.mentions import Mentions, Names, find_mentions
from ingestion_pipeline.websites.provider_analysis import (
    Ranking,
    mentions_in,
    ranking_of,
    relevance,
    visibility_of,
    wilson_interval,
)
from ingestion_pipeline.websites.states import AnswerStatus, ProviderAnswer
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.pages.page_fetches import failing
from ingestion_pipeline_tests.reading.llm.model_questions import model_call_rows
from ingestion_pipeline_tests.websites.provider_answers import (
    ACME,
    always,
    always_text,
    run_analysis,
    run_with_providers,
    settings_with_providers,
)


@pytest.mark.slow
def test_every_prompt_is_sent_to_every_provider(store: Store, settings: Settings) -> None:
    stored_answers: list[ProviderAnswer] = []
    progress: list[tuple[int, int]] = []
    scripts = {"one": always_text("Acme first, then Globex."), "two": always_text("Globex.")}
    analysis, servers = run_with_providers(store, settings, scripts, on_answer=stored_answers.append, progress=progress)

    assert [len(server.requests) for server in servers] == [3, 3]
    assert sorted(answer.pair for answer in stored_answers) == sorted(analysis.mentions)
    assert sorted(progress) == [(1, 2), (2, 2)]
    assert analysis.ranking.overall.visibility == 0.5
    assert analysis.ranking.by_provider["one"].visibility == 1.0
    assert analysis.ranking.competitors["Globex"].visibility == 1.0
    assert analysis.failures == {}
    assert analysis.ranking.cost_usd == sum(row.cost_usd for row in model_call_rows(store))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Fail(status=401), "http_401"),
        (Fail(status=429, headers={"Retry-After": "90"}), "http_429"),
        (Fail(status=400), "http_400"),
        (Garble(body=b""), "garbled"),
        (Say(text="Acme " * 2_000_000), "too_long"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_failing_provider_is_recorded_and_does_not_affect_others(
    store: Store, settings: Settings, reply: ModelReply, code: str
) -> None:
    analysis, _ = run_with_providers(store, settings, {"good": always_text("Acme."), "bad": always(reply)})

    assert [answer.status for answer in analysis.answers if answer.provider == "good"] == [AnswerStatus.ANSWERED] * 3
    failed = [answer for answer in analysis.answers if answer.provider == "bad"]
    assert all((answer.error or "").startswith(f"{code}: ") for answer in failed)
    assert len(failed) == 3
    assert analysis.failures["bad"].startswith(f"3 unanswered: {code}")
    assert analysis.ranking.overall.visibility == 1.0
    assert list(analysis.ranking.by_provider) == ["good"]


def test_a_provider_that_fails_sometimes_is_scored_by_its_answers(store: Store, settings: Settings) -> None:
    def half(request: ModelRequest) -> ModelReply:
        return Fail(status=400) if "cheap" in request.text else Say(text="Acme.")

    analysis, _ = run_with_providers(store, settings, {"one": half})

    assert analysis.ranking.by_provider["one"].answers == 2
    assert analysis.ranking.overall.visibility == 1.0
    assert analysis.failures["one"].startswith("1 unanswered")


@pytest.mark.slow
@pytest.mark.parametrize(
    "reply",
    [Say(refusal="I would rather not say."), Say(text=""), Garble(body=b""), Garble(body=b"<html>")],
    ids=["refused", "empty", "no body", "no protocol"],
)
def test_the_cost_includes_replies_without_an_answer(store: Store, settings: Settings, reply: ModelReply) -> None:
    stored_answers: list[ProviderAnswer] = []

    def now_and_then(request: ModelRequest) -> ModelReply:
        return reply if "cheap" in request.text else Say(text="Acme.")

    first, _ = run_with_providers(store, settings, {"one": now_and_then}, on_answer=stored_answers.append)
    second, _ = run_with_providers(store, settings, {"one": always_text("Acme.")}, previous_answers=stored_answers)

    failed = next(answer for answer in stored_answers if answer.status is AnswerStatus.FAILED)
    assert failed.cost_usd
    assert first.ranking.cost_usd == sum(row.cost_usd for row in model_call_rows(store)[:-1])
    assert second.ranking.cost_usd == sum(row.cost_usd for row in model_call_rows(store))


def test_only_missing_answers_are_requested_again(store: Store, settings: Settings) -> None:
    with ScriptedModel(always_text("Acme.")) as server:
        provider_settings = settings_with_providers(settings, {"one": server.base_url})
        first = run_analysis(store, provider_settings)
        before = [first.answers[0], replace(first.answers[1], status=AnswerStatus.FAILED, answer=None, error="x: y")]
        second = run_analysis(store, provider_settings, previous_answers=before)

    prompts = {model_request.text for model_request in server.requests[3:]}
    assert prompts == {"Who is cheap?", "What is Acme?"}
    assert [answer.status for answer in second.answers] == [AnswerStatus.ANSWERED] * 3


def test_a_complete_set_of_answers_makes_no_request(store: Store, settings: Settings) -> None:
    with ScriptedModel(always_text("Acme.")) as server:
        provider_settings = settings_with_providers(settings, {"one": server.base_url})
        first = run_analysis(store, provider_settings)
        second = run_analysis(store, provider_settings, previous_answers=first.answers)

    assert len(server.requests) == 3
    assert second.ranking == first.ranking


@pytest.mark.slow
def test_the_phase_fails_with_a_reason_if_no_provider_answers(store: Store, settings: Settings) -> None:
    busy = Fail(status=429, headers={"Retry-After": "90"})
    scripts = {"one": always(Fail(status=401, message="no such key")), "two": always(busy)}
    with pytest.raises(Transient) as failure:
        run_with_providers(store, settings, scripts)

    error = failure.value
    assert error.retry_after == timedelta(seconds=90)
    assert "no such key" in error.text
    assert "http_429" in error.text


def test_a_refusal_by_every_provider_is_permanent(store: Store, settings: Settings) -> None:
    with failing(Permanent, "providers_refused"):
        run_with_providers(store, settings, {"one": always(Fail(status=401))})


def test_without_a_budget_the_phase_waits(store: Store, settings: Settings) -> None:
    with ScriptedModel(always_text("x")) as server:
        provider_settings = settings_with_providers(
            settings, {"one": server.base_url}, {"INGESTION_MODEL_BUDGET_MONTH_USD": "0.0001"}
        )
        with pytest.raises(Resource) as failure:
            run_analysis(store, provider_settings)

    assert failure.value.code == "model_budget"
    assert server.requests == []


def test_without_a_provider_the_phase_waits_for_one(store: Store, settings: Settings) -> None:
    with pytest.raises(Resource) as failure:
        run_analysis(store, settings_with_providers(settings, {}))

    assert failure.value.until == NOON + timedelta(hours=1)
    assert "no provider configured" in failure.value.text


def test_a_lost_claim_stops_the_analysis(store: Store, settings: Settings) -> None:
    def refuse(_: ProviderAnswer) -> None:
        raise LostClaim

    with pytest.raises(LostClaim):
        run_with_providers(store, settings, {"one": always_text("Acme.")}, on_answer=refuse)


def test_the_business_itself_is_not_a_competitor(store: Store, settings: Settings) -> None:
    business = replace(ACME, competitors=("ACME", "Globex", "globex"))
    analysis, _ = run_with_providers(store, settings, {"one": always_text("Acme.")}, business=business)

    assert list(analysis.ranking.competitors) == ["Globex"]


ACME_NAMES, GLOBEX_NAMES = Names.of("Acme"), Names.of("Globex")


def an_answer(text: str, index: int = 0, provider: str = "one", **more: Any) -> ProviderAnswer:
    facts: dict[str, Any] = {"prompt": "", "model": "m", "status": AnswerStatus.ANSWERED}
    return ProviderAnswer(prompt_index=index, provider=provider, answer=text, **facts, **more)


def ranking(answers: list[ProviderAnswer]) -> Ranking:
    return ranking_of(answers, mentions_in(answers, ACME_NAMES, [GLOBEX_NAMES], language=None), "Acme", None)


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
    assert relevance(find_mentions(answer, ACME_NAMES)) == points


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

    mentions = mentions_in(answers, ACME_NAMES, [Names.of("Acme Brothers")], language=None)

    assert [bool(mentions[name][0]) for name in ("Acme", "Acme Brothers")] == [False, True]


def test_without_answers_there_is_no_visibility() -> None:
    nothing = visibility_of([])

    assert (nothing.visibility, nothing.score, nothing.unprompted) == (0.0, 0, None)
    assert (nothing.answers, nothing.low, nothing.high) == (0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("part", "whole", "expected"),
    [  # as published for Wilson's score without continuity correction
        (0, 10, (0.0, 0.2775)),
        (10, 10, (0.7225, 1.0)),
        (5, 10, (0.2366, 0.7634)),
        (1, 7, (0.0257, 0.5131)),
        (81, 263, (0.2553, 0.3662)),
    ],
)
def test_a_visibility_has_the_interval_of_wilson(part: int, whole: int, expected: tuple[float, float]) -> None:
    assert wilson_interval(part, whole) == expected


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 6)), max_size=10))
def test_a_score_stays_within_its_bounds(placements: list[tuple[int, int]]) -> None:
    answer_mentions = [
        (an_answer("", number), find_mentions("x" * at + " Acme" * times, ACME_NAMES))
        for number, (at, times) in enumerate(placements)
    ]
    visibility = visibility_of(answer_mentions)

    assert 0 <= visibility.score <= 100
    assert 0 <= visibility.visibility <= 1
    more = visibility_of([*answer_mentions, (an_answer("", 99), find_mentions("Acme", ACME_NAMES))])
    assert more.score >= visibility.score
    assert visibility_of([*answer_mentions, (an_answer("", 99), Mentions())]).score == visibility.score
