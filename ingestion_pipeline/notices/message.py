"""Messages: which notices a recipient's next one holds or when to check again, its text and JSON, and outbox rows.

Chapters of one series are sent together, once the oldest has waited for the grouping window; a
series is sent at most once in `series_seconds`. The caps are sliding windows over sent messages.
When more messages are ready than the caps allow, everything is sent as one message: nothing is
lost, and nobody is flooded. Only what is longer than receivers accept is cut, and the rest is
sent next time. The same notices always make the same bytes.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection

from ingestion_pipeline.settings import Notices
from ingestion_pipeline.sources.source import SYSTEM_ALERTS, Mode
from ingestion_pipeline.store.statements import insert_into
from ingestion_pipeline.store.tables import outbox

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
LONGEST_MESSAGE = 1_000  # chapters, about 300 KB of JSON; many receivers accept at most 1 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingNotice:
    """A notice that is not sent yet and belongs to no message."""

    id: int
    series_id: str | None
    mode: Mode
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message that was sent, and the series it named."""

    at: datetime
    series: frozenset[str | None]
    is_digest: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """Decision: send one message of these notices now."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Decision: send nothing yet; check again then."""

    until: datetime


@dataclass(frozen=True, slots=True)
class Nothing:
    """Decision: there is nothing to send."""


Plan = Send | WaitUntil | Nothing


@dataclass(frozen=True, slots=True)
class _Group:
    ready_at: datetime
    ids: tuple[int, ...]


def plan(pending: Sequence[PendingNotice], sent: Sequence[SentMessage], *, limits: Notices, now: datetime) -> Plan:
    """Return the next message, or when there may be one; `sent` covers `memory(limits)` or more."""
    if not pending:
        return Nothing()
    groups = sorted(_groups(pending, sent, limits, now), key=lambda group: (group.ready_at, group.ids))
    times = [message.at for message in sent]
    caps = (_window(times, HOUR, limits.per_hour, now), _window(times, DAY, limits.per_day, now))
    left, free_at = min(room for room, _ in caps), max(at for _, at in caps)
    ready = [group for group in groups if group.ready_at <= now]
    if not left:
        return WaitUntil(max(free_at, groups[0].ready_at))
    if not ready:
        return WaitUntil(groups[0].ready_at)
    together = ready if len(ready) > left else ready[:1]
    ids = sorted(id_ for group in together for id_ in group.ids)
    return Send(tuple(ids[:LONGEST_MESSAGE]))


def memory(limits: Notices) -> timedelta:
    """Return how far back a sent message still matters."""
    return max(DAY, timedelta(seconds=limits.series_seconds), timedelta(seconds=limits.digest_seconds))


def _groups(
    pending: Sequence[PendingNotice], sent: Sequence[SentMessage], limits: Notices, now: datetime
) -> list[_Group]:
    free = {notice.series_id: _series_free_at(notice.series_id, sent, limits) for notice in pending}
    at_once: dict[str | None, list[PendingNotice]] = {}
    later: list[PendingNotice] = []
    for notice in pending:
        if notice.mode is Mode.DIGEST:
            later.append(notice)
        else:
            at_once.setdefault(notice.series_id, []).append(notice)
    window = timedelta(seconds=limits.grouping_seconds)
    groups = [
        _Group(max(_oldest(notices) + window, free[series]), tuple(notice.id for notice in notices))
        for series, notices in at_once.items()
    ]
    if later:
        groups.append(_digest(later, sent, free, limits, now))
    return groups


def _digest(
    later: Sequence[PendingNotice],
    sent: Sequence[SentMessage],
    free: dict[str | None, datetime],
    limits: Notices,
    now: datetime,
) -> _Group:
    """Return the digest of all that waits for it, without series that were sent a moment ago."""
    due = _digest_due(_oldest(later), sent, limits)
    named = [notice for notice in later if free[notice.series_id] <= now]
    if named:
        return _Group(due, tuple(notice.id for notice in named))
    return _Group(max(due, min(free[notice.series_id] for notice in later)), ())


def _digest_due(oldest: datetime, sent: Sequence[SentMessage], limits: Notices) -> datetime:
    """Return a period after the last digest; after the oldest notice if that digest is long ago."""
    period = timedelta(seconds=limits.digest_seconds)
    last = max((message.at for message in sent if message.is_digest), default=None)
    if last is not None and last + period > oldest:
        return last + period
    return oldest + period


def _series_free_at(series_id: str | None, sent: Sequence[SentMessage], limits: Notices) -> datetime:
    """Return when the series may be sent again; long ago if it was not sent lately."""
    named = [message.at for message in sent if series_id is not None and series_id in message.series]
    return max(named) + timedelta(seconds=limits.series_seconds) if named else _LONG_AGO


def _window(times: Sequence[datetime], length: timedelta, cap: int, now: datetime) -> tuple[int, datetime]:
    """Return how many messages the cap allows now, and when it allows the next one."""
    recent = sorted(at for at in times if at > now - length)
    if len(recent) < cap:
        return cap - len(recent), now
    return 0, recent[len(recent) - cap] + length


def _oldest(notices: Sequence[PendingNotice]) -> datetime:
    return min(notice.created_at for notice in notices)


BUDGET, RUN_FAILURES, DAEMON_DOWN = SYSTEM_ALERTS
CHAPTER = "chapter"
CHAPTER_LANGUAGE = "chapter_language"  # an existing chapter, in a language that is new to it
CHAPTER_KINDS = (CHAPTER, CHAPTER_LANGUAGE)  # subject ids: "12" and "12:de"


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
    if missing:
        raise ValueError(f"no notice of kind {kind!r} without {', '.join(missing)}")
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
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
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
    chapters = [payload for kind, payload in entries if kind in CHAPTER_KINDS]
    events = [(kind, payload) for kind, payload in entries if kind not in CHAPTER_KINDS]
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
        message_of("", "", entries, text_chapters=text_chapters)
        texts = [payload["detected_at"] for _, payload in entries]
        without_zone = [text for text in texts if datetime.fromisoformat(text).tzinfo is None]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"ValueError: detected_at {without_zone[0]!r} has no time zone" if without_zone else None


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
            address = " " + CONTROLS.sub("", chapter["url"]) if chapter["url"] else ""
            yield f"- {_name(chapter)}{address}"
    if count > named:
        yield f"and {count - named} more"


def _name(chapter: Mapping[str, Any]) -> str:
    number, title = chapter["number"], chapter["title"]
    name = f"Chapter {number}" if number is not None else "A chapter"
    return f"{name}: {_plain(title)}" if title else name


def _plain(text: str) -> str:
    return CONTROLS.sub(" ", text).strip()[:TITLE_CHARS]
