"""Expansion of outbox rows into notices: one statement for all followers, each notice once.

A notice is unique by recipient and subject. A chapter is announced once, whatever led to it: its
first appearance, another source, or a new language. Notices and the mark on the outbox row are
written in one transaction, so that a killed deliverer leaves both or neither.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Integer,
    RowMapping,
    Select,
    String,
    Text,
    and_,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    update,
)

from ingestion_pipeline.notices.change_follows import CHANGE, expand_changes
from ingestion_pipeline.notices.message import CHAPTER, CHAPTER_KINDS
from ingestion_pipeline.notices.queries import wake
from ingestion_pipeline.sources.lookup import canonical_series_ids, series_aliases
from ingestion_pipeline.sources.source import Mode
from ingestion_pipeline.store.statements import insert_into, row_source
from ingestion_pipeline.store.tables import (
    UNHANDLED,
    chapter_sources,
    chapters,
    follows,
    notices,
    outbox,
    recipients,
    series,
)
from ingestion_pipeline.store.types import Id, Json, UtcDateTime

ROWS_AT_ONCE = 500  # chapters; one statement writes as many notices as they have followers


@dataclass(frozen=True, slots=True, kw_only=True)
class Expanded:
    """How many outbox rows were handled, and how many notices were written."""

    handled: int = 0
    notices: int = 0
    muted: int = 0

    def __add__(self, other: "Expanded") -> "Expanded":
        return Expanded(
            handled=self.handled + other.handled, notices=self.notices + other.notices, muted=self.muted + other.muted
        )


def expand(connection: Connection, *, now: datetime, grouping: timedelta) -> Expanded:
    """Expand the oldest unhandled outbox rows; call it until it handles none."""
    changed, of_changes = expand_changes(connection, now=now)
    if changed:
        wake(connection, {CHANGE: changed}, at=now + grouping)
    served = Expanded(notices=len(of_changes), muted=of_changes.count(Mode.MUTED.value))
    rows = _unhandled(connection)
    if not rows:
        return served
    events = [row for row in rows if row["subject_kind"] not in CHAPTER_KINDS]
    chapters, of_chapters = _notify_chapters(connection, [row for row in rows if row["subject_kind"] in CHAPTER_KINDS])
    of_events = _insert_subject_notices(connection, events)
    subjects = {CHAPTER: chapters} if of_chapters else {}
    for row in events if of_events else ():
        subjects.setdefault(row["subject_kind"], set()).add(row["subject_id"])
    wake(connection, subjects, at=min(row["created_at"] for row in rows) + grouping)
    connection.execute(update(outbox).where(outbox.c.id.in_([row["id"] for row in rows])).values(handled_at=now))
    modes = [*of_chapters, *of_events]
    of_rows = Expanded(handled=len(rows), notices=len(modes), muted=modes.count(Mode.MUTED.value))
    return served + of_rows


def _notify_chapters(connection: Connection, rows: Sequence[RowMapping]) -> tuple[set[str], list[str]]:
    """Insert the notices of chapters; return the chapter ids and the modes of new notices."""
    news = _news(rows)
    announced = _announced(connection, news)
    modes: list[str] = []
    for also in sorted({item.also for item in news.values()}):
        batch = [chapter for chapter in announced if news[chapter.chapter_id].also == also]
        modes += _insert_chapter_notices(connection, batch, also) if batch else []
    return {str(chapter.chapter_id) for chapter in announced}, modes


def _unhandled(connection: Connection) -> list[RowMapping]:
    """Lock and return unhandled rows, skipping those that another deliverer has locked."""
    query = (
        select(outbox.c.id, outbox.c.subject_kind, outbox.c.subject_id, outbox.c.payload, outbox.c.created_at)
        .where(UNHANDLED)
        .order_by(outbox.c.id)
        .limit(ROWS_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    return list(connection.execute(query).mappings())


@dataclass(frozen=True, slots=True, kw_only=True)
class _News:
    """When a chapter was announced, and to whom: followers by then, and those in `also`."""

    announced_at: datetime
    followed_by: datetime
    also: tuple[str, ...] = ()


def _news(rows: Iterable[RowMapping]) -> dict[int, _News]:
    """Return the announcements by chapter; two rows of a chapter reach the followers of both."""
    news: dict[int, _News] = {}
    for row in rows:
        payload = row["payload"]
        id_ = int(row["subject_id"].partition(":")[0])  # "12", or "12:de"
        by = payload.get("followed_by")
        followed_by = datetime.fromisoformat(by) if by else row["created_at"]
        before = news.get(id_) or _News(announced_at=row["created_at"], followed_by=followed_by)
        news[id_] = _News(
            announced_at=max(before.announced_at, row["created_at"]),
            followed_by=max(before.followed_by, followed_by),
            also=tuple(sorted({*before.also, *payload.get("also", ())})),
        )
    return news


class _Announced(NamedTuple):
    """A chapter for the followers of one series who prefer one language (None: any)."""

    chapter_id: int
    followed: str
    series_id: str
    language: str | None
    rank: int
    announced_at: datetime
    followed_by: datetime
    payload: dict[str, Any]


def _announced(connection: Connection, news: Mapping[int, _News]) -> list[_Announced]:
    """Return each existing chapter for every (followed series, language) that it concerns."""
    rows = _chapters(connection, news)
    canonical = canonical_series_ids(connection, {row["series_id"] for row in rows})
    names_by_series = series_aliases(connection, set(canonical.values()))
    query = select(series.c.id, series.c.title).where(series.c.id.in_(list(names_by_series)))
    titles = {row.id: row.title for row in connection.execute(query)}
    followed = {name for names in names_by_series.values() for name in names}
    languages = _languages(connection, followed)
    links = _links(connection, [row["id"] for row in rows])
    announced: list[_Announced] = []
    for row in rows:
        series_id = canonical[row["series_id"]]
        names = names_by_series[series_id]
        base = _payload(row, series_id, titles.get(series_id, series_id), news[row["id"]].announced_at)
        for language in sorted({preferred for name in names for preferred in languages.get(name, ())}):
            release = _release(links.get(row["id"], ()), language or None)
            if release is None:
                continue
            payload = base | release
            payload["published_at"] = release["published_at"] or base["published_at"]
            announced += [
                _Announced(
                    chapter_id=row["id"],
                    followed=name,
                    series_id=series_id,
                    language=language or None,
                    rank=int(name != series_id),
                    announced_at=news[row["id"]].announced_at,
                    followed_by=news[row["id"]].followed_by,
                    payload=payload,
                )
                for name in sorted(names)
                if language in languages.get(name, ())
            ]
    return announced


def _chapters(connection: Connection, ids: Collection[int]) -> list[RowMapping]:
    """Return the chapters that still exist and that no operator has rejected."""
    query = (
        select(chapters.c.id, chapters.c.series_id, chapters.c.number, chapters.c.title, chapters.c.published_at)
        .where(chapters.c.id.in_(list(ids)), chapters.c.rejected_at.is_(None))
        .order_by(chapters.c.id)
    )
    return list(connection.execute(query).mappings())


_PREFERRED_LANGUAGE = func.coalesce(follows.c.language, recipients.c.language)


def _languages(connection: Connection, followed: Collection[str]) -> dict[str, set[str]]:
    """Return the languages that followers of each series prefer; "" stands for any."""
    query = (
        select(follows.c.series_id, func.coalesce(_PREFERRED_LANGUAGE, ""))
        .join(recipients, recipients.c.id == follows.c.recipient_id)
        .where(follows.c.series_id.in_(list(followed)))
        .distinct()
    )
    languages: dict[str, set[str]] = {}
    for series_id, language in connection.execute(query):
        languages.setdefault(series_id, set()).add(language)
    return languages


def _links(connection: Connection, ids: Sequence[int]) -> dict[int, list[RowMapping]]:
    """Return the links of each chapter: available ones first, then by time of detection."""
    query = (
        select(chapter_sources.c.chapter_id, chapter_sources.c.releases)
        .where(chapter_sources.c.chapter_id.in_(ids))
        .order_by(chapter_sources.c.available.desc(), chapter_sources.c.detected_at, chapter_sources.c.id)
    )
    links: dict[int, list[RowMapping]] = {}
    for row in connection.execute(query).mappings():
        links.setdefault(row["chapter_id"], []).append(row)
    return links


def _release(links: Iterable[RowMapping], language: str | None) -> dict[str, Any] | None:
    """Return language, address and date for a follower of this language; None if not released."""
    listed: list[Mapping[str, Any]] = [release for link in links for release in link["releases"]]
    if language is not None:
        # The preferred language first, then releases without a stated language.
        listed = [
            *(release for release in listed if matches_language(release.get("language"), language)),
            *(release for release in listed if not release.get("language")),
        ]
        if not listed:
            return None
    first: Mapping[str, Any] = listed[0] if listed else {}
    return {
        "language": first.get("language"),
        "url": next((release["url"] for release in listed if release.get("url")), None),
        "published_at": first.get("published_at"),
    }


def matches_language(stated: str | None, preferred: str) -> bool:
    """Return whether the language is the preferred one; `pt` accepts `pt-br`, not vice versa."""
    have = (stated or "").lower()
    return have == preferred or have.startswith(f"{preferred}-")


def _payload(row: RowMapping, series_id: str, title: str, at: datetime) -> dict[str, Any]:
    published = row["published_at"]
    return {
        "series_id": series_id,
        "series_title": title,
        "chapter_id": row["id"],
        "number": None if row["number"] is None else f"{row['number']:f}",
        "title": row["title"],
        "published_at": None if published is None else published.isoformat(),
        "detected_at": at.isoformat(),
    }


_BATCH_COLUMNS = {  # of `_Announced`
    "chapter_id": Id,
    "followed": String(120),
    "series_id": String(120),
    "language": String(20),
    "rank": Integer(),
    "announced_at": UtcDateTime(),
    "followed_by": UtcDateTime(),
    "payload": Json,
}


def _insert_chapter_notices(
    connection: Connection, announced: Sequence[_Announced], also: Sequence[str]
) -> Sequence[str]:
    """Insert one notice per follower and chapter that has none; return the new ones' modes.

    Who followed later is not notified, except those in `also`.
    """
    batch = row_source(connection, _BATCH_COLUMNS, announced, "given")
    is_due = follows.c.created_at <= batch.c.followed_by
    if also:
        named = row_source(connection, {"id": String(120)}, [(id_,) for id_ in also], "named")
        is_due = or_(is_due, follows.c.recipient_id.in_(select(named.c.id)))
    columns = {
        "subject_kind": literal(CHAPTER),
        "subject_id": cast(batch.c.chapter_id, Text),
        "series_id": batch.c.series_id,
    }
    reached = (
        _select_notices(batch, columns, mode=func.coalesce(follows.c.mode, recipients.c.mode))
        .join(follows, and_(follows.c.series_id == batch.c.followed, is_due))
        .join(recipients, recipients.c.id == follows.c.recipient_id)
        .where(
            _PREFERRED_LANGUAGE.is_not_distinct_from(batch.c.language),
            cast(recipients.c.kinds, Text).like(f'%"{CHAPTER}"%'),
        )
        .order_by(recipients.c.id, batch.c.chapter_id, batch.c.rank)
    )
    return _insert_notices(connection, reached)


_SUBJECT_COLUMNS = {"kind": String(40), "subject_id": Text(), "announced_at": UtcDateTime(), "payload": Json}


def _insert_subject_notices(connection: Connection, rows: Sequence[RowMapping]) -> Sequence[str]:
    """Insert a notice of each event for each recipient of the kind who has none; return their modes.

    Recipients that were added after the event are left out.
    """
    if not rows:
        return []
    values = [(row["subject_kind"], row["subject_id"], row["created_at"], row["payload"]) for row in rows]
    batch = row_source(connection, _SUBJECT_COLUMNS, values, "given")
    columns = {"subject_kind": batch.c.kind, "subject_id": batch.c.subject_id}
    reached = (
        _select_notices(batch, columns, mode=recipients.c.mode)
        .join(recipients, recipients.c.created_at <= batch.c.announced_at)
        .where(cast(recipients.c.kinds, Text).like('%"' + batch.c.kind + '"%'))
        .order_by(recipients.c.id, batch.c.subject_id)
    )
    return _insert_notices(connection, reached)


def _select_notices(
    batch: CTE, columns: Mapping[str, ColumnElement[Any]], *, mode: ColumnElement[str]
) -> Select[*tuple[Any, ...]]:
    """Select notices from the batch: these columns, and those that all notices have."""
    shared = {
        "recipient": recipients.c.id,
        "status": case((mode == Mode.MUTED.value, "muted"), else_="pending"),
        "mode": mode,
        "payload": batch.c.payload,
        "created_at": batch.c.announced_at,
    }
    return select(*(value.label(name) for name, value in {**columns, **shared}.items())).select_from(batch)


def _insert_notices(connection: Connection, reached: Select[*tuple[Any, ...]]) -> Sequence[str]:
    """Insert the notices that do not exist; return the modes of the new ones.

    Rows are inserted in one order, so that two deliverers of one subject wait for each other instead of
    deadlocking.
    """
    statement = (
        insert_into(connection, notices)
        .from_select([column.name for column in reached.selected_columns], reached)
        .on_conflict_do_nothing(index_elements=["recipient", "subject_kind", "subject_id"])
        .returning(notices.c.mode)
    )
    return connection.execute(statement).scalars().all()
