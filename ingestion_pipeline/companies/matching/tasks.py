"""Listings as tasks: loading claimed listings, and the results of their evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, RowMapping, select

from ingestion_pipeline.companies.listing import Remote
from ingestion_pipeline.companies.matching.listed_job import ListedJob
from ingestion_pipeline.companies.matching.stages import JobState, same_content
from ingestion_pipeline.companies.states import CompanyStatus, ListingStatus
from ingestion_pipeline.engine.outcomes import Outcome, Skipped
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.tables import companies, job_listings, sources
from ingestion_pipeline.tasks.results import Counts
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.urls import host_of

if TYPE_CHECKING:
    from ingestion_pipeline.companies.matching.details import Detail

NOT_SCRAPED = "description_not_read"  # the flag of a listing whose own page could not be read


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingWork:
    """A claimed listing, as it was when it was claimed.

    `at` is the moment that its age is measured at: its first evaluation if its content is unchanged
    since, so that another profile does not make it older. `scraped` are columns that its own page
    filled; without `has_own_page` its URL is shared by several listings.
    """

    task: Task
    id: int
    source_id: str
    listing: ListedJob
    content_hash: str
    at: datetime
    company_id: str | None
    company_name: str | None
    company_website: str | None
    company_status: CompanyStatus | None
    source_company_id: str | None
    tracking_id: str
    quality: Mapping[str, Any]
    has_own_page: bool = True
    state: JobState = field(default_factory=JobState)
    scraped: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_first_sync(self) -> bool:
        """Return whether it came with its board's first sync, which is not notified."""
        return bool(self.task.payload.get("is_first_sync"))

    @property
    def is_unreported(self) -> bool:
        """Return whether its match is news, though a board's first sync had it before."""
        return bool(self.task.payload.get("is_unreported"))

    @property
    def company_waits(self) -> int:
        """Return how often it has waited for its company."""
        return int((self.task.state or {}).get("company_waits", 0))


@dataclass(slots=True, kw_only=True)
class ListingItem:
    """A claimed listing and its progress; with `detail` its own page is fetched at the pace of its board's source."""

    work: ListingWork
    source: Source | None = None
    detail: Detail | None = None

    @property
    def task(self) -> Task:
        """Return the claimed task."""
        return self.work.task

    @property
    def host(self) -> str | None:
        """Return the host of its own page, if that is to be fetched."""
        return None if self.detail is None else host_of(self.detail.visit.url)


ListingOutcome = Outcome[ListingItem, ListingWork]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchCounts(Counts):
    """Listings by result; `new_matches` were none before, `told` counts their notices.

    `lost` were taken over by another worker meanwhile.
    """

    matched: int = 0
    filtered: int = 0
    skipped: int = 0
    failed: int = 0
    retried: int = 0
    waiting: int = 0
    scraped: int = 0
    new_matches: int = 0
    withdrawn: int = 0
    told: int = 0
    companies: int = 0
    lost: int = 0


_LISTED = (
    *("id", "source_id", "company_id", "company_name", "company_website", "url", "title"),
    "url_key",
    *("location", "other_locations", "remote", "description", "employment_type", "salary"),
    *("posted_at", "valid_until", "status", "quality", "content_hash", "rules_hash", "filter_result"),
    *("tracking_id",),
)


def open_listings(
    connection: Connection, claimed: Sequence[Task], *, now: datetime
) -> list[ListingWork | Skipped[ListingItem]]:
    """Load the listing of each claimed task with one query."""
    ids = {int(task.payload.get("listing_id", 0)) for task in claimed}
    query = (
        select(
            *(job_listings.c[name] for name in _LISTED),
            companies.c.status.label("company_status"),
            companies.c.size_category,
            sources.c.company_id.label("source_company_id"),
        )
        .select_from(job_listings)
        .outerjoin(companies, companies.c.id == job_listings.c.company_id)
        .outerjoin(sources, sources.c.id == job_listings.c.source_id)
        .where(job_listings.c.id.in_(ids))
    )
    rows = {row["id"]: row for row in connection.execute(query).mappings()}
    return [_opened(task, rows.get(int(task.payload.get("listing_id", 0))), now=now) for task in claimed]


def _opened(task: Task, row: RowMapping | None, *, now: datetime) -> ListingWork | Skipped[ListingItem]:
    if row is None:
        return Skipped(task=task, reason="the listing does not exist any more")
    if row["status"] == ListingStatus.CLOSED.value:
        return Skipped(task=task, reason="the listing was closed meanwhile")
    status = row["company_status"]
    taken = ("id", "source_id", "content_hash", "company_id", "company_name", "company_website")
    return ListingWork(
        task=task,
        listing=listing_of(row),
        at=_moment(row, now),
        company_status=None if status is None else CompanyStatus(status),
        source_company_id=row["source_company_id"],
        tracking_id=row["tracking_id"],
        quality=row["quality"],
        has_own_page=row["url_key"] is not None,
        **{name: row[name] for name in taken},
    )


def listing_of(row: RowMapping) -> ListedJob:
    """Return the evaluation's input from a `job_listings` row with its company's size."""
    places = (row["location"], *(row["other_locations"] or ()))
    return ListedJob(
        title=row["title"],
        url=row["url"],
        company=row["company_name"],
        locations=tuple(place for place in places if place),
        remote=None if row["remote"] is None else Remote(row["remote"]),
        description=row["description"],
        employment_type=row["employment_type"],
        salary=row["salary"],
        posted_at=row["posted_at"],
        valid_until=row["valid_until"],
        size_category=row["size_category"],
    )


def _moment(row: RowMapping, now: datetime) -> datetime:
    filtered: Mapping[str, Any] = row["filter_result"] or {}
    then = filtered.get("at")
    if then and same_content(row["rules_hash"], row["content_hash"]):
        return min(now, datetime.fromisoformat(then))
    return now
