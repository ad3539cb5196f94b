from __future__ import annotations

import pytest

from ingestion_pipeline.reading.llm.schema import NotJson, parsed_object


@pytest.mark.parametrize("text", ['{"a": 1}', ' \n{"a": 1}\n ', '```json\n{"a": 1}\n```', '```\n{"a": 1}\n```'])
def test_an_object_is_one_with_or_without_a_fence(text: str) -> None:
    assert parsed_object(text) == {"a": 1}


def test_where_chat_is_allowed_there_may_be_words_around_it() -> None:
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
def test_anything_else_is_named(text: str, problem: str) -> None:
    with pytest.raises(NotJson, match=problem):
        parsed_object(text)


def test_text_is_fit_for_every_database() -> None:
    result = parsed_object('{"a\\u0000": ["b\\u0000", {"c": "\\ud800"}]}')

    assert result == {"a\ufffd": ["b\ufffd", {"c": "?"}]}
