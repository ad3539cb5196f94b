"""What is to be written for one board's listing, and what that comes to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import Connection

from ingestion_pipeline.companies.boards import rows
from ingestion_pipeline.companies.boards.posting import WATCHED_FIELDS, Posting, posting_of
from ingestion_pipeline.companies.boards.rows import Candidate, StoredPosting
from ingestion_pipeline.companies.listing import Listing
from ingestion_pipeline.companies.names import is_same_place
from ingestion_pipeline.engine.polling.protocol import Ingested
from ingestion_pipeline.reading.structured.items import Reading
from ingestion_pipeline.settings.systems import Boards
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.source import QUARANTINED
from ingestion_pipeline.tasks.task import Task


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


def reason_to_quarantine(
    *,
    listed: int,
    known: int,
    vanished: int,
    stated: Collection[tuple[str, str]],
    accepts_drop: bool,
    limits: Boards,
) -> str | None:
    """Why a listing is not believed; an operator's word that it is right overrules it.

    `stated` has, for each posting that was known, the letters of its fields before and now.
    """
    if accepts_drop or known == 0:
        return None
    if listed == 0:
        return f"lists nothing, {known} jobs are known"
    if vanished >= limits.drop_floor and vanished > known * limits.drop_share:
        return f"{vanished} of {known} known jobs are missing from it"
    return _lost_field(stated, limits)


def _lost_field(stated: Collection[tuple[str, str]], limits: Boards) -> str | None:
    """A field that most postings had and have no more: it has another name now, or is gone."""
    for letter, name in WATCHED_FIELDS.items():
        had = [now for before, now in stated if letter in before]
        lost = sum(letter not in now for now in had)
        if lost and lost > len(had) * limits.lost_field_share:
            return f"{lost} of {len(had)} known jobs have lost their {name}"
    return None


@dataclass(slots=True)
class ListingPlace:
    """A listing, standing or to be made, and the postings of the boards that are known to be it."""

    candidate: Candidate | None
    posting: Posting | None = None
    source_id: str = ""
    links: dict[tuple[str, str], bool] = field(default_factory=dict[tuple[str, str], bool])

    @property
    def locations(self) -> list[str]:
        """Where the job is."""
        stated = self.posting.listing if self.posting is not None else self.candidate
        return _locations(stated) if stated is not None else []


@dataclass(slots=True, kw_only=True)
class Recognition:
    """The listings that the postings of a batch may be; each answer is remembered for the next.

    `listed` are the keys that each board of the batch lists at this moment.
    """

    listed: Mapping[str, set[str]]
    by_url: dict[str, ListingPlace] = field(default_factory=dict[str, ListingPlace])
    by_words: dict[str, list[ListingPlace]] = field(default_factory=dict[str, list[ListingPlace]])

    def home_of(self, source_id: str, posting: Posting) -> ListingPlace:
        """The listing that the posting is: by its URL, else by its words on another board."""
        found = self._same_url(source_id, posting) or self._same_words(source_id, posting)
        if found is None:
            found = self._new(source_id, posting)
        found.links[source_id, posting.external_key] = True
        return found

    def _same_url(self, source_id: str, posting: Posting) -> ListingPlace | None:
        """Unless the board lists another posting at this URL: some have one page for all jobs."""
        found = self.by_url.get(posting.url_key or "")
        return None if found is None or self._is_listed(found, source_id) else found

    def _same_words(self, source_id: str, posting: Posting) -> ListingPlace | None:
        """Only another board's: on one, a job for two cities is two postings of equal words.

        Nor where both boards state a place, and not the same.
        """
        if not posting.is_telling:
            return None
        homes = [
            home
            for home in self.by_words.get(posting.fingerprint, [])
            if all(linked != source_id for linked, _ in home.links)
        ]
        here = _locations(posting.listing)
        places = [home for home in homes if _is_same_place(here, home.locations)]
        exact = [home for home in places if here and home.locations[:1] == here[:1]]
        return next(iter([*exact, *places]), None)

    def _is_listed(self, home: ListingPlace, source_id: str) -> bool:
        keys = self.listed.get(source_id, set[str]())
        return any(linked == source_id and key in keys for linked, key in home.links)

    def _new(self, source_id: str, posting: Posting) -> ListingPlace:
        if posting.url_key in self.by_url:  # the address of another posting of this board
            posting = replace(posting, url_key=None)
        home = ListingPlace(None, posting, source_id)
        if posting.url_key:
            self.by_url[posting.url_key] = home
        if posting.is_telling:
            self.by_words.setdefault(posting.fingerprint, []).append(home)
        return home


def _locations(stated: Listing | Candidate) -> list[str]:
    return [place for place in (stated.location, *(stated.other_locations or ())) if place]


def _is_same_place(here: Sequence[str], there: Sequence[str]) -> bool:
    if not here or not there:
        return True
    return any(is_same_place(one_place, other) for one_place in here for other in there)


def recognition(
    connection: Connection, new: Sequence[tuple[str, Posting]], listed: Mapping[str, set[str]]
) -> Recognition:
    """What is known of listings that these new postings, each with its board, may be."""
    known = rows.candidates(
        connection,
        url_keys={one.url_key for _, one in new if one.url_key},
        fingerprints={one.fingerprint for _, one in new if one.is_telling},
    )
    links = rows.links_of(connection, [one.id for one in known])
    found = Recognition(listed=listed)
    for one in known:
        standing = {(source_id, key): on for source_id, key, on in links.get(one.id, [])}
        home = ListingPlace(one, links=standing)
        if one.url_key:
            found.by_url[one.url_key] = home
        found.by_words.setdefault(one.fingerprint, []).append(home)
    return found
