"""How the tests of this room fetch: one fetcher for one test, and a fixed time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from ingestion_pipeline.pages import Answer, Fetched, FetchLimits, Guard, HttpFetcher, Request
from ingestion_pipeline_tests.fakes import FakeWeb

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
AGENT = "ingestion_pipeline-tests"
T = TypeVar("T")


def with_fetcher(
    work: Callable[[HttpFetcher], Awaitable[T]],
    guard: Guard,
    limits: FetchLimits | None = None,
    ca_file: Path | None = None,
) -> T:
    async def run() -> T:
        async with HttpFetcher(AGENT, limits or FetchLimits(), guard, ca_file=ca_file) as fetcher:
            return await work(fetcher)

    return asyncio.run(run())


def fetch(web: FakeWeb, request: str | Request = "/", limits: FetchLimits | None = None) -> Answer:
    page_request = Request(url=web.url(request)) if isinstance(request, str) else request
    guard = Guard(frozenset({web.host_port}))
    return with_fetcher(lambda fetcher: fetcher.fetch(page_request, now=NOW), guard, limits)


def page(web: FakeWeb, path: str = "/", limits: FetchLimits | None = None) -> Fetched:
    answer = fetch(web, path, limits)
    assert isinstance(answer, Fetched)
    return answer
