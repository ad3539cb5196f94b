"""Outbox rows and notices of chapters: what ingestion announces, and what becomes of it when series change.

Followers are never notified twice of a chapter, and no pending notification is lost.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Table, Text, delete, exists, func, or_, select, update

from ingestion_pipeline.notices.message import CHAPTER, CHAPTER_KINDS, CHAPTER_LANGUAGE
from ingestion_pipeline.series.chapter import Chapter
from ingestion_pipeline.series.chapter_plan import ChapterKey, ChapterPlan
from ingestion_pipeline.series.chapter_rows import IS_AVAILABLE, among, chapters_by_key, mark_unannounced
from ingestion_pipeline.store.statements import insert_into, row_source
from ingestion_pipeline.store.tables import chapter_sources, chapters, follows, notices, outbox, series, sources
from ingestion_pipeline.store.types import Id, Json

WITHDRAWN = "the chapter was withdrawn"  # error of a muted notice; `restore` matches it
_IS_UNSENT = (notices.c.status == "pending") & notices.c.delivery_id.is_(None)
_NO_FOLLOWERS = datetime(1970, 1, 1, tzinfo=UTC)  # nobody followed by then
_Pairs = Mapping[int, int]  # duplicate chapter: surviving chapter
CHAPTER_COLUMNS = (chapters.c.id, chapters.c.series_id, chapters.c.key, chapters.c.number, chapters.c.title)


def chapter_payload(row: Any, source_id: str) -> dict[str, Any]:  # noqa: ANN401 - any such row
    """Return the outbox payload of a chapter, from a row of its `CHAPTER_COLUMNS`."""
    return {
        "series_id": row.series_id,
        "chapter_id": row.id,
        "number": None if row.number is None else f"{row.number:f}",
        "title": row.title,
        "source_id": source_id,
    }


def announce(
    connection: Connection, news: Mapping[ChapterKey, str], *, revealed: Collection[ChapterKey], now: datetime
) -> None:
    """Write one outbox row per chapter (series, key), naming the source that listed it.

    A `revealed` chapter is sent to those who followed the series when it was first detected.
    """
    rows: list[dict[str, Any]] = []
    for row in chapters_by_key(connection, news, *CHAPTER_COLUMNS, chapters.c.first_detected_at):
        key = (row.series_id, row.key)
        followed_by = {"followed_by": row.first_detected_at.isoformat()} if key in revealed else {}
        rows.append(_outbox_row(CHAPTER, str(row.id), chapter_payload(row, news[key]) | followed_by, now))
    put_in_outbox(connection, rows)


def _outbox_row(kind: str, subject_id: str, payload: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    return {"subject_kind": kind, "subject_id": subject_id, "payload": payload, "created_at": now}


def put_in_outbox(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Upsert these outbox rows; a row that was handled is handled again."""
    if not rows:
        return
    statement = insert_into(connection, outbox)
    again = {name: statement.excluded[name] for name in ("payload", "created_at")}
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["subject_kind", "subject_id"], set_=again | {"handled_at": None}
        ),
        rows,
    )


Pair = tuple[int, str]  # chapter id, language
# The source that brings a language, and when a silent first sync listed it before.
NewLanguages = dict[Pair, tuple[str, datetime | None]]


def new_languages(
    connection: Connection, plans: Sequence[ChapterPlan], ids: Mapping[ChapterKey, int], created: Container[ChapterKey]
) -> NewLanguages:
    """Return languages that are new to existing chapters, before the plans are written.

    Silent syncs do not count. A chapter that is itself new is announced as such, and a renumbered
    one is not news.
    """
    brought: dict[Pair, list[str]] = {}
    for plan in plans:
        if not plan.announces_all:
            continue
        for chapter_id, chapter in _existing_chapters(plan, ids, created):
            for language in {release.language for release in chapter.releases if release.language}:
                brought.setdefault((chapter_id, language), []).append(plan.listing.source.id)
    if not brought:
        return {}
    existing = _languages(connection, {chapter_id for chapter_id, _ in brought})
    # the announced languages of a chapter whose sources were all split off are unknown
    chapters_with_languages = {chapter_id for chapter_id, _ in existing}
    return {
        pair: news
        for pair, source_ids in brought.items()
        if pair[0] in chapters_with_languages and (news := _news(source_ids, existing.get(pair, {})))
    }


