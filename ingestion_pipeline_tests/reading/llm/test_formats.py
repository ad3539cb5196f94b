from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

import pytest
from sqlalchemy import select

from ingestion_pipeline.demo.model_server import Fail, Say, ScriptedModel, in_turn
from ingestion_pipeline.reading.llm import Answered, Unanswered
from ingestion_pipeline.reading.llm.formats import AnswerFormat, is_unsupported
from ingestion_pipeline.reading.llm.wire import wait_asked_for
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import model_endpoints
from ingestion_pipeline_tests.reading.llm.model_questions import (
    COURSE,
    GOOD,
    a_question,
    ask,
    leading_to,
    ledger,
    says,
)

ALL = ["responses", "chat_schema", "chat_object", "chat_plain"]


def formats(store: Store) -> list[str]:
    return [row.format for row in ledger(store)]


@pytest.mark.parametrize("database", ["sqlite"])
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
def test_a_server_of_few_abilities_is_asked_as_it_can(
    store: Store, settings: Settings, without: Collection[str], tried: list[str], status: int
) -> None:
    with ScriptedModel(in_turn(says()), without=without, refusal_status=status) as model:
        there = leading_to(model.base_url, settings)
        answer = ask(store, there)
        # Another client is another run: it begins where this one has ended.
        ask(store, there, a_question("Another page"))

    assert isinstance(answer, Answered)
    assert answer.data == GOOD
    assert formats(store) == [*tried, tried[-1]]
    assert [row.cost_usd > 0 for row in ledger(store)] == [False] * (len(tried) - 1) + [True, True]


def test_what_a_server_cannot_do_is_written_down_with_its_words_and_forgotten_in_time(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    lacks = ["responses", "json_schema"]
    with ScriptedModel(in_turn(says()), without=lacks, refusal_status=500) as model:
        there = leading_to(model.base_url, settings)
        ask(store, there)
        with store.read() as connection:
            row = connection.execute(select(model_endpoints)).one()
        clock.advance(days=31)
        ask(store, there, a_question("Another page"))

    assert (row.base_url, row.format) == (model.base_url, "chat_object")
    assert "should be 'text' or 'json_object'" in row.reason
    assert formats(store) == ALL[:3] * 2


@pytest.mark.parametrize("database", ["sqlite"])
def test_in_words_the_schema_is_told_and_the_answer_taken_from_among_them(store: Store, settings: Settings) -> None:
    lacks = ["responses", "json_schema", "json_object"]
    with ScriptedModel(in_turn(Say(text=f"Sure:\n{says().text}\nThat is all.")), without=lacks) as model:
        answer = ask(store, leading_to(model.base_url, settings))

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
def test_only_a_refusal_of_the_form_is_taken_for_one(status: int, message: str, *, is_sign: bool) -> None:
    assert is_unsupported(AnswerFormat.RESPONSES, status, message) is is_sign
    assert not is_unsupported(AnswerFormat.CHAT_PLAIN, status, message)


@pytest.mark.parametrize("database", ["sqlite"])
def test_being_busy_teaches_nothing(store: Store, settings: Settings) -> None:
    busy = Fail(status=503, message="json_schema workers are busy")
    with ScriptedModel(in_turn(busy, says())) as model:
        ask(store, leading_to(model.base_url, settings))

    assert formats(store) == ["responses", "responses"]


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_schema_that_the_server_calls_wrong_is_not_asked_for_in_other_words(store: Store, settings: Settings) -> None:
    wrong = Fail(status=400, message="Invalid schema for response_format 'course'")
    with ScriptedModel(in_turn(wrong)) as model:
        answer = ask(store, leading_to(model.base_url, settings))

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
def test_the_time_that_a_server_asks_for_is_read(headers: dict[str, str], seconds: float | None) -> None:
    wait = wait_asked_for(headers)

    assert wait == (None if seconds is None else timedelta(seconds=seconds))
