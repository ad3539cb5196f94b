"""Job boards on a loopback web, Greenhouse answers for them, and polls of them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Executable, select

from ingestion_pipeline.companies.boards.board_plan import BoardListing
from ingestion_pipeline.companies.boards.board_polls import ingest_boards
from ingestion_pipeline.companies.job_listing import Listing
from ingestion_pipeline.engine.context import IngestResult, RunContext
from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.source import Definition, Kind
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import dead_letters, job_listings, listing_sources, tasks
from ingestion_pipeline_tests.builders import NOON, a_task
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.polling_runs import PollRunOutcome, poll, rows, source_row


def a_match(listing_id: int) -> dict[str, Any]:
    scored = {"score": 90, "base_score": 90, "priority": "high", "method": "rules", "reason": "fits"}
    empty = {"adjustments": [], "skills_matched": [], "skills_missing": [], "grounding": {}}
    times = {"created_at": NOON, "updated_at": NOON}
    row = {"listing_id": listing_id, "source_id": ACME, "status": "new", "rules_hash": "x"}
    return row | scored | empty | times


Result = TypeVar("Result")
ACME = "job_board:acme"
OTHER = "job_board:other"
GREENHOUSE = "/v1/boards/{}/jobs?content=true&pay_transparency=true"


def a_job(number: int, **changes: Any) -> dict[str, Any]:
    """Return a job as the Greenhouse API lists it."""
    text = f"<p>We build pipes, number {number}. " + "Work with us. " * 30 + "</p>"
    job: dict[str, Any] = {
        "id": number,
        "title": f"Engineer {number}",
        "absolute_url": f"https://boards.greenhouse.io/acme/jobs/{number}",
        "location": {"name": "Oslo"},
        "first_published": "2026-02-20T10:00:00Z",
        "content": text,
        "company_name": "Acme, Inc.",
    }
    return {**job, **changes}


def jobs(*numbers: int, **changes: Any) -> list[dict[str, Any]]:
    return [a_job(number, **changes) for number in numbers]


def a_board(name: str = "acme", **changes: Any) -> Definition:
    """Return the definition of a Greenhouse board, fetched from the loopback web."""
    values: dict[str, Any] = {
        "id": f"job_board:{name}",
        "kind": Kind.JOB_BOARD,
        "url": f"https://boards.greenhouse.io/{name}",
        "platform": "greenhouse",
        "config": {"api_base": "http://api.test"},
    }
    return Definition(**(values | changes))


@dataclass(frozen=True)
class Boards:
    """Job boards on a loopback web and the run context that polls them."""

    ctx: RunContext
    web: FakeWeb
    clock: FixedClock

    @property
    def store(self) -> Store:
        return self.ctx.store

    def add(self, *definitions: Definition) -> None:
        with self.store.begin() as connection:
            register(connection, definitions or [a_board()], now=self.clock.at)

    def add_two(self) -> None:
        self.add(a_board(), a_board("other"))

    def start(self, postings: Sequence[dict[str, Any]]) -> PollRunOutcome:
        """Add the board and poll it for the first time."""
        self.add()
        return self.poll(postings)

    def apply(self, change: Callable[..., Result], *args: Any, **more: Any) -> Result:
        """Make a change at this moment, in its own transaction."""
        with self.store.begin() as connection:
            return change(connection, *args, now=self.clock.at, **more)

    def execute(self, statement: Executable) -> None:
        with self.store.begin() as connection:
            connection.execute(statement)

    def serve_jobs(self, postings: Sequence[dict[str, Any]], token: str = "acme") -> None:
        """Answer requests for the board with these jobs."""
        body = json.dumps({"jobs": list(postings), "meta": {"total": len(postings)}}).encode()
        self.web.routes[GREENHOUSE.format(token)] = Reply(body)

    def serve(self, answer: Any, token: str = "acme") -> None:
        self.web.routes[GREENHOUSE.format(token)] = answer

    def poll(self, postings: Sequence[dict[str, Any]] | None = None) -> PollRunOutcome:
        """Advance the clock past the poll interval and run one poll."""
        if postings is not None:
            self.serve_jobs(postings)
        self.clock.advance(days=1, hours=6)
        return poll(self.ctx, self.web)

    def ingest(self, source_id: str, postings: Sequence[Listing]) -> IngestResult:
        [result] = self.apply(ingest_boards, [self.board_listing(source_id, postings)], settings=self.ctx.settings)
        return result

    def listings(self) -> list[Any]:
        return rows(self.store, job_listings)

    def links(self) -> list[Any]:
        return rows(self.store, listing_sources)

    def job_tasks(self) -> list[Any]:
        return [row for row in rows(self.store, tasks) if row.kind == "job"]

    def dead_letters(self) -> list[Any]:
        return rows(self.store, dead_letters)

    def source_row(self, source_id: str = ACME) -> Any:
        return source_row(self.store, source_id)

    def source(self, source_id: str = ACME) -> Source:
        with self.store.read() as connection:
            return sources_by_id(connection, [source_id])[source_id]

    def board_listing(self, source_id: str, postings: Sequence[Listing]) -> BoardListing:
        """Return what a poll of the board passes to ingestion."""
        with self.store.read() as connection:
            query = select(tasks).where(tasks.c.kind == "poll", tasks.c.source_id == source_id)
            row = connection.execute(query).one()
        task = a_task(id=row.id, source_id=source_id, url=row.url, tracking_id=row.tracking_id)
        reading = ParsedFeed(records=list(postings), is_complete=True)
        return BoardListing.of(task, self.source(source_id), reading)