def _news(source_ids: Sequence[str], existing: Mapping[str, datetime | None]) -> tuple[str, datetime | None] | None:
    """Return the source that brings a new language; None if a source announced it before."""
    if None in existing.values():
        return None
    first = next((id_ for id_ in source_ids if id_ not in existing), None)
    earliest = min((at for at in existing.values() if at is not None), default=None)
    return (first, earliest) if first is not None else None


def _existing_chapters(
    plan: ChapterPlan, ids: Mapping[ChapterKey, int], created: Container[ChapterKey]
) -> list[tuple[int, Chapter]]:
    """Return the chapters the plan writes that existed before, with their ids."""
    new = [
        (ids[plan.series_id, chapter.key], chapter)
        for chapter in plan.new_links
        if (plan.series_id, chapter.key) not in created and chapter.key not in plan.renumbered
    ]
    return [*new, *((link.chapter_id, chapter) for chapter, link in plan.changed_links)]


def _languages(
    connection: Connection, chapter_ids: set[int]
) -> dict[tuple[int, str | None], dict[str, datetime | None]]:
    """Return the sources that list or listed each (chapter, language); None is a language, too.

    The value is the time at which a silent first sync added it to an existing chapter, else None.
    """
    link = chapter_sources.c
    came_with_first_sync = (link.detected_at <= sources.c.synced_at) & (link.detected_at > chapters.c.first_detected_at)
    query = (
        select(link.chapter_id, link.source_id, link.releases, link.detected_at, came_with_first_sync)
        .join(chapters, chapters.c.id == link.chapter_id)
        .outerjoin(sources, sources.c.id == link.source_id)
        .where(link.chapter_id.in_(sorted(chapter_ids)))
    )
    languages: dict[tuple[int, str | None], dict[str, datetime | None]] = {}
    for chapter_id, source_id, releases, detected_at, is_suppressed in connection.execute(query):
        for release in releases:
            holders = languages.setdefault((chapter_id, release["language"]), {})
            holders[source_id] = detected_at if is_suppressed else None
    return languages


def announce_languages(connection: Connection, languages: NewLanguages, *, now: datetime) -> None:
    """Write one outbox row per chapter and language, only once; none for a rejected chapter."""
    if not languages:
        return
    query = select(*CHAPTER_COLUMNS).where(
        chapters.c.id.in_({chapter_id for chapter_id, _ in languages}), chapters.c.rejected_at.is_(None)
    )
    chapters_by_id = {row.id: row for row in connection.execute(query)}
    new: list[dict[str, Any]] = []
    for (chapter_id, language), (source_id, suppressed_at) in sorted(languages.items(), key=itemgetter(0)):
        if chapter_id in chapters_by_id:
            # news that a silent sync suppressed are for those who followed at that time
            followed_by = {"followed_by": suppressed_at.isoformat()} if suppressed_at else {}
            payload = chapter_payload(chapters_by_id[chapter_id], source_id) | {"language": language} | followed_by
            new.append(_outbox_row(CHAPTER_LANGUAGE, f"{chapter_id}:{language}", payload, now))
    if new:
        insert = insert_into(connection, outbox).on_conflict_do_nothing(index_elements=["subject_kind", "subject_id"])
        connection.execute(insert, new)


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
    is_staying = notices.c.subject_kind.in_(CHAPTER_KINDS) & notices.c.subject_id.in_(select(batch.c.id))
    concerned = select(notices.c.id).where(or_(notices.c.series_id == old, is_staying))
    connection.execute(concerned.order_by(notices.c.id).with_for_update()).all()


