"""The scripted model and the demo's own script."""

import json
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

from ingestion_pipeline.demo.catalog_sites import NAVIGATION, TIDAL_BIOLOGY, Programme
from ingestion_pipeline.demo.model_server import (
    CHAT,
    INVENTED,
    RESPONSES,
    Say,
    ScriptedModel,
    blank,
    demo_model,
)
from ingestion_pipeline.reading.llm.question import AnswerSchema
from ingestion_pipeline_tests.reading.llm.model_questions import COURSE, VALID_ANSWER, by_page, in_turn

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


TEXT: dict[str, Any] = {"type": "string"}
MAYBE: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "null"}]}
CATEGORY: dict[str, Any] = {"type": ["string", "null"], "enum": ["course_objectives", "outcomes", None]}


def an_object(**fields: Any) -> dict[str, Any]:
    closed = {"required": list(fields), "additionalProperties": False}
    return {"type": "object", "properties": fields, **closed}


RECORD = an_object(
    text={"type": ["string", "null"]},
    competency_category=CATEGORY,
    competency_category_evidence={"type": ["string", "null"]},
    competency_framework=MAYBE,
)
PROVED = an_object(text=an_object(value=TEXT, quote=TEXT), confidence={"type": "number"})


def demo_answer(page: Programme | str | None, schema: dict[str, Any], question: str = "") -> Any:
    """Return the model's answer over HTTP in strict format; it matches the schema."""
    text = page if isinstance(page, str) else "Nothing of ours."
    if isinstance(page, Programme):
        text = " ".join([page.title, *page.paragraphs])
    form = {"type": "json_schema", "name": "demo", "schema": schema, "strict": True}
    body = {"model": "demo-cheap", "input": [{"role": "user", "content": f"{question}\n{text}"}]}
    with ScriptedModel(demo_model) as model:
        reply = httpx.post(f"{model.base_url}/responses", json=body | {"text": {"format": form}})
    data = json.loads(reply.json()["output"][0]["content"][0]["text"])
    assert AnswerSchema(name="demo", schema=schema).problems(data) == ()
    return data


@pytest.mark.parametrize(
    ("page", "learned"),
    [(NAVIGATION, NAVIGATION.learned), (TIDAL_BIOLOGY, (*TIDAL_BIOLOGY.learned, *INVENTED))],
    ids=["true", "one is invented"],
)
def test_a_list_of_records_contains_every_scripted_value(page: Programme, learned: tuple[str, ...]) -> None:
    schema = an_object(records={"type": "array", "items": RECORD}, count={"type": ["integer", "null"]})

    data = demo_answer(page, schema)

    assert [record["text"] for record in data["records"]] == list(learned)
    assert {record["competency_category"] for record in data["records"]} == {"outcomes"}
    assert {record["competency_category_evidence"] for record in data["records"]} == {page.title}
    assert {record["competency_framework"] for record in data["records"]} == {None}
    assert data["count"] == len(learned)


def test_a_value_with_its_proof_repeats_the_sentence() -> None:
    definitions = {"$defs": {"record": PROVED}}
    records = {"type": "array", "items": {"$ref": "#/$defs/record"}}

    record = demo_answer(NAVIGATION, an_object(records=records) | definitions)["records"][0]

    sentence = NAVIGATION.learned[0]
    assert record == {"text": {"value": sentence, "quote": sentence}, "confidence": 0.9}


def test_has_list_is_true_only_for_pages_with_a_list() -> None:
    schema = an_object(
        has_list={"type": "boolean"}, heading={"type": ["string", "null"]}, explore={"type": "array", "items": TEXT}
    )

    expected = {"has_list": True, "heading": NAVIGATION.title, "explore": []}
    assert demo_answer(NAVIGATION, schema) == expected
    assert demo_answer(None, schema) == {"has_list": False, "heading": None, "explore": []}


def test_the_model_repeats_its_invented_value_when_asked_about_it_alone() -> None:
    assert demo_answer(TIDAL_BIOLOGY, RECORD, question=f"Where does it say {INVENTED[0]!r}?")["text"] in (INVENTED)
    assert demo_answer(TIDAL_BIOLOGY, RECORD)["text"] == TIDAL_BIOLOGY.learned[0]


def test_a_part_of_a_page_is_recognized_and_its_invented_value_is_repeated() -> None:
    schema = an_object(records={"type": "array", "items": RECORD})

    part = demo_answer(TIDAL_BIOLOGY.paragraphs[1], schema)["records"]

    assert part[-1]["text"] in INVENTED


def test_the_invented_value_is_on_no_page() -> None:
    pages = [" ".join(programme.paragraphs) for programme in (NAVIGATION, TIDAL_BIOLOGY)]

    assert [value for value in INVENTED for page in pages if value in page] == []
