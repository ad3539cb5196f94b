"""Listings as tasks: their stages and rules, loading claimed ones, and the results of their evaluation."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, RowMapping, select

from ingestion_pipeline.companies.company_states import CompanyStatus, ListingDecision, ListingStatus
from ingestion_pipeline.companies.job_listing import Remote
from ingestion_pipeline.companies.matching.filtering import FilterItem, FilterResult, filter_listing, stopped
from ingestion_pipeline.companies.matching.listed_job import ListedJob
from ingestion_pipeline.companies.matching.profile import Profile
from ingestion_pipeline.companies.matching.scoring import RULES_VERSION, MatchResult
from ingestion_pipeline.engine.outcomes import Outcome, Skipped
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.tables import companies, job_listings, sources
from ingestion_pipeline.tasks.results import Counts
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.urls import host_of

if TYPE_CHECKING:
    from ingestion_pipeline.companies.matching.details import Detail

NOT_SCRAPED = "description_not_read"  # the flag of a listing whose own page could not be read


_HALF = 31  # characters of a hash: two of them and a colon fill the column

# The settings that a decision depends on.
_MATCH = ("min_score", "home_city_score", "high_score", "medium_score", "home_city_bonus")


class ListingStage(StrEnum):
    """The next step for a listing; all run in one claim unless one has to wait."""

    SCRAPE = "SCRAPE"
    FILTER = "FILTER"
    ANALYZE = "ANALYZE"
    SAVE = "SAVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The progress of a listing; the next stage follows from what is missing."""

    has_data: bool = False
    stop: FilterItem | None = None
    filtered: FilterResult | None = None
    match: MatchResult | None = None


def next_stage(state: JobState) -> ListingStage:
    """Return the first stage that is missing; SAVE at once if the stop lists or the filter rejected the listing."""
    if state.stop is not None:
        return ListingStage.SAVE
    if not state.has_data:
        return ListingStage.SCRAPE
    if state.filtered is None:
        return ListingStage.FILTER
    is_over = not state.filtered.passed or state.match is not None
    return ListingStage.SAVE if is_over else ListingStage.ANALYZE


def decision_of(state: JobState) -> ListingDecision:
    """Return the decision on a listing that has been through its stages."""
    if state.stop is not None:
        return ListingDecision.SKIPPED
    if state.filtered is not None and not state.filtered.passed:
        return ListingDecision.FILTERED
    is_match = state.match is not None and state.match.is_match
    return ListingDecision.MATCHED if is_match else ListingDecision.SKIPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The profile and settings that every listing of a run is evaluated by."""

    profile: Profile
    settings: Settings

    @property
    def hash(self) -> str:
        """Return a hash that is equal while the same listing gets the same decision."""
        numbers = [getattr(self.settings.match, name) for name in _MATCH]
        parts = [RULES_VERSION, self.profile.hash, self.settings.filter.model_dump(), numbers]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:_HALF]

    def rules_hash(self, content_hash: str) -> str:
        """Return the key of these rules and this content; equal rules give equal prefixes."""
        return f"{self.hash}:{content_hash[: _HALF + 1]}"

    def initial_state(self, listing: ListedJob, *, has_data: bool) -> JobState:
        """Return the state before anything is fetched: only the stop lists are applied."""
        stop = stopped(self.profile, title=listing.title, url=listing.url, company=listing.company)
        return JobState(has_data=has_data, stop=stop)

    def filtered(self, state: JobState, listing: ListedJob, *, at: datetime) -> JobState:
        """Return the state after FILTER."""
        result = filter_listing(listing, self.profile, self.settings.filter, at=at)
        return replace(state, has_data=True, filtered=result)


def same_content(rules_hash: str | None, content_hash: str) -> bool:
    """Return whether the listing's content is unchanged since that evaluation."""
    return rules_hash is not None and rules_hash.endswith(f":{content_hash[: _HALF + 1]}")


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
    detail: "Detail | None" = None

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
    """Listings by result; `told` counts the notices of `new_matches`, `lost` were taken over by another worker."""

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
    *("id", "source_id", "company_id", "company_name", "company_website", "url", "url_key", "title", "tracking_id"),
    *("location", "other_locations", "remote", "description", "employment_type", "salary"),
    *("posted_at", "valid_until", "status", "quality", "content_hash", "rules_hash", "filter_result"),
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
    taken = (
        *("id", "source_id", "content_hash", "company_id", "company_name", "company_website"),
        *("source_company_id", "tracking_id", "quality"),
    )
    return ListingWork(
        task=task,
        listing=_listing_of(row),
        at=_moment(row, now),
        company_status=None if status is None else CompanyStatus(status),
        has_own_page=row["url_key"] is not None,
        **{name: row[name] for name in taken},
    )


def _listing_of(row: RowMapping) -> ListedJob:
    """Return the evaluation's input from a `job_listings` row with its company's size."""
    taken = ("title", "url", "description", "employment_type", "salary", "posted_at", "valid_until", "size_category")
    return ListedJob(
        company=row["company_name"],
        locations=tuple(place for place in (row["location"], *(row["other_locations"] or ())) if place),
        remote=None if row["remote"] is None else Remote(row["remote"]),
        **{name: row[name] for name in taken},
    )


def _moment(row: RowMapping, now: datetime) -> datetime:
    filtered: Mapping[str, Any] = row["filter_result"] or {}
    then = filtered.get("at")
    if then and same_content(row["rules_hash"], row["content_hash"]):
        return min(now, datetime.fromisoformat(then))
    return now
