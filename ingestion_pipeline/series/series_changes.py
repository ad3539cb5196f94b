"""Operator changes to series: merge, split, and withdraw or restore a chapter; all audited."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

import sqlalchemy as sa

from ingestion_pipeline.series import announcements, chapter, chapter_rows
from ingestion_pipeline.series.chapter_labels import chapter_numbers
from ingestion_pipeline.series.chapter_rows import LinkRow, link_row, recompute_latest
from ingestion_pipeline.series.series_reports import SeriesMerged, lock_live
from ingestion_pipeline.sources import lookup
from ingestion_pipeline.sources.poll_tasks import interrupt_polls, lock_polls
from ingestion_pipeline.sources.source import SERIES_ID
from ingestion_pipeline.store.changes import set_origins
from ingestion_pipeline.store.statements import audit, insert_into, lock_rows, row_source
from ingestion_pipeline.store.tables import chapter_sources, chapters, series, sources
from ingestion_pipeline.store.types import Id


class SameSeries(ValueError):
    """A series cannot be merged into itself."""

    def __init__(self, series_id: str) -> None:
        super().__init__(f"{series_id!r} was given twice; name two different series")


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Result of a merge."""

    chapters_moved: int
    chapters_united: int
    links_moved: int
    follows_moved: int
    notices_dropped: int


def merge(connection: sa.Connection, old: str, new: str, *, actor: str, now: datetime) -> Merged:
    """Move every chapter of `old` into `new`; from now on both ids mean `new`.

    Polls are locked first, then series in one order, as ingestion does it. A series that was merged
    is refused on either side, and series merged into `old` before are redirected, too: so there are
    no chains and no cycles. Followers are notified of what is new to them, and of nothing twice.
    """
    if old == new:
        raise SameSeries(old)
    set_origins(connection, {}, now=now)
    affected = {*lookup.sources_of(connection, [old, new]), *linked_sources(connection, [old, new])}
    lock_polls(connection, affected)
    lock_live(connection, [old, new])
    pairs = shared_chapters(connection, old, new)
    announcements.lock(connection, pairs.values(), old=old, new=new)
    unseen = announcements.unseen(connection, old, new)
    _fill_from_duplicates(connection, old, new)
    links = move_links(connection, pairs)
    dropped = announcements.repoint(connection, pairs, series_id=new)
    connection.execute(sa.delete(chapters).where(chapters.c.id.in_(list(pairs))))
    others = sa.update(chapters).where(chapters.c.series_id == old).values(series_id=new)
    moved = connection.execute(others).rowcount
    follows = announcements.move_to_series(connection, old, new)
    announcements.announce_unseen(connection, unseen, series_id=new, now=now)
    # and every series merged into it before
    named = (series.c.id == old) | (series.c.merged_into == old)
    connection.execute(sa.update(series).where(named).values(merged_into=new))
    recompute_latest(connection, [old, new])
    lock_rows(connection, sources.c.id, affected)
    recount_chapters(connection, affected, now=now)
    result = Merged(
        chapters_moved=moved,
        chapters_united=len(pairs),
        links_moved=links,
        follows_moved=follows,
        notices_dropped=dropped,
    )
    detail = {"into": new, **asdict(result)}
    audit(connection, actor=actor, action="series.merge", subject=old, now=now, detail=detail)
    return result


def _fill_from_duplicates(connection: sa.Connection, old: str, new: str) -> None:
    """Fill missing fields from the duplicates, and keep the earlier time of detection."""
    twin = chapters.alias()
    earlier = sa.case(
        (twin.c.first_detected_at < chapters.c.first_detected_at, twin.c.first_detected_at),
        else_=chapters.c.first_detected_at,
    )
    connection.execute(
        sa.update(chapters)
        .where(chapters.c.series_id == new, twin.c.series_id == old, twin.c.key == chapters.c.key)
        .values(
            title=sa.func.coalesce(chapters.c.title, twin.c.title),
            published_at=sa.func.coalesce(chapters.c.published_at, twin.c.published_at),
            first_detected_at=earlier,
            unannounced=sa.or_(chapters.c.unannounced, twin.c.unannounced),
        )
    )


