"""From the outbox to notices: one statement for all followers, one notice for ever.

A notice is unique by recipient and subject: a chapter, or what `subjects` tells of. Whatever
announced a chapter (its first appearance, another source, a language it had not been in), it is
told once. Notices and the mark on the outbox row are one transaction, so that a killed deliverer
leaves either both or neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    Connection,
    Integer,
    RowMapping,
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

from ingestion_pipeline.notices.message import KINDS, tell_subjects
from ingestion_pipeline.notices.tasks import CHAPTER, IS_TOLD, wake
from ingestion_pipeline.sources.canonical_series import meanings, names_of
from ingestion_pipeline.sources.recipients import Mode
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.inserts import insert_into
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

ROWS_AT_ONCE = 500  # chapters; each times its followers is what one statement writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Expanded:
    """How many outbox rows were handled, and the notices that came of them."""

    handled: int = 0
    notices: int = 0
    muted: int = 0

    def __add__(self, other: Expanded) -> Expanded:
        return Expanded(
            handled=self.handled + other.handled,
            notices=self.notices + other.notices,
            muted=self.muted + other.muted,
        )


def expand(connection: Connection, *, now: datetime, grouping: timedelta) -> Expanded:
    """The oldest unhandled outbox rows are notices now; call it until it handles none."""
    rows = _unhandled(connection)
    if not rows:
        return Expanded()
    at = min(row["created_at"] for row in rows) + grouping
    chapters, of_chapters = _tell_chapters(connection, rows)
    of_others = tell_subjects(connection, rows)
    modes = [*of_chapters, *of_others]
    told = {CHAPTER: chapters} if of_chapters else {}
    wake(connection, told | (_others(rows) if of_others else {}), at=at)
    _mark_handled(connection, [row["id"] for row in rows], now=now)
    muted = modes.count(Mode.MUTED.value)
    return Expanded(handled=len(rows), notices=len(modes), muted=muted)


def _tell_chapters(
    connection: Connection, rows: Sequence[RowMapping]
) -> tuple[set[str], list[str]]:
    """The chapters that are told, and the modes of their notices."""
    news = _news(row for row in rows if row["subject_kind"] not in KINDS)
    announced = _announced(connection, news)
    modes: list[str] = []
    for also in sorted({one.also for one in news.values()}):
        some = [each for each in announced if news[each.chapter_id].also == also]
        modes += _insert_notices(connection, some, also) if some else []
    return {str(each.chapter_id) for each in announced}, modes


def _others(rows: Sequence[RowMapping]) -> dict[str, set[str]]:
    """The subjects that are no chapters, by kind."""
    found: dict[str, set[str]] = {}
    for row in rows:
        if row["subject_kind"] in KINDS:
            found.setdefault(row["subject_kind"], set()).add(row["subject_id"])
    return found


def _unhandled(connection: Connection) -> list[RowMapping]:
    """The rows nobody has handled, nor is handling: two deliverers share them."""
    query = (
        select(
            outbox.c.id,
            outbox.c.subject_kind,
            outbox.c.subject_id,
            outbox.c.payload,
            outbox.c.created_at,
        )
        .where(UNHANDLED, IS_TOLD)
        .order_by(outbox.c.id)
        .limit(ROWS_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    return list(connection.execute(query).mappings())


def _mark_handled(connection: Connection, ids: Sequence[int], *, now: datetime) -> None:
    connection.execute(update(outbox).where(outbox.c.id.in_(ids)).values(handled_at=now))


@dataclass(frozen=True, slots=True, kw_only=True)
class _News:
    """When a chapter was announced, and to whom: who followed by then, and these recipients."""

    announced_at: datetime
    followed_by: datetime
    also: tuple[str, ...] = ()


def _news(rows: Iterable[RowMapping]) -> dict[int, _News]:
    """Return what the outbox announces, by chapter; of two rows both reach their followers."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Announced:
    """A chapter, for the followers of one series who prefer one language (None: any)."""

    chapter_id: int
    followed: str
    language: str | None
    rank: int
    announced_at: datetime
    followed_by: datetime
    payload: dict[str, Any]


def _announced(connection: Connection, news: Mapping[int, _News]) -> list[_Announced]:
    """Each chapter that still stands, for every (followed series, language) that it concerns."""
    found = _chapters(connection, news)
    meant = meanings(connection, {row["series_id"] for row in found})
    names_by_series = names_of(connection, set(meant.values()))
    titles = _titles(connection, names_by_series)
    followed = {name for names in names_by_series.values() for name in names}
    languages = _languages(connection, followed)
    links = _links(connection, [row["id"] for row in found])
    announced: list[_Announced] = []
    for row in found:
        meaning = meant[row["series_id"]]
        names = names_by_series[meaning]
        base = _payload(row, meaning, titles[meaning], news[row["id"]].announced_at)
        for language in sorted({each for name in names for each in languages.get(name, ())}):
            release = _release(links.get(row["id"], ()), language or None)
            if release is None:
                continue
            payload = base | release
            payload["published_at"] = release["published_at"] or base["published_at"]
            announced += [
                _Announced(
                    chapter_id=row["id"],
                    followed=name,
                    language=language or None,
                    rank=int(name != meaning),
                    announced_at=news[row["id"]].announced_at,
                    followed_by=news[row["id"]].followed_by,
                    payload=payload,
                )
                for name in sorted(names)
                if language in languages.get(name, ())
            ]
    return announced


