"""The real openai client against llmock, which checks how a client handles server failures."""

import time
from typing import Any

import pytest

from ingestion_pipeline.reading.llm import Answered, Unanswered
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.errors import Resource, Transient
from ingestion_pipeline_tests.reading.llm.model_questions import a_question, ask, model_call_rows, settings_with_model


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
