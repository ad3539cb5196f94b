"""What one listing is to change, decided before anything is written. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from ingestion_pipeline.pages.system import Ingested
from ingestion_pipeline.reading.reading import Reading
from ingestion_pipeline.series.chapter import Chapter, chapters_of
from ingestion_pipeline.series.release import Release
from ingestion_pipeline.series.rows import StoredRelease, VanishedLink
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.source import QUARANTINED
from ingestion_pipeline.store.rows import making_rows

ChapterKey = tuple[str, str]  # series id, chapter key


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceListing:
    """What one source lists of its series."""

    source: Source
    chapters: Sequence[Chapter]
    is_complete: bool
    problems: int
    notes: Sequence[str]
    ingestion_id: int | None = None

    @classmethod
    @making_rows()
    def of(
        cls, source: Source, reading: Reading[Release], *, ingestion_id: int | None = None
    ) -> SourceListing:
        """The listing a reading states; a part that could not be read makes it incomplete."""
        chapters, problems = chapters_of(reading.records, source_id=source.id)
        is_part_hidden = any(one.hides_record for one in [*problems, *reading.problems])
        return cls(
            source=source,
            chapters=chapters,
            is_complete=reading.is_complete and not is_part_hidden,
            problems=len(problems) + len(reading.problems),
            notes=reading.notes,
            ingestion_id=ingestion_id,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What a silent sync starts from: the latest number there was, and since when it is watched."""

    latest: Decimal | None
    since: datetime | None


@dataclass(slots=True, kw_only=True)
class ChapterPlan:
    """What is to be written for one listing."""

    listing: SourceListing
    series_id: str
    believed_after: int  # complete listings in a row that lack a chapter
    chapters: Sequence[Chapter]  # as listed, but under the keys of chapters that were recognised
    vanished: list[VanishedLink] = field(default_factory=list[VanishedLink])
    quarantine: str | None = None
    baseline: Baseline | None = None  # of a silent sync; none where there was no chapter before
    new_links: list[Chapter] = field(default_factory=list[Chapter])
    changed_links: list[tuple[Chapter, StoredRelease]] = field(
        default_factory=list[tuple[Chapter, StoredRelease]]
    )
    disproved: set[int] = field(default_factory=set[int])  # links: all they held has other numbers
    renumbered: set[str] = field(default_factory=set[str])  # keys: nothing but such releases

    @property
    def is_loud(self) -> bool:
        """Whether all it brings is news: not at a first sync, nor at the first one after a change.

        Another address or configuration may show a backlog that nobody had seen.
        """
        source = self.listing.source
        return source.synced_at is not None and not source.is_redirected

    def is_news(self, chapter: Chapter, *, now: datetime) -> bool:
        """Return whether a chapter that the source did not have may be new to followers.

        A silent sync proves it by a number beyond the latest; a first one by its date, too.
        """
        if self.is_loud:
            return True
        if self.baseline is None:
            return False
        latest, since, at = self.baseline.latest, self.baseline.since, chapter.published_at
        is_dated = since is not None and at is not None and since < at <= now
        if chapter.number is None or latest is None:
            return is_dated and self.listing.source.is_redirected
        return chapter.number > latest and (is_dated or self.listing.source.is_redirected)

    @property
    def returned(self) -> list[Chapter]:
        """What the source had withdrawn, and lists again."""
        return [chapter for chapter, known in self.changed_links if not known.available]

    @property
    def missing_once(self) -> list[VanishedLink]:
        """What may be gone."""
        return [one for one in self.vanished if not self._is_believed(one)]

    @property
    def withdrawn(self) -> list[VanishedLink]:
        """What is gone."""
        return [one for one in self.vanished if self._is_believed(one)]

    def _is_believed(self, one: VanishedLink) -> bool:
        # An operator's word is the second listing; without it the second would be quarantined.
        is_certain = self.listing.source.accepts_drop or one.id in self.disproved
        return is_certain or one.missed_listings + 1 >= self.believed_after


def result_of(plan: ChapterPlan, *, now: datetime) -> Ingested:
    """What the listing came to, for the source's row."""
    source = plan.listing.source
    if plan.quarantine is not None:
        return Ingested(
            source_id=source.id,
            outcome=f"{QUARANTINED}: {plan.quarantine}; the last good data stays",
            quarantined=True,
            needs_full_read=source.needs_full_read,
            record_count=source.record_count,
        )
    return Ingested(
        source_id=source.id,
        outcome=_outcome(plan),
        new=len(plan.new_links),
        updated=len(plan.changed_links),
        withdrawn=len(plan.withdrawn),
        newest_at=_newest_at(plan, now=now),
        published=[one.published_at for one in _news(plan) if one.published_at],
        needs_full_read=bool(plan.missing_once),
        record_count=source.record_count
        + len(plan.new_links)
        + len(plan.returned)
        - len(plan.withdrawn),
    )


def _outcome(plan: ChapterPlan) -> str:
    parts = {
        "new": len(plan.new_links),
        "updated": len(plan.changed_links),
        "withdrawn": len(plan.withdrawn),
        "missing once": len(plan.missing_once),
        "unreadable": plan.listing.problems,
    }
    said = ", ".join(f"{count} {word}" for word, count in parts.items() if count)
    first = "" if plan.listing.source.synced_at else "first sync: "
    return first + "; ".join([said or "nothing new", *plan.listing.notes])


def _newest_at(plan: ChapterPlan, *, now: datetime) -> datetime | None:
    """When the source last brought something new: by its own dates at the first sync."""
    new = _news(plan)
    if not new:
        return None
    if plan.listing.source.synced_at is not None:
        return now
    return max(past(chapter.published_at, now) for chapter in new)


def _news(plan: ChapterPlan) -> list[Chapter]:
    """What the source had under no number before."""
    return [chapter for chapter in plan.new_links if chapter.key not in plan.renumbered]


def past(moment: datetime | None, now: datetime) -> datetime:
    """The moment, but not in the future, and now if there is none."""
    return now if moment is None or moment > now else moment