class CannotSplit(ValueError):
    """The requested split is not possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Result of a split."""

    links_moved: int
    chapters_made: int
    chapters_removed: int


def split(
    connection: sa.Connection,
    old: str,
    new: str,
    source_ids: Sequence[str],
    *,
    title: str | None = None,
    actor: str,
    now: datetime,
) -> Split:
    """Move the sources and their chapters from `old` to `new`, whatever the sources' files declare.

    Undoes a merge where `new` was merged into `old`. Sent notices and follows stay as they are.
    """
    if old == new:
        raise SameSeries(old)
    if not SERIES_ID.fullmatch(new):
        raise CannotSplit(f"{new!r} is not a valid series id; use a-z 0-9 : . _ -, at most 120")
    set_origins(connection, {}, now=now)
    # Also those that stay: undoing a merge assigns sources that came with it by name.
    affected = {*source_ids, *lookup.sources_of(connection, [old])}
    lock_polls(connection, affected)
    chapter_rows.ensure_series(connection, {new: title or new}, now=now)
    if title is not None:
        connection.execute(sa.update(series).where(series.c.id == new).values(title=title))
    merged = chapter_rows.lock_series(connection, [old, new])
    lock_live(connection, [old])
    if merged.get(new, old) != old:
        raise SeriesMerged(new, merged[new])
    _check_sources(connection, source_ids, old)
    made = _copy_chapters(connection, old, new, source_ids)
    pairs = shared_chapters(connection, old, new)
    links = move_links(connection, pairs, of=source_ids)
    removed = _remove_empty(connection, list(pairs))
    lock_rows(connection, sources.c.id, affected)
    if new in merged:
        # undo the merge; sources that came with `new` and stay are assigned to `old`
        staying = (lookup.named_series() == new) & sources.c.id.not_in(list(source_ids))
        connection.execute(sa.update(sources).where(staying).values(assigned_series_id=old))
        connection.execute(sa.update(series).where(series.c.id == new).values(merged_into=None))
    _assign(connection, source_ids, new, now=now)
    recompute_latest(connection, [old, new])
    recount_chapters(connection, source_ids, now=now)
    interrupt_polls(connection, source_ids, now=now)
    result = Split(links_moved=links, chapters_made=made, chapters_removed=removed)
    detail = {"into": new, "sources": list(source_ids), **asdict(result)}
    audit(connection, actor=actor, action="series.split", subject=old, now=now, detail=detail)
    return result


def _check_sources(connection: sa.Connection, source_ids: Sequence[str], old: str) -> None:
    assignments = lookup.series_assignments(connection, source_ids)
    for source_id in source_ids:
        if source_id not in assignments:
            raise lookup.UnknownSource(source_id)
        series_id = assignments[source_id].series_id
        if series_id != old:
            raise CannotSplit(f"{source_id} belongs to {series_id!r}, not to {old!r}; nothing was split")


def _copy_chapters(connection: sa.Connection, old: str, new: str, source_ids: Collection[str]) -> int:
    """Copy the chapters of these sources to `new`, with the time they were first detected.

    If `new` has chapters, its followers are notified once one of its sources lists a copied one.
    """
    facts = ("key", "number", "title", "published_at", "rejected_at")
    own = chapters.alias()
    has_chapters = sa.exists().where(own.c.series_id == new)
    theirs = (
        sa.select(
            sa.literal(new),
            *(chapters.c[name] for name in facts),
            sa.or_(chapters.c.unannounced, has_chapters),
            sa.func.min(chapter_sources.c.detected_at, type_=chapters.c.first_detected_at.type),
        )
        .join(chapter_sources, chapter_sources.c.chapter_id == chapters.c.id)
        .where(chapters.c.series_id == old, chapter_sources.c.source_id.in_(list(source_ids)))
        .group_by(chapters.c.id)
        .order_by(chapters.c.id)
    )
    statement = (
        insert_into(connection, chapters)
        .from_select(["series_id", *facts, "unannounced", "first_detected_at"], theirs)
        .on_conflict_do_nothing(index_elements=["series_id", "key"])
    )
    return connection.execute(statement).rowcount


