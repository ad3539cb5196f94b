"""Listings as people look at them: many in a list, or one with its boards and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, exists, func, or_, select

from ingestion_pipeline.store.tables import companies, job_listings, job_matches, listing_sources

_LISTED = ("id", "title", "location", "remote", "status", "verdict", "url", "company_id")
_TIMES = ("posted_at", "first_seen_at", "closed_at")
WAITING = "waiting"  # for a verdict


class UnknownListing(LookupError):
    """No listing has this id."""

    def __init__(self, listing_id: int) -> None:
        super().__init__(f"there is no listing {listing_id}; `ingest listings list` shows all")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingFilter:
    """Which listings are meant; all that are not None must hold."""

    source_id: str | None = None
    company: str | None = None
    status: str | None = None
    verdict: str | None = None
    words: str | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """As SQL; a company is named by its id or a part of its name."""
        found: list[ColumnElement[bool]] = []
        if self.source_id is not None:
            found.append(
                exists().where(
                    listing_sources.c.listing_id == job_listings.c.id,
                    listing_sources.c.source_id == self.source_id,
                )
            )
        if self.company is not None:
            is_named = job_listings.c.company_name.icontains(self.company, autoescape=True)
            found.append(or_(job_listings.c.company_id == self.company, is_named))
        if self.status is not None:
            found.append(job_listings.c.status == self.status)
        if self.verdict == WAITING:
            found.append(job_listings.c.verdict.is_(None))
        elif self.verdict is not None:
            found.append(job_listings.c.verdict == self.verdict)
        if self.words is not None:
            found.append(job_listings.c.title.icontains(self.words, autoescape=True))
        return found


def list_listings(
    connection: Connection, wanted: ListingFilter, *, limit: int = 50
) -> list[dict[str, Any]]:
    """The newest of those that are meant."""
    query = _listings().where(*wanted.conditions())
    order = (job_listings.c.first_seen_at.desc(), job_listings.c.id.desc())
    return [dict(row) for row in connection.execute(query.order_by(*order).limit(limit)).mappings()]


def _listings() -> Select[Any]:
    company = func.coalesce(companies.c.name, job_listings.c.company_name).label("company")
    return select(
        *(job_listings.c[name] for name in (*_LISTED, *_TIMES)),
        company,
        job_listings.c.source_id,
    ).outerjoin(companies, companies.c.id == job_listings.c.company_id)


def shown_listing(connection: Connection, listing_id: int) -> Mapping[str, Any]:
    """All that is stored of a listing, with its links and its match.

    Raises:
        UnknownListing: there is none of that id.
    """
    found = connection.execute(select(job_listings).where(job_listings.c.id == listing_id))
    row = found.mappings().one_or_none()
    if row is None:
        raise UnknownListing(listing_id)
    names = ("source_id", "external_id", "url", "available", "first_seen_at", "last_seen_at")
    links = select(*(listing_sources.c[name] for name in names)).where(
        listing_sources.c.listing_id == listing_id
    )
    match = select(job_matches).where(job_matches.c.listing_id == listing_id)
    stands = connection.execute(match).mappings().one_or_none()
    return {
        **row,
        "links": [dict(one) for one in connection.execute(links.order_by("id")).mappings()],
        "match": None if stands is None else dict(stands),
    }
