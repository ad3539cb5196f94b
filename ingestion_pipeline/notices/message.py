"""A message as it is sent: the same notices always make the same bytes. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from ingestion_pipeline.notices.subjects import KINDS

# What a stranger's title must not bring along: lines of its own, and what a terminal would obey.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
TITLE_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message: `id` is its idempotency key, `body` what a webhook is sent."""

    id: str
    title: str
    text: str
    body: bytes


def chapters_message(
    delivery_id: str,
    recipient_id: str,
    chapters: Sequence[Mapping[str, Any]],
    *,
    text_chapters: int,
) -> Message:
    """A message of these chapters (payloads of notices, in order), gathered by series.

    The text names the first `text_chapters`, the JSON all of them.
    """
    series = _by_series(chapters)
    title = _title(series, len(chapters))
    text = "\n".join(_lines(series, len(chapters), text_chapters))
    content = {
        "type": "chapters.new",
        "id": delivery_id,
        "recipient": recipient_id,
        "title": title,
        "text": text,
        "count": len(chapters),
        "series": _series_facts(series),
    }
    return Message(id=delivery_id, title=title, text=text, body=_json(content))


def message_of(
    delivery_id: str,
    recipient_id: str,
    told: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    text_chapters: int,
) -> Message:
    """A message of these notices (kind and payload, in order).

    Chapters alone are told as they always were; what else there is comes first, an event each.
    """
    chapters = [payload for kind, payload in told if kind not in KINDS]
    events = [(kind, payload) for kind, payload in told if kind in KINDS]
    if not events:
        return chapters_message(delivery_id, recipient_id, chapters, text_chapters=text_chapters)
    series = _by_series(chapters)
    lines = "\n".join(_lines(series, len(chapters), text_chapters))
    first = _plain(events[0][1]["title"])
    title = first if len(told) == 1 else f"{first}, and {len(told) - 1} more"
    text = "\n\n".join([*(_event_text(one) for _, one in events), *filter(None, [lines])])
    content = {
        "type": "events",
        "id": delivery_id,
        "recipient": recipient_id,
        "title": title,
        "text": text,
        "count": len(told),
        "events": [{"kind": kind, **payload} for kind, payload in events],
        "series": _series_facts(series),
    }
    return Message(id=delivery_id, title=title, text=text, body=_json(content))


def unreadable(
    entries: Sequence[tuple[str, Mapping[str, Any]]], *, text_chapters: int
) -> dict[int, str]:
    """Return, by position, why no message can be made of a notice; empty if one can of them all."""
    try:
        _try(entries, text_chapters)
    except Exception:
        return {at: reason for at, entry in enumerate(entries) if (reason := _reason(entry))}
    return {}


def _reason(notice: tuple[str, Mapping[str, Any]]) -> str | None:
    try:
        _try([notice], text_chapters=1)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _try(entries: Sequence[tuple[str, Mapping[str, Any]]], text_chapters: int) -> None:
    message_of("", "", entries, text_chapters=text_chapters)
    for _, payload in entries:
        if datetime.fromisoformat(payload["detected_at"]).tzinfo is None:
            raise ValueError(f"detected_at {payload['detected_at']!r} has no time zone")


def _event_text(payload: Mapping[str, Any]) -> str:
    lines = [_plain(payload["title"]), *map(_plain, payload["text"].splitlines())]
    return "\n".join(filter(None, lines))


def example_message(delivery_id: str, recipient_id: str) -> Message:
    """The message of `ingest recipients test`: of another type, and no news."""
    title, text = "A test message", f"Notices for {recipient_id} arrive here."
    content = {
        "type": "test",
        "id": delivery_id,
        "recipient": recipient_id,
        "title": title,
        "text": text,
    }
    return Message(id=delivery_id, title=title, text=text, body=_json(content))


def _series_facts(series: _Series) -> list[dict[str, Any]]:
    return [
        {"id": id_, "title": name, "chapters": [_chapter(one) for one in some]}
        for id_, (name, some) in series.items()
    ]


_Series = dict[str, tuple[str, list[Mapping[str, Any]]]]


def _by_series(chapters: Iterable[Mapping[str, Any]]) -> _Series:
    """Each series' chapters by number, those without one last, under its newest title."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for one in chapters:
        found.setdefault(one["series_id"], []).append(one)
    return {
        id_: (some[-1]["series_title"], sorted(some, key=_place)) for id_, some in found.items()
    }


def _place(chapter: Mapping[str, Any]) -> Decimal:
    return Decimal("Infinity" if chapter["number"] is None else chapter["number"])


def _title(series: _Series, count: int) -> str:
    name, chapters = next(iter(series.values()))
    if count == 1:
        return f"{_plain(name)}: {_name(chapters[0])}"[:TITLE_CHARS]
    if len(series) == 1:
        return f"{_plain(name)}: {count} new chapters"[:TITLE_CHARS]
    return f"{count} new chapters of {len(series)} series"


def _lines(series: _Series, count: int, most: int) -> Iterable[str]:
    named = 0
    for name, chapters in series.values():
        some = chapters[: max(most - named, 0)]
        named += len(some)
        yield f"{_plain(name)} ({len(chapters)})" if len(chapters) > 1 else _plain(name)
        for one in some:
            address = " " + _CONTROLS.sub("", one["url"]) if one["url"] else ""
            yield f"- {_name(one)}{address}"
    if count > named:
        yield f"and {count - named} more"


def _name(chapter: Mapping[str, Any]) -> str:
    number, title = chapter["number"], chapter["title"]
    name = f"Chapter {number}" if number is not None else "A chapter"
    return f"{name}: {_plain(title)}" if title else name


def _chapter(payload: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("chapter_id", "number", "title", "language", "url", "published_at", "detected_at")
    return {key: payload[key] for key in keys}


def _plain(text: str) -> str:
    return _CONTROLS.sub(" ", text).strip()[:TITLE_CHARS]


def _json(content: object) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
