"""Fields of API responses: of any type, blank or missing; text, dates, work mode, descriptions."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from html import unescape
from typing import cast

from ingestion_pipeline.companies.job_listing import Remote
from ingestion_pipeline.reading.html.cleaning import readable
from ingestion_pipeline.reading.html.links import absolute_link
from ingestion_pipeline.reading.html.markdown import to_markdown
from ingestion_pipeline.reading.text.dates import MAX_CHARACTERS, DateReader
from ingestion_pipeline.tasks.errors import Permanent, storable

MAX_TITLE_CHARACTERS = 500
MAX_TEXT_CHARACTERS = 2_000
MAX_PLACE_CHARACTERS = 500
MAX_DESCRIPTION_CHARACTERS = 200_000  # the longest of our samples has 20,000
MAX_MARKUP_CHARACTERS = 1_000_000  # of a description before parsing

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_MARKUP = re.compile(r"</?[a-z][a-z0-9]*(?:\s[^<>]*)?/?>", re.IGNORECASE)
_ESCAPED_MARKUP = re.compile(r"&(?:amp;)?lt;/?[a-z]", re.IGNORECASE)
MAX_ESCAPES = 2  # once by the board, once more by a proxy
# Line ends escaped once too often: a backslash and an n before markup or white space.
_WRITTEN_LINE_END = re.compile(r"(?:\\r)?\\n(?=\s|<|\\|$)")
_POSTED = re.compile(r"^(?:job )?posted(?: on)?:?\s+", re.IGNORECASE)
_AT_LEAST = re.compile(r"(?<=[0-9])\+(?=\s)")
_UTC = re.compile(r"\s?(?:UTC|Z)$")
_ZONE = re.compile(r"([+-][0-9]{2})([0-9]{2})$")

_REMOTE_WORDS = (
    (Remote.HYBRID, re.compile(r"\bhybrid\b", re.IGNORECASE)),
    (Remote.ON_SITE, re.compile(r"\b(?:on[\s_-]?site|in[\s_-](?:office|person))\b", re.IGNORECASE)),
    (Remote.REMOTE, re.compile(r"\b(?:remote|telecommute|work from home|wfh|home[\s-]?office)\b", re.IGNORECASE)),
)


@dataclass(frozen=True, slots=True)
class ListingFields:
    """A JSON object that may lack any field; names may be paths such as `location.name`."""

    values: Mapping[str, object]

    @classmethod
    def of(cls, value: object) -> "ListingFields":
        """Return the object's fields; empty if the value is no object."""
        return cls(cast("Mapping[str, object]", value) if isinstance(value, dict) else {})

    def value(self, path: str) -> object:
        """Return the value at the path."""
        *outer, last = path.split(".")
        fields = self
        for name in outer:
            fields = ListingFields.of(fields.values.get(name))
        return fields.values.get(last)

    def text(self, *paths: str) -> str | None:
        """Return the first text or number that is not blank, as one line."""
        return next(filter(None, (one_line(self.value(path)) for path in paths)), None)

    def markup(self, *paths: str) -> str | None:
        """Return the first text that is not blank, unchanged."""
        values = (self.value(path) for path in paths)
        return next((value for value in values if isinstance(value, str) and value.strip()), None)

    def link(self, base: str | None, *paths: str) -> str | None:
        """Return the first link that is not blank as a web address."""
        return absolute_link(base, self.text(*paths))

    def is_true(self, path: str) -> bool:
        """Return whether the value is true or "true"."""
        value = self.value(path)
        return value is True or value == "true"

    def each(self, path: str) -> "list[ListingFields]":
        """Return the objects of a list."""
        return [item for item in map(ListingFields.of, items_of(self.value(path))) if item.values]

    def texts(self, path: str) -> list[str]:
        """Return the texts of a list, or a single text as a list."""
        return list(filter(None, (one_line(item) for item in as_list(self.value(path)))))


def list_of(value: object) -> list[object] | None:
    """Return the items of a list; None if it is no list."""
    return cast("list[object]", value) if isinstance(value, list) else None


def items_of(value: object) -> list[object]:
    """Return the items of a list; empty if it is no list."""
    return list_of(value) or []


def as_list(value: object) -> list[object]:
    """Return the items of a list, or a single value as a list."""
    listed = list_of(value)
    return [value] if listed is None else listed


def one_line(value: object, *, most: int = MAX_TEXT_CHARACTERS) -> str | None:
    """Return text or number as one line that any database accepts; inner spaces are kept."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(ValueError):  # more digits than Python writes
            value = str(value)
    if not isinstance(value, str):
        return None
    return storable(_CONTROL.sub(" ", value[: 2 * most])).strip()[:most].strip() or None


def description_of(*parts: str | None) -> str | None:
    """Return markup (escaped up to twice) or plain text as Markdown, without parts that cannot be parsed."""
    texts = (_described(part[:MAX_MARKUP_CHARACTERS]) for part in parts if part and part.strip())
    text = "\n\n".join(filter(None, texts))
    return storable(text)[:MAX_DESCRIPTION_CHARACTERS].strip() or None


def _described(part: str) -> str:
    part = _WRITTEN_LINE_END.sub("\n", part)
    for _ in range(MAX_ESCAPES):
        if _MARKUP.search(part) or not _ESCAPED_MARKUP.search(part):
            break
        part = unescape(part)
    if not _MARKUP.search(part):
        return readable(unescape(part))
    try:
        return to_markdown(part)
    except Permanent:
        return ""


def date_of(text: str | None, dates: DateReader) -> datetime | None:
    """Return the moment; "Posted 30+ Days Ago" is thirty days ago, the latest it can mean."""
    if text is None:
        return None
    stated = _AT_LEAST.sub("", _POSTED.sub("", text[:MAX_CHARACTERS]))
    return dates.read(_ZONE.sub(r"\1:\2", _UTC.sub("+00:00", stated)))


def is_relative(text: str | None) -> bool:
    """Return whether the moment depends on when the text is read: "3 days ago"."""
    return text is not None and date_of(text, DateReader(now=None)) is None


def remote_in(*texts: str | None) -> Remote | None:
    """Return the work mode of the first text that states one."""
    for text in filter(None, texts):
        for policy, words in _REMOTE_WORDS:
            if words.search(text):
                return policy
    return None


def joined(*parts: str | None) -> str | None:
    """Return the non-empty parts joined by commas, each once."""
    return ", ".join(dict.fromkeys(filter(None, parts))) or None


def other_places(first: str | None, others: Sequence[str]) -> tuple[str, ...]:
    """Return the others without the first and without repetitions."""
    return tuple(other for other in dict.fromkeys(others) if other != first)
