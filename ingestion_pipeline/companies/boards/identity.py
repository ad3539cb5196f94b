"""Which listing a new posting is: one that stands, under whichever key, or a new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from ingestion_pipeline.companies.boards import rows
from ingestion_pipeline.companies.boards.posting import Posting
from ingestion_pipeline.companies.boards.rows import Candidate


@dataclass(slots=True)
class Home:
    """A listing, standing or to be made, and the postings of the boards that are known to be it."""

    candidate: Candidate | None
    posting: Posting | None = None
    source_id: str = ""
    links: dict[tuple[str, str], bool] = field(default_factory=dict[tuple[str, str], bool])

    @property
    def location(self) -> str:
        """Where the job is, for comparing."""
        found = self.candidate.location if self.candidate else None
        if self.posting is not None:
            found = self.posting.listing.location
        return (found or "").strip().casefold()


@dataclass(slots=True, kw_only=True)
class Recognition:
    """The listings that the postings of a batch may be; each answer is remembered for the next.

    `listed` are the keys that each board of the batch lists at this moment.
    """

    listed: Mapping[str, set[str]]
    by_url: dict[str, Home] = field(default_factory=dict[str, Home])
    by_words: dict[str, list[Home]] = field(default_factory=dict[str, list[Home]])

    def home_of(self, source_id: str, posting: Posting) -> Home:
        """The listing that the posting is: by its URL, else by its words on another board."""
        found = self._same_url(source_id, posting) or self._same_words(source_id, posting)
        if found is None:
            found = self._new(source_id, posting)
        found.links[source_id, posting.external_key] = True
        return found

    def _same_url(self, source_id: str, posting: Posting) -> Home | None:
        """Unless the board lists another posting at this URL: some have one page for all jobs."""
        found = self.by_url.get(posting.url_key or "")
        return None if found is None or self._is_listed(found, source_id) else found

    def _same_words(self, source_id: str, posting: Posting) -> Home | None:
        """Only another board's: on one, a job for two cities is two postings of equal words."""
        if not posting.is_telling:
            return None
        homes = [
            home
            for home in self.by_words.get(posting.fingerprint, [])
            if all(linked != source_id for linked, _ in home.links)
        ]
        place = (posting.listing.location or "").strip().casefold()
        same_place = [home for home in homes if home.location == place]
        return next(iter([*same_place, *homes]), None)

    def _is_listed(self, home: Home, source_id: str) -> bool:
        keys = self.listed.get(source_id, set[str]())
        return any(linked == source_id and key in keys for linked, key in home.links)

    def _new(self, source_id: str, posting: Posting) -> Home:
        if posting.url_key in self.by_url:  # the address of another posting of this board
            posting = replace(posting, url_key=None)
        home = Home(None, posting, source_id)
        if posting.url_key:
            self.by_url[posting.url_key] = home
        if posting.is_telling:
            self.by_words.setdefault(posting.fingerprint, []).append(home)
        return home


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
        home = Home(one, links=standing)
        if one.url_key:
            found.by_url[one.url_key] = home
        found.by_words.setdefault(one.fingerprint, []).append(home)
    return found
