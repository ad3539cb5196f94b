"""Postings of a polled board with their keys, and the plan of its writes.

A posting has keys by board, URL and text, a content hash and a quality. The plan says which postings are new,
changed or vanished, which listing each belongs to, and whether the poll is quarantined.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any, cast

import orjson
from pydantic import TypeAdapter
from sqlalchemy import Connection

from ingestion_pipeline.companies.boards import listing_rows
from ingestion_pipeline.companies.boards.listing_rows import Candidate, StoredPosting
from ingestion_pipeline.companies.job_listing import (
    Listing,
    fingerprint,
    is_same_place,
    listing_as_dict,
    salary_as_dict,
    stated_company,
    url_key,
)
from ingestion_pipeline.companies.places import places_as_dicts
from ingestion_pipeline.companies.records import Completeness
from ingestion_pipeline.engine.context import IngestResult
from ingestion_pipeline.reading.structured.items import ParsedFeed, Problem
from ingestion_pipeline.reading.text.plain_text import phrases_of
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.source import QUARANTINED
from ingestion_pipeline.tasks.errors import storable
from ingestion_pipeline.tasks.task import Task

MAX_KEY_CHARACTERS = 200  # a PostgreSQL index entry has at most 2,700 bytes
MINIMAL_TEXT = 100  # characters; a listing with a description no longer than this is thin
LONG_TEXT = 200  # characters of a description that identify a posting without its company's name

_REQUIREMENTS = re.compile(phrases_of("ingestion_pipeline.companies")["requirements"], re.IGNORECASE)

# The columns of `job_listings` that an evaluation reads: a change of one has the listing evaluated again.
EVALUATED_COLUMNS = (
    *("title", "company_name", "location", "other_locations", "remote", "description", "salary"),
    *("posted_at", "employment_type"),
)
# Further columns whose change is stored. Not the URL: some boards put a session into it.
STORED_COLUMNS = ("department", "company_website")
_SAME_NAMED = (  # in a listing and its columns
    *("title", "url", "location", "department", "employment_type", "description"),
    *("posted_at", "valid_until", "company_website"),
)
# Fields that must not vanish from most listings of a board at once, by their code.
WATCHED_FIELDS = {"t": "title", "u": "url", "d": "description", "l": "location"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """A listing as one board states it; `stated` has a code for each watched field it has."""

    listing: Listing
    company: str | None
    external_key: str
    url_key: str | None
    fingerprint: str
    content_hash: str
    stated: str

    @property
    def is_distinctive(self) -> bool:
        """Return whether its text alone identifies the same posting on another board."""
        words = self.listing.description or ""
        return len(words) >= LONG_TEXT or bool(words and self.company)

    @property
    def columns(self) -> dict[str, Any]:
        """Return what it states as columns of `job_listings`."""
        listing = self.listing
        return {name: getattr(listing, name) for name in _SAME_NAMED} | {
            "company_name": self.company,
            "other_locations": list(listing.other_locations) or None,
            "places": places_as_dicts(listing.location, *listing.other_locations) or None,
            "remote": listing.remote.value if listing.remote else None,
            "salary": dict(salary_as_dict(listing.salary)) if listing.salary else None,
        }


def posting_of(listing: Listing, source: Source) -> Posting:
    """Return the listing with its keys; a listing without a company belongs to the board's."""
    company = stated_company(listing.company) or source.company_id
    words = fingerprint(listing.title, company, listing.description)
    address = url_key(listing.url) if listing.url else None
    stated = {"t": listing.title, "u": listing.url, "d": listing.description, "l": listing.location}
    posting = Posting(
        listing=listing,
        company=company,
        external_key=_external_key(listing, address, words),
        url_key=address,
        fingerprint=words,
        content_hash="",
        stated="".join(code for code, text in stated.items() if text),
    )
    columns = posting.columns
    if listing.posted_is_relative:
        columns["posted_at"] = None  # it changes with every poll
    return replace(posting, content_hash=content_hash(columns, STORED_COLUMNS))


def content_hash(columns: Mapping[str, Any], further: Sequence[str] = ()) -> str:
    """Return the hash of the columns that an evaluation reads, and of further ones.

    The hash of a listing is of what an evaluation reads: every writer of these columns calls this. The hash of a
    posting decides whether a listing that is stored already is written again: a new column belongs to one of the two.
    Equal for equal values, whichever database they came from.
    """
    values = [columns.get(name) for name in (*EVALUATED_COLUMNS, *further)]
    # Only where there is one: most boards state none, and their hashes stay as they were.
    if (deadline := columns.get("valid_until")) is not None:
        values.append(deadline)
    return sha256(orjson.dumps(values, default=_text, option=orjson.OPT_SORT_KEYS)).hexdigest()


