import asyncio
import gzip
import tracemalloc
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ingestion_pipeline.demo.model_server import Fail, Garble, ModelRequest, Reply, Say, ScriptedModel
from ingestion_pipeline.reading.llm import Answered, Fault, ModelClient, ModelTier, Unanswered
from ingestion_pipeline.reading.llm.wire import AnswerFormat, Exchange, ServerBusy, deadline, exchange, open_client
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient
from ingestion_pipeline_tests.fakes import FakeWeb, a_certificate
from ingestion_pipeline_tests.fakes import Reply as FakeReply
from ingestion_pipeline_tests.reading.llm.model_questions import (
    BILLING,
    VALID_ANSWER,
    a_question,
    a_reply,
    ask,
    in_turn,
    model_call_rows,
    settings_with_model,
)

MISSING = a_reply({name: value for name, value in VALID_ANSWER.items() if name != "kind"})
EXTRA = a_reply(VALID_ANSWER | {"price": 5})
WRONG_ENUM = a_reply(VALID_ANSWER | {"kind": "seminar"})


def ask_scripted(store: Store, settings: Settings, *replies: Reply, **variables: str) -> tuple[Any, ScriptedModel]:
    with ScriptedModel(in_turn(*replies)) as model:
        return ask(store, settings_with_model(model.base_url, settings, **variables)), model


@pytest.mark.slow
def test_an_answer_that_matches_the_schema_is_returned(store: Store, settings: Settings) -> None:
    answer, model = ask_scripted(store, settings, a_reply())

    assert isinstance(answer, Answered)
    assert (answer.data, answer.model, answer.before) == (VALID_ANSWER, "cheap", ())
    assert [request.path for request in model.requests] == ["/v1/responses"]


@pytest.mark.slow
def test_the_request_is_strict_and_without_tools_or_streaming(store: Store, settings: Settings) -> None:
    _, model = ask_scripted(store, settings, a_reply(), OPENAI_API_KEY="the-key")

    request = model.requests[0]
    assert request.form["strict"] is True
    assert request.schema["required"] == ["title", "credits", "kind", "url"]
    assert {"tools", "stream", "temperature"} & request.body.keys() == set()
    assert (request.body["store"], request.body["max_output_tokens"]) == (False, 100)
    assert request.body["prompt_cache_key"] == "catalog:a"
    assert request.headers["authorization"] == "Bearer the-key"


@pytest.mark.parametrize(
    ("bad_reply", "fault", "reported"),
    [
        pytest.param(MISSING, Fault.VIOLATED, "$.kind is missing", id="missing field"),
        pytest.param(EXTRA, Fault.VIOLATED, "$ may not have 'price'", id="extra field"),
        pytest.param(WRONG_ENUM, Fault.VIOLATED, '$.kind must be one of ["lecture", "lab"]', id="enum"),
        pytest.param(Say(text="Sure! It is biology."), Fault.MALFORMED, "it is not JSON", id="chat"),
        pytest.param(Say(text=""), Fault.EMPTY, "it was empty", id="empty"),
    ],
)
def test_a_bad_answer_is_retried_once_with_its_error_and_then_by_the_strong_model(
    store: Store, settings: Settings, bad_reply: Say, fault: Fault, reported: str
) -> None:
    answer, model = ask_scripted(store, settings, bad_reply, bad_reply, a_reply())

    assert isinstance(answer, Answered)
    assert [failed.fault for failed in answer.before] == [fault, fault]
    assert [request.model for request in model.requests] == ["cheap", "cheap", "strong"]
    assert [reported in request.text for request in model.requests] == [False, True, False]
    assert [row.outcome for row in model_call_rows(store)] == [fault, fault, "answered"]
    assert all(row.cost_usd > 0 for row in model_call_rows(store))


