"""Reports on boards and listings: the funnel of a board, filtered lists, details of a listing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, exists, func, or_, select

from ingestion_pipeline.companies.states import ListingDecision, ListingStatus
from ingestion_pipeline.store.tables import companies, job_listings, job_matches, listing_sources, sources

SHOWN_LISTINGS = 10
OTHERWISE = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingSummary:
    """A listing in a board's report; `is_new` since the last report."""

    title: str
    company: str | None
    location: str | None
    posted_at: datetime | None
    first_seen_at: datetime
    decision: str | None
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardReport:
    """A board's state and the changes since its last report.

    `found` counts the jobs that it lists; of them so many are `filtered` (by reason), `skipped`,
    `matched`, or not evaluated yet. `duplicate` are those that another board listed before.
    """

    source_id: str
    company: str | None
    url: str
    tier: str
    outcome: str
    polls: int
    changes: int
    found: int
    new: int
    duplicate: int
    updated: int
    closed: int
    filtered: Mapping[str, int]
    skipped: int
    matched: int
    waiting: int
    newest: Sequence[ListingSummary]


def board_reports(connection: Connection, source_ids: Collection[str]) -> list[BoardReport]:
    """Return the report of each board with a constant number of queries."""
    columns = (
        *("id", "company_id", "name", "url", "tier", "last_outcome", "unreported_polls"),
        *("unreported_changes", "unreported_updated", "unreported_withdrawn"),
    )
    query = select(*(sources.c[name] for name in columns)).order_by(sources.c.id)
    rows = connection.execute(query.where(sources.c.id.in_(list(source_ids)))).mappings().all()
    counts = _counts(connection, source_ids)
    reasons = _reasons(connection, source_ids)
    newest = _newest(connection, source_ids)
    return [_report(row, counts.get(row["id"]), reasons.get(row["id"], {}), newest.get(row["id"], [])) for row in rows]


def _is_new() -> Any:  # noqa: ANN401 - a SQL expression
    first_seen = listing_sources.c.first_seen_at
    return or_(sources.c.reported_at.is_(None), first_seen > sources.c.reported_at)


def _counts(connection: Connection, source_ids: Collection[str]) -> dict[str, RowMapping]:
    links = listing_sources.c
    is_own = job_listings.c.source_id == links.source_id
    listed = links.available
    query = (
        select(
            links.source_id,
            func.count().filter(listed).label("found"),
            func.count().filter(_is_new(), is_own).label("new"),
            func.count().filter(_is_new(), ~is_own).label("duplicate"),
            *(
                func.count().filter(listed, job_listings.c.decision == decision.value).label(decision)
                for decision in ListingDecision
            ),
        )
        .join(job_listings, job_listings.c.id == links.listing_id)
        .join(sources, sources.c.id == links.source_id)
        .where(links.source_id.in_(list(source_ids)))
        .group_by(links.source_id)
    )
    return {row["source_id"]: row for row in connection.execute(query).mappings()}


def _reasons(connection: Connection, source_ids: Collection[str]) -> dict[str, Counter[str]]:
    """Return by board the first filter reason of each filtered job, counted."""
    links = listing_sources.c
    query = (
        select(links.source_id, job_listings.c.filter_result)
        .join(job_listings, job_listings.c.id == links.listing_id)
        .where(
            links.source_id.in_(list(source_ids)),
            links.available,
            job_listings.c.decision == ListingDecision.FILTERED.value,
        )
    )
    by_board: dict[str, Counter[str]] = {}
    for source_id, result in connection.execute(query):
        by_board.setdefault(source_id, Counter())[first_reason(result)] += 1
    return by_board


def first_reason(result: object) -> str:
    """Return the filter's first reason: the name of the rejection, or strikes."""
    fields = cast("dict[str, Any]", result) if isinstance(result, dict) else {}
    return str(fields.get("rejected_by") or OTHERWISE)[:60]


def _newest(connection: Connection, source_ids: Collection[str]) -> dict[str, list[ListingSummary]]:
    links, jobs = listing_sources.c, job_listings.c
    order = (links.first_seen_at.desc(), jobs.posted_at.desc().nulls_last(), jobs.id.desc())
    place = func.row_number().over(partition_by=links.source_id, order_by=order).label("place")
    ranked = (
        select(
            links.source_id,
            links.first_seen_at,
            *(jobs.title, jobs.location, jobs.posted_at, jobs.decision),
            jobs.company_name.label("company"),
            _is_new().label("is_new"),
            place,
        )
        .join(job_listings, jobs.id == links.listing_id)
        .join(sources, sources.c.id == links.source_id)
        .where(links.source_id.in_(list(source_ids)), links.available, jobs.status == ListingStatus.OPEN.value)
        .cte("ranked")
    )
    query = select(ranked).where(ranked.c.place <= SHOWN_LISTINGS)
    by_board: dict[str, list[ListingSummary]] = {}
    for row in connection.execute(query.order_by(ranked.c.source_id, ranked.c.place)).mappings():
        values: dict[str, Any] = {name: row[name] for name in ListingSummary.__slots__}
        values["is_new"] = bool(values["is_new"])
        by_board.setdefault(row["source_id"], []).append(ListingSummary(**values))
    return by_board


