"""Configured providers, and failing ones on loopback: each failure has its code and affects no other provider."""

import asyncio
import json
import time
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from threading import Event, Timer

import pytest

from ingestion_pipeline.demo.model_server import Fail, ModelRequest, Say, ScriptedModel
from ingestion_pipeline.demo.model_server import Reply as ModelReply
from ingestion_pipeline.reading.llm.ledger import Billing, Ledger, NewCall, Reserved
from ingestion_pipeline.reading.llm.question import Usage
from ingestion_pipeline.reading.llm.wire import AnswerFormat, ServerReply, read_body
from ingestion_pipeline.settings import (
    BadSetting,
    Provider,
    Settings,
    load_settings,
    provider_list,
    providers_of,
    secret_variable,
)
from ingestion_pipeline.store import Store
from ingestion_pipeline.websites.provider_pool import (
    NoReply,
    ProviderPool,
    Replied,
    configured_providers,
    provider_key,
    providers_for,
)
from ingestion_pipeline_tests.reading.llm.model_questions import HeldReply, held_by_scope, in_turn, model_call_rows
from ingestion_pipeline_tests.websites.provider_answers import (
    always,
    always_text,
    ask_one,
    ask_providers,
    settings_with_providers,
)


def test_an_answer_has_its_model_tokens_and_cost(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_ONE", "sk-one-secret")
    (reply,), server = ask_one(store, settings, always_text("Acme is best."))

    assert isinstance(reply, Replied)
    assert (reply.text, reply.model, reply.model_version) == ("Acme is best.", "m-one", "m-one")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (1, 4)
    assert reply.cost_usd == Decimal("0.000009")
    assert server.requests[0].headers["authorization"] == "Bearer sk-one-secret"
    (row,) = model_call_rows(store)
    assert (row.call_site, row.status, row.cost_usd) == ("website_answer", "settled", Decimal("0.000009"))


def test_the_addresses_that_an_answer_cites_are_kept(store: Store, settings: Settings) -> None:
    text = "See [Acme](https://acme.test/a?utm_source=x), https://globex.test/b. And **https://acme.test/a**"
    (reply,), _ = ask_one(store, settings, always_text(text))

    assert isinstance(reply, Replied)
    assert reply.cited_urls == ("https://acme.test/a", "https://globex.test/b")


@pytest.mark.parametrize(
    ("answer_format", "body"),
    [
        (
            AnswerFormat.RESPONSES,
            {
                "status": "completed",
                "output": [
                    {
                        "type": "message",
                        "content": [
                            {
                                "type": "output_text",
                                "text": "Acme",
                                "annotations": [{"type": "url_citation", "url": "https://acme.test/"}],
                            }
                        ],
                    }
                ],
            },
        ),
        (
            AnswerFormat.CHAT_PLAIN,
            {
                "choices": [
                    {
                        "message": {
                            "content": "Acme",
                            "annotations": [{"type": "url_citation", "url_citation": {"url": "https://acme.test/"}}],
                        }
                    }
                ]
            },
        ),
        (
            AnswerFormat.CHAT_PLAIN,
            {"choices": [{"message": {"content": "Acme"}}], "citations": ["https://acme.test/", "https://acme.test/"]},
        ),
    ],
    ids=["responses", "chat", "list"],
)
def test_the_sources_that_a_server_states_are_read(answer_format: AnswerFormat, body: dict[str, object]) -> None:
    reply = read_body(answer_format, json.dumps(body))

    assert isinstance(reply, ServerReply)
    assert reply.cited_urls == ("https://acme.test/",)


def test_an_answer_is_stored_though_its_caller_is_cancelled_before_a_thread_is_free(
    store: Store, settings: Settings
) -> None:
    reply = HeldReply(Say(text="Acme is best."))
    stored: list[str] = []

    async def ask_and_cancel(provider_settings: Settings) -> None:
        async with ProviderPool(store, provider_settings, configured_providers(provider_settings)) as pool:
            asking = pool.ask("one", "Who?", store_reply=lambda _, replied: stored.append(replied.text))
            await reply.cancel_before_booking(asking)

    with ScriptedModel(reply) as server:
        asyncio.run(ask_and_cancel(settings_with_providers(settings, {"one": server.base_url})))

    assert stored == ["Acme is best."]
    assert [(row.status, row.outcome) for row in model_call_rows(store)] == [("settled", "answered")]


def test_a_prompt_is_sent_as_a_plain_user_message(store: Store, settings: Settings) -> None:
    with ScriptedModel(always_text("x"), without=["responses"]) as server:
        ask_providers(
            store, settings_with_providers(settings, {"one": server.base_url}), ("one", "Who?"), ("one", "And?")
        )

    assert [request.path for request in server.requests] == [
        "/v1/responses",
        "/v1/chat/completions",
        "/v1/chat/completions",
    ]
    assert server.requests[-1].body["messages"] == [{"role": "user", "content": "And?"}]


def test_a_missing_endpoint_is_remembered_for_the_next_run(store: Store, settings: Settings) -> None:
    with ScriptedModel(always_text("x"), without=["responses"]) as server:
        provider_settings = settings_with_providers(settings, {"one": server.base_url})
        ask_providers(store, provider_settings, ("one", "Who?"))
        ask_providers(store, provider_settings, ("one", "Who?"))

    assert [request.path for request in server.requests][-1:] == ["/v1/chat/completions"]
    assert len(server.requests) == 3


def test_a_refused_key_is_not_tried_again(store: Store, settings: Settings) -> None:
    replies, server = ask_one(store, settings, always(Fail(status=401, message="bad key")), "Who?", "And?")

    assert len(server.requests) == 1
    failures = [(reply.code, reply.is_lasting) for reply in replies if isinstance(reply, NoReply)]
    assert failures == [("http_401", True)] * 2
    assert "bad key" in str(replies[1])


def test_a_retry_after_beyond_the_deadline_fails_at_once_and_is_remembered(store: Store, settings: Settings) -> None:
    slow = Fail(status=429, message="slow down", headers={"Retry-After": "90"})
    began = time.monotonic()
    replies, server = ask_one(store, settings, always(slow), "Who?", "And?")

    assert time.monotonic() - began < 5
    assert len(server.requests) == 1
    for reply in replies:
        assert isinstance(reply, NoReply)
        assert (reply.code, reply.wait) == ("http_429", timedelta(seconds=90))
        assert not reply.is_lasting


def test_a_short_retry_after_is_awaited(store: Store, settings: Settings) -> None:
    busy = Fail(status=429, headers={"Retry-After-Ms": "20"})
    (reply,), _ = ask_one(store, settings, in_turn(busy, Say(text="now")))

    assert isinstance(reply, Replied)
    assert [row.status for row in model_call_rows(store)] == ["failed", "settled"]


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [(Say(text="  \n"), "empty", ""), (Say(refusal="I will not"), "refused", "I will not")],
    ids=["blank", "refusal"],
)
def test_a_blank_answer_or_a_refusal_is_an_error(
    store: Store, settings: Settings, answer: ModelReply, code: str, message: str
) -> None:
    (reply,), _ = ask_one(store, settings, always(answer))

    assert isinstance(reply, NoReply)
    assert (reply.code, message in reply.message) == (code, True)


