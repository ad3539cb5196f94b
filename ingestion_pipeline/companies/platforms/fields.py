"""Fields of a listing as APIs state them: of any type, blank, or not there at all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import unescape
from typing import cast

from ingestion_pipeline.companies.listing import Remote
from ingestion_pipeline.reading.html.cleaning import readable
from ingestion_pipeline.reading.html.markdown import to_markdown
from ingestion_pipeline.reading.text.dates import MAX_CHARACTERS, DateReader
from ingestion_pipeline.tasks.errors import Permanent, storable

MAX_TITLE_CHARACTERS = 500
MAX_TEXT_CHARACTERS = 2_000
MAX_PLACE_CHARACTERS = 500
MAX_DESCRIPTION_CHARACTERS = 200_000  # the longest of our samples has 20,000
MAX_MARKUP_CHARACTERS = 1_000_000  # of a description before it is read

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_MARKUP = re.compile(r"</?[a-z][a-z0-9]*(?:\s[^<>]*)?/?>", re.IGNORECASE)
_ESCAPED_MARKUP = re.compile(r"&(?:amp;)?lt;/?[a-z]", re.IGNORECASE)
MOST_ESCAPES = 2  # once by the board, once more by what stands before it
# Line ends that were escaped once too often: a backslash and an n before markup or a blank.
_WRITTEN_LINE_END = re.compile(r"(?:\\r)?\\n(?=\s|<|\\|$)")
_POSTED = re.compile(r"^(?:job )?posted(?: on)?:?\s+", re.IGNORECASE)
_AT_LEAST = re.compile(r"(?<=[0-9])\+(?=\s)")
_UTC = re.compile(r"\s?(?:UTC|Z)$")
_ZONE = re.compile(r"([+-][0-9]{2})([0-9]{2})$")

_REMOTE_WORDS = (
    (Remote.HYBRID, re.compile(r"\bhybrid\b", re.IGNORECASE)),
    (Remote.ON_SITE, re.compile(r"\b(?:on[\s_-]?site|in[\s_-](?:office|person))\b", re.IGNORECASE)),
    (
        Remote.REMOTE,
        re.compile(
            r"\b(?:remote|telecommute|work from home|wfh|home[\s-]?office)\b", re.IGNORECASE
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class ListingFields:
    """A JSON object that may lack anything; names may be paths such as `location.name`."""

    values: Mapping[str, object]

    @classmethod
    def of(cls, value: object) -> ListingFields:
        """The object's fields; none if it is no object."""
        return cls(cast("Mapping[str, object]", value) if isinstance(value, dict) else {})

    def value(self, path: str) -> object:
        """What stands at the path."""
        *outer, last = path.split(".")
        fields = self
        for name in outer:
            fields = ListingFields.of(fields.values.get(name))
        return fields.values.get(last)

    def text(self, *paths: str) -> str | None:
        """The first text or number that is not blank, as one line."""
        return next(filter(None, (one_line(self.value(path)) for path in paths)), None)

    def markup(self, *paths: str) -> str | None:
        """The first text that is not blank, as it is."""
        values = (self.value(path) for path in paths)
        return next((one for one in values if isinstance(one, str) and one.strip()), None)

    def is_true(self, path: str) -> bool:
        """Whether it says yes."""
        return self.value(path) in {True, "true"} if _is_plain(self.value(path)) else False

    def each(self, path: str) -> list[ListingFields]:
        """The objects of a list."""
        return [one for one in map(ListingFields.of, items_of(self.value(path))) if one.values]

    def texts(self, path: str) -> list[str]:
        """The texts of a list, or the one that stands there alone."""
        return list(filter(None, (one_line(one) for one in one_or_more(self.value(path)))))


def list_of(value: object) -> list[object] | None:
    """The items of a list; None if it is no list."""
    return cast("list[object]", value) if isinstance(value, list) else None


def items_of(value: object) -> list[object]:
    """The items of a list; none if it is no list."""
    return list_of(value) or []


def one_or_more(value: object) -> list[object]:
    """The items of a list, or the value that stands there alone."""
    listed = list_of(value)
    return [value] if listed is None else listed


def one_line(value: object, *, most: int = MAX_TEXT_CHARACTERS) -> str | None:
    """Text or number as one line that any database takes; blanks inside stay as they are."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = _written(value)
    if not isinstance(value, str):
        return None
    return storable(_CONTROL.sub(" ", value[: 2 * most])).strip()[:most].strip() or None


def _written(number: float) -> str | None:
    try:
        return str(number)
    except ValueError:  # more digits than Python writes
        return None


def description_of(*parts: str | None) -> str | None:
    """Markup, escaped once, twice or not at all, or plain text as one piece of Markdown.

    A part that is too deep or too large to be read is left out.
    """
    pieces = (_described(part[:MAX_MARKUP_CHARACTERS]) for part in parts if part and part.strip())
    text = "\n\n".join(filter(None, pieces))
    return storable(text)[:MAX_DESCRIPTION_CHARACTERS].strip() or None


def _described(part: str) -> str:
    part = _WRITTEN_LINE_END.sub("\n", part)
    for _ in range(MOST_ESCAPES):
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
    """The moment; "Posted 30+ Days Ago" is thirty days ago, the latest that it can mean."""
    if text is None:
        return None
    stated = _AT_LEAST.sub("", _POSTED.sub("", text[:MAX_CHARACTERS]))
    return dates.read(_ZONE.sub(r"\1:\2", _UTC.sub("+00:00", stated)))


def is_relative(text: str | None) -> bool:
    """Whether the moment depends on when the text is read: "yesterday", "3 days ago"."""
    return text is not None and date_of(text, DateReader(now=None)) is None


def remote_in(*texts: str | None) -> Remote | None:
    """Where the work is done by the first text that says so."""
    for text in filter(None, texts):
        for policy, words in _REMOTE_WORDS:
            if words.search(text):
                return policy
    return None


def joined(*parts: str | None) -> str | None:
    """The parts that are there with commas between, each once."""
    return ", ".join(dict.fromkeys(filter(None, parts))) or None


def apart(first: str | None, others: Sequence[str]) -> tuple[str, ...]:
    """The others without the first and without repetitions."""
    return tuple(one for one in dict.fromkeys(others) if one != first)


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | str)
