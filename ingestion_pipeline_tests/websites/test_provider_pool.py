"""Providers on loopback that misbehave: each failure is told apart, in time, and stays alone."""

from __future__ import annotations

import time
from datetime import timedelta
from decimal import Decimal
from functools import partial
from threading import Event, Timer

import pytest

from ingestion_pipeline.demo.model_server import Fail, Garble, ModelRequest, Say, ScriptedModel, in_turn
from ingestion_pipeline.demo.model_server import Reply as Said
from ingestion_pipeline.reading.llm.budgets import Billing
from ingestion_pipeline.reading.llm.ledger import Ledger, NewCall, Reserved
from ingestion_pipeline.reading.llm.outcomes import Usage
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.websites.provider_pool import NoReply, Replied
from ingestion_pipeline_tests.fakes import closed_port
from ingestion_pipeline_tests.reading.models.asking import held, ledger
from ingestion_pipeline_tests.websites.asking import always, ask, led_to, says


@pytest.fixture
def database() -> str:
    return "sqlite"


def test_an_answer_comes_with_its_model_its_tokens_and_its_cost(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_ONE", "sk-one-secret")
    with ScriptedModel(says("Acme is best.")) as server:
        (reply,) = ask(store, led_to(settings, {"one": server.base_url}), ("one", "Who?"))

    assert isinstance(reply, Replied)
    assert (reply.text, reply.model, reply.model_version) == ("Acme is best.", "m-one", "m-one")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (1, 4)
    assert reply.cost_usd == Decimal("0.000009")
    assert server.requests[0].headers["authorization"] == "Bearer sk-one-secret"
    (row,) = ledger(store)
    assert (row.call_site, row.status, row.cost_usd) == ("website_answer", "settled", Decimal("0.000009"))


def test_a_prompt_is_sent_as_a_customer_would_type_it(store: Store, settings: Settings) -> None:
    with ScriptedModel(says("x"), without=["responses"]) as server:
        ask(store, led_to(settings, {"one": server.base_url}), ("one", "Who?"), ("one", "And?"))

    assert [asked.path for asked in server.requests] == [
        "/v1/responses",
        "/v1/chat/completions",
        "/v1/chat/completions",
    ]
    assert server.requests[-1].body["messages"] == [{"role": "user", "content": "And?"}]


def test_what_a_server_lacks_is_remembered_for_the_next_run(store: Store, settings: Settings) -> None:
    with ScriptedModel(says("x"), without=["responses"]) as server:
        led = led_to(settings, {"one": server.base_url})
        ask(store, led, ("one", "Who?"))
        ask(store, led, ("one", "Who?"))

    assert [asked.path for asked in server.requests][-1:] == ["/v1/chat/completions"]
    assert len(server.requests) == 3


def test_a_key_that_is_refused_is_not_tried_again_and_asks_for_the_operator(store: Store, settings: Settings) -> None:
    with ScriptedModel(always(Fail(status=401, message="bad key"))) as server:
        replies = ask(store, led_to(settings, {"one": server.base_url}), ("one", "Who?"), ("one", "And?"))

    assert len(server.requests) == 1
    assert [(reply.code, reply.is_lasting) for reply in replies if isinstance(reply, NoReply)] == [
        ("http_401", True)
    ] * 2
    assert "bad key" in str(replies[1])


def test_a_wait_beyond_the_deadline_is_not_waited_for_and_remembered(store: Store, settings: Settings) -> None:
    slow = Fail(status=429, message="slow down", headers={"Retry-After": "90"})
    began = time.monotonic()
    with ScriptedModel(always(slow)) as server:
        replies = ask(store, led_to(settings, {"one": server.base_url}), ("one", "Who?"), ("one", "And?"))

    assert time.monotonic() - began < 5
    assert len(server.requests) == 1
    for reply in replies:
        assert isinstance(reply, NoReply)
        assert (reply.code, reply.wait) == ("http_429", timedelta(seconds=90))
        assert not reply.is_lasting


def test_a_short_wait_is_waited_for(store: Store, settings: Settings) -> None:
    busy = Fail(status=429, headers={"Retry-After-Ms": "20"})
    with ScriptedModel(in_turn(busy, Say(text="now"))) as server:
        (reply,) = ask(store, led_to(settings, {"one": server.base_url}), ("one", "Who?"))

    assert isinstance(reply, Replied)
    assert [row.status for row in ledger(store)] == ["failed", "settled"]


def test_an_empty_body_is_no_answer_after_a_few_attempts(store: Store, settings: Settings) -> None:
    with ScriptedModel(always(Garble(body=b""))) as server:
        (reply,) = ask(store, led_to(settings, {"one": server.base_url}), ("one", "Who?"))

    assert isinstance(reply, NoReply)
    assert (reply.code, reply.is_lasting) == ("garbled", False)
    assert len(server.requests) == 4


def test_an_answer_without_a_word_is_none(store: Store, settings: Settings) -> None:
    with ScriptedModel(says("  \n")) as server:
        (reply,) = ask(store, led_to(settings, {"one": server.base_url}), ("one", "Who?"))

    assert isinstance(reply, NoReply)
    assert reply.code == "empty"


def test_a_refusal_is_none(store: Store, settings: Settings) -> None:
    with ScriptedModel(always(Say(refusal="I will not"))) as server:
        (reply,) = ask(store, led_to(settings, {"one": server.base_url}), ("one", "Who?"))

    assert isinstance(reply, NoReply)
    assert (reply.code, "I will not" in reply.message) == ("refused", True)


def test_an_answer_that_was_cut_off_is_one(store: Store, settings: Settings) -> None:
    with ScriptedModel(says("Acme is", is_cut=True)) as server:
        (reply,) = ask(store, led_to(settings, {"one": server.base_url}), ("one", "Who?"))

    assert isinstance(reply, Replied)
    assert ledger(store)[0].outcome == "cut_off"


def test_ten_megabytes_are_refused_and_counted_as_paid(store: Store, settings: Settings) -> None:
    with ScriptedModel(says("Acme " * 2_000_000)) as server:
        replies = ask(store, led_to(settings, {"one": server.base_url}), ("one", "Who?"))

    (reply,) = replies
    assert isinstance(reply, NoReply)
    assert (reply.code, "1000000 bytes" in reply.message) == ("too_long", True)
    (row,) = ledger(store)
    assert (row.status, row.outcome) == ("failed", "too_long")
    assert row.cost_usd > 0


def test_a_server_that_never_answers_is_left_at_the_deadline(store: Store, settings: Settings) -> None:
    is_left = Event()

    def late(_: ModelRequest) -> Said:
        is_left.wait(20)
        return Say(text="late")

    led = {"INGESTION_WEBSITE__ANSWER_SECONDS": "0.6"}
    with ScriptedModel(late) as server:
        warm = led_to(settings, {"one": server.base_url}, led)
        began = time.monotonic()
        (reply,) = ask(store, warm, ("one", "Who?"))
        took = time.monotonic() - began
        is_left.set()

    assert isinstance(reply, NoReply)
    assert reply.code == "timeout"
    assert took < 10


def test_a_server_that_is_not_there_costs_nothing(store: Store, settings: Settings) -> None:
    led = led_to(settings, {"one": f"http://127.0.0.1:{closed_port()}/v1"})

    (reply,) = ask(store, led, ("one", "Who?"))

    assert isinstance(reply, NoReply)
    assert reply.code == "unreachable"
    assert {row.cost_usd for row in ledger(store)} == {Decimal(0)}


def test_no_more_are_asked_at_a_time_than_the_provider_takes(store: Store, settings: Settings) -> None:
    running, most = [0], [0]

    def counting(_: ModelRequest) -> Said:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.03)
        running[0] -= 1
        return Say(text="x")

    with ScriptedModel(counting) as server:
        replies = ask(
            store,
            led_to(settings, {"one": server.base_url}),
            *[("one", f"Question {number}?") for number in range(9)],
            at_once=True,
        )

    assert all(isinstance(reply, Replied) for reply in replies)
    assert most[0] <= 4


