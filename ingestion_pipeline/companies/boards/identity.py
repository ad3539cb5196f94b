"""Which listing a new posting is: one that stands, under whichever key, or a new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from ingestion_pipeline.companies.boards import rows
from ingestion_pipeline.companies.boards.posting import Posting
from ingestion_pipeline.companies.boards.rows import Candidate
from ingestion_pipeline.companies.listing import Listing
from ingestion_pipeline.companies.names import is_same_place


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