def _report(
    row: RowMapping, counts: RowMapping | None, reasons: Mapping[str, int], newest: Sequence[ListingSummary]
) -> BoardReport:
    count = dict(counts) if counts else {}
    judged = {decision: count.get(decision.value, 0) for decision in ListingDecision}
    return BoardReport(
        source_id=row["id"],
        company=row["company_id"] or row["name"],
        url=row["url"],
        tier=row["tier"],
        outcome=row["last_outcome"] or "not polled yet",
        polls=row["unreported_polls"],
        changes=row["unreported_changes"],
        found=count.get("found", 0),
        new=count.get("new", 0),
        duplicate=count.get("duplicate", 0),
        updated=row["unreported_updated"],
        closed=row["unreported_withdrawn"],
        filtered=dict(reasons),
        skipped=judged[ListingDecision.SKIPPED],
        matched=judged[ListingDecision.MATCHED],
        waiting=count.get("found", 0) - sum(judged.values()),
        newest=newest,
    )


_LISTED = ("id", "title", "location", "remote", "status", "decision", "url", "company_id")
_TIMES = ("posted_at", "first_seen_at", "closed_at")
WAITING = "waiting"  # for an evaluation


class UnknownListing(LookupError):
    """No listing has this id."""

    def __init__(self, listing_id: int) -> None:
        super().__init__(f"there is no listing {listing_id}; `ingest listings list` shows all")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingFilter:
    """Conditions on listings; all that are not None must hold."""

    source_id: str | None = None
    company: str | None = None
    status: str | None = None
    decision: str | None = None
    words: str | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the conditions as SQL; a company matches by its id or a part of its name."""
        conditions: list[ColumnElement[bool]] = []
        if self.source_id is not None:
            conditions.append(
                exists().where(
                    listing_sources.c.listing_id == job_listings.c.id, listing_sources.c.source_id == self.source_id
                )
            )
        if self.company is not None:
            is_named = job_listings.c.company_name.icontains(self.company, autoescape=True)
            conditions.append(or_(job_listings.c.company_id == self.company, is_named))
        if self.status is not None:
            conditions.append(job_listings.c.status == self.status)
        if self.decision == WAITING:
            conditions.append(job_listings.c.decision.is_(None))
        elif self.decision is not None:
            conditions.append(job_listings.c.decision == self.decision)
        if self.words is not None:
            conditions.append(job_listings.c.title.icontains(self.words, autoescape=True))
        return conditions


def list_listings(connection: Connection, listing_filter: ListingFilter, *, limit: int = 50) -> list[dict[str, Any]]:
    """Return the newest listings that match the filter."""
    query = _listings().where(*listing_filter.conditions())
    order = (job_listings.c.first_seen_at.desc(), job_listings.c.id.desc())
    return [dict(row) for row in connection.execute(query.order_by(*order).limit(limit)).mappings()]


def _listings() -> Select[Any]:
    company = func.coalesce(companies.c.name, job_listings.c.company_name).label("company")
    return select(*(job_listings.c[name] for name in (*_LISTED, *_TIMES)), company, job_listings.c.source_id).outerjoin(
        companies, companies.c.id == job_listings.c.company_id
    )


def listing_details(connection: Connection, listing_id: int) -> Mapping[str, Any]:
    """Return the stored listing with its links and its match.

    Raises:
        UnknownListing: there is no listing with that id.
    """
    result = connection.execute(select(job_listings).where(job_listings.c.id == listing_id))
    row = result.mappings().one_or_none()
    if row is None:
        raise UnknownListing(listing_id)
    names = ("source_id", "external_id", "url", "available", "first_seen_at", "last_seen_at")
    links = select(*(listing_sources.c[name] for name in names)).where(listing_sources.c.listing_id == listing_id)
    match = select(job_matches).where(job_matches.c.listing_id == listing_id)
    match_row = connection.execute(match).mappings().one_or_none()
    return {
        **row,
        "links": [dict(link) for link in connection.execute(links.order_by("id")).mappings()],
        "match": None if match_row is None else dict(match_row),
    }
