"""One series that is two: some of its sources tell of another one from now on, by command."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import Connection, case, delete, exists, func, literal, null, or_, select, update

from ingestion_pipeline.series import rows, told
from ingestion_pipeline.series.latest import recompute_latest
from ingestion_pipeline.series.lookup import SeriesMerged, lock_live
from ingestion_pipeline.series.merging import SameSeries
from ingestion_pipeline.series.moving import count_anew, move_links, pairs_of
from ingestion_pipeline.sources.belonging import home_of, homes, named_series, sources_of
from ingestion_pipeline.sources.lookup import UnknownSource
from ingestion_pipeline.sources.polls import interrupt_polls, lock_polls
from ingestion_pipeline.sources.source import SERIES_ID
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.locking import lock_rows
from ingestion_pipeline.store.tables import chapter_sources, chapters, series, sources


class CannotSplit(ValueError):
    """What was asked for cannot be split off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What a split came to."""

    links_moved: int
    chapters_made: int
    chapters_removed: int


def split(
    connection: Connection,
    old: str,
    new: str,
    source_ids: Sequence[str],
    *,
    title: str | None = None,
    actor: str,
    now: datetime,
) -> Split:
    """The sources tell of `new`, with all they have of `old`, whatever their files say; audited.

    Undoes a merge where `new` went into `old`. What was told stays told, and follows stay.
    """
    if old == new:
        raise SameSeries(old)
    if not SERIES_ID.fullmatch(new):
        raise CannotSplit(f"{new!r} is no id of a series; use a-z 0-9 : . _ -, at most 120")
    # Also those that stay: who came by a merge that is undone is told so by name.
    affected = {*source_ids, *sources_of(connection, [old])}
    lock_polls(connection, affected)
    rows.ensure_series(connection, {new: title or new}, now=now)
    if title is not None:
        connection.execute(update(series).where(series.c.id == new).values(title=title))
    merged = rows.lock_series(connection, [old, new])
    lock_live(connection, [old])
    if merged.get(new, old) != old:
        raise SeriesMerged(new, merged[new])
    _check_sources(connection, source_ids, old)
    made = _copy_chapters(connection, old, new, source_ids)
    pairs = pairs_of(connection, old, new)
    links = move_links(connection, pairs, of=source_ids)
    removed = _remove_empty(connection, list(pairs))
    lock_rows(connection, sources.c.id, affected)
    if new in merged:
        _restore_series(connection, old, new, source_ids)
    _assign(connection, source_ids, new, now=now)
    recompute_latest(connection, [old, new])
    count_anew(connection, source_ids, now=now)
    interrupt_polls(connection, source_ids, now=now)
    came_to = Split(links_moved=links, chapters_made=made, chapters_removed=removed)
    detail = {"into": new, "sources": list(source_ids), **asdict(came_to)}
    audit(connection, actor=actor, action="series.split", subject=old, now=now, detail=detail)
    return came_to


def _check_sources(connection: Connection, source_ids: Sequence[str], old: str) -> None:
    found = homes(connection, source_ids)
    for one in source_ids:
        if one not in found:
            raise UnknownSource(one)
        home = found[one].series_id
        if home != old:
            raise CannotSplit(f"{one} tells of {home!r}, not of {old!r}; nothing was split")


def _restore_series(connection: Connection, old: str, new: str, leaving: Collection[str]) -> None:
    """`new` means itself again; whoever came with it and does not leave is kept by name."""
    staying = (named_series() == new) & sources.c.id.not_in(list(leaving))
    connection.execute(update(sources).where(staying).values(assigned_series_id=old))
    connection.execute(update(series).where(series.c.id == new).values(merged_into=None))


def _copy_chapters(connection: Connection, old: str, new: str, source_ids: Collection[str]) -> int:
    """`new` has every chapter that these sources have, detected when they first had it.

    Its followers, if it has chapters, are told once a source of theirs lists one of them.
    """
    facts = ("key", "number", "title", "published_at", "rejected_at")
    own = chapters.alias()
    has_chapters = exists().where(own.c.series_id == new)
    theirs = (
        select(
            literal(new),
            *(chapters.c[name] for name in facts),
            or_(chapters.c.unannounced, has_chapters),
            func.min(chapter_sources.c.detected_at, type_=chapters.c.first_detected_at.type),
        )
        .join(chapter_sources, chapter_sources.c.chapter_id == chapters.c.id)
        .where(
            chapters.c.series_id == old,
            chapter_sources.c.source_id.in_(list(source_ids)),
        )
        .group_by(chapters.c.id)
        .order_by(chapters.c.id)
    )
    statement = (
        insert_into(connection, chapters)
        .from_select(["series_id", *facts, "unannounced", "first_detected_at"], theirs)
        .on_conflict_do_nothing(index_elements=["series_id", "key"])
    )
    return connection.execute(statement).rowcount


def _remove_empty(connection: Connection, chapter_ids: Sequence[int]) -> int:
    """Of these chapters, those without any source go, unless something was told of them."""
    query = select(chapters.c.id).where(
        chapters.c.id.in_(chapter_ids),
        ~exists().where(chapter_sources.c.chapter_id == chapters.c.id),
    )
    empty = set(connection.execute(query).scalars())
    empty -= told.announced_chapters(connection, empty)
    connection.execute(delete(chapters).where(chapters.c.id.in_(empty)))
    return len(empty)


def _assign(
    connection: Connection, source_ids: Collection[str], new: str, *, now: datetime
) -> None:
    """An operator's word, unless the declaration says the same."""
    declared = home_of(func.coalesce(sources.c.series_id, sources.c.id))
    connection.execute(
        update(sources)
        .where(sources.c.id.in_(list(source_ids)))
        .values(assigned_series_id=case((declared == new, null()), else_=new), updated_at=now)
    )
