import json
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest

from ingestion_pipeline.demo.model_server import CHAT, RESPONSES, Say, ScriptedModel, blank, by_page, in_turn
from ingestion_pipeline.reading.llm import AnswerSchema
from ingestion_pipeline_tests.reading.llm.model_questions import COURSE, VALID_ANSWER

FORM = {"type": "json_schema", "name": "course", "strict": True, "schema": COURSE.schema}
QUESTION = {
    "model": "m",
    "instructions": "Read.",
    "input": [{"role": "user", "content": "Biology 101"}],
    "text": {"format": FORM},
}
ITEMS = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b"]},
        "many": {"type": "array", "items": {"$ref": "#/$defs/n"}},
        "one": {"$ref": "#/$defs/n"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "yes": {"type": "boolean"},
    },
    "required": ["kind", "many", "one", "maybe", "yes"],
    "additionalProperties": False,
    "$defs": {"n": {"type": "integer", "minimum": 3}},
}


def post(model: ScriptedModel, path: str, body: Any) -> tuple[int, bytes]:
    with closing(HTTPConnection("127.0.0.1", model.port, timeout=10)) as connection:
        connection.request("POST", path, json.dumps(body))
        with connection.getresponse() as response:
            return response.status, response.read()


def answer(body: bytes) -> Any:
    return json.loads(json.loads(body)["output"][0]["content"][0]["text"])


def test_the_same_question_has_the_same_answer_byte_for_byte() -> None:
    with ScriptedModel(by_page({"Biology": VALID_ANSWER})) as model:
        first, second = (post(model, RESPONSES, QUESTION) for _ in range(2))

    assert first == second
    assert answer(first[1]) == VALID_ANSWER


def test_a_page_without_a_script_gets_an_empty_answer() -> None:
    with ScriptedModel(by_page({"Chemistry": VALID_ANSWER})) as model:
        _, body = post(model, RESPONSES, QUESTION)

    assert COURSE.problems(answer(body)) == ()
    assert answer(body) == {"title": "", "credits": None, "kind": "lecture", "url": None}


def test_the_empty_answer_matches_its_schema() -> None:
    schema = AnswerSchema(name="items", schema=ITEMS)

    assert schema.problems(blank(ITEMS)) == ()
    assert blank(ITEMS) == {"kind": "a", "many": [], "one": 3, "maybe": None, "yes": False}


def test_replies_come_in_turn_and_the_last_one_repeats() -> None:
    with ScriptedModel(in_turn(Say(text="1"), Say(text="2"))) as model:
        texts = [answer(post(model, RESPONSES, QUESTION)[1]) for _ in range(3)]

    assert texts == [1, 2, 2]
    assert len(model.requests) == 3


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (RESPONSES, QUESTION, 404),
        (CHAT, {"messages": [], "response_format": {"type": "json_schema"}}, 500),
        (CHAT, {"messages": [], "response_format": {"type": "json_object"}}, 200),
        (CHAT, {"messages": []}, 200),
        ("/v1/embeddings", {}, 404),
    ],
)
def test_an_unsupported_feature_is_refused_as_by_real_servers(path: str, body: Any, status: int) -> None:
    lacks = ["responses", "json_schema"]
    with ScriptedModel(in_turn(Say(text="{}")), without=lacks, refusal_status=500) as model:
        assert post(model, path, body)[0] == status