def test_a_truncated_answer_is_accepted(store: Store, settings: Settings) -> None:
    (reply,), _ = ask_one(store, settings, always_text("Acme is", is_cut=True))

    assert isinstance(reply, Replied)
    assert model_call_rows(store)[0].outcome == "cut_off"


def test_an_answer_of_ten_megabytes_is_refused_and_its_cost_recorded(store: Store, settings: Settings) -> None:
    (reply,), _ = ask_one(store, settings, always_text("Acme " * 2_000_000))

    assert isinstance(reply, NoReply)
    assert (reply.code, "1000000 bytes" in reply.message) == ("too_long", True)
    (row,) = model_call_rows(store)
    assert (row.status, row.outcome) == ("failed", "too_long")
    assert row.cost_usd > 0


@pytest.mark.slow
def test_a_server_that_never_answers_times_out(store: Store, settings: Settings) -> None:
    timed_out = Event()

    def late(_: ModelRequest) -> ModelReply:
        timed_out.wait(20)
        return Say(text="late")

    with ScriptedModel(late) as server:
        variables = {"INGESTION_WEBSITE__ANSWER_SECONDS": "0.6"}
        provider_settings = settings_with_providers(settings, {"one": server.base_url}, variables)
        began = time.monotonic()
        (reply,) = ask_providers(store, provider_settings, ("one", "Who?"))
        took = time.monotonic() - began
        timed_out.set()

    assert isinstance(reply, NoReply)
    assert reply.code == "timeout"
    assert took < 10


