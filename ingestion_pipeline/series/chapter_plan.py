"""The changes that a listing makes, decided before anything is written.

Also recognises unnumbered chapters of several sources, and numbers that a source has corrected.
"""

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, or_, select

from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline.series.chapter import Chapter, Release, chapter_of, chapters_of, own_id, release_from_dict
from ingestion_pipeline.series.chapter_rows import Baseline, StoredRelease, VanishedLink
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.poll_results import IngestResult
from ingestion_pipeline.sources.source import QUARANTINED
from ingestion_pipeline.store.changes import Cause, Origin
from ingestion_pipeline.store.tables import chapter_sources, chapters

DROP_SHARE = 0.5  # quarantined if more than this vanished
DROP_FLOOR = 5  # and at least this many chapters
MISSING_LISTINGS = 2  # complete listings that must lack a chapter before it is gone
ChapterKey = tuple[str, str]  # series id, chapter key


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceListing:
    """The chapters that one source lists of its series."""

    source: Source
    chapters: Sequence[Chapter]
    is_complete: bool
    problems: int
    notes: Sequence[str]
    origin: Origin

    @classmethod
    def of(cls, source: Source, parsed: ParsedFeed[Release], *, origin: Origin | None = None) -> "SourceListing":
        """Build the listing of a parsed feed; unreadable records make it incomplete."""
        chapters, problems = chapters_of(parsed.records, source_id=source.id)
        is_part_hidden = any(problem.hides_record for problem in [*problems, *parsed.problems])
        return cls(
            source=source,
            chapters=chapters,
            is_complete=parsed.is_complete and not is_part_hidden,
            problems=len(problems) + len(parsed.problems),
            notes=parsed.notes,
            origin=origin or _default_origin(source),
        )


def _default_origin(source: Source) -> Origin:
    cause = Cause.SOURCE_CHANGED if source.synced_at else Cause.FIRST_SYNC
    return Origin(cause=cause, source_id=source.id)


@dataclass(slots=True, kw_only=True)
class ChapterPlan:
    """The changes to write for one listing."""

    listing: SourceListing
    series_id: str
    chapters: Sequence[Chapter]  # as listed, but under the keys of chapters that were recognised
    vanished: list[VanishedLink] = field(default_factory=list[VanishedLink])
    quarantine: str | None = None
    baseline: Baseline | None = None  # of a silent sync; none where there was no chapter before
    new_links: list[Chapter] = field(default_factory=list[Chapter])
    changed_links: list[tuple[Chapter, StoredRelease]] = field(default_factory=list[tuple[Chapter, StoredRelease]])
    disproved: set[int] = field(default_factory=set[int])  # links whose releases all have other numbers
    renumbered: set[str] = field(default_factory=set[str])  # keys with only such releases

    @property
    def announces_all(self) -> bool:
        """Return whether every new chapter is news: not at a first sync, nor after a change.

        Another address or configuration may show a backlog that nobody had seen.
        """
        source = self.listing.source
        return source.synced_at is not None and not source.is_redirected

    def is_news(self, chapter: Chapter, *, now: datetime) -> bool:
        """Return whether a chapter that the source did not have may be new to followers.

        In a silent sync its number must exceed the latest; in a first sync its date must agree, too.
        """
        if self.announces_all:
            return True
        if self.baseline is None:
            return False
        latest, since, at = self.baseline.latest, self.baseline.since, chapter.leading.published_at
        is_dated = since is not None and at is not None and since < at <= now
        if chapter.number is None or latest is None:
            return is_dated and self.listing.source.is_redirected
        return chapter.number > latest and (is_dated or self.listing.source.is_redirected)

    @property
    def returned(self) -> list[Chapter]:
        """Return the chapters that the source had withdrawn and lists again."""
        return [chapter for chapter, link in self.changed_links if not link.available]

    @property
    def added(self) -> list[Chapter]:
        """Return the chapters that the source newly lists, or lists again."""
        return [*self.new_links, *self.returned]

    @property
    def missing_once(self) -> list[VanishedLink]:
        """Return the links that are missing, but not often enough to withdraw them."""
        return [link for link in self.vanished if not self._is_withdrawn(link)]

    @property
    def withdrawn(self) -> list[VanishedLink]:
        """Return the links to withdraw."""
        return [link for link in self.vanished if self._is_withdrawn(link)]

    def _is_withdrawn(self, link: VanishedLink) -> bool:
        # `accepts_drop` replaces the second listing, which would be quarantined without it.
        is_certain = self.listing.source.accepts_drop or link.id in self.disproved
        return is_certain or link.missed_listings + 1 >= MISSING_LISTINGS


