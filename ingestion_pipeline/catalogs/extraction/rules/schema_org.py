"""Extract records from embedded schema.org data."""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import assert_never, cast

from ingestion_pipeline.catalogs.extraction.entity_type import EntityField, EntityType, FieldKind
from ingestion_pipeline.catalogs.extraction.record import MAX_PAGE_RECORDS, CandidateRecord, FieldValue
from ingestion_pipeline.catalogs.extraction.rules.course_building import credit_fields, credit_quotes
from ingestion_pipeline.catalogs.extraction.rules.course_parts import stated_prerequisites
from ingestion_pipeline.catalogs.extraction.rules.course_words import choice_by_name, choice_by_phrase
from ingestion_pipeline.catalogs.extraction.rules.credits import slot_credits
from ingestion_pipeline.reading.html.cleaning import cleaned_text
from ingestion_pipeline.reading.structured.embedded import EmbeddedData, Thing
from ingestion_pipeline.reading.text.decoding import without_references

_NUMBER = re.compile(r"[0-9]{1,9}(?:[.,][0-9]{1,4})?")
_YES, _NO = frozenset({"true", "yes", "1"}), frozenset({"false", "no", "0"})


def things_by_embedded(kind: EntityType, data: EmbeddedData) -> list[CandidateRecord]:
    """Return the things of the type's schema.org types that have a name; each once."""
    if kind.embedded is None:
        return []
    unique: dict[object, CandidateRecord] = {}
    for thing in data.things(*kind.embedded.types):
        candidate = _candidate(kind, kind.embedded.fields, thing)
        if len(unique) <= MAX_PAGE_RECORDS and candidate.fields.get(kind.name_field):
            unique.setdefault(tuple(candidate.fields.items()), candidate)
    return list(unique.values())


def value_of(kind: EntityType, field: EntityField, text: str) -> FieldValue | None:
    """Return the field's value in a text made for it; None if the field cannot hold it."""
    match field.kind:
        case FieldKind.TEXT | FieldKind.LANGUAGE:
            return text
        case FieldKind.NUMBER:
            return _number(text)
        case FieldKind.FLAG:
            word = text.strip().casefold()
            return word in _YES if word in _YES | _NO else None
        case FieldKind.CHOICE:
            named = choice_by_name(text, field.choices)
            titled = kind.titled
            if named is None and titled is not None and titled.choice == field.name:
                return choice_by_phrase(text, titled.choices)
            return named
        case _:
            assert_never(field.kind)


def _candidate(kind: EntityType, fields: Mapping[str, Iterable[str]], thing: Thing) -> CandidateRecord:
    texts = {
        name: text
        for name, properties in fields.items()
        if (text := next((value for key in properties if (value := _text(thing.get(key)))), None))
    }
    return CandidateRecord(
        fields={name: value_of(kind, kind.field(name), text) for name, text in texts.items()},
        quotes={name: text for name, text in texts.items() if kind.field(name).derived},
    )


def _number(text: str) -> Decimal | None:
    match = _NUMBER.search(text)
    try:
        return Decimal(match[0].replace(",", ".")) if match else None
    except InvalidOperation:
        return None


def _text(value: object) -> str | None:
    """Return the value as text: the first of a list, the value or name of a thing."""
    if isinstance(value, list):
        return next((text for element in cast("list[object]", value) if (text := _text(element))), None)
    if isinstance(value, Mapping):
        thing = cast("Thing", value)
        return next((text for key in ("value", "name") if (text := _text(thing.get(key)))), None)
    if value is None:
        return None
    return cleaned_text(str(value)) or None


def courses_by_embedded(data: EmbeddedData) -> list[CandidateRecord]:
    """Return the courses in JSON-LD and microdata that have a code and a name."""
    unique: dict[object, CandidateRecord] = {}
    for thing in data.things("Course"):
        if len(unique) <= MAX_PAGE_RECORDS and (course := _course(thing)):
            unique.setdefault((course.fields["course_id"], course.fields["course_name"]), course)
    return list(unique.values())


def _course(thing: Thing) -> CandidateRecord | None:
    code, name = _course_text(thing.get("courseCode")), _course_text(thing.get("name"))
    if not code or not name:
        return None
    stated = _course_text(thing.get("numberOfCredits"))
    credits_ = slot_credits(stated) if stated else None
    return CandidateRecord(
        fields={
            "course_id": code,
            "course_name": name.removeprefix(code).lstrip(" :.\u2013\u2014-") or name,
            "course_description": _course_text(thing.get("description")),
            "course_prerequisites": stated_prerequisites(_course_text(thing.get("coursePrerequisites"))),
            **credit_fields(credits_),
        },
        quotes=credit_quotes(credits_),
    )


def _course_text(value: object) -> str | None:
    """Return the value as text: a list joined by commas, the value or name of a thing."""
    if isinstance(value, list):
        listed = [text for element in cast("list[object]", value) if (text := _course_text(element))]
        return ", ".join(listed) or None
    if isinstance(value, Mapping):
        thing = cast("Thing", value)
        names = ("value", "creditValue", "name", "description", "courseCode")
        return next((text for name in names if (text := _course_text(thing.get(name)))), None)
    if isinstance(value, bool) or value is None:
        return None
    return " ".join(cleaned_text(without_references(str(value))).split()) or None
