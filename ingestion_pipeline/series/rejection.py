"""An operator's word that there is no such chapter, whoever lists it; and the word taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select, update

from ingestion_pipeline.series import told
from ingestion_pipeline.series.latest import recompute_latest
from ingestion_pipeline.series.lookup import lock_live
from ingestion_pipeline.series.numbers import chapter_number, number_text
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.tables import chapters


class UnknownChapter(LookupError):
    """The series has no such chapter."""

    def __init__(self, series_id: str, label: str) -> None:
        cure = f"`ingest series show {series_id}` shows what it has"
        super().__init__(f"{series_id!r} has no chapter {label!r}; {cure}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """The chapter, whether anything changed, and the notices that are muted or pending again."""

    key: str
    is_changed: bool
    notices: int = 0


def withdraw(
    connection: Connection,
    series_id: str,
    label: str,
    *,
    reason: str | None = None,
    actor: str,
    now: datetime,
) -> Rejection:
    """The chapter is not there: not the latest, no gap is filled by it, nobody hears of it."""
    chapter_id, key, rejected_at = _locked_chapter(connection, series_id, label)
    if rejected_at is not None:
        return Rejection(key=key, is_changed=False)
    _judge(connection, chapter_id, series_id, rejected_at=now)
    muted = told.suppress(connection, chapter_id, now=now)
    detail = {"chapter": key, "reason": reason, "notices_muted": muted}
    audit(
        connection,
        actor=actor,
        action="chapter.withdraw",
        subject=series_id,
        now=now,
        detail=detail,
    )
    return Rejection(key=key, is_changed=True, notices=muted)


def restore(
    connection: Connection, series_id: str, label: str, *, actor: str, now: datetime
) -> Rejection:
    """The chapter counts again, and what was held back of it is told."""
    chapter_id, key, rejected_at = _locked_chapter(connection, series_id, label)
    if rejected_at is None:
        return Rejection(key=key, is_changed=False)
    _judge(connection, chapter_id, series_id, rejected_at=None)
    pending = told.speak_again(connection, chapter_id, silenced_at=rejected_at)
    detail = {"chapter": key, "notices_pending": pending}
    audit(
        connection, actor=actor, action="chapter.restore", subject=series_id, now=now, detail=detail
    )
    return Rejection(key=key, is_changed=True, notices=pending)


def _locked_chapter(
    connection: Connection, series_id: str, label: str
) -> tuple[int, str, datetime | None]:
    """Id, key and rejection of the chapter with this number, or with this very key."""
    lock_live(connection, [series_id])
    query = select(chapters.c.id, chapters.c.key, chapters.c.rejected_at).where(
        chapters.c.series_id == series_id, chapters.c.key.in_(_keys(label))
    )
    found = connection.execute(query).first()
    if found is None:
        raise UnknownChapter(series_id, label)
    return found[0], found[1], found[2]


def _keys(label: str) -> Sequence[str]:
    number = chapter_number(label) if "#" not in label else None
    return [label] if number is None else [number_text(number)]


def _judge(
    connection: Connection, chapter_id: int, series_id: str, *, rejected_at: datetime | None
) -> None:
    connection.execute(
        update(chapters).where(chapters.c.id == chapter_id).values(rejected_at=rejected_at)
    )
    recompute_latest(connection, [series_id])