@pytest.mark.slow
def test_concurrent_requests_stay_within_the_providers_limit(store: Store, settings: Settings) -> None:
    running, most = [0], [0]

    def counting(_: ModelRequest) -> ModelReply:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.03)
        running[0] -= 1
        return Say(text="x")

    with ScriptedModel(counting) as server:
        replies = ask_providers(
            store,
            settings_with_providers(settings, {"one": server.base_url}),
            *[("one", f"Question {number}?") for number in range(9)],
            at_once=True,
        )

    assert all(isinstance(reply, Replied) for reply in replies)
    assert most[0] <= 4


@pytest.mark.slow
def test_a_prompt_waits_for_other_reservations_beyond_the_answer_timeout(store: Store, settings: Settings) -> None:
    limits = {"INGESTION_MODEL_BUDGET_MONTH_USD": "0.003", "INGESTION_WEBSITE__ANSWER_SECONDS": "2"}
    with ScriptedModel(always_text("Acme.")) as server:
        provider_settings = settings_with_providers(settings, {"one": server.base_url}, limits)
        other = Ledger(store, provider_settings)
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
        [reply] = ask_providers(store, provider_settings, ("one", "Who bakes?"))
        timer.join()

    assert isinstance(reply, Replied)


def test_a_provider_over_budget_waits_until_the_next_month(store: Store, settings: Settings) -> None:
    with ScriptedModel(always_text("x")) as server:
        provider_settings = settings_with_providers(settings, {"one": server.base_url, "two": server.base_url})
        limited_providers = provider_settings.website.providers.replace(
            '"name": "one",', '"name": "one", "budget_usd": 0.0001,'
        )
        website = provider_settings.website.model_copy(update={"providers": limited_providers})
        replies = ask_providers(
            store, provider_settings.model_copy(update={"website": website}), ("one", "Who?"), ("two", "Who?")
        )

    assert isinstance(replies[0], NoReply)
    assert (replies[0].code, replies[0].wait is not None) == ("model_budget", True)
    assert "provider one this month" in replies[0].message
    assert isinstance(replies[1], Replied)
    assert len(server.requests) == 1
    assert {key.split(":")[0] for key in held_by_scope(store)} == {"month", "provider"}


PROVIDER_YAML = "- {name: one, base_url: 'http://one.test/v1', model: m, key_env: ONE_KEY}\n"


def test_without_a_model_there_is_no_provider() -> None:
    assert configured_providers(load_settings({})) == ()


def test_the_configured_model_is_the_default_provider() -> None:
    settings = load_settings({"OPENAI_API_KEY": "sk-1", "INGESTION_MODEL_CHEAP": "mini"})

    (provider,) = configured_providers(settings)

    assert (provider.name, provider.model) == ("default", "mini")
    assert provider.base_url == "https://api.openai.com/v1"
    assert provider_key(provider, settings) == "sk-1"


def test_a_provider_list_replaces_the_default_provider() -> None:
    text = '[{"name": "one", "base_url": "http://one.test/v1", "model": "m"}]'
    settings = load_settings({"OPENAI_API_KEY": "sk-1", "INGESTION_WEBSITE__PROVIDERS": text})

    (provider,) = configured_providers(settings)

    assert provider.name == "one"
    assert provider_key(provider, settings, {"OPENAI_API_KEY": "sk-1"}) == ""


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://demo.test/", ["all", "theirs"]),
        ("https://Saltmarsh.demo.test/about", ["all", "theirs"]),
        ("https://notdemo.test/", ["all"]),
        ("https://acme.example/", ["all"]),
    ],
)
def test_a_provider_of_a_host_is_used_only_for_its_websites(url: str, expected: list[str]) -> None:
    providers = [
        Provider(name="all", base_url="http://one.test/v1", model="m"),
        Provider(name="theirs", base_url="http://two.test/v1", model="m", host="demo.test"),
    ]

    assert [provider.name for provider in providers_for(providers, url)] == expected


