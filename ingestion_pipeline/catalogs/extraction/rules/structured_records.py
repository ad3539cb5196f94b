"""Extract records from structured data: embedded schema.org, and JSON and XML answers of APIs.

The items of an answer are found by known API shapes (`layouts/apis.yaml`), else by key names
(`layouts/api_names.yaml`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import assert_never, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter

from ingestion_pipeline.catalogs.extraction.entity_type import EntityField, EntityType, FieldKind
from ingestion_pipeline.catalogs.extraction.record import MAX_PAGE_RECORDS, CandidateRecord, FieldValue
from ingestion_pipeline.catalogs.extraction.rules.course_building import (
    credit_fields,
    credit_quotes,
    read_parts,
    stated_prerequisites,
)
from ingestion_pipeline.catalogs.extraction.rules.course_words import (
    CODE,
    Credits,
    choice_by_name,
    choice_by_phrase,
    is_subject,
    is_title,
    slot_credits,
)
from ingestion_pipeline.reading.html.cleaning import cleaned_text
from ingestion_pipeline.reading.structured.embedded import EmbeddedData, Thing
from ingestion_pipeline.reading.structured.items import JsonPath
from ingestion_pipeline.reading.structured.sitemaps import XmlElement, read_xml
from ingestion_pipeline.reading.text.plain_text import packaged_data, without_references
from ingestion_pipeline.tasks.errors import Permanent, Transient

_FIRST_NUMBER = re.compile(r"[0-9]{1,9}(?:[.,][0-9]{1,4})?")
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
            return _first_number(text)
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
        if (text := next((value for key in properties if (value := _text_of_thing(thing.get(key)))), None))
    }
    return CandidateRecord(
        fields={name: value_of(kind, kind.field(name), text) for name, text in texts.items()},
        quotes={name: text for name, text in texts.items() if kind.field(name).derived},
    )


def _first_number(text: str) -> Decimal | None:
    match = _FIRST_NUMBER.search(text)
    try:
        return Decimal(match[0].replace(",", ".")) if match else None
    except InvalidOperation:
        return None


def _text_of_thing(value: object) -> str | None:
    """Return the value as text: the first of a list, the value or name of a thing."""
    if isinstance(value, list):
        return next((text for element in cast("list[object]", value) if (text := _text_of_thing(element))), None)
    if isinstance(value, Mapping):
        thing = cast("Thing", value)
        return next((text for key in ("value", "name") if (text := _text_of_thing(thing.get(key)))), None)
    if value is None:
        return None
    return cleaned_text(str(value)) or None


def courses_by_embedded(data: EmbeddedData) -> list[CandidateRecord]:
    """Return the courses in JSON-LD and microdata that have a code and a name."""
    unique: dict[object, CandidateRecord] = {}
    for thing in data.things("Course"):
        if len(unique) <= MAX_PAGE_RECORDS and (course := _course_of_thing(thing)):
            unique.setdefault((course.fields["course_id"], course.fields["course_name"]), course)
    return list(unique.values())


def _course_of_thing(thing: Thing) -> CandidateRecord | None:
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


MAX_SUBJECT_CHARACTERS = 12  # a longer text is a department's name

# Required in some key: products have a code, a name and a description, too.
_OF_COURSES = re.compile(r"course|credit|unit|subject|subj|prereq|ects|module|catalog")
_SIGNS = re.compile(r"[^a-z0-9]+")
_NUMBER = re.compile(r"[A-Z]{0,2}[0-9]{1,5}[A-Z]{0,3}", re.IGNORECASE)
_SUBJECT = re.compile(r"[A-Z][A-Z&/ .-]*", re.IGNORECASE)


class ItemNames(BaseModel):
    """The key names of each part of a course, in the order in which they are tried."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: tuple[str, ...]
    subject: tuple[str, ...]
    number: tuple[str, ...]
    title: tuple[str, ...]
    description: tuple[str, ...]
    credits: tuple[str, ...]
    low: tuple[str, ...]
    high: tuple[str, ...]
    prerequisites: tuple[str, ...]


