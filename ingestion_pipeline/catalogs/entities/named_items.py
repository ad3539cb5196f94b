"""Courses of an API or an XML file that no shape knows, by the names of their parts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import resources
from typing import cast

import yaml
from pydantic import BaseModel, ConfigDict

from ingestion_pipeline.catalogs.entities.course_code import CODE, is_subject, is_title
from ingestion_pipeline.reading.xml_reader import XmlElement

MAX_SUBJECT_CHARACTERS = 12  # beyond that it is a department's name

# Goods have a code, a name and a description, too.
_OF_COURSES = re.compile(r"course|credit|unit|subject|subj|prereq|ects|module|catalog")
_SIGNS = re.compile(r"[^a-z0-9]+")
_NUMBER = re.compile(r"[A-Z]{0,2}[0-9]{1,5}[A-Z]{0,3}", re.IGNORECASE)
_SUBJECT = re.compile(r"[A-Z][A-Z&/ .-]*", re.IGNORECASE)

Item = Mapping[str, object]


class ItemNames(BaseModel):
    """The names of each part, in the order in which they are tried."""

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
    """The names that are known."""
    file = resources.files("ingestion_pipeline.catalogs.entities") / "layouts" / "api_names.yaml"
    return ItemNames.model_validate(yaml.safe_load(file.read_text()))


def named_items(items: Iterable[Item]) -> list[Item]:
    """The items that are courses by their parts' names, each with our names for those parts.

    A course has a code and a title, and says what it is about or what it counts.
    """
    return [named for item in items if (named := _named(item)) is not None]


def _named(item: Item) -> Item | None:
    values = {_SIGNS.sub("", key.lower()): value for key, value in item.items()}
    if not any(_OF_COURSES.search(key) for key in values):
        return None
    names = item_names()
    code, title = _code(values, names), _first(values, names.title)
    if code is None or not isinstance(title, str) or not is_title(" ".join(title.split())):
        return None
    parts: dict[str, object] = {
        part: value
        for part in ("description", "credits", "low", "high", "prerequisites")
        if (value := _first(values, getattr(names, part))) is not None
    }
    is_course = parts.keys() & {"description", "credits", "low", "high"}
    return parts | {"code": code, "title": title} if is_course else None


def _code(values: Item, names: ItemNames) -> str | None:
    """A whole code, or a subject and a number."""
    for name in names.code:
        text = values.get(name)
        whole = " ".join(text.split()) if isinstance(text, str) else ""
        if CODE.fullmatch(whole) and is_subject(whole):
            return whole
    subject = next((one for name in names.subject if (one := _subject(values.get(name)))), None)
    number = next((one for name in names.number if (one := _number(values.get(name)))), None)
    return f"{subject} {number}" if subject and number else None


def _subject(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = cast("Item", value).get("code") or cast("Item", value).get("name")
    text = value.strip() if isinstance(value, str) else ""
    is_one = len(text) <= MAX_SUBJECT_CHARACTERS and _SUBJECT.fullmatch(text)
    return text if is_one else None


def _number(value: object) -> str | None:
    text = str(value).strip() if isinstance(value, str | int) else ""
    return text if _NUMBER.fullmatch(text) else None


def _first(values: Item, names: tuple[str, ...]) -> object:
    return next((values[name] for name in names if values.get(name) not in (None, "", [])), None)


def xml_items(root: XmlElement) -> list[Item]:
    """Every element that has others in it, as an object of their texts and of its attributes."""
    waiting, items = [root], list[Item]()
    while waiting:
        element = waiting.pop()
        if element.children:
            inside = {child.name: child.text for child in reversed(element.children)}
            items.append({**element.attributes, **inside})
        waiting.extend(reversed(element.children))
    return items
