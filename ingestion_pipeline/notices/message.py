"""A message as it is sent: the same notices always make the same bytes. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, RowMapping, String, Text, case, cast, select

from ingestion_pipeline.sources.recipients import ALERTS, OF_THE_HOUSE, Mode
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import notices, outbox, recipients
from ingestion_pipeline.store.types import Json, UtcDateTime

EXTRACTION = "extraction"
RECIPE = "recipe"
JOB_MATCH = "job_match"
BUDGET, RUN_FAILURES, DAEMON_SILENT = OF_THE_HOUSE
KINDS = (EXTRACTION, RECIPE, JOB_MATCH, *ALERTS)


def write_notice(
    connection: Connection,
    kind: str,
    subject_id: str,
    payload: Mapping[str, Any],
    *,
    now: datetime,
) -> bool:
    """Whoever wants to hear of the kind will be told, in the transaction of what it tells of.

    Once for a subject: False if it was told already. `payload` has `title` and `text` for people,
    `source_id` unless it is of the whole house, and whatever programs may want; it stays as it is
    in the webhook's JSON.
    """
    return write_notices(connection, kind, {subject_id: payload}, now=now) > 0


def write_notices(
    connection: Connection, kind: str, payloads: Mapping[str, Mapping[str, Any]], *, now: datetime
) -> int:
    """The same for many subjects, by one statement; how many had not been told."""
    keys = ("title", "text") if kind in OF_THE_HOUSE else ("source_id", "title", "text")
    missing = sorted({key for one in payloads.values() for key in keys if not one.get(key)})
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


_GIVEN = {
    "kind": String(40),
    "subject_id": Text(),
    "announced_at": UtcDateTime(),
    "payload": Json,
}


def tell_subjects(connection: Connection, rows: Sequence[RowMapping]) -> list[str]:
    """One notice for each recipient who wants the kind and has none; the modes of the new ones.

    Whoever was added later is not told of what was before.
    """
    told = [row for row in rows if row["subject_kind"] in KINDS]
    if not told:
        return []
    given_rows = [
        (row["subject_kind"], row["subject_id"], row["created_at"], row["payload"]) for row in told
    ]
    given = row_source(connection, _GIVEN, given_rows, "given")
    mode = recipients.c.mode
    columns = {
        "recipient": recipients.c.id,
        "subject_kind": given.c.kind,
        "subject_id": given.c.subject_id,
        "status": case((mode == Mode.MUTED.value, "muted"), else_="pending"),
        "mode": mode,
        "payload": given.c.payload,
        "created_at": given.c.announced_at,
    }
    wants = cast(recipients.c.kinds, Text).like('%"' + given.c.kind + '"%')
    reached = (
        select(*(value.label(name) for name, value in columns.items()))
        .select_from(given)
        .join(recipients, recipients.c.created_at <= given.c.announced_at)
        .where(wants)
        .order_by(recipients.c.id, given.c.subject_id)  # as chapters: no two wait for each other
    )
    statement = (
        insert_into(connection, notices)
        .from_select(list(columns), reached)
        .on_conflict_do_nothing(index_elements=["recipient", "subject_kind", "subject_id"])
        .returning(notices.c.mode)
    )
    return list(connection.execute(statement).scalars())


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
