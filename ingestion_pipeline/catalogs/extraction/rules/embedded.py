"""Records that a page states for machines, by the schema.org types that a schema file names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import assert_never, cast

from ingestion_pipeline.catalogs.extraction.entity_type import EntityField, EntityType, FieldKind
from ingestion_pipeline.catalogs.extraction.record import MAX_PAGE_RECORDS, FieldValue, RecordField
from ingestion_pipeline.catalogs.extraction.rules.course_parts import stated_prerequisites
from ingestion_pipeline.catalogs.extraction.rules.courses import credit_fields, credit_quotes
from ingestion_pipeline.catalogs.extraction.rules.credits import slot_credits
from ingestion_pipeline.catalogs.extraction.rules.vocabulary import choice_by_name, choice_by_phrase
from ingestion_pipeline.reading.html.cleaning import cleaned_text
from ingestion_pipeline.reading.structured.embedded import EmbeddedData, Thing
from ingestion_pipeline.reading.text.decoding import without_references

_NUMBER = re.compile(r"[0-9]{1,9}(?:[.,][0-9]{1,4})?")
_YES, _NO = frozenset({"true", "yes", "1"}), frozenset({"false", "no", "0"})


def things_by_embedded(kind: EntityType, data: EmbeddedData) -> list[RecordField]:
    """The things that have a name; each once."""
    if kind.embedded is None:
        return []
    found: dict[object, RecordField] = {}
    for thing in data.things(*kind.embedded.types):
        one = _found(kind, kind.embedded.fields, thing)
        if len(found) <= MAX_PAGE_RECORDS and one.fields.get(kind.name_field):
            found.setdefault(tuple(one.fields.items()), one)
    return list(found.values())


def value_of(kind: EntityType, field: EntityField, text: str) -> FieldValue | None:
    """What words in a place made for the field say of it; None if it cannot hold them."""
    match field.kind:
        case FieldKind.TEXT | FieldKind.LANGUAGE:
            return text
        case FieldKind.NUMBER:
            return _number(text)
        case FieldKind.FLAG:
            said = text.strip().casefold()
            return said in _YES if said in _YES | _NO else None
        case FieldKind.CHOICE:
            named = choice_by_name(text, field.choices)
            titled = kind.titled
            if named is None and titled is not None and titled.choice == field.name:
                return choice_by_phrase(text, titled.choices)
            return named
        case _:
            assert_never(field.kind)


def _found(kind: EntityType, fields: Mapping[str, Iterable[str]], thing: Thing) -> RecordField:
    said = {
        name: text
        for name, properties in fields.items()
        if (text := next((one for key in properties if (one := _text(thing.get(key)))), None))
    }
    return RecordField(
        fields={name: value_of(kind, kind.field(name), text) for name, text in said.items()},
        quotes={name: text for name, text in said.items() if kind.field(name).derived},
    )


def _number(text: str) -> Decimal | None:
    found = _NUMBER.search(text)
    try:
        return Decimal(found[0].replace(",", ".")) if found else None
    except InvalidOperation:
        return None


def _text(value: object) -> str | None:
    """The value as text: of several the first, of a thing its value or name."""
    if isinstance(value, list):
        return next((text for one in cast("list[object]", value) if (text := _text(one))), None)
    if isinstance(value, Mapping):
        thing = cast("Thing", value)
        return next((text for key in ("value", "name") if (text := _text(thing.get(key)))), None)
    if value is None:
        return None
    return cleaned_text(str(value)) or None


def courses_by_embedded(data: EmbeddedData) -> list[RecordField]:
    """The courses in JSON-LD and microdata that have a code and a name."""
    found: dict[object, RecordField] = {}
    for thing in data.things("Course"):
        if len(found) <= MAX_PAGE_RECORDS and (one := _course(thing)):
            found.setdefault((one.fields["course_id"], one.fields["course_name"]), one)
    return list(found.values())


def _course(thing: Thing) -> RecordField | None:
    code, name = _course_text(thing.get("courseCode")), _course_text(thing.get("name"))
    if not code or not name:
        return None
    stated = _course_text(thing.get("numberOfCredits"))
    credits_ = slot_credits(stated) if stated else None
    return RecordField(
        fields={
            "course_id": code,
            "course_name": name.removeprefix(code).lstrip(" :.\u2013\u2014-") or name,
            "course_description": _course_text(thing.get("description")),
            "course_prerequisites": stated_prerequisites(
                _course_text(thing.get("coursePrerequisites"))
            ),
            **credit_fields(credits_),
        },
        quotes=credit_quotes(credits_),
    )


def _course_text(value: object) -> str | None:
    """The value as text: of several the first, of a thing its name or number."""
    if isinstance(value, list):
        listed = [text for one in cast("list[object]", value) if (text := _course_text(one))]
        return ", ".join(listed) or None
    if isinstance(value, Mapping):
        thing = cast("Thing", value)
        names = ("value", "creditValue", "name", "description", "courseCode")
        return next((text for name in names if (text := _course_text(thing.get(name)))), None)
    if isinstance(value, bool) or value is None:
        return None
    return " ".join(cleaned_text(without_references(str(value))).split()) or None