@pytest.mark.parametrize(
    ("bad_reply", "fault"),
    [
        pytest.param(Say(refusal="I cannot help with that."), Fault.REFUSED, id="refusal"),
        pytest.param(Say(text='{"title": "Bio', is_cut=True), Fault.CUT_OFF, id="cut at max tokens"),
        pytest.param(Fail(status=400, message="context too long"), Fault.REJECTED, id="too long"),
    ],
)
def test_a_failure_the_same_model_would_repeat_goes_to_the_strong_model_at_once(
    store: Store, settings: Settings, bad_reply: Reply, fault: Fault
) -> None:
    answer, model = ask_scripted(store, settings, bad_reply, a_reply())

    assert isinstance(answer, Answered)
    assert [failed.fault for failed in answer.before] == [fault]
    assert [request.model for request in model.requests] == ["cheap", "strong"]


@pytest.mark.parametrize(
    ("bad_reply", "calls", "code"),
    [
        pytest.param(EXTRA, 4, "model_violated", id="violation"),
        pytest.param(Say(text="no"), 4, "model_malformed", id="no JSON"),
        pytest.param(Say(), 4, "model_empty", id="empty"),
        pytest.param(Say(refusal="no"), 2, "model_refused", id="refusal"),
        pytest.param(Say(text="{", is_cut=True), 2, "model_cut_off", id="cut off"),
        pytest.param(Fail(status=413), 2, "model_rejected", id="rejected"),
    ],
)
def test_when_no_tier_answers_the_failure_has_its_class_and_every_call_its_row(
    store: Store, settings: Settings, bad_reply: Reply, calls: int, code: str
) -> None:
    answer, model = ask_scripted(store, settings, bad_reply)

    assert isinstance(answer, Unanswered)
    assert (len(answer.tries), len(model.requests), len(model_call_rows(store))) == (calls, calls, calls)
    error = answer.as_error()
    assert isinstance(error, Permanent)
    assert error.code == code
    booked = sum(row.output_tokens for row in model_call_rows(store))
    assert sum(failed.usage.output_tokens for failed in answer.tries) == booked


def test_a_corrected_answer_needs_no_strong_model(store: Store, settings: Settings) -> None:
    answer, model = ask_scripted(store, settings, WRONG_ENUM, a_reply())

    assert isinstance(answer, Answered)
    assert answer.model == "cheap"
    first, second = model.requests
    assert second.text.startswith(first.text)
    assert "seminar" in second.text  # its own answer, as a separate turn
    used = sum(reply.usage.output_tokens for reply in (*answer.before, answer))
    assert used == sum(row.output_tokens for row in model_call_rows(store))


def test_json_in_a_code_fence_is_accepted(store: Store, settings: Settings) -> None:
    answer, model = ask_scripted(store, settings, Say(text=f"```json\n{a_reply().text}\n```"))

    assert isinstance(answer, Answered)
    assert (answer.data, len(model.requests)) == (VALID_ANSWER, 1)


def test_one_tier_can_be_used_alone(store: Store, settings: Settings) -> None:
    with ScriptedModel(in_turn(a_reply())) as model:
        ask(store, settings_with_model(model.base_url, settings), tiers=[ModelTier.STRONG])

    assert [request.model for request in model.requests] == ["strong"]


def test_one_model_for_both_tiers_counts_as_one_tier(store: Store, settings: Settings) -> None:
    _, model = ask_scripted(store, settings, EXTRA, INGESTION_MODEL_STRONG="cheap")

    assert [request.model for request in model.requests] == ["cheap", "cheap"]