def _remove_empty(connection: sa.Connection, chapter_ids: Sequence[int]) -> int:
    """Delete those of these chapters that have no source and were never announced."""
    query = sa.select(chapters.c.id).where(
        chapters.c.id.in_(chapter_ids), ~sa.exists().where(chapter_sources.c.chapter_id == chapters.c.id)
    )
    empty = set(connection.execute(query).scalars())
    empty -= announcements.announced_chapters(connection, empty)
    connection.execute(sa.delete(chapters).where(chapters.c.id.in_(empty)))
    return len(empty)


def _assign(connection: sa.Connection, source_ids: Collection[str], new: str, *, now: datetime) -> None:
    """Assign the sources to `new`; clear the assignment where the declaration says the same."""
    declared = lookup.canonical_series_id(sa.func.coalesce(sources.c.series_id, sources.c.id))
    connection.execute(
        sa.update(sources)
        .where(sources.c.id.in_(list(source_ids)))
        .values(assigned_series_id=sa.case((declared == new, sa.null()), else_=new), updated_at=now)
    )


class UnknownChapter(LookupError):
    """The series has no such chapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A chapter, whether it changed, and how many notices were muted or are pending again."""

    key: str
    is_changed: bool
    notices: int = 0


def withdraw(
    connection: sa.Connection, series_id: str, label: str, *, reason: str | None = None, actor: str, now: datetime
) -> Rejection:
    """Reject the chapter: it is not the latest, fills no gap, and nobody is notified of it."""
    set_origins(connection, {}, now=now)
    chapter_id, key, rejected_at = _locked_chapter(connection, series_id, label)
    if rejected_at is not None:
        return Rejection(key=key, is_changed=False)
    _set_rejected(connection, chapter_id, series_id, rejected_at=now)
    muted = announcements.suppress(connection, chapter_id, now=now)
    detail = {"chapter": key, "reason": reason, "notices_muted": muted}
    audit(connection, actor=actor, action="chapter.withdraw", subject=series_id, now=now, detail=detail)
    return Rejection(key=key, is_changed=True, notices=muted)


def restore(connection: sa.Connection, series_id: str, label: str, *, actor: str, now: datetime) -> Rejection:
    """Undo `withdraw` and release the notifications it held back."""
    set_origins(connection, {}, now=now)
    chapter_id, key, rejected_at = _locked_chapter(connection, series_id, label)
    if rejected_at is None:
        return Rejection(key=key, is_changed=False)
    _set_rejected(connection, chapter_id, series_id, rejected_at=None)
    pending = announcements.restore(connection, chapter_id, suppressed_at=rejected_at)
    detail = {"chapter": key, "notices_pending": pending}
    audit(connection, actor=actor, action="chapter.restore", subject=series_id, now=now, detail=detail)
    return Rejection(key=key, is_changed=True, notices=pending)


def _locked_chapter(connection: sa.Connection, series_id: str, label: str) -> tuple[int, str, datetime | None]:
    """Lock the series; return id, key and rejection of the chapter by number or key."""
    lock_live(connection, [series_id])
    key = (chapter.key_of(*chapter_numbers(label)) if "#" not in label else None) or label
    columns = (chapters.c.id, chapters.c.key, chapters.c.rejected_at)
    rows = chapter_rows.chapters_by_key(connection, [(series_id, key)], *columns)
    if not rows:
        raise UnknownChapter(
            f"{series_id!r} has no chapter {label!r}; `ingest series show {series_id}` shows what it has"
        )
    return tuple(rows[0])


def _set_rejected(connection: sa.Connection, chapter_id: int, series_id: str, *, rejected_at: datetime | None) -> None:
    connection.execute(sa.update(chapters).where(chapters.c.id == chapter_id).values(rejected_at=rejected_at))
    recompute_latest(connection, [series_id])


def shared_chapters(connection: sa.Connection, old: str, new: str) -> dict[int, int]:
    """Return the chapters of `old` whose key `new` has, too: id in `old`, id in `new`."""
    twin = chapters.alias()
    query = sa.select(chapters.c.id, twin.c.id).join(twin, twin.c.key == chapters.c.key)
    rows = connection.execute(query.where(chapters.c.series_id == old, twin.c.series_id == new))
    return {old_id: new_id for old_id, new_id in rows}  # noqa: C416 - rows, not pairs, to a type checker


