"""Messages: the outbox rows of events, and the text and JSON that notices are sent as.

The same notices always make the same bytes.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection

from ingestion_pipeline.sources.recipients import ALERTS, SYSTEM_ALERTS
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import outbox

EXTRACTION = "extraction"
RECIPE = "recipe"
JOB_MATCH = "job_match"
BUDGET, RUN_FAILURES, DAEMON_DOWN = SYSTEM_ALERTS
KINDS = (EXTRACTION, RECIPE, JOB_MATCH, *ALERTS)


def write_notice(
    connection: Connection, kind: str, subject_id: str, payload: Mapping[str, Any], *, now: datetime
) -> bool:
    """Write the outbox row of an event, in the transaction of the record it refers to.

    Return False if the subject was announced before: each is announced once. `payload` has `title`
    and `text` for people, `source_id` except for system alerts, and further fields for programs; it
    is sent unchanged in the webhook's JSON.
    """
    return write_notices(connection, kind, {subject_id: payload}, now=now) > 0


def write_notices(
    connection: Connection, kind: str, payloads: Mapping[str, Mapping[str, Any]], *, now: datetime
) -> int:
    """Write the outbox rows of many subjects by one statement; return how many are new."""
    keys = ("title", "text") if kind in SYSTEM_ALERTS else ("source_id", "title", "text")
    missing = sorted({key for fields in payloads.values() for key in keys if not fields.get(key)})
    if kind not in KINDS or missing:
        raise ValueError(f"no notice of kind {kind!r} without {', '.join(missing) or 'its kind'}")
    if not payloads:
        return 0
    statement = insert_into(connection, outbox).values(
        [
            {
                "subject_kind": kind,
                "subject_id": subject_id,
                "payload": {**payload, "detected_at": now.isoformat()},
                "created_at": now,
            }
            for subject_id, payload in payloads.items()
        ]
    )
    once = statement.on_conflict_do_nothing(index_elements=["subject_kind", "subject_id"])
    return len(connection.execute(once.returning(outbox.c.id)).all())


# Control characters that a foreign title must not contain: line breaks and terminal commands.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
TITLE_CHARS = 200
_CHAPTER_KEYS = ("chapter_id", "number", "title", "language", "url", "published_at", "detected_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message: `id` is its idempotency key, `body` what a webhook receives."""

    id: str
    title: str
    text: str
    body: bytes


def message_of(
    delivery_id: str, recipient_id: str, entries: Sequence[tuple[str, Mapping[str, Any]]], *, text_chapters: int
) -> Message:
    """Return a message of these notices (kind and payload, in order).

    Chapters alone make a chapters message; otherwise the events come first, then the chapters, by series.
    The text names the first `text_chapters`, the JSON all of them.
    """
    chapters = [payload for kind, payload in entries if kind not in KINDS]
    events = [(kind, payload) for kind, payload in entries if kind in KINDS]
    series = _by_series(chapters)
    lines = "\n".join(_lines(series, len(chapters), text_chapters))
    if events:
        first = _plain(events[0][1]["title"])
        title = first if len(entries) == 1 else f"{first}, and {len(entries) - 1} more"
        text = "\n\n".join([*(_event_text(event) for _, event in events), *filter(None, [lines])])
        more: dict[str, Any] = {"events": [{"kind": kind, **payload} for kind, payload in events]}
    else:
        title, text, more = _title(series, len(chapters)), lines, {}
    more["series"] = [
        {"id": id_, "title": name, "chapters": [{key: chapter[key] for key in _CHAPTER_KEYS} for chapter in listed]}
        for id_, (name, listed) in series.items()
    ]
    kind = "events" if events else "chapters.new"
    return _message(kind, delivery_id, recipient_id, title, text, count=len(entries), **more)


def _message(kind: str, delivery_id: str, recipient_id: str, title: str, text: str, **more: object) -> Message:
    content = {"type": kind, "id": delivery_id, "recipient": recipient_id, "title": title, "text": text, **more}
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    return Message(id=delivery_id, title=title, text=text, body=body)


def unreadable(entries: Sequence[tuple[str, Mapping[str, Any]]], *, text_chapters: int) -> dict[int, str]:
    """Return, by position, why no message can be made of a notice; empty if one can of all."""
    if _reason(entries, text_chapters) is None:
        return {}
    return {at: reason for at, entry in enumerate(entries) if (reason := _reason([entry], text_chapters=1))}


def _reason(entries: Sequence[tuple[str, Mapping[str, Any]]], text_chapters: int) -> str | None:
    try:
        _try(entries, text_chapters)
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
    """Return the message of `ingest recipients test`, of type `test`."""
    title, text = "A test message", f"Notices for {recipient_id} arrive here."
    return _message("test", delivery_id, recipient_id, title, text)


_Series = dict[str, tuple[str, list[Mapping[str, Any]]]]


def _by_series(chapters: Iterable[Mapping[str, Any]]) -> _Series:
    """Group chapters by series, by number and unnumbered last, under the newest title."""
    by_id: dict[str, list[Mapping[str, Any]]] = {}
    for chapter in chapters:
        by_id.setdefault(chapter["series_id"], []).append(chapter)
    return {id_: (group[-1]["series_title"], sorted(group, key=_number)) for id_, group in by_id.items()}


def _number(chapter: Mapping[str, Any]) -> Decimal:
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
        listed = chapters[: max(most - named, 0)]
        named += len(listed)
        yield f"{_plain(name)} ({len(chapters)})" if len(chapters) > 1 else _plain(name)
        for chapter in listed:
            address = " " + _CONTROLS.sub("", chapter["url"]) if chapter["url"] else ""
            yield f"- {_name(chapter)}{address}"
    if count > named:
        yield f"and {count - named} more"


def _name(chapter: Mapping[str, Any]) -> str:
    number, title = chapter["number"], chapter["title"]
    name = f"Chapter {number}" if number is not None else "A chapter"
    return f"{name}: {_plain(title)}" if title else name


def _plain(text: str) -> str:
    return _CONTROLS.sub(" ", text).strip()[:TITLE_CHARS]
