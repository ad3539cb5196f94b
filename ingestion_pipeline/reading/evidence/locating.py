"""Locate values in a stored body: the path in JSON, or the span in the text. Pure.

A record is found by its anchors first (its own id, its URL), its values then near them: the same
value in another record proves nothing.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from email.utils import format_datetime
from html import escape, unescape
from typing import Any, cast
from urllib.parse import urlsplit

from ingestion_pipeline.reading.structured.embedded import BadJson, read_json
from ingestion_pipeline.reading.text.plain_text import decode
from ingestion_pipeline.reading.text.values import MOST_CHARACTERS, find_date, means

QUOTED = 80  # characters of a quote
_TAGS = re.compile(r"<[^<>]*>")
_NOT_LONGER = r"(?![0-9]|\.[0-9])"  # 17 is not stated by 170 or 17.5
_MARKS = re.compile(r"[*_#`\[\]()>|\\\n]+")  # what Markdown adds to the words of a page
_DIGITS = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")
BY_VALUE = "value"
_SEARCHED = 2_000  # characters before and behind an anchor in which a record states its date
_WORDS = 12  # characters that a part of a long text needs to be told by


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlace:
    """The place of a value: `path` in JSON, else `start` to `end`; `of` names what these count.

    Found `by` its value, the quote is the original wording of what was normalised.
    """

    quote: str
    of: str
    path: str | None = None
    start: int | None = None
    end: int | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True)
class LocatedBody:
    """A body as text, and as a document where it is JSON."""

    text: str
    document: Any = None


def body_of(body: bytes, content_type: str | None) -> LocatedBody:
    """Return the decoded body, as a document if it is JSON."""
    text = decode(body, content_type)
    if text.lstrip()[:1] in ("{", "["):
        with suppress(BadJson):
            return LocatedBody(text, read_json(text))
    return LocatedBody(text)


def locate(
    body: LocatedBody, anchors: Sequence[str], values: Mapping[str, object], *, now: datetime | None = None
) -> dict[str, FoundPlace | None]:
    """Return each value's place in the record that the anchors name; None where it is not stated.

    Without any anchor the record is absent: all its values are None. A date that is worded
    otherwise is found by its value; `now`, when the body was fetched, is what "2 days ago" means.
    """
    values = {name: _as_number(value) for name, value in values.items()}
    if body.document is not None:
        record = _record(body.document, anchors)
        if record is None:
            return dict.fromkeys(values)
        return {name: _in_json(record, value, now) for name, value in values.items()}
    text = body.text
    words = [re.compile(rf"(?<!\w){re.escape(anchor)}(?!\w){_NOT_LONGER}") for anchor in anchors if anchor]
    if (match := next(filter(None, (pattern.search(text) for pattern in words)), None)) is None:
        return dict.fromkeys(values)
    return {name: _in_text(text, value, match.start(), now) for name, value in values.items()}


def _as_number(value: object) -> object:
    """Return a number however it was stored, to be matched as a word of its own."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number or (isinstance(value, str) and _DIGITS.fullmatch(value)):
        return Decimal(str(value)).normalize()
    return value


_Record = tuple[str, object]  # path, value


def _record(document: object, anchors: Sequence[str]) -> _Record | None:
    """Return the innermost object that states an anchor itself, or just beneath it."""
    for anchor in anchors:
        for path, value in _walk("$", document):
            if isinstance(value, str | int) and not isinstance(value, bool):
                text = str(value)
                if text == anchor or (len(anchor) >= _WORDS and anchor in text):
                    # The object of the innermost list on the path; else the document.
                    owner = path[: path.rfind("]") + 1]
                    return next((entry for entry in _walk("$", document) if entry[0] == owner), ("$", document))
    return None


def _walk(path: str, value: object) -> Iterator[_Record]:
    yield path, value
    if isinstance(value, dict):
        for key, inner in cast("dict[str, object]", value).items():
            yield from _walk(f"{path}.{key}", inner)
    elif isinstance(value, list):
        for number, inner in enumerate(cast("list[object]", value)):
            yield from _walk(f"{path}[{number}]", inner)


def _in_json(record: _Record, value: object, now: datetime | None) -> FoundPlace | None:
    scalars = [
        (path, str(inner))
        for path, inner in _walk(*record)
        if isinstance(inner, str | int | float | Decimal) and not isinstance(inner, bool)
    ]
    for spelled in _spellings(value):
        for path, text in scalars:
            if text == spelled:
                return FoundPlace(quote=text[:QUOTED], of="body", path=path)
    for spelled in _spellings(value):
        for path, text in scalars:
            if (span := _within(_plain(text), spelled, value)) is not None:
                quote = _plain(text)[slice(*span)][:QUOTED]
                return FoundPlace(quote=quote, of="value", path=path, start=span[0], end=span[1])
    return _date_in_json(scalars, value, now) if isinstance(value, datetime) else None


