"""What was told of chapters, when chapters move: outbox rows and notices follow them.

Nobody is told a second time, and nothing that is still to be told is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    Connection,
    RowMapping,
    Table,
    Text,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.series import latest
from ingestion_pipeline.series.latest import CHAPTER_LANGUAGE
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.tables import (
    chapter_sources,
    chapters,
    follows,
    notices,
    outbox,
    series,
)
from ingestion_pipeline.store.types import Id, Json

KINDS = ("chapter", CHAPTER_LANGUAGE)  # subject ids: "12" and "12:de"
WITHDRAWN = "the chapter was withdrawn"  # why a notice is muted; restoring looks for it

_NOBODY = datetime(1970, 1, 1, tzinfo=UTC)  # followed by then

_Pairs = Mapping[int, int]  # chapter that goes: chapter that stays


def lock(connection: Connection, staying: Collection[int], *, old: str, new: str) -> None:
    """Whatever a merge of these series changes of what is told: each table once, in its order.

    `staying` are the chapters of `new` that `old` has, too.
    """
    theirs = select(follows.c.series_id).where(follows.c.series_id.in_([old, new]))
    in_order = theirs.order_by(follows.c.recipient_id, follows.c.series_id)
    connection.execute(in_order.with_for_update()).all()
    of_both = select(chapters.c.id).where(chapters.c.series_id.in_([old, new]))
    _about(connection, outbox, list(connection.execute(of_both).scalars()))
    given = row_source(connection, {"id": Text()}, [(str(one),) for one in staying], "given")
    is_staying = notices.c.subject_kind.in_(KINDS) & notices.c.subject_id.in_(select(given.c.id))
    concerned = select(notices.c.id).where(or_(notices.c.series_id == old, is_staying))
    connection.execute(concerned.order_by(notices.c.id).with_for_update()).all()


def repoint(connection: Connection, pairs: _Pairs, *, series_id: str) -> int:
    """What was or is to be told of each chapter that goes speaks of the one that stays.

    How many notices were dropped, because their recipient has one of the chapter that stays.
    """
    if not pairs:
        return 0
    _repoint_outbox(connection, pairs, series_id)
    return _repoint_notices(connection, pairs, series_id)


def _repoint_outbox(connection: Connection, pairs: _Pairs, series_id: str) -> None:
    going = _about(connection, outbox, pairs.keys())
    staying = {_subject(row): row for row in _about(connection, outbox, pairs.values())}
    moved: list[tuple[Any, ...]] = []
    dropped: list[int] = []
    reopened: list[int] = []
    for row in going:
        subject = _subject(row, pairs)
        kept = staying.get(subject)
        if kept is None:
            moved.append((row["id"], subject[1], _payload(row, subject[1], series_id)))
            continue
        dropped.append(row["id"])
        if row["handled_at"] is None and kept["handled_at"] is not None:
            reopened.append(kept["id"])  # else those who followed the one that goes hear nothing
    connection.execute(delete(outbox).where(_among(connection, outbox.c.id, dropped)))
    again = update(outbox).where(_among(connection, outbox.c.id, reopened))
    connection.execute(again.values(handled_at=None))
    _rewrite(connection, outbox, moved)


def _repoint_notices(connection: Connection, pairs: _Pairs, series_id: str) -> int:
    going = _about(connection, notices, pairs.keys())
    staying = {
        (row["recipient"], *_subject(row)): row
        for row in _about(connection, notices, pairs.values())
    }
    moved: list[tuple[Any, ...]] = []
    dropped: list[int] = []
    for row in going:
        subject = _subject(row, pairs)
        kept = staying.get((row["recipient"], *subject))
        if kept is not None and not _replaces(row, kept):
            dropped.append(row["id"])
            continue
        if kept is not None:
            dropped.append(kept["id"])
        moved.append((row["id"], subject[1], _payload(row, subject[1], series_id)))
    connection.execute(delete(notices).where(_among(connection, notices.c.id, dropped)))
    _rewrite(connection, notices, moved)
    return len(dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """A chapter that only one of two series has, and the other's followers who miss it.

    Without recipients it is of the backlog: news once a source of the other series lists it.
    """

    chapter_id: int
    recipients: Sequence[str]


def unseen(connection: Connection, old: str, new: str) -> list[Unseen]:
    """Return what a merge shows to followers of either series that is new to them.

    That is what is beyond their series' latest, and what was found in the other after they began to
    follow. The other's backlog is old, until a source of theirs lists it; who follows both has been
    told of it.
    """
    return [*_unseen(connection, old, new), *_unseen(connection, new, old)]


def _unseen(connection: Connection, mine: str, other: str) -> list[Unseen]:
    since = _followers_of_one(connection, mine, but_not=other)
    if not since:
        return []
    ours, query = chapters.alias(), select(series.c.latest_chapter).where(series.c.id == mine)
    highest = connection.execute(query).scalar_one_or_none()
    is_ours = exists().where(ours.c.series_id == mine, ours.c.key == chapters.c.key)
    is_there = exists().where(
        chapter_sources.c.chapter_id == chapters.c.id, chapter_sources.c.available
    )
    theirs = chapters.c.series_id == other
    began = select(func.min(chapters.c.first_detected_at)).where(theirs).scalar_subquery()
    is_backlog = or_(chapters.c.first_detected_at <= began, chapters.c.unannounced)
    query = select(chapters.c.id, chapters.c.number, chapters.c.first_detected_at, is_backlog)
    rows = connection.execute(
        query.where(theirs, ~is_ours, is_there, chapters.c.rejected_at.is_(None))
    )
    owed: list[Unseen] = []
    for id_, number, detected_at, is_old in rows:
        is_later = None not in (highest, number) and number > highest
        who = [
            recipient
            for recipient, at in since.items()
            if is_later or (not is_old and at <= detected_at)
        ]
        owed += [Unseen(chapter_id=id_, recipients=who)] if who or is_old else []
    return owed


def _followers_of_one(
    connection: Connection, series_id: str, *, but_not: str
) -> dict[str, datetime]:
    """Return since when each follower of the one series, and not of the other, follows it."""
    others = select(follows.c.recipient_id).where(follows.c.series_id == but_not)
    query = select(follows.c.recipient_id, follows.c.created_at).where(
        follows.c.series_id == series_id, follows.c.recipient_id.not_in(others.scalar_subquery())
    )
    found = connection.execute(query.order_by(follows.c.recipient_id))
    return {recipient: at for recipient, at in found}  # noqa: C416 - rows to a dict


def announce_unseen(
    connection: Connection, owed: Sequence[Unseen], *, series_id: str, now: datetime
) -> None:
    """Let the outbox name these followers, beside whoever its row of the chapter is for."""
    latest.mark_unannounced(connection, [one.chapter_id for one in owed if not one.recipients])
    owed = [chapter for chapter in owed if chapter.recipients]
    rows = {
        row["subject_id"]: row
        for row in _about(connection, outbox, {chapter.chapter_id for chapter in owed})
    }
    values: list[dict[str, Any]] = []
    for chapter in owed:
        row = rows.get(str(chapter.chapter_id))
        before: dict[str, Any] = {} if row is None else row["payload"]
        followed_by = before.get("followed_by") or (row["created_at"] if row else _NOBODY)
        payload = before | {
            "series_id": series_id,
            "chapter_id": chapter.chapter_id,
            "followed_by": str(followed_by),
            "also": sorted({*chapter.recipients, *before.get("also", ())}),
        }
        values.append(
            {
                "subject_kind": "chapter",
                "subject_id": str(chapter.chapter_id),
                "payload": payload,
                "created_at": now,
            }
        )
    latest.put_in_outbox(connection, values)


def says_more(going: str, staying: str) -> bool:
    """Whether the notice that goes must replace the one that stays: what was sent stays sent."""
    if going == "sent":
        return staying != "sent"
    return going == "pending" and staying == "failed"


def _replaces(going: RowMapping, kept: RowMapping) -> bool:
    if going["status"] == kept["status"] == "pending":
        return is_begun(going) and not is_begun(kept)
    return says_more(going["status"], kept["status"])


def is_begun(row: RowMapping) -> bool:
    """Whether a notice is in a message, which is sent as it is, and again so, under its own key."""
    return row.get("delivery_id") is not None


def rename_series(connection: Connection, old: str, new: str) -> int:
    """Notices, what is still to be told, and follows belong to the other series; the follows.

    A payload that has been sent, or is in a message, stays what was said.
    """
    connection.execute(update(notices).where(notices.c.series_id == old).values(series_id=new))
    waiting = (
        (outbox, outbox.c.handled_at.is_(None)),
        (notices, _is_unsaid()),
    )
    for table, is_waiting in waiting:
        query = select(table.c.id, table.c.subject_id, table.c.payload).where(
            table.c.subject_kind.in_(KINDS), is_waiting
        )
        found = connection.execute(query).mappings().all()
        theirs = [row for row in found if row["payload"].get("series_id") == old]
        renamed = [
            (row["id"], row["subject_id"], _payload(row, row["subject_id"], new)) for row in theirs
        ]
        _rewrite(connection, table, renamed)
    return _move_follows(connection, old, new)


def _move_follows(connection: Connection, old: str, new: str) -> int:
    already = select(follows.c.recipient_id).where(follows.c.series_id == new)
    theirs = follows.c.series_id == old
    moved = (
        update(follows)
        .where(theirs, follows.c.recipient_id.not_in(already.scalar_subquery()))
        .values(series_id=new)
    )
    count = connection.execute(moved).rowcount
    connection.execute(delete(follows).where(theirs))
    return count


def announced_chapters(connection: Connection, chapter_ids: Collection[int]) -> set[int]:
    """Of these chapters, those that an outbox row or a notice speaks of."""
    if not chapter_ids:
        return set()
    found = [
        *_about(connection, outbox, chapter_ids),
        *_about(connection, notices, chapter_ids),
    ]
    return {_chapter_id(row["subject_id"]) for row in found}


def suppress(connection: Connection, chapter_id: int, *, now: datetime) -> int:
    """What is still to be told of the chapter is told to nobody; how many notices were muted.

    A message that was begun may have arrived: it is not recalled.
    """
    unsaid = _of_chapter(outbox, chapter_id) & outbox.c.handled_at.is_(None)
    connection.execute(update(outbox).where(unsaid).values(handled_at=now))
    pending = _of_chapter(notices, chapter_id) & _is_unsaid()
    muted = update(notices).where(pending).values(status="muted", error=WITHDRAWN)
    return connection.execute(muted).rowcount


def speak_again(connection: Connection, chapter_id: int, *, silenced_at: datetime) -> int:
    """What `silence` held back at that moment is told to who still follows; how many notices."""
    held = _of_chapter(outbox, chapter_id) & (outbox.c.handled_at == silenced_at)
    connection.execute(update(outbox).where(held).values(handled_at=None))
    muted = _of_chapter(notices, chapter_id) & (notices.c.error == WITHDRAWN)
    still = exists().where(
        follows.c.recipient_id == notices.c.recipient, follows.c.series_id == notices.c.series_id
    )
    pending = (
        update(notices)
        .where(muted, notices.c.status == "muted", still)
        .values(status="pending", error=None)
    )
    return connection.execute(pending).rowcount


def _is_unsaid() -> ColumnElement[bool]:
    return (notices.c.status == "pending") & notices.c.delivery_id.is_(None)


def _of_chapter(table: Table, chapter_id: int) -> ColumnElement[bool]:
    subject = table.c.subject_id
    is_it = subject == str(chapter_id)
    if table is outbox:
        is_it = or_(is_it, subject.like(f"{chapter_id}:%"))
    return table.c.subject_kind.in_(KINDS) & is_it


def _about(
    connection: Connection, table: Table, chapter_ids: Collection[int]
) -> Sequence[RowMapping]:
    """The rows that speak of these chapters, in any language; nobody handles or sends them now."""
    given = row_source(
        connection, {"subject": Text()}, [(str(one),) for one in sorted(chapter_ids)], "given"
    )
    query = (
        select(table)
        .join(given, given.c.subject == _chapter(connection, table))
        .where(table.c.subject_kind.in_(KINDS))
        .order_by(table.c.id)
        .with_for_update(of=table)
    )
    return connection.execute(query).mappings().all()


def _chapter(connection: Connection, table: Table) -> ColumnElement[str]:
    """The chapter's id in a subject; notices are of chapters alone, and have an index by it."""
    subject = table.c.subject_id
    if table is notices:
        return subject
    if connection.dialect.name == "postgresql":
        return func.split_part(subject, ":", 1)
    return func.substr(subject, 1, func.instr(subject.concat(":"), ":") - 1)