def move_links(connection: sa.Connection, pairs: Mapping[int, int], *, of: Collection[str] | None = None) -> int:
    """Move the chapter sources of each chapter to its counterpart; return how many.

    `of` limits it to these sources. Where the source already has a row there, one row keeps the
    releases of both.
    """
    if not pairs:
        return 0
    batch = row_source(connection, {"old": Id, "new": Id}, sorted(pairs.items()), "given")
    is_moved = chapter_sources.c.chapter_id == batch.c.old
    if of is not None:
        is_moved &= chapter_sources.c.source_id.in_(list(of))
    _merge_duplicates(connection, batch, is_moved)
    return connection.execute(sa.update(chapter_sources).where(is_moved).values(chapter_id=batch.c.new)).rowcount


def _merge_duplicates(connection: sa.Connection, batch: sa.CTE, is_moved: sa.ColumnElement[bool]) -> None:
    """Unite each link that moves with the one its source has there: all releases, the newer values."""
    other = chapter_sources.alias()
    query = (
        sa.select(chapters.c.key, chapter_sources.c.id, other.c.id)
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .join(batch, is_moved)
        .join(other, sa.and_(other.c.chapter_id == batch.c.new, other.c.source_id == chapter_sources.c.source_id))
    )
    rows = connection.execute(query).all()
    duplicate_ids = [duplicate for _, duplicate, _ in rows]
    held = sa.select(chapter_sources).where(chapter_sources.c.id.in_([*duplicate_ids, *(id_ for _, _, id_ in rows)]))
    links = {row["id"]: row for row in connection.execute(held).mappings()}
    pairs = [(key, links[duplicate], links[survivor]) for key, duplicate, survivor in rows]
    chapter_rows.update_links(connection, [_united(key, duplicate, survivor) for key, duplicate, survivor in pairs])
    for _, duplicate, survivor in pairs:
        there = survivor["available"] or duplicate["available"]
        current = survivor if survivor["available"] == there else duplicate
        connection.execute(
            sa.update(chapter_sources)
            .where(chapter_sources.c.id == survivor["id"])
            .values(
                available=there,
                missed_listings=current["missed_listings"],
                last_seen_at=current["last_seen_at"],
                detected_at=min(survivor["detected_at"], duplicate["detected_at"]),
            )
        )
    connection.execute(sa.delete(chapter_sources).where(chapter_sources.c.id.in_(duplicate_ids)))


def _united(key: str, duplicate: sa.RowMapping, survivor: sa.RowMapping) -> LinkRow:
    older, newer = sorted(
        (survivor, duplicate), key=lambda link: (link["available"], link["detected_at"], len(link["releases"]))
    )
    older_releases, newer_releases = (
        [chapter.release_from_dict(fields) for fields in link["releases"]] for link in (older, newer)
    )
    united = chapter.with_stored_releases(chapter.chapter_of(key, newer_releases), older_releases)
    return link_row(survivor["chapter_id"], survivor["source_id"], united)


def recount_chapters(connection: sa.Connection, source_ids: Collection[str], *, now: datetime) -> None:
    """Update the sources' record counts; polls, which the caller has locked, start again if theirs changed."""
    count = (
        sa.select(sa.func.count())
        .select_from(chapter_sources)
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .where(
            chapter_sources.c.source_id == sources.c.id,
            chapter_sources.c.available,
            chapters.c.series_id == lookup.canonical_series_id(lookup.named_series()),
        )
        .correlate(sources)
        .scalar_subquery()
    )
    changed = (
        sa.update(sources)
        .where(sources.c.id.in_(list(source_ids)), sources.c.record_count != count)
        .values(record_count=count, updated_at=now)
        .returning(sources.c.id)
    )
    interrupt_polls(connection, list(connection.execute(changed).scalars()), now=now)


def linked_sources(connection: sa.Connection, series_ids: Collection[str]) -> set[str]:
    """Return the sources that list or listed a chapter of these series."""
    query = (
        sa.select(chapter_sources.c.source_id)
        .distinct()
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .where(chapters.c.series_id.in_(list(series_ids)))
    )
    return set(connection.execute(query).scalars())