def result_of(plan: ChapterPlan, *, now: datetime) -> IngestResult:
    """Return the listing's result for the source's row."""
    source = plan.listing.source
    if plan.quarantine is not None:
        return IngestResult(
            source_id=source.id,
            outcome=f"{QUARANTINED}: {plan.quarantine}; the last good data stays",
            quarantined=True,
            needs_full_read=source.needs_full_read,
            record_count=source.record_count,
        )
    # of the chapters that the source had under no number before
    dates = [chapter.leading.published_at for chapter in plan.new_links if chapter.key not in plan.renumbered]
    return IngestResult(
        source_id=source.id,
        outcome=_outcome(plan),
        new=len(plan.new_links),
        updated=len(plan.changed_links),
        withdrawn=len(plan.withdrawn),
        # by the source's own dates at the first sync
        newest_at=max((now if source.synced_at else past(at, now) for at in dates), default=None),
        published=[at for at in dates if at],
        needs_full_read=bool(plan.missing_once),
        record_count=source.record_count + len(plan.new_links) + len(plan.returned) - len(plan.withdrawn),
    )


def _outcome(plan: ChapterPlan) -> str:
    parts = {
        "new": len(plan.new_links),
        "updated": len(plan.changed_links),
        "withdrawn": len(plan.withdrawn),
        "missing once": len(plan.missing_once),
        "unreadable": plan.listing.problems,
    }
    counts = ", ".join(f"{count} {word}" for word, count in parts.items() if count)
    first = "" if plan.listing.source.synced_at else "first sync: "
    return first + "; ".join([counts or "nothing new", *plan.listing.notes])


def past(moment: datetime | None, now: datetime) -> datetime:
    """Return the time, but `now` if it is None or in the future."""
    return now if moment is None or moment > now else moment


def reason_to_quarantine(*, listed: int, existing: int, vanished: int, accepts_drop: bool) -> str | None:
    """Return why the listing is not trusted; None if it is, or an operator accepts the drop."""
    if accepts_drop or existing == 0:
        return None
    if listed == 0:
        return f"lists nothing, {existing} chapters are known"
    if vanished >= DROP_FLOOR and vanished > existing * DROP_SHARE:
        return f"{vanished} of {existing} known chapters are missing from it"
    return None


SAME_WITHIN = timedelta(hours=72)


@dataclass(slots=True, kw_only=True)
class Oneshot:
    """An unnumbered chapter, and each source's own id of it."""

    key: ChapterKey
    id: int | None
    title: str
    published_at: datetime | None
    names: dict[str, str] = field(default_factory=dict[str, str])  # source id: its own id


def recognise(
    connection: Connection, plans: Sequence[ChapterPlan], ids: Mapping[ChapterKey, int]
) -> dict[ChapterKey, int]:
    """Match unnumbered chapters without a key to existing ones, and list them under those keys.

    Return the ids of the existing ones. No query is made where every new chapter has a number.
    """
    seekers = [
        plan
        for plan in plans
        if any(chapter.number is None and (plan.series_id, chapter.key) not in ids for chapter in plan.chapters)
    ]
    if not seekers:
        return {}
    oneshots = _oneshots(connection, seekers)
    for plan in seekers:
        plan.chapters = [
            chapter
            if chapter.number is not None or (plan.series_id, chapter.key) in ids
            else _recognised(chapter, plan, oneshots)
            for chapter in plan.chapters
        ]
    return {chapter.key: chapter.id for chapter in oneshots if chapter.id is not None}


def _recognised(chapter: Chapter, plan: ChapterPlan, oneshots: list[Oneshot]) -> Chapter:
    source_id, first = plan.listing.source.id, chapter.leading
    name = own_id(first)
    mine = [oneshot for oneshot in oneshots if oneshot.key[0] == plan.series_id]
    same = [oneshot for oneshot in mine if oneshot.names.get(source_id) == name]
    same += [oneshot for oneshot in mine if source_id not in oneshot.names and is_same(oneshot, first)]
    if not same:
        key = (plan.series_id, chapter.key)
        same = [Oneshot(key=key, id=None, title=plain_title(first.title), published_at=first.published_at)]
        oneshots.extend(same)
    same[0].names[source_id] = name
    return replace(chapter, key=same[0].key[1])


def is_same(oneshot: Oneshot, release: Release) -> bool:
    """Return whether another source's unnumbered chapter is this one, by title and date."""
    if oneshot.published_at is None or release.published_at is None or not oneshot.title:
        return False
    is_near = abs(oneshot.published_at - release.published_at) <= SAME_WITHIN
    return is_near and oneshot.title == plain_title(release.title)


def plain_title(title: str | None) -> str:
    """Return the title's letters and digits: case, width, blanks and punctuation differ by site."""
    text = unicodedata.normalize("NFKC", title or "").casefold()
    return "".join(c for c in text if c.isalnum())


