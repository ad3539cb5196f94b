"""What is to be written for one board's listing, and what that comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ingestion_pipeline.companies.boards.posting import Posting, posting_of
from ingestion_pipeline.companies.boards.rows import StoredPosting
from ingestion_pipeline.companies.listing import Listing
from ingestion_pipeline.pages.system import Ingested
from ingestion_pipeline.reading.reading import Reading
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.source import QUARANTINED
from ingestion_pipeline.work.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardListing:
    """What one poll of a board lists; the same posting twice counts once."""

    task: Task
    source: Source
    postings: Sequence[Posting]
    is_complete: bool
    problems: int
    notes: Sequence[str]
    ingestion_id: int | None = None

    @classmethod
    def of(
        cls,
        task: Task,
        source: Source,
        reading: Reading[Listing],
        *,
        ingestion_id: int | None = None,
    ) -> BoardListing:
        """The listing a reading states; a part that could not be read makes it incomplete."""
        found = [posting_of(one, source) for one in reading.records]
        by_key = {one.external_key: one for one in reversed(found)}
        is_part_hidden = any(one.hides_record for one in reading.problems)
        return cls(
            task=task,
            source=source,
            postings=list(by_key.values())[::-1],
            is_complete=reading.is_complete and not is_part_hidden,
            problems=len(reading.problems),
            notes=reading.notes,
            ingestion_id=ingestion_id,
        )


@dataclass(slots=True, kw_only=True)
class BoardPlan:
    """What differs between a board's listing and what is known of it."""

    listing: BoardListing
    believed_after: int  # complete listings in a row that lack a job
    quarantine: str | None = None
    new: list[Posting] = field(default_factory=list[Posting])
    changed: list[tuple[Posting, StoredPosting]] = field(
        default_factory=list[tuple[Posting, StoredPosting]]
    )
    returned: list[StoredPosting] = field(default_factory=list[StoredPosting])
    vanished: list[StoredPosting] = field(default_factory=list[StoredPosting])
    created: int = 0  # of the new links, those whose listing is new as well
    updated: int = 0  # listings that say something else now

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to write."""
        if self.quarantine is not None:
            return True
        return not (self.new or self.changed or self.returned or self.vanished)

    @property
    def missing(self) -> list[StoredPosting]:
        """What may be gone."""
        return [one for one in self.vanished if not self._is_believed(one)]

    @property
    def gone(self) -> list[StoredPosting]:
        """What is gone."""
        return [one for one in self.vanished if self._is_believed(one)]

    def _is_believed(self, one: StoredPosting) -> bool:
        # An operator's word is the second listing; without it the second would be quarantined.
        is_certain = self.listing.source.accepts_drop
        return is_certain or one.missing + 1 >= self.believed_after


def result_of(plan: BoardPlan, *, now: datetime) -> Ingested:
    """What the listing came to, for the source's row."""
    source = plan.listing.source
    if plan.quarantine is not None:
        return Ingested(
            source_id=source.id,
            outcome=f"{QUARANTINED}: {plan.quarantine}; the last good data stays",
            quarantined=True,
            is_buried=True,
            needs_full_read=source.needs_full_read,
            record_count=source.record_count,
        )
    back = sum(not one.available for one in plan.returned)
    return Ingested(
        source_id=source.id,
        outcome=_outcome(plan),
        new=len(plan.new),
        updated=plan.updated + back,
        withdrawn=len(plan.gone),
        newest_at=_newest_at(plan, now=now),
        published=[one.listing.posted_at for one in plan.new if one.listing.posted_at],
        needs_full_read=bool(plan.missing),
        record_count=source.record_count + len(plan.new) + back - len(plan.gone),
        has_touched=not plan.is_idle,
    )


def _outcome(plan: BoardPlan) -> str:
    parts = {
        "new": plan.created,
        "duplicate": len(plan.new) - plan.created,
        "updated": plan.updated,
        "reopened": sum(not one.available for one in plan.returned),
        "closed": len(plan.gone),
        "missing once": len(plan.missing),
        "unreadable": plan.listing.problems,
    }
    said = ", ".join(f"{count} {word}" for word, count in parts.items() if count)
    first = "" if plan.listing.source.synced_at else "first sync: "
    found = f"{len(plan.listing.postings)} found"
    return first + "; ".join([f"{found}, {said or 'nothing new'}", *plan.listing.notes])


def _newest_at(plan: BoardPlan, *, now: datetime) -> datetime | None:
    """When the board last brought something new: by its own dates at the first sync."""
    if not plan.new:
        return None
    if plan.listing.source.synced_at is not None:
        return now
    posted = [one.listing.posted_at for one in plan.new]
    return max(now if at is None or at > now else at for at in posted)