@lru_cache(maxsize=1)
def item_names() -> ItemNames:
    """Return the known key names."""
    return ItemNames.model_validate(packaged_data("ingestion_pipeline.catalogs.extraction", "layouts/api_names.yaml"))


def _named(item: Item) -> Item | None:
    """Return the item with our names for its keys, if it has a code and a title, and a description or credits."""
    values = {_SIGNS.sub("", key.lower()): value for key, value in item.items()}
    if not any(_OF_COURSES.search(key) for key in values):
        return None
    names = item_names()
    code, title = _named_code(values, names), _first(values, names.title)
    if code is None or not isinstance(title, str) or not is_title(" ".join(title.split())):
        return None
    parts: dict[str, object] = {
        part: value
        for part in ("description", "credits", "low", "high", "prerequisites")
        if (value := _first(values, getattr(names, part))) is not None
    }
    is_course = parts.keys() & {"description", "credits", "low", "high"}
    return parts | {"code": code, "title": title} if is_course else None


def _named_code(values: Item, names: ItemNames) -> str | None:
    """Return a whole code, or a subject and a number."""
    for name in names.code:
        text = values.get(name)
        whole = " ".join(text.split()) if isinstance(text, str) else ""
        if CODE.fullmatch(whole) and is_subject(whole):
            return whole
    subjects = (_subject(values.get(name)) for name in names.subject)
    numbers = (_named_number(values.get(name)) for name in names.number)
    subject, number = next(filter(None, subjects), None), next(filter(None, numbers), None)
    return f"{subject} {number}" if subject and number else None


