from typing import Any

import pytest

from ingestion_pipeline.reading.llm import AnswerSchema, BadSchema
from ingestion_pipeline.reading.llm.question import NotJson, parsed_object
from ingestion_pipeline_tests.reading.llm.model_questions import COURSE, VALID_ANSWER


def a_schema(inner: Any, **more: Any) -> AnswerSchema:
    """Return the schema of an object with one field."""
    node = {"type": "object", "properties": {"x": inner}, "required": ["x"], "additionalProperties": False}
    return AnswerSchema(name="s", schema=node | more)


@pytest.mark.parametrize(
    ("inner", "value", "problem"),
    [
        ({"type": "string"}, 1, "$.x must be string"),
        ({"type": "integer"}, True, "$.x must be integer"),
        ({"type": "integer"}, 1.5, "$.x must be integer"),
        ({"type": "number"}, "1", "$.x must be number"),
        ({"type": "boolean"}, 1, "$.x must be boolean"),
        ({"type": ["string", "null"]}, 1, "$.x must be string or null"),
        ({"type": "integer", "enum": [1, 2]}, 3, "$.x must be one of [1, 2]"),
        ({"enum": [1, 2]}, True, "$.x must be one of [1, 2]"),
        ({"const": "a"}, "b", '$.x must be "a"'),
        ({"type": "integer", "minimum": 1}, 0, "$.x must be at least 1"),
        ({"type": "number", "maximum": 1}, 1.5, "$.x must be at most 1"),
        ({"type": "array", "items": {"type": "string"}}, ["a", 2], "$.x[1] must be string"),
        ({"type": "array", "items": {"type": "null"}, "minItems": 1}, [], "at least 1 items"),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 0}, [None], "at most 0 items"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "$.x must be string"),
        ({"$ref": "#/$defs/y"}, 1, "$.x must be string"),
    ],
)
def test_an_invalid_value_is_reported_with_its_path(inner: Any, value: object, problem: str) -> None:
    more = {"$defs": {"y": {"type": "string"}}} if "$ref" in inner else {}

    problems = a_schema(inner, **more).problems({"x": value})

    assert len(problems) == 1
    assert problem in problems[0]


@pytest.mark.parametrize(
    ("inner", "value"),
    [
        ({"type": "string"}, ""),
        ({"type": "integer"}, 10**400),
        ({"type": "integer"}, 2.0),
        ({"type": "number"}, 2),
        ({"type": ["string", "null"]}, None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ({"type": "array", "items": {"type": "integer"}}, []),
    ],
)
def test_a_valid_value_has_no_problems(inner: Any, value: object) -> None:
    assert a_schema(inner).problems({"x": value}) == ()


def test_missing_and_unknown_fields_are_reported_without_quoting_values() -> None:
    problems = COURSE.problems({"title": "GEHEIM", "credits": "GEHEIM", "kind": "GEHEIM", "y": 1})

    assert set(problems) == {
        "$.url is missing",
        "$ may not have 'y'",
        "$.credits must be integer or null",
        '$.kind must be one of ["lecture", "lab"]',
    }


def test_a_recursive_schema_terminates() -> None:
    node = {"type": "array", "items": {"$ref": "#/$defs/n"}}
    deep: Any = []
    for _ in range(500):
        deep = [deep]

    problems = a_schema({"$ref": "#/$defs/n"}, **{"$defs": {"n": node}}).problems({"x": deep})

    assert [problem.endswith("is nested too deeply") for problem in problems] == [True]


@pytest.mark.parametrize(
    ("inner", "problem"),
    [
        ({"type": "string", "pattern": "a"}, "$.x has pattern, which answers are not checked for"),
        ({}, "$.x allows anything"),
        ({"type": "text"}, "$.x has the type text"),
        ({"type": "array"}, "$.x is an array without items"),
        ({"$ref": "#/$defs/z"}, "$.x refers to '#/$defs/z'"),
        ("string", "$.x is not a schema"),
        ({"type": "object", "properties": {}}, "$.x needs additionalProperties: false"),
        (
            {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False},
            "$.x must require all its properties (a)",
        ),
    ],
)
def test_a_schema_that_is_not_strict_is_refused_with_path_and_cure(inner: Any, problem: str) -> None:
    with pytest.raises(BadSchema) as caught:
        a_schema(inner)

    assert problem in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "ü", "x" * 65])
def test_a_name_that_no_server_accepts_is_refused(name: str) -> None:
    with pytest.raises(BadSchema, match="cannot name a schema"):
        AnswerSchema(name=name, schema=COURSE.schema)


def test_the_hash_depends_on_the_meaning_only() -> None:
    turned = AnswerSchema(name="course", schema=dict(reversed(list(COURSE.schema.items()))))
    other = a_schema({"type": "string"})

    assert turned.hash == COURSE.hash
    assert other.hash != COURSE.hash
    assert COURSE.problems(VALID_ANSWER) == ()


@pytest.mark.parametrize("text", ['{"a": 1}', ' \n{"a": 1}\n ', '```json\n{"a": 1}\n```', '```\n{"a": 1}\n```'])
def test_an_object_is_parsed_with_or_without_a_code_fence(text: str) -> None:
    assert parsed_object(text) == {"a": 1}


def test_in_chat_mode_text_may_surround_the_object() -> None:
    text = 'Sure! Here it is:\n{"a": {"b": [1]}}\nHope this helps.'

    assert parsed_object(text, may_chat=True) == {"a": {"b": [1]}}
    with pytest.raises(NotJson):
        parsed_object(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value at character 0"),
        ('{"a": 1', "at character"),
        ("[1]", "must be one JSON object"),
        ('"text"', "must be one JSON object"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 1e999}', "a number is too large"),
        ('{"a": 1, "a": 2}', "a field is there twice"),
        ('{"a": 1} {"a": 2}', "Extra data"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "4300"),
    ],
)
def test_anything_else_is_an_error_with_its_reason(text: str, problem: str) -> None:
    with pytest.raises(NotJson, match=problem):
        parsed_object(text)


def test_text_is_cleaned_of_characters_databases_refuse() -> None:
    parsed = parsed_object('{"a\\u0000": ["b\\u0000", {"c": "\\ud800"}]}')

    assert parsed == {"a\ufffd": ["b\ufffd", {"c": "?"}]}
