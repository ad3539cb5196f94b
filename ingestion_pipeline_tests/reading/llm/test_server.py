"""Model servers of all kinds: the answer formats they support, and how their failures are handled.

The failures are those of llmock, with the real openai client.
"""

import time
from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest

from ingestion_pipeline.demo.model_server import Fail, Say, ScriptedModel
from ingestion_pipeline.reading.llm import Answered, Unanswered
from ingestion_pipeline.reading.llm.wire import AnswerFormat, is_unsupported, wait_asked_for
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import model_endpoints
from ingestion_pipeline.tasks.errors import Resource, Transient
from ingestion_pipeline_tests.polling_runs import rows
from ingestion_pipeline_tests.reading.llm.model_questions import (
    COURSE,
    VALID_ANSWER,
    a_question,
    a_reply,
    ask,
    in_turn,
    model_call_rows,
    settings_with_model,
)
from ingestion_pipeline_tests.reading.tables import table

ALL = ["responses", "chat_schema", "chat_object", "chat_plain"]


def formats(store: Store) -> list[str]:
    return [row.format for row in model_call_rows(store)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("without", "status", "tried"),
    [
        ((), 400, ALL[:1]),
        (("responses",), 400, ALL[:2]),
        (("responses", "json_schema"), 400, ALL[:3]),
        (("responses", "json_schema"), 500, ALL[:3]),
        (("responses", "json_schema", "json_object"), 422, ALL),
    ],
    ids=["all", "no responses", "no json_schema", "no json_schema, 500", "nothing"],
)
def test_a_server_is_asked_in_the_best_format_it_supports(
    store: Store, settings: Settings, without: Collection[str], tried: list[str], status: int
) -> None:
    with ScriptedModel(in_turn(a_reply()), without=without, refusal_status=status) as model:
        model_settings = settings_with_model(model.base_url, settings)
        answer = ask(store, model_settings)
        # Another client is another run: it starts with the format this one ended with.
        ask(store, model_settings, a_question("Another page"))

    assert isinstance(answer, Answered)
    assert answer.data == VALID_ANSWER
    assert formats(store) == [*tried, tried[-1]]
    assert [row.cost_usd > 0 for row in model_call_rows(store)] == [False] * (len(tried) - 1) + [True, True]


