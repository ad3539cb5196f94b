"""Listings as polls store them, written directly, and runs that evaluate them."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import Executable, Table, insert, select, update

from ingestion_pipeline.companies.matching.evaluation import ListingEvaluator
from ingestion_pipeline.companies.matching.listed_job import ListedJob
from ingestion_pipeline.companies.matching.listing_runs import ListingHandler, MatchRunResult, match_listings
from ingestion_pipeline.companies.matching.profile import Profile, Seniority, Technologies, load_profile
from ingestion_pipeline.companies.matching.tasks import ListingItem, ListingOutcome, ListingWork, Rules
from ingestion_pipeline.companies.records import job_task
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import Completed, Skipped
from ingestion_pipeline.engine.worker_loop import OutcomeWriter
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.sources.source import Definition, Kind
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import job_listings, listing_sources
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.polling_runs import RunningClock, a_fetcher, add_sources

BOARD = "job_board:northwind"
PROFILE = """\
skills: {Python: 10, PostgreSQL: 9, Go: 7}
home_city: Portland, OR
time_zone: America/Los_Angeles
seniority: {wanted: [senior, staff], unwanted: [intern, junior]}
stop: {companies: [Spamco], domains: [spam.test], keywords: [blockchain]}
technologies: {required: [Python], forbidden: [COBOL], undesired: {PHP: 2}}
"""
MATCHING_TEXT = (
    "We look for somebody with 8 years of experience in Python and PostgreSQL, who likes to write"
    " services that others rely on. You will own what you build, from the first idea to the night"
    " when it is needed, together with five colleagues who have done so for years. " * 2
)
POSTING = {
    "@context": "https://schema.org",
    "@type": "JobPosting",
    "title": "Senior Python Engineer",
    "description": f"<p>{MATCHING_TEXT}</p>",
    "hiringOrganization": {"name": "Northwind", "url": "https://northwind.test"},
    "baseSalary": {"currency": "USD", "value": {"minValue": 160000, "maxValue": 190000, "unitText": "YEAR"}},
}


PLAIN_PAGE = f"<html><body><nav>Home Jobs About</nav><main><h1>Engineer</h1><p>{MATCHING_TEXT}</p></main>"


def write_outcomes(ctx: RunContext, rules: Rules, *outcomes: ListingOutcome) -> Counter[str]:
    """Write the outcomes as a run does; return the counts."""

    async def write() -> Counter[str]:
        async with a_fetcher(ctx.settings, 0) as fetcher:
            clock = SteadyClock(ctx.store.now())
            handler = ListingHandler(ctx, fetcher, rules, ListingEvaluator(rules, clock=clock), clock=clock)
            writer = OutcomeWriter(ctx, handler)
            writer.write(outcomes)
            return writer.counts

    return asyncio.run(write())


def evaluated(work: ListingWork | Skipped[ListingItem]) -> ListingOutcome:
    """Return the outcome of a listing that was evaluated."""
    assert isinstance(work, ListingWork)
    return Completed(task=work.task, item=ListingItem(work=work), value=work)


def a_listing(**changes: Any) -> ListedJob:
    """Return a posting of an hour ago that matches `a_profile`."""
    values: dict[str, Any] = {
        "title": "Senior Python Engineer",
        "url": "http://jobs.test/1",
        "company": "Northwind",
        "description": MATCHING_TEXT,
        "posted_at": NOON - timedelta(hours=1),
    }
    return ListedJob(**(values | changes))


def a_profile(**changes: Any) -> Profile:
    """Return a profile whose best skill is Python."""
    values: dict[str, Any] = {
        "skills": {"Python": 10, "PostgreSQL": 9, "Go": 7},
        "home_city": "Portland, OR",
        "time_zone": "America/Los_Angeles",
        "seniority": Seniority(wanted=("senior",), unwanted=("junior",)),
        "technologies": Technologies(required=("Python",)),
    }
    return Profile(**(values | changes))


class UndelayedBoards:
    """A job board system without delays between requests."""

    def pace(self, _source: object, _settings: object) -> Pace:
        return Pace(delay_seconds=0)


@dataclass(slots=True)
class Listings:
    """A store with a board, its listings, and the file of the profile."""

    ctx: RunContext
    profile: Path
    port: int = 1

    def add_board(self, source_id: str = BOARD, **changes: Any) -> None:
        values: dict[str, Any] = {
            "id": source_id,
            "kind": Kind.JOB_BOARD,
            "url": "http://jobs.test/",
            "platform": "jsonld",
        }
        add_sources(self.ctx.store, Definition(**(values | changes)))

    @property
    def rules(self) -> Rules:
        profile = load_profile(self.profile)
        assert isinstance(profile, Profile)
        return Rules(profile=profile, settings=self.ctx.settings)

    def write_profile(self, text: str) -> None:
        self.profile.write_text(text)

    def add(self, *, payload: Mapping[str, Any] | None = None, **changes: Any) -> int:
        """Add an open listing with its task; return its id."""
        values = a_listing_row(**changes)
        with self.ctx.store.begin() as connection:
            now = self.ctx.store.clock.now(connection)
            insert_listing = insert(job_listings).values(values).returning(job_listings.c.id)
            id_ = connection.execute(insert_listing).scalar_one()
            link = {
                "listing_id": id_,
                "source_id": values["source_id"],
                "external_key": f"key {id_}",
                "external_id": str(id_),
                "content_hash": values["content_hash"],
                "stated": "tud",
                "first_seen_at": now,
                "last_seen_at": now,
            }
            connection.execute(insert(listing_sources).values(link))
            task = job_task(id_, values["url"], values["source_id"], now=now)
            task = replace(task, payload={**task.payload, **(payload or {})})
            insert_tasks(connection, [task], now=now)
        return id_

    def evaluated(self, **changes: Any) -> Any:
        """Add a listing and evaluate it; return its row."""
        id_ = self.add(**changes)
        self.run()
        return self.row(job_listings, id_)

    def requeue(self, id_: int, *, is_unreported: bool = False) -> None:
        """Add a task for the listing, as a board does when the listing changes."""
        row = self.row(job_listings, id_)
        with self.ctx.store.begin() as connection:
            now = self.ctx.store.clock.now(connection)
            task = job_task(id_, row.url, row.source_id, now=now, is_unreported=is_unreported)
            insert_tasks(connection, [task], now=now)

    def advance(self, **duration: float) -> None:
        clock = self.ctx.store.clock
        assert isinstance(clock, RunningClock)
        clock.advance(**duration)

    def execute(self, statement: Executable) -> None:
        with self.ctx.store.begin() as connection:
            connection.execute(statement)

    def update(self, table: Table, id_: int, **values: Any) -> None:
        self.execute(update(table).where(table.c.id == id_).values(values))

    def run_with(self, profile: str) -> MatchRunResult:
        self.write_profile(profile)
        return self.run()

    def run(self, source_ids: Sequence[str] | None = None, **more: Any) -> MatchRunResult:
        return asyncio.run(self.run_async(source_ids, **more))

    async def run_async(self, source_ids: Sequence[str] | None = None, **more: Any) -> MatchRunResult:
        worker = Worker(self.ctx.store, lease_seconds=self.ctx.settings.work.lease_seconds)
        async with a_fetcher(self.ctx.settings, self.port) as fetcher:
            return await match_listings(self.ctx, worker, fetcher, source_ids=source_ids, **more)

    def rows(self, table: Table) -> list[Any]:
        with self.ctx.store.read() as connection:
            return list(connection.execute(select(table).order_by(*table.primary_key)))

    def row(self, table: Table, id_: int) -> Any:
        return next(row for row in self.rows(table) if row.id == id_)


def a_listing_row(**changes: Any) -> dict[str, Any]:
    """Return a row of `job_listings`: a senior Python job posted an hour ago."""
    values: dict[str, Any] = {
        "source_id": BOARD,
        "company_name": "Northwind GmbH",
        "url": "http://jobs.test/1",
        "title": "Senior Python Engineer",
        "description": MATCHING_TEXT,
        "posted_at": NOON - timedelta(hours=1),
        "status": "open",
        "quality": {},
        "tracking_id": "11111111-1111-4111-8111-111111111111",
        "first_seen_at": NOON,
        "first_listed_at": NOON,
        "changed_at": NOON,
    } | changes
    identity = repr([values.get(name) for name in ("title", "url", "description", "salary")])
    key = sha256(identity.encode()).hexdigest()
    return {"content_hash": key, "fingerprint": key, "url_key": key} | values
