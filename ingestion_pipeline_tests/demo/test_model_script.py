"""The demo's model answers in any schema: correctly about one page, with an invented value about another."""

import json
from typing import Any

import httpx
import pytest

from ingestion_pipeline.demo.catalog_sites import NAVIGATION, TIDAL_BIOLOGY, Programme
from ingestion_pipeline.demo.model_server import INVENTED, ScriptedModel, demo_model
from ingestion_pipeline.reading.llm.question import AnswerSchema

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


def answer(page: Programme | str | None, schema: dict[str, Any], question: str = "") -> Any:
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

    data = answer(page, schema)

    assert [record["text"] for record in data["records"]] == list(learned)
    assert {record["competency_category"] for record in data["records"]} == {"outcomes"}
    assert {record["competency_category_evidence"] for record in data["records"]} == {page.title}
    assert {record["competency_framework"] for record in data["records"]} == {None}
    assert data["count"] == len(learned)


def test_a_value_with_its_proof_repeats_the_sentence() -> None:
    definitions = {"$defs": {"record": PROVED}}
    records = {"type": "array", "items": {"$ref": "#/$defs/record"}}

    record = answer(NAVIGATION, an_object(records=records) | definitions)["records"][0]

    sentence = NAVIGATION.learned[0]
    assert record == {"text": {"value": sentence, "quote": sentence}, "confidence": 0.9}


def test_has_list_is_true_only_for_pages_with_a_list() -> None:
    schema = an_object(
        has_list={"type": "boolean"}, heading={"type": ["string", "null"]}, explore={"type": "array", "items": TEXT}
    )

    expected = {"has_list": True, "heading": NAVIGATION.title, "explore": []}
    assert answer(NAVIGATION, schema) == expected
    assert answer(None, schema) == {"has_list": False, "heading": None, "explore": []}


def test_the_model_repeats_its_invented_value_when_asked_about_it_alone() -> None:
    assert answer(TIDAL_BIOLOGY, RECORD, question=f"Where does it say {INVENTED[0]!r}?")["text"] in (INVENTED)
    assert answer(TIDAL_BIOLOGY, RECORD)["text"] == TIDAL_BIOLOGY.learned[0]


def test_a_part_of_a_page_is_recognized_and_its_invented_value_is_repeated() -> None:
    schema = an_object(records={"type": "array", "items": RECORD})

    part = answer(TIDAL_BIOLOGY.paragraphs[1], schema)["records"]

    assert part[-1]["text"] in INVENTED


def test_the_invented_value_is_on_no_page() -> None:
    pages = [" ".join(programme.paragraphs) for programme in (NAVIGATION, TIDAL_BIOLOGY)]

    assert [value for value in INVENTED for page in pages if value in page] == []