def test_without_a_model_the_work_waits_and_nothing_is_recorded(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    with pytest.raises(Resource, match="no model configured: set OPENAI_API_KEY") as caught:
        ask(store, settings)

    assert caught.value.code == "no_model"
    assert (caught.value.until - clock.at).total_seconds() == 3600
    assert model_call_rows(store) == []


def test_an_api_key_alone_configures_a_model() -> None:
    assert load_settings({"OPENAI_API_KEY": "k"}).has_model
    assert load_settings({"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}).has_model
    assert not load_settings({}).has_model


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_error_the_operator_must_fix_postpones_and_is_never_retried(
    store: Store, settings: Settings, status: int
) -> None:
    fail = Fail(status=status, message="model 'cheap' with key geheim-123 is not yours")

    with ScriptedModel(in_turn(fail)) as model, pytest.raises(Resource) as caught:
        ask(store, settings_with_model(model.base_url, settings, OPENAI_API_KEY="geheim-123"))

    assert len(model.requests) == 1
    assert "look at OPENAI_API_KEY, OPENAI_BASE_URL" in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_an_account_without_credit_is_not_retried(store: Store, settings: Settings) -> None:
    fail = Fail(status=429, message="You exceeded your quota", code="insufficient_quota")

    with ScriptedModel(in_turn(fail)) as model, pytest.raises(Resource) as caught:
        ask(store, settings_with_model(model.base_url, settings))

    assert (caught.value.code, len(model.requests)) == ("model_quota", 1)


def test_a_retry_after_beyond_the_deadline_postpones_at_once(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    fail = Fail(status=429, headers={"Retry-After": "600"})

    with ScriptedModel(in_turn(fail)) as model, pytest.raises(Resource) as caught:
        ask(store, settings_with_model(model.base_url, settings))

    assert len(model.requests) == 1
    assert (caught.value.until - clock.at).total_seconds() == 600


def test_an_absurd_retry_after_is_capped_at_a_day(store: Store, settings: Settings, clock: FixedClock) -> None:
    fail = Fail(status=503, headers={"Retry-After": "99999999999"})

    with ScriptedModel(in_turn(fail)) as model, pytest.raises(Resource) as caught:
        ask(store, settings_with_model(model.base_url, settings))

    assert (caught.value.until - clock.at).total_seconds() == 86_400


@pytest.mark.parametrize("body", [b"<html>502</html>", b"[1, 2]", b"{}", b"\xff\xfe", b""])
def test_a_malformed_response_is_retried_and_recorded_at_its_possible_cost(
    store: Store, settings: Settings, body: bytes
) -> None:
    with ScriptedModel(in_turn(Garble(body=body))) as model, pytest.raises(Transient) as caught:
        ask(store, settings_with_model(model.base_url, settings, INGESTION_MODELS__MAX_ATTEMPTS="2"))

    assert (caught.value.code, len(model.requests)) == ("model_garbled", 2)
    assert [(row.status, row.outcome) for row in model_call_rows(store)] == [("failed", "garbled")] * 2
    assert all(row.cost_usd == row.reserved_usd for row in model_call_rows(store))


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed_and_the_page_is_sent_nowhere_else(
    store: Store, settings: Settings, status: int
) -> None:
    def redirect(_: ModelRequest) -> Reply:
        return Fail(status=status, headers={"Location": f"{inside.base_url}/responses"})

    with (
        ScriptedModel(in_turn(a_reply())) as inside,
        ScriptedModel(redirect) as model,
        pytest.raises(Resource, match=f"redirects to {inside.base_url}"),
    ):
        ask(store, settings_with_model(model.base_url, settings))

    assert inside.requests == []
    assert [row.outcome for row in model_call_rows(store)] == [f"http_{status}"]
    assert [row.cost_usd for row in model_call_rows(store)] == [0]


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Garble(body=b'{"output": "' + b"x" * 20_000_000), "too_long"),
        (Fail(status=400, message="x" * 20_000_000), "too_long"),
        (Garble(body=b"x" * 7_000_000), "garbled"),
    ],
    ids=["answer", "error", "within the limit"],
)
def test_an_endless_answer_is_read_only_up_to_the_limit(
    store: Store, settings: Settings, reply: Reply, outcome: str
) -> None:
    once = {"INGESTION_MODELS__MAX_ATTEMPTS": "1"}
    with ScriptedModel(in_turn(reply)) as model, suppress(Transient):
        ask(store, settings_with_model(model.base_url, settings, **once), tiers=(ModelTier.CHEAP,))

    [row] = model_call_rows(store)
    assert (row.outcome, row.cost_usd) == (outcome, row.reserved_usd)


@pytest.mark.slow
def test_a_compressed_answer_counts_at_its_decompressed_size(store: Store, settings: Settings) -> None:
    bomb = gzip.compress(b"x" * 200_000_000, compresslevel=1)
    served = FakeReply(bomb, headers={"Content-Encoding": "gzip"})
    with FakeWeb({"/v1/responses": served}) as web:
        tracemalloc.start()
        ask(store, settings_with_model(f"http://127.0.0.1:{web.port}/v1", settings), tiers=(ModelTier.CHEAP,))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    assert [row.outcome for row in model_call_rows(store)] == ["too_long"]
    assert peak < 100_000_000


@pytest.mark.slow
def test_an_unreachable_server_costs_nothing_and_postpones(store: Store, settings: Settings) -> None:
    with pytest.raises(Resource) as caught:
        ask(store, settings_with_model("http://127.0.0.1:1/v1", settings))

    assert caught.value.code == "model_unreachable"
    assert [row.cost_usd for row in model_call_rows(store)] == [Decimal(0)] * 4


def test_a_server_that_counts_no_tokens_is_charged_by_our_own_count(store: Store, settings: Settings) -> None:
    answer, _ = ask_scripted(store, settings, a_reply(has_usage=False))

    row = model_call_rows(store)[0]
    assert isinstance(answer, Answered)
    assert answer.usage.is_estimated
    assert row.usage_estimated
    assert 0 < row.cost_usd < row.reserved_usd


def test_a_url_that_is_not_on_the_page_is_dropped_and_reported(store: Store, settings: Settings) -> None:
    answer, _ = ask_scripted(store, settings, a_reply(VALID_ANSWER | {"url": "https://evil.test/x"}))

    assert isinstance(answer, Answered)
    assert answer.data["url"] is None
    assert [(dropped.path, dropped.url) for dropped in answer.dropped] == [("$.url", "https://evil.test/x")]


def test_a_question_of_another_page_is_another_question(store: Store, settings: Settings) -> None:
    with ScriptedModel(in_turn(a_reply(VALID_ANSWER | {"url": None}))) as model:
        model_settings = settings_with_model(model.base_url, settings)
        ask(store, model_settings)
        ask(store, model_settings, a_question("Chemistry 102"))

    assert len(model.requests) == 2


@pytest.mark.slow
def test_many_questions_at_a_time_share_one_client_and_equal_ones_one_answer(store: Store, settings: Settings) -> None:
    questions = [a_question(f"Page {number % 5}") for number in range(10)]

    async def ask_all(model_settings: Settings) -> list[object]:
        async with ModelClient(store, model_settings) as client:
            return await asyncio.gather(*(client.ask(question, BILLING) for question in questions))

    with ScriptedModel(in_turn(a_reply(VALID_ANSWER | {"url": None})), without=["responses"]) as model:
        answers = asyncio.run(ask_all(settings_with_model(model.base_url, settings)))

    assert {type(answer) for answer in answers} == {Answered}
    assert sum(request.path == "/v1/chat/completions" for request in model.requests) == 5
    assert [row.status for row in model_call_rows(store)].count("cached") == 5


def test_a_page_with_a_lone_surrogate_can_be_sent(store: Store, settings: Settings) -> None:
    with ScriptedModel(in_turn(a_reply(VALID_ANSWER | {"url": None}))) as model:
        answer = ask(store, settings_with_model(model.base_url, settings), a_question("Bio\ud800\0logy"))

    assert isinstance(answer, Answered)


def test_a_question_ends_before_the_lease_of_its_task(settings: Settings) -> None:
    model_settings = settings_with_model(
        "", settings, INGESTION_MODELS__DEADLINE_SECONDS="90", INGESTION_WORK__LEASE_SECONDS="8"
    )

    assert 5 < deadline(model_settings).seconds_left <= 6
    assert 89 < deadline(settings_with_model("", settings)).seconds_left <= 90


def test_a_server_with_an_invalid_certificate_is_sent_nothing(tmp_path: Path) -> None:
    _, tls = a_certificate(tmp_path, "localhost")
    request = {"model": "cheap", "messages": [{"role": "user", "content": "a page"}]}
    with FakeWeb({"/v1/chat/completions": b"{}"}, tls=tls) as web:

        async def sent() -> Exchange:
            client = open_client("a key", f"https://localhost:{web.port}/v1")
            async with client:
                return await exchange(client, AnswerFormat.CHAT_PLAIN, request, 20)

        answer = asyncio.run(sent())

        assert isinstance(answer, ServerBusy)
        assert (answer.code, answer.may_be_charged) == ("unreachable", False)
        assert web.requests == []
