"""Listings as tasks: their stages and rules, loading claimed ones, and the SQL that writes their results.

Decisions, matches and notices take one statement each, for any number of rows.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, RowMapping, func, literal, null, select, update

from ingestion_pipeline.companies.boards.board_plan import content_hash, quality_of
from ingestion_pipeline.companies.boards.listing_rows import columns_of, update_rows, withdraw_matches
from ingestion_pipeline.companies.job_listing import Remote, fingerprint
from ingestion_pipeline.companies.matching.listed_job import ListedJob
from ingestion_pipeline.companies.matching.listing_rules import (
    RULES_VERSION,
    FilterItem,
    FilterResult,
    MatchResult,
    filter_listing,
    stopped,
)
from ingestion_pipeline.companies.matching.profile import Profile
from ingestion_pipeline.companies.records import JOB_MATCH, CompanyStatus, ListingDecision, ListingStatus
from ingestion_pipeline.engine.handler import Outcome, Skipped
from ingestion_pipeline.notices.message import write_notices
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.statements import NewRows, insert_missing, row_source
from ingestion_pipeline.store.tables import companies, job_listings, job_matches, sources
from ingestion_pipeline.tasks.ended_tasks import Counts
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.urls import host_of

if TYPE_CHECKING:
    from ingestion_pipeline.companies.matching.listing_runs import Detail

NOT_SCRAPED = "description_not_read"  # the flag of a listing whose own page could not be read


_HALF = 31  # characters of a hash: two of them and a colon fill the column

# The settings that a decision depends on.
_MATCH = ("min_score", "home_city_score", "home_city_bonus")


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


SNAPSHOT = "detail_snapshot_id"
NEW = "new"

_DECISION = ("id", "company_id", "decision", "rules_hash", "filter_result", "match_result")
SCRAPED_COLUMNS = (
    *("company_name", "company_website", "location", "places", "remote", "employment_type", "description", "salary"),
    *("posted_at", "valid_until", SNAPSHOT),
)
_MATCH_COLUMNS = (
    *("listing_id", "source_id", "company_id", "score", "base_score", "rank_score", "priority", "method", "model"),
    *("adjustments", "skills_matched", "skills_missing", "reason", "grounding", "rules_hash"),
)


def write_decisions(
    connection: Connection, rules: Rules, works: Sequence[ListingWork], company_ids: Mapping[int, str], *, now: datetime
) -> None:
    """Write how each listing was evaluated, and by which rules."""
    _flag_unread(connection, works)
    rows = [
        (
            work.id,
            company_ids.get(work.id, work.company_id),
            decision_of(work.state).value,
            rules.rules_hash(work.content_hash),
            _filter_result(work),
            None if work.state.match is None else work.state.match.as_dict(),
        )
        for work in works
    ]
    update_rows(connection, job_listings, _DECISION, rows, {"evaluated_at": now})


def _filter_result(work: ListingWork) -> dict[str, Any] | None:
    """Return the filter's result with its moment: later profiles evaluate as of then."""
    stop, result = work.state.stop, work.state.filtered
    if stop is not None:
        return _rejection(stop.name, "stop", stop.name, stop.reason, at=work.at)
    return None if result is None else result.as_dict() | {"at": work.at.isoformat()}


def write_progress(connection: Connection, works: Sequence[ListingWork], company_ids: Mapping[int, str]) -> None:
    """Store what was found about listings without a decision, so that it is found once."""
    _flag_unread(connection, works)
    named = [(work.id, company_ids[work.id]) for work in works if work.id in company_ids]
    update_rows(connection, job_listings, ("id", "company_id"), named)


def write_failures(connection: Connection, rules: Rules, works: Sequence[ListingWork]) -> None:
    """Flag listings whose task failed for good: their data is incomplete.

    One that other rules have evaluated is not requeued for these rules: it waits for an operator.
    """
    _flag(connection, [work for work in works if not work.state.has_data])
    is_evaluated = job_listings.c.id.in_([work.id for work in works]) & (job_listings.c.rules_hash.is_not(None))
    if works:
        connection.execute(update(job_listings).where(is_evaluated).values(rules_hash=_rules_hash(rules)))


def write_gone(connection: Connection, rules: Rules, why: Mapping[int, str], *, now: datetime) -> int:
    """Skip listings whose own pages are gone and withdraw their matches; return the number."""
    rows = [(id_, _rejection("page gone", "page", "gone", reason, at=now)) for id_, reason in why.items()]
    constants = {
        "decision": ListingDecision.SKIPPED.value,
        "rules_hash": _rules_hash(rules),
        "match_result": null(),
        "evaluated_at": now,
    }
    update_rows(connection, job_listings, ("id", "filter_result"), rows, constants)
    return withdraw_matches(connection, why.keys(), now=now)


def _rejection(rejected_by: str, category: str, name: str, reason: str, *, at: datetime) -> dict[str, Any]:
    items = [{"category": category, "name": name, "reason": reason}]
    return {"passed": False, "rejected_by": rejected_by, "items": items, "at": at.isoformat()}


def _rules_hash(rules: Rules) -> ColumnElement[str]:
    """Return `Rules.rules_hash` of each row's content as SQL."""
    own = rules.rules_hash("")
    length = len(rules.rules_hash("0" * 64)) - len(own)
    return literal(own).concat(func.substr(job_listings.c.content_hash, 1, length))


