"""Outbox rows and notices of chapters when chapters are merged, split or withdrawn.

Followers are never notified twice of a chapter, and no pending notification is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, Text, delete, exists, func, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.series import latest
from ingestion_pipeline.series.latest import CHAPTER_LANGUAGE
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.tables import chapter_sources, chapters, follows, notices, outbox, series
from ingestion_pipeline.store.types import Id, Json

KINDS = ("chapter", CHAPTER_LANGUAGE)  # subject ids: "12" and "12:de"
WITHDRAWN = "the chapter was withdrawn"  # error of a muted notice; `restore` matches it

_NO_FOLLOWERS = datetime(1970, 1, 1, tzinfo=UTC)  # nobody followed by then

_Pairs = Mapping[int, int]  # duplicate chapter: surviving chapter


def lock(connection: Connection, staying: Collection[int], *, old: str, new: str) -> None:
    """Lock the follows, outbox rows and notices a merge may change, each table in its lock order.

    `staying` are the chapters of `new` whose key `old` has, too.
    """
    theirs = select(follows.c.series_id).where(follows.c.series_id.in_([old, new]))
    in_order = theirs.order_by(follows.c.recipient_id, follows.c.series_id)
    connection.execute(in_order.with_for_update()).all()
    of_both = select(chapters.c.id).where(chapters.c.series_id.in_([old, new]))
    _rows_about(connection, outbox, list(connection.execute(of_both).scalars()))
    batch = row_source(connection, {"id": Text()}, [(str(chapter_id),) for chapter_id in staying], "given")
    is_staying = notices.c.subject_kind.in_(KINDS) & notices.c.subject_id.in_(select(batch.c.id))
    concerned = select(notices.c.id).where(or_(notices.c.series_id == old, is_staying))
    connection.execute(concerned.order_by(notices.c.id).with_for_update()).all()


def repoint(connection: Connection, pairs: _Pairs, *, series_id: str) -> int:
    """Move outbox rows and notices of each duplicate chapter to the chapter that survives.

    Return how many notices were dropped because their recipient already has one of the survivor.
    """
    if not pairs:
        return 0
    _repoint_outbox(connection, pairs, series_id)
    return _repoint_notices(connection, pairs, series_id)


def _repoint_outbox(connection: Connection, pairs: _Pairs, series_id: str) -> None:
    duplicates = _rows_about(connection, outbox, pairs.keys())
    survivors = {_subject(row): row for row in _rows_about(connection, outbox, pairs.values())}
    moved: list[tuple[Any, ...]] = []
    dropped: list[int] = []
    reopened: list[int] = []
    for row in duplicates:
        subject = _subject(row, pairs)
        survivor = survivors.get(subject)
        if survivor is None:
            moved.append((row["id"], subject[1], _payload(row, subject[1], series_id)))
            continue
        dropped.append(row["id"])
        if row["handled_at"] is None and survivor["handled_at"] is not None:
            # else followers of the duplicate's series would not be notified
            reopened.append(survivor["id"])
    connection.execute(delete(outbox).where(_among(connection, outbox.c.id, dropped)))
    again = update(outbox).where(_among(connection, outbox.c.id, reopened))
    connection.execute(again.values(handled_at=None))
    _rewrite(connection, outbox, moved)


def _repoint_notices(connection: Connection, pairs: _Pairs, series_id: str) -> int:
    duplicates = _rows_about(connection, notices, pairs.keys())
    survivors = {(row["recipient"], *_subject(row)): row for row in _rows_about(connection, notices, pairs.values())}
    moved: list[tuple[Any, ...]] = []
    dropped: list[int] = []
    for row in duplicates:
        subject = _subject(row, pairs)
        survivor = survivors.get((row["recipient"], *subject))
        if survivor is not None and not _replaces(row, survivor):
            dropped.append(row["id"])
            continue
        if survivor is not None:
            dropped.append(survivor["id"])
        moved.append((row["id"], subject[1], _payload(row, subject[1], series_id)))
    connection.execute(delete(notices).where(_among(connection, notices.c.id, dropped)))
    _rewrite(connection, notices, moved)
    return len(dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """A chapter that only one of two series has, and the followers of the other who miss it.

    Without recipients it belongs to the backlog: it is announced once a source of the other series
    lists it.
    """

    chapter_id: int
    recipients: Sequence[str]


def unseen(connection: Connection, old: str, new: str) -> list[Unseen]:
    """Return the chapters that a merge makes visible to followers for whom they are new.

    New are chapters beyond the latest of the follower's own series, and those detected in the other
    series after the follower began to follow. The other series' backlog is not new until a source
    of the follower's series lists it. Who follows both series was notified already.
    """
    return [*_unseen(connection, old, new), *_unseen(connection, new, old)]


def _unseen(connection: Connection, mine: str, other: str) -> list[Unseen]:
    since = _followers_of_only(connection, mine, but_not=other)
    if not since:
        return []
    ours, query = chapters.alias(), select(series.c.latest_chapter).where(series.c.id == mine)
    highest = connection.execute(query).scalar_one_or_none()
    is_ours = exists().where(ours.c.series_id == mine, ours.c.key == chapters.c.key)
    is_there = exists().where(chapter_sources.c.chapter_id == chapters.c.id, chapter_sources.c.available)
    theirs = chapters.c.series_id == other
    began = select(func.min(chapters.c.first_detected_at)).where(theirs).scalar_subquery()
    is_backlog = or_(chapters.c.first_detected_at <= began, chapters.c.unannounced)
    query = select(chapters.c.id, chapters.c.number, chapters.c.first_detected_at, is_backlog)
    rows = connection.execute(query.where(theirs, ~is_ours, is_there, chapters.c.rejected_at.is_(None)))
    owed: list[Unseen] = []
    for id_, number, detected_at, is_old in rows:
        is_later = None not in (highest, number) and number > highest
        recipients = [
            recipient
            for recipient, followed_at in since.items()
            if is_later or (not is_old and followed_at <= detected_at)
        ]
        owed += [Unseen(chapter_id=id_, recipients=recipients)] if recipients or is_old else []
    return owed


def _followers_of_only(connection: Connection, series_id: str, *, but_not: str) -> dict[str, datetime]:
    """Return since when each recipient follows the series; who follows both is left out."""
    others = select(follows.c.recipient_id).where(follows.c.series_id == but_not)
    query = select(follows.c.recipient_id, follows.c.created_at).where(
        follows.c.series_id == series_id, follows.c.recipient_id.not_in(others.scalar_subquery())
    )
    rows = connection.execute(query.order_by(follows.c.recipient_id))
    return {recipient: at for recipient, at in rows}  # noqa: C416 - rows to a dict


def announce_unseen(connection: Connection, owed: Sequence[Unseen], *, series_id: str, now: datetime) -> None:
    """Add these followers to the chapters' outbox rows, beside those the rows already reach."""
    latest.mark_unannounced(
        connection, [unseen_chapter.chapter_id for unseen_chapter in owed if not unseen_chapter.recipients]
    )
    owed = [chapter for chapter in owed if chapter.recipients]
    rows = {row["subject_id"]: row for row in _rows_about(connection, outbox, {chapter.chapter_id for chapter in owed})}
    values: list[dict[str, Any]] = []
    for chapter in owed:
        row = rows.get(str(chapter.chapter_id))
        before: dict[str, Any] = {} if row is None else row["payload"]
        followed_by = before.get("followed_by") or (row["created_at"] if row else _NO_FOLLOWERS)
        payload = before | {
            "series_id": series_id,
            "chapter_id": chapter.chapter_id,
            "followed_by": str(followed_by),
            "also": sorted({*chapter.recipients, *before.get("also", ())}),
        }
        values.append(
            {"subject_kind": "chapter", "subject_id": str(chapter.chapter_id), "payload": payload, "created_at": now}
        )
    latest.put_in_outbox(connection, values)