def test_the_provider_list_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "providers.yaml"
    file.write_text(PROVIDER_YAML)

    (provider,) = configured_providers(load_settings({"INGESTION_WEBSITE__PROVIDERS": str(file)}))

    assert provider == Provider(name="one", base_url="http://one.test/v1", model="m", key_env="ONE_KEY")
    assert provider_key(provider, load_settings({}), {"ONE_KEY": "sk-one"}) == "sk-one"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("{", "neither YAML nor JSON"),
        ("name: one", "not a list"),
        (PROVIDER_YAML + PROVIDER_YAML, "provider one is there 2 times"),
    ],
)
def test_an_invalid_provider_file_is_named_with_the_reason(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "providers.yaml"
    if text is not None:
        file.write_text(text)

    with pytest.raises(BadSetting, match=message) as failure:
        configured_providers(load_settings({"INGESTION_WEBSITE__PROVIDERS": str(file)}))

    assert "providers.yaml" in str(failure.value)


ONE = {"name": "one", "base_url": "https://one.test/v1", "key_env": "ONE_KEY", "model": "m-1"}


def test_a_provider_has_defaults() -> None:
    (provider,) = provider_list(json.dumps([ONE]))

    assert (provider.name, provider.model, provider.concurrency) == ("one", "m-1", 4)
    assert provider.budget_usd is None


def test_a_budget_is_an_exact_decimal() -> None:
    (provider,) = provider_list('[{"name":"a","base_url":"http://a.test","model":"m","budget_usd":0.1}]')

    assert provider.budget_usd == Decimal("0.1")


def test_every_mistake_in_a_provider_list_is_reported_at_once() -> None:
    bad = [
        ONE,
        {"name": "two words", "base_url": "ftp://x", "model": "m"},
        {"name": "three", "base_url": "https://three.test", "key": "sk-secret"},
        "four",
        ONE,
    ]

    with pytest.raises(ValueError) as failure:  # noqa: PT011 - the message is asserted below
        providers_of(bad)

    message = str(failure.value)
    for part in (
        "provider 2 (two words): name:",
        "provider 2 (two words): base_url:",
        "provider 3 (three): model:",
        "provider 3 (three): key:",
        "provider 4:",
        "provider one is there 2 times",
    ):
        assert part in message
    assert "sk-secret" not in message


@pytest.mark.parametrize("text", ["[", "[1]", '[{"name":"a"}]'])
def test_an_invalid_provider_list_names_its_variable(text: str) -> None:
    with pytest.raises(BadSetting, match="INGESTION_WEBSITE__PROVIDERS"):
        load_settings({"INGESTION_WEBSITE__PROVIDERS": text})


def test_a_key_in_the_provider_list_is_not_shown() -> None:
    text = json.dumps([ONE | {"key": "sk-secret"}])

    with pytest.raises(BadSetting) as failure:
        load_settings({"INGESTION_WEBSITE__PROVIDERS": text})

    assert "provider 1 (one): key:" in str(failure.value)
    assert "sk-secret" not in str(failure.value)


def test_a_provider_document_that_is_not_a_list_is_refused() -> None:
    with pytest.raises(ValueError, match="not a list of providers"):
        providers_of({"name": "one"})


def test_a_key_is_looked_up_by_its_variable_and_stays_secret() -> None:
    secret = secret_variable("ONE_KEY", {"ONE_KEY": "sk-1"})

    assert secret.get_secret_value() == "sk-1"
    assert "sk-1" not in repr(secret)
    assert secret_variable("", {"": "x"}).get_secret_value() == ""
