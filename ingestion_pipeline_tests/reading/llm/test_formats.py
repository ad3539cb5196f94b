from collections.abc import Collection
from datetime import timedelta

import pytest
from sqlalchemy import select

from ingestion_pipeline.demo.model_server import Fail, Say, ScriptedModel, in_turn
from ingestion_pipeline.reading.llm import Answered, Unanswered
from ingestion_pipeline.reading.llm.wire import AnswerFormat, is_unsupported, wait_asked_for
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import model_endpoints
from ingestion_pipeline_tests.reading.llm.model_questions import (
    COURSE,
    VALID_ANSWER,
    a_question,
    a_reply,
    ask,
    model_call_rows,
    settings_with_model,
)

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
        with store.read() as connection:
            row = connection.execute(select(model_endpoints)).one()
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
    ("status", "message", "is_sign"),
    [
        (400, "response_format json_schema is not supported", True),
        (500, "Input should be 'text' or 'json_object'", True),
        (404, "Not Found", True),
        (405, "Method Not Allowed", True),
        (400, "Unknown parameter: 'store'", True),
        (422, "extra fields not permitted", True),
        (404, "The model `x` does not exist model_not_found", False),
        (429, "json_schema", False),
        (503, "json_schema", False),
        (400, "Invalid schema for response_format 'x': invalid_json_schema", False),
        (400, "context length exceeded", False),
        (500, "internal error", False),
    ],
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


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "1", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "abc"}, None),
        ({"retry-after": "Sun, 01 Mar 2026 12:00:30 GMT", "date": "Sun, 01 Mar 2026 12:00:00 GMT"}, 30),
        ({"retry-after": "Sun, 01 Mar 2026 11:00:00 GMT", "date": "Sun, 01 Mar 2026 12:00:00 GMT"}, 0),
        ({"retry-after": "Sun, 01 Mar 2026 12:00:30 GMT"}, None),
    ],
)
def test_the_wait_that_a_server_requests_is_parsed(headers: dict[str, str], seconds: float | None) -> None:
    wait = wait_asked_for(headers)

    assert wait == (None if seconds is None else timedelta(seconds=seconds))