def _subject(row: RowMapping, pairs: _Pairs | None = None) -> tuple[str, str]:
    """Kind and id, of the chapter that stays in place of the one that goes."""
    if pairs is None:
        return row["subject_kind"], row["subject_id"]
    _, colon, language = row["subject_id"].partition(":")
    stays = pairs[_chapter_id(row["subject_id"])]
    return row["subject_kind"], f"{stays}{colon}{language}"


def _chapter_id(subject_id: str) -> int:
    return int(subject_id.partition(":")[0])


def _payload(row: RowMapping, subject_id: str, series_id: str) -> dict[str, Any]:
    is_said = row.get("handled_at") is not None or row.get("status", "pending") != "pending"
    if is_said or is_begun(row):
        return row["payload"]
    return row["payload"] | {"series_id": series_id, "chapter_id": _chapter_id(subject_id)}


def _among(
    connection: Connection, column: ColumnElement[int], ids: Sequence[int]
) -> ColumnElement[bool]:
    """However many: each of a series' chapters times its followers is beyond any IN list."""
    given = row_source(connection, {"id": Id}, [(one,) for one in ids], "among")
    return column.in_(select(given.c.id))


def _rewrite(connection: Connection, table: Table, changed: Sequence[tuple[Any, ...]]) -> None:
    if not changed:
        return
    columns = {"id": Id, "subject_id": Text(), "payload": Json}
    given = row_source(connection, columns, changed, "given")
    connection.execute(
        update(table)
        .where(table.c.id == given.c.id)
        .values(subject_id=given.c.subject_id, payload=given.c.payload)
    )
