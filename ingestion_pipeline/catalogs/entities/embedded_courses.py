"""Courses that a page states for machines: schema.org's Course."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from ingestion_pipeline.catalogs.entities.course_found import credit_fields, credit_quotes
from ingestion_pipeline.catalogs.entities.course_parts import stated_prerequisites
from ingestion_pipeline.catalogs.entities.credits import slot_credits
from ingestion_pipeline.catalogs.entities.record import MAX_PAGE_RECORDS, RecordField
from ingestion_pipeline.reading.cleaning import cleaned_text
from ingestion_pipeline.reading.decode import without_references
from ingestion_pipeline.reading.embedded import EmbeddedData, Thing


def courses_by_embedded(data: EmbeddedData) -> list[RecordField]:
    """The courses in JSON-LD and microdata that have a code and a name."""
    found: dict[object, RecordField] = {}
    for thing in data.things("Course"):
        if len(found) <= MAX_PAGE_RECORDS and (one := _course(thing)):
            found.setdefault((one.fields["course_id"], one.fields["course_name"]), one)
    return list(found.values())


def _course(thing: Thing) -> RecordField | None:
    code, name = _text(thing.get("courseCode")), _text(thing.get("name"))
    if not code or not name:
        return None
    stated = _text(thing.get("numberOfCredits"))
    credits_ = slot_credits(stated) if stated else None
    return RecordField(
        fields={
            "course_id": code,
            "course_name": name.removeprefix(code).lstrip(" :.\u2013\u2014-") or name,
            "course_description": _text(thing.get("description")),
            "course_prerequisites": stated_prerequisites(_text(thing.get("coursePrerequisites"))),
            **credit_fields(credits_),
        },
        quotes=credit_quotes(credits_),
    )


def _text(value: object) -> str | None:
    """The value as text: of several the first, of a thing its name or number."""
    if isinstance(value, list):
        listed = [text for one in cast("list[object]", value) if (text := _text(one))]
        return ", ".join(listed) or None
    if isinstance(value, Mapping):
        thing = cast("Thing", value)
        names = ("value", "creditValue", "name", "description", "courseCode")
        return next((text for name in names if (text := _text(thing.get(name)))), None)
    if isinstance(value, bool) or value is None:
        return None
    return " ".join(cleaned_text(without_references(str(value))).split()) or None
