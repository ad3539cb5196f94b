"""Two series that are one: everything of the first moves into the second.

Followers of either are told of what is new to them, and of nothing twice.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import Connection, case, delete, func, or_, update

from ingestion_pipeline.series import told
from ingestion_pipeline.series.latest import recompute_latest
from ingestion_pipeline.series.lookup import lock_live
from ingestion_pipeline.series.moving import count_anew, linked_sources, move_links, pairs_of
from ingestion_pipeline.sources.belonging import sources_of
from ingestion_pipeline.sources.polls import lock_polls
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.locking import lock_rows
from ingestion_pipeline.store.tables import chapters, series, sources


class SameSeries(ValueError):
    """A series cannot be merged into itself."""

    def __init__(self, series_id: str) -> None:
        super().__init__(f"{series_id!r} is one series already; name two")


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What a merge came to."""

    chapters_moved: int
    chapters_united: int
    links_moved: int
    follows_moved: int
    notices_dropped: int


def merge(connection: Connection, old: str, new: str, *, actor: str, now: datetime) -> Merged:
    """Every chapter of `old` is one of `new`, and whoever names `old` means `new`; audited.

    Polls are locked first, then series in one order, as ingestion does it. A series that was merged
    is refused on either side, and what was merged into `old` goes along: so no chain, no circle.
    """
    if old == new:
        raise SameSeries(old)
    affected = {
        *sources_of(connection, [old, new]),
        *linked_sources(connection, [old, new]),
    }
    lock_polls(connection, affected)
    lock_live(connection, [old, new])
    pairs = pairs_of(connection, old, new)
    told.lock(connection, pairs.values(), old=old, new=new)
    unseen = told.unseen(connection, old, new)
    _improve(connection, old, new)
    links = move_links(connection, pairs)
    dropped = told.repoint(connection, pairs, series_id=new)
    connection.execute(delete(chapters).where(chapters.c.id.in_(list(pairs))))
    others = update(chapters).where(chapters.c.series_id == old).values(series_id=new)
    moved = connection.execute(others).rowcount
    follows = told.rename_series(connection, old, new)
    told.announce_unseen(connection, unseen, series_id=new, now=now)
    _point(connection, old, new)
    recompute_latest(connection, [old, new])
    lock_rows(connection, sources.c.id, affected)
    count_anew(connection, affected, now=now)
    came_to = Merged(
        chapters_moved=moved,
        chapters_united=len(pairs),
        links_moved=links,
        follows_moved=follows,
        notices_dropped=dropped,
    )
    detail = {"into": new, **asdict(came_to)}
    audit(connection, actor=actor, action="series.merge", subject=old, now=now, detail=detail)
    return came_to


def _improve(connection: Connection, old: str, new: str) -> None:
    """The chapter that stays gets what it lacks from its twin, and the earlier detection."""
    twin = chapters.alias()
    earlier = case(
        (twin.c.first_detected_at < chapters.c.first_detected_at, twin.c.first_detected_at),
        else_=chapters.c.first_detected_at,
    )
    connection.execute(
        update(chapters)
        .where(chapters.c.series_id == new, twin.c.series_id == old, twin.c.key == chapters.c.key)
        .values(
            title=func.coalesce(chapters.c.title, twin.c.title),
            published_at=func.coalesce(chapters.c.published_at, twin.c.published_at),
            first_detected_at=earlier,
            unannounced=or_(chapters.c.unannounced, twin.c.unannounced),
        )
    )


def _point(connection: Connection, old: str, new: str) -> None:
    """Whoever means `old`, by whatever name, means `new`."""
    named = (series.c.id == old) | (series.c.merged_into == old)
    connection.execute(update(series).where(named).values(merged_into=new))
