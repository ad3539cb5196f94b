"""Boards on a loopback web, polled as runs do it; and what became of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from ingestion_pipeline.companies.boards.plan import BoardListing
from ingestion_pipeline.companies.listing import Listing
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.reading.structured.items import Reading
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.source import Definition, Kind
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import dead_letters, job_listings, listing_sources, tasks
from ingestion_pipeline_tests.builders import a_task
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.pollers import Polled, poll, rows, source_row

ACME = "job_board:acme"
GREENHOUSE = "/v1/boards/{}/jobs?content=true&pay_transparency=true"


def a_job(number: int, **changes: Any) -> dict[str, Any]:
    """A job as Greenhouse states it."""
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


def a_board(**changes: Any) -> Definition:
    """Acme's board, asked for at the loopback web."""
    values: dict[str, Any] = {
        "id": ACME,
        "kind": Kind.JOB_BOARD,
        "url": "https://boards.greenhouse.io/acme",
        "platform": "greenhouse",
        "config": {"api_base": "http://api.test"},
    }
    return Definition(**(values | changes))


@dataclass(frozen=True)
class Boards:
    """Boards, their web, and the workshop that polls them."""

    ctx: RunContext
    web: FakeWeb
    clock: FixedClock

    @property
    def store(self) -> Store:
        return self.ctx.store

    def given(self, *definitions: Definition) -> None:
        with self.store.begin() as connection:
            register(connection, definitions or [a_board()], now=self.clock.at)

    def lists(self, listed: Sequence[dict[str, Any]], token: str = "acme") -> None:
        """The board answers with these jobs."""
        body = json.dumps({"jobs": list(listed), "meta": {"total": len(listed)}}).encode()
        self.web.routes[GREENHOUSE.format(token)] = Reply(body)

    def answers(self, answer: Any, token: str = "acme") -> None:
        self.web.routes[GREENHOUSE.format(token)] = answer

    def poll(self, listed: Sequence[dict[str, Any]] | None = None) -> Polled:
        """A day later, one run."""
        if listed is not None:
            self.lists(listed)
        self.clock.advance(days=1, hours=6)
        return poll(self.ctx, self.web)

    def listings(self) -> list[Any]:
        return rows(self.store, job_listings)

    def links(self) -> list[Any]:
        return rows(self.store, listing_sources)

    def job_tasks(self) -> list[Any]:
        return [row for row in rows(self.store, tasks) if row.kind == "job"]

    def letters(self) -> list[Any]:
        return rows(self.store, dead_letters)

    def row(self, source_id: str = ACME) -> Any:
        return source_row(self.store, source_id)

    def source(self, source_id: str = ACME) -> Source:
        with self.store.read() as connection:
            return sources_by_id(connection, [source_id])[source_id]

    def board_listing(self, source_id: str, listed: Sequence[Listing]) -> BoardListing:
        """What a poll of the board would hand to ingestion."""
        with self.store.read() as connection:
            query = select(tasks).where(tasks.c.kind == "poll", tasks.c.source_id == source_id)
            row = connection.execute(query).one()
        task = a_task(id=row.id, source_id=source_id, url=row.url, tracking_id=row.tracking_id)
        reading = Reading(records=list(listed), is_complete=True)
        return BoardListing.of(task, self.source(source_id), reading)