def takes_precedence(duplicate: str, survivor: str) -> bool:
    """Return whether the duplicate's notice replaces the survivor's; a sent notice stays sent."""
    if duplicate == "sent":
        return survivor != "sent"
    return duplicate == "pending" and survivor == "failed"


def _replaces(duplicate: RowMapping, survivor: RowMapping) -> bool:
    if duplicate["status"] == survivor["status"] == "pending":
        return is_sealed(duplicate) and not is_sealed(survivor)
    return takes_precedence(duplicate["status"], survivor["status"])


def is_sealed(row: RowMapping) -> bool:
    """Return whether the notice is part of a message, which is only ever sent unchanged."""
    return row.get("delivery_id") is not None


def move_to_series(connection: Connection, old: str, new: str) -> int:
    """Move notices, pending outbox rows and follows to the other series; return the follows moved.

    The payload of a notice that was sent or is part of a message stays as it is.
    """
    connection.execute(update(notices).where(notices.c.series_id == old).values(series_id=new))
    waiting = ((outbox, outbox.c.handled_at.is_(None)), (notices, _is_unsent()))
    for table, is_waiting in waiting:
        query = select(table.c.id, table.c.subject_id, table.c.payload).where(
            table.c.subject_kind.in_(KINDS), is_waiting
        )
        rows = connection.execute(query).mappings().all()
        theirs = [row for row in rows if row["payload"].get("series_id") == old]
        renamed = [(row["id"], row["subject_id"], _payload(row, row["subject_id"], new)) for row in theirs]
        _rewrite(connection, table, renamed)
    return _move_follows(connection, old, new)


def _move_follows(connection: Connection, old: str, new: str) -> int:
    already = select(follows.c.recipient_id).where(follows.c.series_id == new)
    theirs = follows.c.series_id == old
    moved = (
        update(follows).where(theirs, follows.c.recipient_id.not_in(already.scalar_subquery())).values(series_id=new)
    )
    count = connection.execute(moved).rowcount
    connection.execute(delete(follows).where(theirs))
    return count