def _subject(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = cast("Item", value).get("code") or cast("Item", value).get("name")
    text = value.strip() if isinstance(value, str) else ""
    is_one = len(text) <= MAX_SUBJECT_CHARACTERS and _SUBJECT.fullmatch(text)
    return text if is_one else None


def _named_number(value: object) -> str | None:
    text = str(value).strip() if isinstance(value, str | int) else ""
    return text if _NUMBER.fullmatch(text) else None


def _first(values: Item, names: tuple[str, ...]) -> object:
    return next((values[name] for name in names if values.get(name) not in (None, "", [])), None)


def xml_items(root: XmlElement) -> list[Item]:
    """Return every element with children as an object of their texts and of its attributes."""
    waiting, items = [root], list[Item]()
    while waiting:
        element = waiting.pop()
        if element.children:
            inside = {child.name: child.text for child in reversed(element.children)}
            items.append({**element.attributes, **inside})
        waiting.extend(reversed(element.children))
    return items


MAX_DEPTH = 12
MAX_ITEMS = 400_000  # objects of any kind: a record holds several
MAX_NAME_CHARACTERS = 300

Item = Mapping[str, object]

_XML = re.compile(r"\ufeff?\s*<\?xml[^>]*>\s*(?:<!--.*?-->\s*)*<(?!html|rss|feed|!)", re.DOTALL)


class ApiShape(BaseModel):
    """The keys that identify an API's items, and the paths to the parts of a course."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    marks: tuple[str, ...]
    code: tuple[str, ...] = ()
    subject: tuple[str, ...] = ()
    number: tuple[str, ...] = ()
    title: tuple[str, ...]
    description: tuple[str, ...] = ()
    credits: tuple[str, ...] = ()
    low: tuple[str, ...] = ()
    high: tuple[str, ...] = ()
    joint: tuple[str, ...] = ()
    prerequisites: tuple[str, ...] = ()


_NAMED = ApiShape(
    name="names",
    marks=(),
    title=("title",),
    **{part: (part,) for part in ("code", "description", "credits", "low", "high", "prerequisites")},
)


@lru_cache(maxsize=1)
def api_shapes() -> tuple[ApiShape, ...]:
    """Return the known shapes, in the order in which they are tried."""
    return TypeAdapter(tuple[ApiShape, ...]).validate_python(
        packaged_data("ingestion_pipeline.catalogs.extraction", "layouts/apis.yaml")
    )


def courses_by_api(document: object) -> tuple[str, list[CandidateRecord]]:
    """Return the name of the document's shape and its courses; items of no known shape are skipped.

    Where no shape finds a description, the key names are tried as well.
    """
    items = list(_items(document))
    shaped = next(_by_shapes(items), ("", list[CandidateRecord]()))
    if any(course.fields.get("course_description") for course in shaped[1]):
        return shaped
    named = _by_names(items)
    says_more = any(course.fields.get("course_description") for course in named)
    return ("names", named) if says_more or (named and not shaped[1]) else shaped


def courses_by_xml(body: str) -> list[CandidateRecord]:
    """Return the courses of an XML document that is no web page, by key names."""
    if not _XML.match(body):
        return []
    try:
        root = read_xml(body.encode())
    except (Permanent, Transient):  # HTML that only begins like XML
        return []
    return _by_names(xml_items(root))


def _by_shapes(items: Sequence[Item]) -> Iterator[tuple[str, list[CandidateRecord]]]:
    for shape in api_shapes():
        fitting = [item for item in items if all(mark in item for mark in shape.marks)]
        if courses := [course for item in fitting if (course := _course(item, shape))]:
            yield shape.name, courses


def _by_names(items: Iterable[Item]) -> list[CandidateRecord]:
    named = filter(None, map(_named, items))
    return [course for item in named if (course := _course(item, _NAMED))]


def _items(document: object) -> Iterator[Item]:
    waiting: list[tuple[object, int]] = [(document, 0)]
    count = 0
    while waiting and count < MAX_ITEMS:
        value, depth = waiting.pop()
        inside: list[object] = []
        if isinstance(value, dict):
            item = cast("Item", value)
            count += 1
            yield item
            inside = list(item.values())
        elif isinstance(value, list):
            inside = cast("list[object]", value)
        if depth < MAX_DEPTH:
            waiting.extend((child, depth + 1) for child in reversed(inside))


def _course(item: Item, shape: ApiShape) -> CandidateRecord | None:
    code, title = _code(item, shape), _text(item, shape.title)
    if not code or not title or len(title) > MAX_NAME_CHARACTERS:
        return None
    parts = read_parts((_text(item, shape.description) or "").split("\n"))
    stated = _credits(item, shape) or parts.credits
    return CandidateRecord(
        fields={
            "course_id": code,
            "course_name": " ".join(title.split()),
            "course_description": parts.text(),
            "course_prerequisites": stated_prerequisites(_text(item, shape.prerequisites)) or parts.required_before(),
            **credit_fields(stated),
        }
    )


def _code(item: Item, shape: ApiShape) -> str | None:
    if code := _text(item, shape.code):
        return " ".join(code.split()) if len(code) <= MAX_NAME_CHARACTERS else None
    subject, number = _text(item, shape.subject), _text(item, shape.number)
    return f"{subject} {number}" if subject and number else None


def _credits(item: Item, shape: ApiShape) -> Credits | None:
    low, high = _number(item, shape.low), _number(item, shape.high)
    if low is not None and high is not None and low <= high:
        return Credits(low=low, high=high)
    if low is not None or high is not None:
        return Credits(low=low if low is not None else high)
    value = _value(item, shape.credits)
    return slot_credits(str(value)) if isinstance(value, str | int | float) else None


def _number(item: Item, paths: tuple[str, ...]) -> Decimal | None:
    value = _value(item, paths)
    try:
        number = Decimal(str(value)) if value is not None else None
    except InvalidOperation:
        return None
    return number if number is not None and number.is_finite() else None


def _text(item: Item, paths: tuple[str, ...]) -> str | None:
    """Return the text of the first path that has any, without the markup that APIs leave in it."""
    for path in paths:
        value = JsonPath.of(path).follow(item)
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, Mapping):  # {"name": "CSC", "description": ...}
            value = cast("Item", value).get("name")
        if isinstance(value, str) and value.strip():
            is_plain = not re.search("[<&]", value)
            return value.strip() if is_plain else cleaned_text(without_references(value))
    return None


def _value(item: Item, paths: tuple[str, ...]) -> object:
    values = (JsonPath.of(path).follow(item) for path in paths)
    return next((value for value in values if value not in (None, "")), None)