def quality_of(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the completeness level of a listing's columns and what it does not state."""
    expected = ("url", "company_name", "location", "description", "salary", "posted_at")
    text = columns.get("description") or ""
    has_text = len(text) > MINIMAL_TEXT
    level = Completeness.THIN
    if has_text and all(columns.get(name) for name in ("url", "title", "company_name")):
        level = Completeness.MINIMAL
        if columns.get("location") and columns.get("posted_at") and _REQUIREMENTS.search(text):
            level = Completeness.GOOD
    missing = [name for name in expected if not columns.get(name)]
    return {"level": level.value, "missing": missing}


def _external_key(listing: Listing, address: str | None, words: str) -> str:
    key = listing.external_id
    if key is None:
        place = (listing.location or "").casefold()
        key = f"url:{address}" if address else f"text:{_digest(words + place)}"
    return key if len(key) <= MAX_KEY_CHARACTERS else f"sha256:{_digest(key)}"


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _text(value: object) -> str:
    match value:
        case datetime():
            return value.isoformat()
        case Decimal():
            return str(value)
        case _:
            raise TypeError(f"{type(value).__name__} is no value of a listing")


MARK = b'"posted_is_relative"'  # once in every listing
_LISTINGS = TypeAdapter(list[Listing])


def feed_to_bytes(parsed: ParsedFeed[Listing]) -> bytes:
    """Serialise the parsed feed for the content store."""
    return orjson.dumps(
        {
            "is_complete": parsed.is_complete,
            "problems": [asdict(problem) for problem in parsed.problems],
            "notes": list(parsed.notes),
            "listings": [
                {name: _storable(value) for name, value in listing_as_dict(listing).items()}
                | {"posted_is_relative": listing.posted_is_relative}
                for listing in parsed.records
            ],
        }
    )


def feed_from_bytes(stored: bytes) -> ParsedFeed[Listing]:
    """Deserialise a feed that `feed_to_bytes` wrote."""
    document: dict[str, Any] = orjson.loads(stored)
    return ParsedFeed(
        records=_LISTINGS.validate_python(document["listings"]),
        problems=[Problem(**fields) for fields in document["problems"]],
        is_complete=document["is_complete"],
        notes=document["notes"],
    )


def _storable(value: Any) -> Any:  # noqa: ANN401 - a plain value of any field
    if isinstance(value, list):
        return [_storable(part) for part in cast("list[Any]", value)]
    return storable(value) if isinstance(value, str) else value


DROP_FLOOR = 5  # listings; fewer vanished ones are no drop
DROP_SHARE = 0.5  # of the known listings; more vanished ones are a drop
LOST_FIELD_SHARE = 0.5  # of the listings that had the field
CLOSES_AFTER = 2  # complete polls in a row without the job


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardListing:
    """The postings of one poll of a board, each once."""

    task: Task
    source: Source
    postings: Sequence[Posting]
    is_complete: bool
    problems: int
    notes: Sequence[str]
    ingestion_id: int | None = None

    @classmethod
    def of(
        cls, task: Task, source: Source, parsed: ParsedFeed[Listing], *, ingestion_id: int | None = None
    ) -> "BoardListing":
        """Return the listing of a parsed feed; an unreadable part makes it incomplete."""
        postings = [posting_of(record, source) for record in parsed.records]
        by_key = {posting.external_key: posting for posting in reversed(postings)}
        is_part_hidden = any(problem.hides_record for problem in parsed.problems)
        return cls(
            task=task,
            source=source,
            postings=list(by_key.values())[::-1],
            is_complete=parsed.is_complete and not is_part_hidden,
            problems=len(parsed.problems),
            notes=parsed.notes,
            ingestion_id=ingestion_id,
        )


@dataclass(slots=True, kw_only=True)
class BoardPlan:
    """The differences between a board's listing and its stored postings."""

    listing: BoardListing
    quarantine: str | None = None
    new: list[Posting] = field(default_factory=list[Posting])
    changed: list[tuple[Posting, StoredPosting]] = field(default_factory=list[tuple[Posting, StoredPosting]])
    returned: list[StoredPosting] = field(default_factory=list[StoredPosting])
    vanished: list[StoredPosting] = field(default_factory=list[StoredPosting])
    created: int = 0  # new links whose listing is new as well
    updated: int = 0  # listings with changed content

    @property
    def is_idle(self) -> bool:
        """Return whether there is nothing to write."""
        return self.quarantine is not None or not (self.new or self.changed or self.returned or self.vanished)

    @property
    def missing(self) -> list[StoredPosting]:
        """Return postings that are missing but not yet confirmed as gone."""
        return [posting for posting in self.vanished if not self._is_confirmed(posting)]

    @property
    def gone(self) -> list[StoredPosting]:
        """Return postings that are confirmed as gone."""
        return [posting for posting in self.vanished if self._is_confirmed(posting)]

    def _is_confirmed(self, posting: StoredPosting) -> bool:
        # An operator's approval replaces the second poll, which would be quarantined without it.
        return self.listing.source.accepts_drop or posting.missing + 1 >= CLOSES_AFTER


def result_of(plan: BoardPlan, *, now: datetime) -> IngestResult:
    """Return the poll's result for the source's row."""
    source = plan.listing.source
    if plan.quarantine is not None:
        return IngestResult(
            source_id=source.id,
            outcome=f"{QUARANTINED}: {plan.quarantine}; the last good data stays",
            quarantined=True,
            is_dead_lettered=True,
            needs_full_read=source.needs_full_read,
            record_count=source.record_count,
        )
    back = sum(not posting.available for posting in plan.returned)
    return IngestResult(
        source_id=source.id,
        outcome=_outcome(plan),
        new=len(plan.new),
        updated=plan.updated + back,
        withdrawn=len(plan.gone),
        newest_at=_newest_at(plan, now=now),
        published=[posting.listing.posted_at for posting in plan.new if posting.listing.posted_at],
        needs_full_read=bool(plan.missing),
        record_count=source.record_count + len(plan.new) + back - len(plan.gone),
        has_touched=not plan.is_idle,
    )


def _outcome(plan: BoardPlan) -> str:
    parts = {
        "new": plan.created,
        "duplicate": len(plan.new) - plan.created,
        "updated": plan.updated,
        "reopened": sum(not posting.available for posting in plan.returned),
        "closed": len(plan.gone),
        "missing once": len(plan.missing),
        "unreadable": plan.listing.problems,
    }
    changes = ", ".join(f"{count} {word}" for word, count in parts.items() if count)
    first = "" if plan.listing.source.synced_at else "first sync: "
    total = f"{len(plan.listing.postings)} found"
    return first + "; ".join([f"{total}, {changes or 'nothing new'}", *plan.listing.notes])


def _newest_at(plan: BoardPlan, *, now: datetime) -> datetime | None:
    """Return when the board last added a job; at the first sync by the postings' own dates."""
    if not plan.new:
        return None
    if plan.listing.source.synced_at is not None:
        return now
    posted = [posting.listing.posted_at for posting in plan.new]
    return max(now if at is None or at > now else at for at in posted)


def reason_to_quarantine(
    *,
    listed: int,
    existing: int,
    vanished: int,
    stated: Collection[tuple[str, str]],
    accepts_drop: bool,
) -> str | None:
    """Return why a listing is not trusted, or None; `accepts_drop` by an operator overrules it.

    `stated` has, for each existing posting, the codes of its fields before and now.
    """
    if accepts_drop or existing == 0:
        return None
    if listed == 0:
        return f"lists nothing, {existing} jobs are known"
    if vanished >= DROP_FLOOR and vanished > existing * DROP_SHARE:
        return f"{vanished} of {existing} known jobs are missing from it"
    return _lost_field(stated)


def _lost_field(stated: Collection[tuple[str, str]]) -> str | None:
    """Return the field that most postings have lost, renamed or removed by the board."""
    for code, name in WATCHED_FIELDS.items():
        had = [now for before, now in stated if code in before]
        lost = sum(code not in now for now in had)
        if lost and lost > len(had) * LOST_FIELD_SHARE:
            return f"{lost} of {len(had)} known jobs have lost their {name}"
    return None


@dataclass(slots=True)
class ResolvedListing:
    """A listing, stored or to be created, and the boards' postings that belong to it."""

    candidate: Candidate | None
    posting: Posting | None = None
    source_id: str = ""
    links: dict[tuple[str, str], bool] = field(default_factory=dict[tuple[str, str], bool])
    repost_of: Candidate | None = None

    @property
    def locations(self) -> list[str]:
        """Return where the job is."""
        stated = self.posting.listing if self.posting is not None else self.candidate
        return _locations(stated) if stated is not None else []


@dataclass(slots=True, kw_only=True)
class ListingResolver:
    """Resolver of a batch's postings to listings; `listed` are the keys that each board lists at this moment."""

    listed: Mapping[str, set[str]]
    by_url: dict[str, ResolvedListing] = field(default_factory=dict[str, ResolvedListing])
    by_words: dict[str, list[ResolvedListing]] = field(default_factory=dict[str, list[ResolvedListing]])

    def resolve(self, source_id: str, posting: Posting) -> ResolvedListing:
        """Return the posting's listing: by its URL, else by its text on another board."""
        target = self._same_url(source_id, posting) or self._same_words(source_id, posting)
        if target is None:
            target = self._new(source_id, posting)
        target.links[source_id, posting.external_key] = True
        return target

    def _same_url(self, source_id: str, posting: Posting) -> ResolvedListing | None:
        """Match by URL, unless the board lists another posting there: some use one page."""
        target = self.by_url.get(posting.url_key or "")
        if target is None:
            return None
        keys = self.listed.get(source_id, set[str]())
        is_listed = any(linked == source_id and key in keys for linked, key in target.links)
        return None if is_listed else target

    def _same_words(self, source_id: str, posting: Posting) -> ResolvedListing | None:
        """Match by text with another board's posting only: one board lists a job per city.

        Postings with different stated places do not match.
        """
        if not posting.is_distinctive:
            return None
        targets = [
            target
            for target in self.by_words.get(posting.fingerprint, [])
            if all(linked != source_id for linked, _ in target.links)
        ]
        here = _locations(posting.listing)
        places = [target for target in targets if _is_same_place(here, target.locations)]
        exact = [target for target in places if here and target.locations[:1] == here[:1]]
        return next(iter([*exact, *places]), None)

    def _new(self, source_id: str, posting: Posting) -> ResolvedListing:
        if posting.url_key in self.by_url:  # the URL of another posting of this board
            posting = replace(posting, url_key=None)
        target = ResolvedListing(None, posting, source_id, repost_of=self._reposted(source_id, posting))
        if posting.url_key:
            self.by_url[posting.url_key] = target
        if posting.is_distinctive:
            self.by_words.setdefault(posting.fingerprint, []).append(target)
        return target

    def _reposted(self, source_id: str, posting: Posting) -> Candidate | None:
        """Return the latest listing of the same text and place that this board lists no more, under another key."""
        if not posting.is_distinctive:
            return None
        here, keys = _locations(posting.listing), self.listed.get(source_id, set[str]())
        earlier = [
            target.candidate
            for target in self.by_words.get(posting.fingerprint, [])
            if target.candidate is not None
            and any(linked == source_id for linked, _ in target.links)
            and not any(linked == source_id and key in keys for linked, key in target.links)
            and _is_same_place(here, target.locations)
        ]
        return max(earlier, key=lambda candidate: candidate.id, default=None)


def _locations(stated: Listing | Candidate) -> list[str]:
    return [place for place in (stated.location, *(stated.other_locations or ())) if place]


def _is_same_place(here: Sequence[str], there: Sequence[str]) -> bool:
    return not here or not there or any(is_same_place(first, second) for first in here for second in there)


def listing_resolver(
    connection: Connection, new: Sequence[tuple[str, Posting]], listed: Mapping[str, set[str]]
) -> ListingResolver:
    """Return a resolver with the stored listings that these new postings may belong to."""
    candidates = listing_rows.candidates(
        connection,
        url_keys={posting.url_key for _, posting in new if posting.url_key},
        fingerprints={posting.fingerprint for _, posting in new if posting.is_distinctive},
    )
    links = listing_rows.links_of(connection, [candidate.id for candidate in candidates])
    resolver = ListingResolver(listed=listed)
    for candidate in candidates:
        by_key = {(source_id, key): available for source_id, key, available in links.get(candidate.id, [])}
        resolved = ResolvedListing(candidate, links=by_key)
        if candidate.url_key:
            resolver.by_url[candidate.url_key] = resolved
        resolver.by_words.setdefault(candidate.fingerprint, []).append(resolved)
    return resolver
