"""Phase 3: every prompt to every provider, and what becomes of failures."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ingestion_pipeline.demo.model_server import Fail, Garble, ModelRequest, Say, ScriptedModel
from ingestion_pipeline.demo.model_server import Reply as Said
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.claims import LostClaim
from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient
from ingestion_pipeline.websites.analysis import ProviderAnswer, WebsiteAnalysed
from ingestion_pipeline.websites.states import AnswerStatus, PhaseFailed
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.reading.models.asking import ledger
from ingestion_pipeline_tests.websites.asking import ACME, always, analysed, led_to, says


@pytest.fixture
def database() -> str:
    return "sqlite"


def complete(outcome: object) -> WebsiteAnalysed:
    assert isinstance(outcome, WebsiteAnalysed), outcome
    return outcome


def test_every_prompt_is_asked_of_every_provider(store: Store, settings: Settings) -> None:
    kept: list[ProviderAnswer] = []
    told: list[tuple[int, int]] = []
    with ScriptedModel(says("Acme first, then Globex.")) as one, ScriptedModel(says("Globex.")) as two:
        led = led_to(settings, {"one": one.base_url, "two": two.base_url})
        found = complete(analysed(store, led, keep=kept.append, told=told))

    assert len(one.requests) == len(two.requests) == 3
    assert sorted(answer.pair for answer in kept) == sorted(found.mentions)
    assert sorted(told) == [(1, 2), (2, 2)]
    assert found.ranking.overall.visibility == 0.5
    assert found.ranking.by_provider["one"].visibility == 1.0
    assert found.ranking.competitors["Globex"].visibility == 1.0
    assert found.failures == {}
    assert found.ranking.cost_usd == sum(row.cost_usd for row in ledger(store))


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Fail(status=401), "http_401"),
        (Fail(status=429, headers={"Retry-After": "90"}), "http_429"),
        (Fail(status=400), "http_400"),
        (Garble(body=b""), "garbled"),
        (Say(text="Acme " * 2_000_000), "too_long"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_provider_that_fails_is_recorded_and_touches_no_other(
    store: Store, settings: Settings, reply: Said, code: str
) -> None:
    with ScriptedModel(says("Acme.")) as good, ScriptedModel(always(reply)) as bad:
        led = led_to(settings, {"good": good.base_url, "bad": bad.base_url})
        found = complete(analysed(store, led))

    assert [answer.status for answer in found.answers if answer.provider == "good"] == [AnswerStatus.ANSWERED] * 3
    failed = [answer for answer in found.answers if answer.provider == "bad"]
    assert all((answer.error or "").startswith(f"{code}: ") for answer in failed)
    assert len(failed) == 3
    assert found.failures["bad"].startswith(f"3 unanswered: {code}")
    assert found.ranking.overall.visibility == 1.0
    assert list(found.ranking.by_provider) == ["good"]


def test_a_provider_that_fails_now_and_then_is_counted_by_what_it_answered(store: Store, settings: Settings) -> None:
    def half(asked: ModelRequest) -> Said:
        return Fail(status=400) if "cheap" in asked.text else Say(text="Acme.")

    with ScriptedModel(half) as server:
        found = complete(analysed(store, led_to(settings, {"one": server.base_url})))

    assert found.ranking.by_provider["one"].answers == 2
    assert found.ranking.overall.visibility == 1.0
    assert found.failures["one"].startswith("1 unanswered")


@pytest.mark.parametrize(
    "reply",
    [Say(refusal="I would rather not say."), Say(text=""), Garble(body=b""), Garble(body=b"<html>")],
    ids=["refused", "empty", "no body", "no protocol"],
)
def test_the_cost_includes_replies_that_say_nothing(store: Store, settings: Settings, reply: Said) -> None:
    kept: list[ProviderAnswer] = []

    def now_and_then(asked: ModelRequest) -> Said:
        return reply if "cheap" in asked.text else Say(text="Acme.")

    with ScriptedModel(now_and_then) as server:
        led = led_to(settings, {"one": server.base_url})
        first = complete(analysed(store, led, keep=kept.append))
    with ScriptedModel(says("Acme.")) as server:
        again = complete(analysed(store, led_to(settings, {"one": server.base_url}), known=kept))

    failed = next(answer for answer in kept if answer.status is AnswerStatus.FAILED)
    assert failed.cost_usd
    assert first.ranking.cost_usd == sum(row.cost_usd for row in ledger(store)[:-1])
    assert again.ranking.cost_usd == sum(row.cost_usd for row in ledger(store))


def test_only_what_is_missing_is_asked_again(store: Store, settings: Settings) -> None:
    with ScriptedModel(says("Acme.")) as server:
        led = led_to(settings, {"one": server.base_url})
        first = complete(analysed(store, led))
        before = [first.answers[0], replace(first.answers[1], status=AnswerStatus.FAILED, answer=None, error="x: y")]
        again = complete(analysed(store, led, known=before))

    asked = {one.text for one in server.requests[3:]}
    assert asked == {"Who is cheap?", "What is Acme?"}
    assert [answer.status for answer in again.answers] == [AnswerStatus.ANSWERED] * 3


def test_what_is_all_answered_asks_nobody(store: Store, settings: Settings) -> None:
    with ScriptedModel(says("Acme.")) as server:
        led = led_to(settings, {"one": server.base_url})
        first = complete(analysed(store, led))
        again = complete(analysed(store, led, known=first.answers))

    assert len(server.requests) == 3
    assert again.ranking == first.ranking


def test_the_phase_fails_if_no_provider_answers_and_says_why(store: Store, settings: Settings) -> None:
    with (
        ScriptedModel(always(Fail(status=401, message="no such key"))) as one,
        ScriptedModel(always(Fail(status=429, headers={"Retry-After": "90"}))) as two,
    ):
        outcome = analysed(store, led_to(settings, {"one": one.base_url, "two": two.base_url}))

    assert isinstance(outcome, PhaseFailed)
    error = outcome.error
    assert isinstance(error, Transient)
    assert error.retry_after == timedelta(seconds=90)
    assert "no such key" in error.text
    assert "http_429" in error.text


def test_providers_that_all_refuse_us_are_not_asked_again(store: Store, settings: Settings) -> None:
    with ScriptedModel(always(Fail(status=401))) as server:
        outcome = analysed(store, led_to(settings, {"one": server.base_url}))

    assert isinstance(outcome, PhaseFailed)
    assert isinstance(outcome.error, Permanent)
    assert outcome.error.code == "providers_refused"


def test_without_a_budget_the_phase_waits(store: Store, settings: Settings) -> None:
    with ScriptedModel(says("x")) as server:
        led = led_to(settings, {"one": server.base_url}, {"INGESTION_MODEL_BUDGET_MONTH_USD": "0.0001"})
        outcome = analysed(store, led)

    assert isinstance(outcome, PhaseFailed)
    assert isinstance(outcome.error, Resource)
    assert outcome.error.code == "model_budget"
    assert server.requests == []


def test_without_a_provider_the_phase_waits_for_one(store: Store, settings: Settings) -> None:
    outcome = analysed(store, led_to(settings, {}))

    assert isinstance(outcome, PhaseFailed)
    assert isinstance(outcome.error, Resource)
    assert outcome.error.until == NOON + timedelta(hours=1)
    assert "no provider configured" in outcome.error.text


def test_who_may_no_longer_write_asks_no_more(store: Store, settings: Settings) -> None:
    def refuse(_: ProviderAnswer) -> None:
        raise LostClaim

    with ScriptedModel(says("Acme.")) as server:
        led = led_to(settings, {"one": server.base_url})
        with pytest.raises(LostClaim):
            analysed(store, led, keep=refuse)


def test_a_competitor_that_is_the_business_itself_is_none(store: Store, settings: Settings) -> None:
    doubled = replace(ACME, competitors=("ACME", "Globex", "globex"))
    with ScriptedModel(says("Acme.")) as server:
        led = led_to(settings, {"one": server.base_url})
        found = complete(analysed(store, led, business=doubled))

    assert list(found.ranking.competitors) == ["Globex"]