def test_an_unsupported_format_is_stored_with_its_reason_and_expires(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    lacks = ["responses", "json_schema"]
    with ScriptedModel(in_turn(a_reply()), without=lacks, refusal_status=500) as model:
        model_settings = settings_with_model(model.base_url, settings)
        ask(store, model_settings)
        [row] = rows(store, model_endpoints)
        clock.advance(days=31)
        ask(store, model_settings, a_question("Another page"))

    assert (row.base_url, row.format) == (model.base_url, "chat_object")
    assert "should be 'text' or 'json_object'" in row.reason
    assert formats(store) == ALL[:3] * 2


def test_without_structured_output_the_schema_is_in_the_prompt_and_json_is_taken_from_the_text(
    store: Store, settings: Settings
) -> None:
    lacks = ["responses", "json_schema", "json_object"]
    with ScriptedModel(in_turn(Say(text=f"Sure:\n{a_reply().text}\nThat is all.")), without=lacks) as model:
        answer = ask(store, settings_with_model(model.base_url, settings))

    assert isinstance(answer, Answered)
    assert [COURSE.as_text() in request.text for request in model.requests] == [False, False, True, True]
    assert "max_tokens" in model.requests[-1].body


@pytest.mark.parametrize(
    ("status", "message", "is_sign"), table(__file__, "test_only_a_format_error_marks_a_format_as_unsupported")
)
def test_only_a_format_error_marks_a_format_as_unsupported(status: int, message: str, *, is_sign: bool) -> None:
    assert is_unsupported(AnswerFormat.RESPONSES, status, message) is is_sign
    assert not is_unsupported(AnswerFormat.CHAT_PLAIN, status, message)


def test_a_busy_server_does_not_mark_a_format_as_unsupported(store: Store, settings: Settings) -> None:
    busy = Fail(status=503, message="json_schema workers are busy")
    with ScriptedModel(in_turn(busy, a_reply())) as model:
        ask(store, settings_with_model(model.base_url, settings))

    assert formats(store) == ["responses", "responses"]


def test_an_invalid_schema_does_not_fall_back_to_another_format(store: Store, settings: Settings) -> None:
    wrong = Fail(status=400, message="Invalid schema for response_format 'course'")
    with ScriptedModel(in_turn(wrong)) as model:
        answer = ask(store, settings_with_model(model.base_url, settings))

    assert isinstance(answer, Unanswered)
    assert formats(store) == ["responses", "responses"]  # one for each model
    assert "Invalid schema" in str(answer.as_error())


@pytest.mark.parametrize(("headers", "seconds"), table(__file__, "test_the_wait_that_a_server_requests_is_parsed"))
def test_the_wait_that_a_server_requests_is_parsed(headers: dict[str, str], seconds: float | None) -> None:
    wait = wait_asked_for(headers)

    assert wait == (None if seconds is None else timedelta(seconds=seconds))


@pytest.fixture
def model_settings(llmock: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return settings for llmock, without the variables that its fixture sets."""
    for name in llmock.env():
        monkeypatch.delenv(name)
    variables = {
        "INGESTION_MODELS__MAX_ATTEMPTS": "3",
        "INGESTION_MODELS__BACKOFF_BASE_SECONDS": "0.3",  # above the noise of a busy machine
    }
    return settings_with_model(llmock.base_url("openai"), settings, **variables)


def statuses(llmock: Any) -> list[int]:
    return [request.status for request in llmock.requests]


def recorded_statuses(store: Store) -> list[int]:
    """Return the ledger's outcomes as status codes, like llmock's journal."""
    return [
        int(row.outcome.removeprefix("http_")) if row.outcome.startswith("http_") else 200
        for row in model_call_rows(store)
    ]


@pytest.mark.slow
def test_a_generated_answer_passes_our_own_check(store: Store, model_settings: Settings, llmock: Any) -> None:
    answer = ask(store, model_settings)

    assert isinstance(answer, Answered)
    assert (recorded_statuses(store), statuses(llmock)) == ([200], [200])
    llmock.assert_resilient(strict=True)


@pytest.mark.slow
def test_two_429s_are_retried_after_their_retry_after(store: Store, model_settings: Settings, llmock: Any) -> None:
    llmock.rate_limit(times=2, retry_after=0.3)

    assert isinstance(ask(store, model_settings), Answered)

    assert recorded_statuses(store) == statuses(llmock) == [429, 429, 200]
    assert [row.cost_usd > 0 for row in model_call_rows(store)] == [False, False, True]
    llmock.assert_resilient(strict=True)


@pytest.mark.slow
def test_a_permanent_500_is_retried_with_backoff_and_counts(
    store: Store, model_settings: Settings, llmock: Any
) -> None:
    from llmock.scenarios import Fail

    llmock.add(Fail(500, times=None))

    with pytest.raises(Transient) as caught:
        ask(store, model_settings)

    assert caught.value.code == "model_http_500"
    assert recorded_statuses(store) == statuses(llmock) == [500, 500, 500]
    llmock.assert_resilient(strict=True)


@pytest.mark.slow
def test_a_permanent_503_is_retried_no_sooner_than_it_says_and_postpones(
    store: Store, model_settings: Settings, llmock: Any
) -> None:
    llmock.fail(503, times=None, retry_after=0.2)

    with pytest.raises(Resource) as caught:
        ask(store, model_settings)

    assert caught.value.code == "model_http_503"
    assert recorded_statuses(store) == statuses(llmock) == [503, 503, 503]
    llmock.assert_resilient(strict=True)


@pytest.mark.slow
def test_an_answer_later_than_the_deadline_is_not_waited_for(
    store: Store, model_settings: Settings, llmock: Any
) -> None:
    ask(store, model_settings, a_question("Another page"))  # load the client and start the server
    llmock.delay(3)
    short = model_settings.model_copy(
        update={"models": model_settings.models.model_copy(update={"deadline_seconds": 0.6})}
    )
    began = time.monotonic()

    with pytest.raises(Transient) as caught:
        ask(store, short)

    assert time.monotonic() - began < 2.5
    assert caught.value.code == "model_timeout"
    row = model_call_rows(store)[-1]
    assert (row.status, row.outcome) == ("failed", "timeout")
    assert row.cost_usd == row.reserved_usd  # the server may have done the work
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize(
    ("text", "finish_reason", "outcome"),
    [
        pytest.param('{"title": "Bio', "length", "cut_off", id="truncated"),
        pytest.param('{"title": Bio}', None, "malformed", id="malformed"),
    ],
)
def test_a_truncated_or_malformed_answer_is_never_accepted(
    store: Store, model_settings: Settings, llmock: Any, text: str, finish_reason: str | None, outcome: str
) -> None:
    from llmock.scenarios import Reply

    llmock.add(Reply(text=text, finish_reason=finish_reason, times=None))

    answer = ask(store, model_settings)

    assert isinstance(answer, Unanswered)
    assert {row.outcome for row in model_call_rows(store)} == {outcome}
    assert len(model_call_rows(store)) == len(llmock.requests)
    llmock.assert_resilient(strict=True)


def test_a_400_is_not_retried(store: Store, model_settings: Settings, llmock: Any) -> None:
    llmock.fail(400, times=None)

    answer = ask(store, model_settings)

    assert isinstance(answer, Unanswered)
    assert [(request.model, request.status) for request in llmock.requests] == [("cheap", 400), ("strong", 400)]
    assert recorded_statuses(store) == [400, 400]
    llmock.assert_resilient(strict=True)


def test_the_ledger_counts_the_tokens_that_the_server_counted(
    store: Store, model_settings: Settings, llmock: Any
) -> None:
    answer = ask(store, model_settings)

    row = model_call_rows(store)[0]
    assert isinstance(answer, Answered)
    assert (row.input_tokens, row.output_tokens) == (answer.usage.input_tokens, answer.usage.output_tokens)
    assert row.input_tokens > 50
    assert not row.usage_estimated
