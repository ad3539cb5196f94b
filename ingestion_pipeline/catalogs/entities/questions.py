"""What a model is asked about a page: prompt and schema from the entity type, and its answer read.

Nothing that a page says stands in a prompt, not even the name of a record that is asked about
again: a page's words are only ever between the lines that mark them as data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, assert_never, cast

from ingestion_pipeline.catalogs.entities.entity_type import (
    EVIDENCE,
    EntityField,
    EntityType,
    FieldKind,
)
from ingestion_pipeline.catalogs.entities.page_reading import READER_VERSION
from ingestion_pipeline.catalogs.entities.record import FieldValue, RecordField
from ingestion_pipeline.reading.models import AnswerSchema, PageText, Prompt, Question

PROMPT_VERSION = 1  # raise it with every change of the words below
_FIND = """\
Find every {name} on the page, in the order of the page. {about}
Each record has these fields:
{fields}
Copy text word for word, whole, neither shortened nor mended nor translated. Where the page says
nothing about a field it is null; a record of which the page says nothing is left out.
Beside some fields stands another that ends in {evidence}: the words of the page from which you
conclude the value, copied exactly; null if there are none, and then the value is null, too.
records_on_page is how many of them the page holds, found or not."""
_EXPLORE = """
explore holds the URLs of links on the page that lead to more of them, and no others."""
_ALONE = """
The page below is the part about a single {name}. These fields were not right the last time, since
the page does not have the words: {missing}. Copy them from the page, or give null."""
_PRESENT = """\
{about}
Does the page have a list made for them, under a heading or a sentence of its own? A mention in a
description is none. heading is that heading or sentence, copied exactly; null if there is none."""
_KINDS = {
    FieldKind.TEXT: "text",
    FieldKind.NUMBER: "number",
    FieldKind.FLAG: "true or false",
    FieldKind.CHOICE: "one of the list",
    FieldKind.LANGUAGE: "a language's code",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """What a model's answer says: records, unchecked, and how many it believes there are."""

    found: tuple[RecordField, ...]
    counted: int | None
    explore: tuple[str, ...] = ()


def prompt_labels(kind: EntityType) -> tuple[str, ...]:
    """The versions of all that is asked about the entity."""
    names = [kind.name, f"{kind.name}_alone"]
    names += [f"{kind.name}_presence"] if kind.presence_check else []
    return tuple(Prompt(name=name, version=PROMPT_VERSION, instructions="").label for name in names)


def reading_question(kind: EntityType, page: PageText) -> Question:
    """Every record on the page, or on the part of it."""
    prompt = Prompt(name=kind.name, version=PROMPT_VERSION, instructions=_instructions(kind))
    return Question(
        prompt=prompt,
        schema=answer_schema(kind),
        page=page,
        extractor_version=_extractor(kind),
    )


def alone_question(
    kind: EntityType, page: PageText, missing: Sequence[str], attempt: int
) -> Question:
    """One record again, for the sake of some of its fields.

    The attempt is part of what makes the question: its answer is not the one that was kept.
    """
    about = _ALONE.format(name=_words(kind.name), missing=", ".join(missing))
    return Question(
        prompt=Prompt(
            name=f"{kind.name}_alone",
            version=PROMPT_VERSION,
            instructions=_instructions(kind) + about,
        ),
        schema=answer_schema(kind),
        page=page,
        extractor_version=f"{_extractor(kind)}/{'+'.join(missing)}/{attempt}",
    )


def presence_question(kind: EntityType, page: PageText) -> Question:
    """Whether the page has a list made for the entity."""
    return Question(
        prompt=Prompt(
            name=f"{kind.name}_presence",
            version=PROMPT_VERSION,
            instructions=_PRESENT.format(about=kind.about or f"A {_words(kind.name)} is wanted."),
        ),
        schema=AnswerSchema(
            name="presence",
            schema=_object(
                {"has_list": {"type": "boolean"}, "heading": {"type": ["string", "null"]}}
            ),
        ),
        page=page,
        extractor_version=_extractor(kind),
        max_output_tokens=500,
    )


@lru_cache(maxsize=50)
def answer_schema(kind: EntityType) -> AnswerSchema:
    """The form of an answer: a list of records, each with every field, null where there is none."""
    record: dict[str, Any] = {}
    for field in kind.fields:
        record[field.name] = _value_schema(field)
        if field.derived:
            record[f"{field.name}{EVIDENCE}"] = {"type": ["string", "null"]}
    answer: dict[str, Any] = {
        "records_on_page": {"type": ["integer", "null"]},
        "records": {"type": "array", "items": _object(record)},
    }
    if kind.explores:
        answer["explore"] = {"type": "array", "items": {"type": "string"}}
    return AnswerSchema(name=kind.name, schema=_object(answer))


def read_answer(kind: EntityType, data: Mapping[str, object]) -> ReadAnswer:
    """The answer's records; `data` has the form of `answer_schema`."""
    items = cast("list[Mapping[str, object]]", data["records"])
    explore = cast("list[str]", data.get("explore") or [])
    return ReadAnswer(
        found=tuple(_found(kind, item) for item in items),
        counted=cast("int | None", data["records_on_page"]),
        explore=tuple(explore),
    )


def _found(kind: EntityType, item: Mapping[str, object]) -> RecordField:
    quotes = {
        field.name: quote
        for field in kind.fields
        if field.derived and isinstance(quote := item.get(f"{field.name}{EVIDENCE}"), str)
    }
    fields = {field.name: _value(item.get(field.name)) for field in kind.fields}
    for field in kind.fields:
        # That a thing is not so is rarely said: without the words for it nothing is claimed.
        if fields[field.name] is False and field.name not in quotes:
            fields[field.name] = None
    return RecordField(fields=fields, quotes=quotes)


def _value(value: object) -> FieldValue | None:
    if isinstance(value, bool) or value is None:
        return value
    return Decimal(str(value)) if isinstance(value, int | float) else str(value)


def _value_schema(field: EntityField) -> dict[str, Any]:
    match field.kind:
        case FieldKind.TEXT | FieldKind.LANGUAGE:
            return {"type": ["string", "null"]}
        case FieldKind.NUMBER:
            return {"type": ["number", "null"]}
        case FieldKind.FLAG:
            return {"type": ["boolean", "null"]}
        case FieldKind.CHOICE:
            return {"type": ["string", "null"], "enum": [*field.choices, None]}
        case _:
            assert_never(field.kind)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _instructions(kind: EntityType) -> str:
    fields = "\n".join(_described(field) for field in kind.fields)
    found = _FIND.format(name=_words(kind.name), about=kind.about, fields=fields, evidence=EVIDENCE)
    return found + (_EXPLORE if kind.explores else "")


def _described(field: EntityField) -> str:
    said = f"- {field.name}: {_KINDS[field.kind]}"
    said += ", required" if field.required else ""
    return said + (f"; {field.about}" if field.about else "")


def _words(name: str) -> str:
    return name.replace("_", " ")


@lru_cache(maxsize=50)
def _extractor(kind: EntityType) -> str:
    """Another for every change of the type's file: what it says is part of what is asked."""
    digest = hashlib.sha256(json.dumps(kind.model_dump(mode="json"), sort_keys=True).encode())
    return f"{READER_VERSION}.{digest.hexdigest()[:16]}"