def announced_chapters(connection: Connection, chapter_ids: Collection[int]) -> set[int]:
    """Return those of these chapters that an outbox row or a notice refers to."""
    if not chapter_ids:
        return set()
    rows = [*_rows_about(connection, outbox, chapter_ids), *_rows_about(connection, notices, chapter_ids)]
    return {_chapter_id(row["subject_id"]) for row in rows}


def suppress(connection: Connection, chapter_id: int, *, now: datetime) -> int:
    """Stop pending notifications of the chapter; return how many notices were muted.

    A message that is being sent may have arrived, so its notices are left as they are.
    """
    unsaid = _of_chapter(outbox, chapter_id) & outbox.c.handled_at.is_(None)
    connection.execute(update(outbox).where(unsaid).values(handled_at=now))
    pending = _of_chapter(notices, chapter_id) & _is_unsent()
    muted = update(notices).where(pending).values(status="muted", error=WITHDRAWN)
    return connection.execute(muted).rowcount


def restore(connection: Connection, chapter_id: int, *, suppressed_at: datetime) -> int:
    """Release what `suppress` held back at that time, for current followers; return the notices."""
    held = _of_chapter(outbox, chapter_id) & (outbox.c.handled_at == suppressed_at)
    connection.execute(update(outbox).where(held).values(handled_at=None))
    muted = _of_chapter(notices, chapter_id) & (notices.c.error == WITHDRAWN)
    still = exists().where(follows.c.recipient_id == notices.c.recipient, follows.c.series_id == notices.c.series_id)
    pending = update(notices).where(muted, notices.c.status == "muted", still).values(status="pending", error=None)
    return connection.execute(pending).rowcount


def _is_unsent() -> ColumnElement[bool]:
    return (notices.c.status == "pending") & notices.c.delivery_id.is_(None)


def _of_chapter(table: Table, chapter_id: int) -> ColumnElement[bool]:
    subject = table.c.subject_id
    is_it = subject == str(chapter_id)
    if table is outbox:
        is_it = or_(is_it, subject.like(f"{chapter_id}:%"))
    return table.c.subject_kind.in_(KINDS) & is_it


def _rows_about(connection: Connection, table: Table, chapter_ids: Collection[int]) -> Sequence[RowMapping]:
    """Lock and return the rows that refer to these chapters, in any language."""
    batch = row_source(
        connection, {"subject": Text()}, [(str(chapter_id),) for chapter_id in sorted(chapter_ids)], "given"
    )
    query = (
        select(table)
        .join(batch, batch.c.subject == _chapter(connection, table))
        .where(table.c.subject_kind.in_(KINDS))
        .order_by(table.c.id)
        .with_for_update(of=table)
    )
    return connection.execute(query).mappings().all()


def _chapter(connection: Connection, table: Table) -> ColumnElement[str]:
    """Return the SQL expression of the chapter id in a subject id.

    Notices refer to chapters only and are indexed by the bare column.
    """
    subject = table.c.subject_id
    if table is notices:
        return subject
    if connection.dialect.name == "postgresql":
        return func.split_part(subject, ":", 1)
    return func.substr(subject, 1, func.instr(subject.concat(":"), ":") - 1)


def _subject(row: RowMapping, pairs: _Pairs | None = None) -> tuple[str, str]:
    """Return kind and id of the row's subject; with `pairs`, of the surviving chapter."""
    if pairs is None:
        return row["subject_kind"], row["subject_id"]
    _, colon, language = row["subject_id"].partition(":")
    survivor_id = pairs[_chapter_id(row["subject_id"])]
    return row["subject_kind"], f"{survivor_id}{colon}{language}"


def _chapter_id(subject_id: str) -> int:
    return int(subject_id.partition(":")[0])


def _payload(row: RowMapping, subject_id: str, series_id: str) -> dict[str, Any]:
    is_final = row.get("handled_at") is not None or row.get("status", "pending") != "pending"
    if is_final or is_sealed(row):
        return row["payload"]
    return row["payload"] | {"series_id": series_id, "chapter_id": _chapter_id(subject_id)}


def _among(connection: Connection, column: ColumnElement[int], ids: Sequence[int]) -> ColumnElement[bool]:
    """Return a condition for any number of ids: chapters times followers exceed every IN list."""
    batch = row_source(connection, {"id": Id}, [(id_,) for id_ in ids], "among")
    return column.in_(select(batch.c.id))


def _rewrite(connection: Connection, table: Table, changed: Sequence[tuple[Any, ...]]) -> None:
    if not changed:
        return
    columns = {"id": Id, "subject_id": Text(), "payload": Json}
    batch = row_source(connection, columns, changed, "given")
    connection.execute(
        update(table).where(table.c.id == batch.c.id).values(subject_id=batch.c.subject_id, payload=batch.c.payload)
    )