def repoint(connection: Connection, pairs: _Pairs, *, series_id: str) -> int:
    """Move outbox rows and notices of each duplicate to the chapter that survives; return the notices dropped."""
    if not pairs:
        return 0
    _repoint(connection, outbox, pairs, series_id)
    return _repoint(connection, notices, pairs, series_id)


def _repoint(connection: Connection, table: Table, pairs: _Pairs, series_id: str) -> int:
    """Move the table's rows, or drop one of two about the same; return how many were dropped."""
    survivors = {(row.get("recipient"), *_subject(row)): row for row in _rows_about(connection, table, pairs.values())}
    moved: list[tuple[RowMapping, str]] = []
    dropped: list[int] = []
    for row in _rows_about(connection, table, pairs.keys()):
        subject = _subject(row, pairs)
        survivor = survivors.get((row.get("recipient"), *subject))
        if survivor is None or (table is notices and _replaces(row, survivor)):
            moved.append((row, subject[1]))
            dropped += [] if survivor is None else [survivor["id"]]
            continue
        dropped.append(row["id"])
        if table is outbox and row["handled_at"] is None and survivor["handled_at"] is not None:
            # else followers of the duplicate's series would not be notified
            connection.execute(update(outbox).where(outbox.c.id == survivor["id"]).values(handled_at=None))
    connection.execute(delete(table).where(among(connection, table.c.id, dropped)))
    _rewrite(connection, table, moved, series_id)
    return len(dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """A chapter that only one of two series has, and the followers of the other who miss it.

    Without recipients it belongs to the backlog: it is announced once a source of the other series lists it.
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
    both = select(follows.c.recipient_id).where(follows.c.series_id == other)
    followers = select(follows.c.recipient_id, follows.c.created_at).where(
        follows.c.series_id == mine, follows.c.recipient_id.not_in(both.scalar_subquery())
    )
    since = connection.execute(followers.order_by(follows.c.recipient_id)).all()
    if not since:
        return []
    ours, query = chapters.alias(), select(series.c.latest_chapter).where(series.c.id == mine)
    highest = connection.execute(query).scalar_one_or_none()
    is_ours = exists().where(ours.c.series_id == mine, ours.c.key == chapters.c.key)
    theirs = chapters.c.series_id == other
    began = select(func.min(chapters.c.first_detected_at)).where(theirs).scalar_subquery()
    is_backlog = or_(chapters.c.first_detected_at <= began, chapters.c.unannounced)
    query = select(chapters.c.id, chapters.c.number, chapters.c.first_detected_at, is_backlog)
    rows = connection.execute(query.where(theirs, ~is_ours, IS_AVAILABLE, chapters.c.rejected_at.is_(None)))
    owed: list[Unseen] = []
    for id_, number, detected_at, is_old in rows:
        is_later = None not in (highest, number) and number > highest
        recipients = [
            recipient for recipient, followed_at in since if is_later or (not is_old and followed_at <= detected_at)
        ]
        owed += [Unseen(chapter_id=id_, recipients=recipients)] if recipients or is_old else []
    return owed


def announce_unseen(connection: Connection, owed: Sequence[Unseen], *, series_id: str, now: datetime) -> None:
    """Add these followers to the chapters' outbox rows, beside those the rows already reach."""
    mark_unannounced(connection, [chapter.chapter_id for chapter in owed if not chapter.recipients])
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
        values.append(_outbox_row(CHAPTER, str(chapter.chapter_id), payload, now))
    put_in_outbox(connection, values)


def _replaces(duplicate: RowMapping, survivor: RowMapping) -> bool:
    """Return whether the duplicate's notice replaces the survivor's; a sent notice stays sent."""
    status, other = duplicate["status"], survivor["status"]
    if status == other == "pending":
        return _is_sealed(duplicate) and not _is_sealed(survivor)
    return (status == "sent" and other != "sent") or (status == "pending" and other == "failed")


def _is_sealed(row: RowMapping) -> bool:
    """Return whether the notice is part of a message, which is only ever sent unchanged."""
    return row.get("delivery_id") is not None


def move_to_series(connection: Connection, old: str, new: str) -> int:
    """Move notices, pending outbox rows and follows to the other series; return the follows moved.

    The payload of a notice that was sent or is part of a message stays as it is.
    """
    connection.execute(update(notices).where(notices.c.series_id == old).values(series_id=new))
    for table, is_waiting in ((outbox, outbox.c.handled_at.is_(None)), (notices, _IS_UNSENT)):
        query = select(table.c.id, table.c.subject_id, table.c.payload).where(
            table.c.subject_kind.in_(CHAPTER_KINDS), is_waiting
        )
        rows = connection.execute(query).mappings().all()
        theirs = [(row, row["subject_id"]) for row in rows if row["payload"].get("series_id") == old]
        _rewrite(connection, table, theirs, new)
    already = select(follows.c.recipient_id).where(follows.c.series_id == new)
    is_moved = (follows.c.series_id == old) & follows.c.recipient_id.not_in(already.scalar_subquery())
    count = connection.execute(update(follows).where(is_moved).values(series_id=new)).rowcount
    connection.execute(delete(follows).where(follows.c.series_id == old))
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
    pending = _of_chapter(notices, chapter_id) & _IS_UNSENT
    return connection.execute(update(notices).where(pending).values(status="muted", error=WITHDRAWN)).rowcount


def restore(connection: Connection, chapter_id: int, *, suppressed_at: datetime) -> int:
    """Release what `suppress` held back at that time, for current followers; return the notices."""
    held = _of_chapter(outbox, chapter_id) & (outbox.c.handled_at == suppressed_at)
    connection.execute(update(outbox).where(held).values(handled_at=None))
    muted = _of_chapter(notices, chapter_id) & (notices.c.error == WITHDRAWN)
    still = exists().where(follows.c.recipient_id == notices.c.recipient, follows.c.series_id == notices.c.series_id)
    pending = update(notices).where(muted, notices.c.status == "muted", still).values(status="pending", error=None)
    return connection.execute(pending).rowcount


def _of_chapter(table: Table, chapter_id: int) -> ColumnElement[bool]:
    is_it = table.c.subject_id == str(chapter_id)
    if table is outbox:
        is_it |= table.c.subject_id.like(f"{chapter_id}:%")
    return table.c.subject_kind.in_(CHAPTER_KINDS) & is_it


def _rows_about(connection: Connection, table: Table, chapter_ids: Collection[int]) -> Sequence[RowMapping]:
    """Lock and return the rows that refer to these chapters, in any language."""
    batch = row_source(
        connection, {"subject": Text()}, [(str(chapter_id),) for chapter_id in sorted(chapter_ids)], "given"
    )
    query = (
        select(table)
        .join(batch, batch.c.subject == _chapter(connection, table))
        .where(table.c.subject_kind.in_(CHAPTER_KINDS))
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


def _rewrite(connection: Connection, table: Table, moved: Sequence[tuple[RowMapping, str]], series_id: str) -> None:
    """Give each row its new subject id, and the payload of what is still to be sent its new ids."""
    changed: list[tuple[Any, ...]] = []
    for row, subject_id in moved:
        is_final = row.get("handled_at") is not None or row.get("status", "pending") != "pending" or _is_sealed(row)
        ids: dict[str, Any] = {} if is_final else {"series_id": series_id, "chapter_id": _chapter_id(subject_id)}
        changed.append((row["id"], subject_id, row["payload"] | ids))
    if changed:
        columns = {"id": Id, "subject_id": Text(), "payload": Json}
        batch = row_source(connection, columns, changed, "given")
        values = {"subject_id": batch.c.subject_id, "payload": batch.c.payload}
        connection.execute(update(table).where(table.c.id == batch.c.id).values(values))