def _chapters(connection: Connection, ids: Collection[int]) -> list[RowMapping]:
    """Those that still stand, and that no operator has rejected."""
    query = (
        select(
            chapters.c.id,
            chapters.c.series_id,
            chapters.c.number,
            chapters.c.title,
            chapters.c.published_at,
        )
        .where(chapters.c.id.in_(list(ids)), chapters.c.rejected_at.is_(None))
        .order_by(chapters.c.id)
    )
    return list(connection.execute(query).mappings())


def _titles(connection: Connection, ids: Collection[str]) -> dict[str, str]:
    query = select(series.c.id, series.c.title).where(series.c.id.in_(list(ids)))
    found = {row.id: row.title for row in connection.execute(query)}
    return {id_: found.get(id_, id_) for id_ in ids}


_WANTED = func.coalesce(follows.c.language, recipients.c.language)


def _languages(connection: Connection, followed: Collection[str]) -> dict[str, set[str]]:
    """The languages that a series' followers want; an empty text for those who take any."""
    query = (
        select(follows.c.series_id, func.coalesce(_WANTED, ""))
        .join(recipients, recipients.c.id == follows.c.recipient_id)
        .where(follows.c.series_id.in_(list(followed)))
        .distinct()
    )
    found: dict[str, set[str]] = {}
    for series_id, language in connection.execute(query):
        found.setdefault(series_id, set()).add(language)
    return found


def _links(connection: Connection, ids: Sequence[int]) -> dict[int, list[RowMapping]]:
    """Where each chapter is: what is still there first, then who had it first."""
    query = (
        select(chapter_sources.c.chapter_id, chapter_sources.c.releases)
        .where(chapter_sources.c.chapter_id.in_(ids))
        .order_by(
            chapter_sources.c.available.desc(),
            chapter_sources.c.detected_at,
            chapter_sources.c.id,
        )
    )
    found: dict[int, list[RowMapping]] = {}
    for row in connection.execute(query).mappings():
        found.setdefault(row["chapter_id"], []).append(row)
    return found


def _release(links: Iterable[RowMapping], language: str | None) -> dict[str, Any] | None:
    """Language, address and date for a follower of this language; None if it is not there yet."""
    listed: list[Mapping[str, Any]] = [one for link in links for one in link["releases"]]
    if language is not None:
        # Its own language before one that is not stated, which may be any.
        listed = [
            *(one for one in listed if speaks(one.get("language"), language)),
            *(one for one in listed if not one.get("language")),
        ]
        if not listed:
            return None
    first: Mapping[str, Any] = listed[0] if listed else {}
    return {
        "language": first.get("language"),
        "url": next((one["url"] for one in listed if one.get("url")), None),
        "published_at": first.get("published_at"),
    }


def speaks(stated: str | None, wanted: str) -> bool:
    """Whether a release's language is the wanted one; `pt` takes `pt-br` too, not vice versa."""
    have = (stated or "").lower()
    return have == wanted or have.startswith(f"{wanted}-")


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


_GIVEN = {
    "chapter_id": Id,
    "followed": String(120),
    "series_id": String(120),
    "language": String(20),
    "rank": Integer(),
    "announced_at": UtcDateTime(),
    "followed_by": UtcDateTime(),
    "payload": Json,
}


def _insert_notices(
    connection: Connection, announced: Sequence[_Announced], also: Sequence[str]
) -> list[str]:
    """One row per follower and chapter that has none; the modes of those that are new.

    Whoever came later is not told, but for those named in `also`. In one order, so that two
    deliverers that tell of one chapter wait for each other at the most.
    """
    given_rows = [
        (
            one.chapter_id,
            one.followed,
            one.payload["series_id"],
            one.language,
            one.rank,
            one.announced_at,
            one.followed_by,
            one.payload,
        )
        for one in announced
    ]
    given = row_source(connection, _GIVEN, given_rows, "given")
    mode = func.coalesce(follows.c.mode, recipients.c.mode)
    columns = {
        "recipient": recipients.c.id,
        "subject_kind": literal(CHAPTER),
        "subject_id": cast(given.c.chapter_id, Text),
        "status": case((mode == Mode.MUTED.value, "muted"), else_="pending"),
        "mode": mode,
        "series_id": given.c.series_id,
        "payload": given.c.payload,
        "created_at": given.c.announced_at,
    }
    is_due = follows.c.created_at <= given.c.followed_by
    if also:
        named = row_source(connection, {"id": String(120)}, [(id_,) for id_ in also], "named")
        is_due = or_(is_due, follows.c.recipient_id.in_(select(named.c.id)))
    reached = (
        select(*(value.label(name) for name, value in columns.items()))
        .select_from(given)
        .join(follows, and_(follows.c.series_id == given.c.followed, is_due))
        .join(recipients, recipients.c.id == follows.c.recipient_id)
        .where(
            _WANTED.is_not_distinct_from(given.c.language),
            cast(recipients.c.kinds, Text).like(f'%"{CHAPTER}"%'),
        )
        .order_by(recipients.c.id, given.c.chapter_id, given.c.rank)
    )
    statement = (
        insert_into(connection, notices)
        .from_select(list(columns), reached)
        .on_conflict_do_nothing(index_elements=["recipient", "subject_kind", "subject_id"])
        .returning(notices.c.mode)
    )
    return list(connection.execute(statement).scalars())