def write_scraped(connection: Connection, works: Sequence[ListingWork]) -> list[ListingWork]:
    """Fill columns that the list left out; return the works, whose content, keys and quality change together."""
    scraped = [work for work in works if work.scraped]
    if scraped:
        columns = columns_of(job_listings, ("id", "title", *SCRAPED_COLUMNS))
        rows = [(work.id, *(work.scraped.get(name) for name in ("title", *SCRAPED_COLUMNS))) for work in scraped]
        updates = row_source(connection, columns, rows, "given")
        values = {name: func.coalesce(job_listings.c[name], updates.c[name]) for name in SCRAPED_COLUMNS}
        values["title"] = func.coalesce(updates.c.title, job_listings.c.title)
        statement = update(job_listings).where(job_listings.c.id == updates.c.id)
        connection.execute(statement.values(values))
    changed = _write_keys(connection, [work.id for work in scraped])
    return [replace(work, **changed[work.id]) if work.id in changed else work for work in works]


def _write_keys(connection: Connection, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Recompute keys and quality of the listings; return hash and quality by id."""
    changed: dict[int, dict[str, Any]] = {}
    if not ids:
        return changed
    rows: list[tuple[Any, ...]] = []
    query = select(job_listings).where(job_listings.c.id.in_(ids)).order_by(job_listings.c.id)
    for row in map(dict[str, Any], connection.execute(query).mappings()):
        words = fingerprint(row["title"], row["company_name"], row["description"])
        quality = {**row["quality"], **quality_of(row)}
        changed[row["id"]] = {"content_hash": content_hash(row), "quality": quality}
        rows.append((row["id"], words, content_hash(row), quality))
    update_rows(connection, job_listings, ("id", "fingerprint", "content_hash", "quality"), rows)
    return changed


def _flag_unread(connection: Connection, works: Sequence[ListingWork]) -> None:
    unread = [work for work in works if work.state.has_data and not work.listing.has_text]
    _flag(connection, [work for work in unread if work.listing.url])


def _flag(connection: Connection, works: Sequence[ListingWork]) -> None:
    rows = [(work.id, {**work.quality, NOT_SCRAPED: True}) for work in works]
    changed = [row for row, work in zip(rows, works, strict=True) if row[1] != work.quality]
    update_rows(connection, job_listings, ("id", "quality"), changed)


def write_matches(
    connection: Connection,
    rules: Rules,
    works: Sequence[ListingWork],
    company_ids: Mapping[int, str],
    *,
    before: Set[int],
    now: datetime,
    run_id: str | None = None,
) -> tuple[int, int, int]:
    """Insert, update and withdraw matches; return how many are new, withdrawn and notified.

    `before` are the listings that were matches until now. A match is new by its insert. It is notified once in its
    life, and not at all if it came with its board's first sync, unless another board lists it later.
    """
    fitting = [work for work in works if decision_of(work.state) is ListingDecision.MATCHED]
    rows = {work.id: _match_row(rules, work, company_ids) for work in fitting}
    written = {"status": NEW, "run_id": run_id, "updated_at": now}
    shared = {name: (job_matches.c[name].type, value) for name, value in (written | {"created_at": now}).items()}
    matches = NewRows(
        table=job_matches,
        columns=columns_of(job_matches, _MATCH_COLUMNS),
        rows=list(rows.values()),
        identity=("listing_id",),
        shared=shared,
    )
    made = {row.listing_id for row in insert_missing(connection, matches, returning=("listing_id",))}
    # Also those that were withdrawn and match again.
    existing = [row for id_, row in rows.items() if id_ not in made]
    update_rows(connection, job_matches, _MATCH_COLUMNS, existing, written)
    withdrawn = withdraw_matches(connection, before - rows.keys(), now=now)
    new = [work for work in fitting if work.id in made or work.is_unreported]
    payloads = {str(work.id): notice_payload(work) for work in new if not work.is_first_sync}
    return len(made), withdrawn, write_notices(connection, JOB_MATCH, payloads, now=now)


def _match_row(rules: Rules, work: ListingWork, company_ids: Mapping[int, str]) -> tuple[Any, ...]:
    match = scored(work)
    fields = match.as_dict() | {
        "listing_id": work.id,
        "source_id": work.source_id,
        "company_id": company_ids.get(work.id, work.company_id),
        "grounding": dict(match.grounding),
        "rules_hash": rules.rules_hash(work.content_hash),
    }
    return tuple(fields[name] for name in _MATCH_COLUMNS)


def scored(work: ListingWork) -> MatchResult:
    """Return the score of a listing that has one."""
    if work.state.match is None:
        raise ValueError(f"listing {work.id} was not scored")
    return work.state.match


def notice_payload(work: ListingWork) -> dict[str, Any]:
    """Return the content of a match's notice."""
    listing, match = work.listing, scored(work)
    company = f" at {listing.company}" if listing.company else ""
    where = f" ({', '.join(listing.locations[:3])})" if listing.locations else ""
    lines = [match.reason, *([listing.url] if listing.url else [])]
    return {
        "source_id": work.source_id,
        "title": f"{listing.title}{company}{where}: {match.score}, {match.priority.value}"[:300],
        "text": "\n".join(lines)[:2_000],
        "listing_id": work.id,
        "url": listing.url,
        "company": listing.company,
        "score": match.score,
        "priority": match.priority.value,
        "reason": match.reason,
        "method": match.base.method,
    }