def _oneshots(connection: Connection, plans: Sequence[ChapterPlan]) -> list[Oneshot]:
    """Return every unnumbered chapter of the plans' series, oldest first."""
    own = func.coalesce(chapter_sources.c.source_chapter_id, chapter_sources.c.url)
    query = (
        select(
            *(chapters.c[name] for name in ("id", "series_id", "key", "title", "published_at")),
            chapter_sources.c.source_id,
            own,
        )
        .outerjoin(chapter_sources, chapter_sources.c.chapter_id == chapters.c.id)
        .where(chapters.c.series_id.in_({plan.series_id for plan in plans}), chapters.c.number.is_(None))
        .order_by(chapters.c.id)
    )
    oneshots: dict[int, Oneshot] = {}
    rows: Sequence[Any] = connection.execute(query).all()
    for id_, series_id, key, title, published_at, source_id, name in rows:
        oneshot = oneshots.setdefault(
            id_, Oneshot(key=(series_id, key), id=id_, title=plain_title(title), published_at=published_at)
        )
        if source_id is not None:
            oneshot.names[source_id] = name or ""
    return list(oneshots.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """An available chapter source whose number its source may have corrected."""

    id: int
    source_id: str
    series_id: str
    chapter_id: int
    key: str
    missed_listings: int
    is_rejected: bool
    releases: Sequence[Release]


def find_renumbered(connection: Connection, plans: Sequence[ChapterPlan]) -> None:
    """Add to the plans what is now listed under another number: links to withdraw, and no news."""
    open_plans = [plan for plan in plans if _may_correct(plan)]
    if not open_plans:
        return
    suspects = _suspects(connection, open_plans)
    for plan in open_plans:
        mine = [suspect for suspect in suspects if suspect.source_id == plan.listing.source.id]
        _correct(plan, [suspect for suspect in mine if suspect.series_id == plan.series_id])


def listed_keys(plan: ChapterPlan) -> dict[str, set[str]]:
    """Return the keys under which the listing has each release, by the source's own id."""
    keys: dict[str, set[str]] = {}
    for chapter in plan.chapters:
        for release in chapter.releases:
            keys.setdefault(own_id(release), set()).add(chapter.key)
    keys.pop("", None)
    return keys


def _may_correct(plan: ChapterPlan) -> bool:
    """Return whether the listing may hold a corrected number.

    Something must be new; and something must have vanished, or the window must overlap the one
    before. In a window that is all new every chapter may have the same address, or ids by position.
    """
    fresh = len(plan.added)
    if plan.listing.is_complete:
        return bool(fresh and plan.vanished)
    return bool(plan.listing.source.record_count) and 0 < fresh < len(plan.chapters)


def _suspects(connection: Connection, plans: Sequence[ChapterPlan]) -> list[Suspect]:
    """Return links that complete listings lack, and links that windows show among new chapters."""
    gone = [link.id for plan in plans for link in plan.vanished]
    own_ids = {
        own_id(release)
        for plan in plans
        if not plan.listing.is_complete
        for chapter in plan.added
        for release in chapter.releases
    }
    own = func.coalesce(chapter_sources.c.source_chapter_id, chapter_sources.c.url)
    query = (
        select(
            *(chapter_sources.c[name] for name in ("id", "source_id", "chapter_id", "missed_listings", "releases")),
            chapters.c.series_id,
            chapters.c.key,
            chapters.c.rejected_at.is_not(None).label("is_rejected"),
        )
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .where(
            chapter_sources.c.source_id.in_([plan.listing.source.id for plan in plans]),
            chapter_sources.c.available,
            or_(chapter_sources.c.id.in_(gone), own.in_(sorted(own_ids))),
        )
    )
    rows: list[dict[str, Any]] = [dict(row) for row in connection.execute(query).mappings()]
    for row in rows:
        row["releases"] = [release_from_dict(fields) for fields in row["releases"]]
    return [Suspect(**row) for row in rows]


def _correct(plan: ChapterPlan, suspects: Collection[Suspect]) -> None:
    """Withdraw what moved to another number; a number that is still listed is no mistake."""
    keys = listed_keys(plan)
    listed = {chapter.key for chapter in plan.chapters}
    announced: set[str] = set()
    for suspect in suspects:
        moved = [release for release in suspect.releases if len(keys.get(own_id(release), ())) == 1]
        if not moved or suspect.key in listed:
            continue
        _remove_releases(plan, suspect, [release for release in suspect.releases if release not in moved])
        if not suspect.is_rejected:  # followers were not notified of a rejected one
            announced |= {own_id(release) for release in moved}
    plan.renumbered = {
        chapter.key for chapter in plan.new_links if all(own_id(release) in announced for release in chapter.releases)
    }


def _remove_releases(plan: ChapterPlan, suspect: Suspect, left: Sequence[Release]) -> None:
    if not left:
        plan.disproved.add(suspect.id)
        if not plan.listing.is_complete:
            plan.vanished.append(VanishedLink(id=suspect.id, missed_listings=suspect.missed_listings))
    elif not plan.listing.is_complete:
        link = StoredRelease(chapter_id=suspect.chapter_id, fingerprint="", available=True, missed_listings=0)
        plan.changed_links.append((chapter_of(suspect.key, left), link))