def test_a_prompt_waits_for_the_reserves_of_others_longer_than_an_answer_may_take(
    store: Store, settings: Settings
) -> None:
    limits = {"INGESTION_MODEL_BUDGET_MONTH_USD": "0.003", "INGESTION_WEBSITE__ANSWER_SECONDS": "2"}
    with ScriptedModel(says("Acme.")) as server:
        led = led_to(settings, {"one": server.base_url}, limits)
        other = Ledger(store, led)
        reserved = other.reserve(
            NewCall(
                billing=Billing(call_site="website_answer"),
                provider="elsewhere",
                model="m-one",
                format="chat",
                cache_key="k",
                prompt_version="p@1",
                estimate=Usage(output_tokens=1_000),
            )
        )
        assert isinstance(reserved, Reserved)
        usage = Usage(output_tokens=5)
        settle = partial(other.settle, reserved, usage, "answered", latency_ms=1)
        timer = Timer(2.5, settle)
        timer.start()
        [reply] = ask(store, led, ("one", "Who bakes?"))
        timer.join()

    assert isinstance(reply, Replied)


def test_a_provider_out_of_budget_is_not_asked_until_the_next_month(store: Store, settings: Settings) -> None:
    with ScriptedModel(says("x")) as server:
        led = led_to(settings, {"one": server.base_url, "two": server.base_url})
        poor = led.website.providers.replace('"name": "one",', '"name": "one", "budget_usd": 0.0001,')
        website = led.website.model_copy(update={"providers": poor})
        replies = ask(store, led.model_copy(update={"website": website}), ("one", "Who?"), ("two", "Who?"))

    assert isinstance(replies[0], NoReply)
    assert (replies[0].code, replies[0].wait is not None) == ("model_budget", True)
    assert "provider one this month" in replies[0].message
    assert isinstance(replies[1], Replied)
    assert len(server.requests) == 1
    assert {key.split(":")[0] for key in held(store)} == {"month", "provider"}
