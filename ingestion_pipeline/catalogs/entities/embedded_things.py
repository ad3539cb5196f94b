"""Records that a page states for machines, by the schema.org types that a schema file names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import assert_never, cast

from ingestion_pipeline.catalogs.entities.entity_type import EntityField, EntityType, FieldKind
from ingestion_pipeline.catalogs.entities.phrases import choice_by_name, choice_by_phrase
from ingestion_pipeline.catalogs.entities.record import MAX_PAGE_RECORDS, FieldValue, RecordField
from ingestion_pipeline.reading.cleaning import cleaned_text
from ingestion_pipeline.reading.embedded import EmbeddedData, Thing

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