def _date_in_json(scalars: Sequence[tuple[str, str]], value: datetime, now: datetime | None) -> FoundPlace | None:
    """Return a text that is only that date, in whatever words; else one that contains it."""
    for path, text in scalars:
        if len(text) <= MOST_CHARACTERS and means(text, value, now=now):
            return FoundPlace(quote=text, of="body", path=path, by=BY_VALUE)
    for path, text in scalars:
        plain = _plain(text)[:_SEARCHED]
        if (span := find_date(plain, value, now=now)) is not None:
            start, end = span
            return FoundPlace(quote=plain[start:end], of="value", path=path, start=start, end=end, by=BY_VALUE)
    return None


def _within(text: str, spelled: str, value: object) -> tuple[int, int] | None:
    if isinstance(value, Decimal):
        spans = [match.span() for pattern in _numbers(spelled) if (match := pattern.search(text))]
        return spans[0] if spans else None
    at = text.find(_plain(spelled))
    return (at, at + len(_plain(spelled))) if spelled and at >= 0 else None


def _in_text(text: str, value: object, centre: int, now: datetime | None) -> FoundPlace | None:
    for spelled in _spellings(value):
        numbers = _numbers(spelled) if isinstance(value, Decimal) else [None]
        spans = (_nearest(text, spelled, centre, item) for item in numbers)
        if (span := next((item for item in spans if item), None)) is not None:
            quote = text[slice(*span)][:QUOTED]
            return FoundPlace(quote=quote, of="body", start=span[0], end=span[1])
    plain = _plain(text)
    for spelled in _spellings(value):
        if (span := _within(plain, spelled, value)) is not None:
            quote = plain[slice(*span)][:QUOTED]
            return FoundPlace(quote=quote, of="text without markup", start=span[0], end=span[1])
    return _date_near(text, value, centre, now) if isinstance(value, datetime) else None


def _date_near(text: str, value: datetime, centre: int, now: datetime | None) -> FoundPlace | None:
    """Return the place of that date behind the record's anchor, else before it."""
    for begin, end in ((centre, centre + _SEARCHED), (max(centre - _SEARCHED, 0), centre)):
        if (span := find_date(text[begin:end], value, now=now)) is not None:
            start, stop = begin + span[0], begin + span[1]
            return FoundPlace(quote=text[start:stop], of="body", start=start, end=stop, by=BY_VALUE)
    return None


def _nearest(text: str, spelled: str, centre: int, pattern: re.Pattern[str] | None = None) -> tuple[int, int] | None:
    if not spelled:
        return None
    end = _NOT_LONGER if spelled[-1].isdecimal() else ""
    searched = pattern or re.compile(re.escape(spelled) + end)
    spans = [match.span() for match in searched.finditer(text)]
    return min(spans, key=lambda span: abs(span[0] - centre), default=None)


def _numbers(spelled: str) -> list[re.Pattern[str]]:
    """Return patterns for the number as a word of its own, else within one; zeros are ignored."""
    zeros = rf"0*{re.escape(spelled)}(?:\.0+)?"
    patterns = (rf"(?<![\w.]){zeros}(?!\w)", rf"(?<![\d.]){zeros}")
    return [re.compile(pattern + _NOT_LONGER) for pattern in patterns]


def _plain(text: str) -> str:
    """Return the text as people see it: entities resolved, tags and repeated blanks removed."""
    if "<" in text or "&" in text:
        text = _TAGS.sub(" ", unescape(unescape(text)))
    return " ".join(text.split())


def _spellings(value: object) -> list[str]:
    """Return how a body may word the value, the likeliest first."""
    match value:
        case None:
            return []
        case datetime():
            return _times(value)
        case Decimal():
            return [f"{value:f}"]
        case str() if value.startswith(("http://", "https://")):
            return _addresses(value)
        case str():
            return _texts(value)
        case _:
            return [str(value)]


def _texts(value: str) -> list[str]:
    whole = [value, escape(value), escape(value, quote=False)]
    long_parts = [part for part in map(str.strip, _MARKS.split(value)) if len(part) >= _WORDS]
    return [*dict.fromkeys(whole), *long_parts[:5]]


def _addresses(value: str) -> list[str]:
    parts = urlsplit(value)
    inside = f"{parts.path}?{parts.query}" if parts.query else parts.path
    last = parts.path.rstrip("/").rpartition("/")[2]
    spellings = [value, escape(value), inside, inside.lstrip("/"), last]
    return [spelling for spelling in dict.fromkeys(spellings) if len(spelling) > 1]


def _times(value: datetime) -> list[str]:
    moment = value.astimezone(UTC)
    iso, seconds = moment.isoformat(), int(moment.timestamp())
    return [
        iso,
        iso.replace("+00:00", "Z"),
        iso.replace("+00:00", ".000Z"),
        iso.replace("+00:00", ""),
        format_datetime(moment),
        format_datetime(moment, usegmt=True),
        str(seconds * 1000 + moment.microsecond // 1000),
        str(seconds),
        f"{moment:%Y-%m-%d}",
        f"{moment.day} {moment:%B %Y}",
        f"{moment:%B} {moment.day}, {moment:%Y}",
        f"{moment.day} {moment:%b %Y}",
        f"{moment:%b} {moment.day}, {moment:%Y}",
    ]
