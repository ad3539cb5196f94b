"""From the poll of a board to a match, its withdrawal and its return."""

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ingestion_pipeline.companies.matching.listing_runs import MatchRunResult, match_listings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import job_matches, outbox
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline_tests.companies.boards.job_boards import Boards, a_board, a_job, jobs
from ingestion_pipeline_tests.companies.matching.listings import MATCHING_TEXT, PROFILE
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import a_fetcher, a_run_context, fast_settings, rows

pytestmark = pytest.mark.both_databases

SECOND = "job_board:second"


@pytest.fixture
def boards(store: Store, database_url: str, tmp_path: Path, now: datetime, web: FakeWeb) -> Boards:
    clock = FixedClock(now)
    store.clock = clock
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE)
    settings = fast_settings(tmp_path / "home", database_url, match__profile=str(profile))
    boards = Boards(ctx=a_run_context(store, settings), web=web, clock=clock)
    boards.add()
    return boards


def matching_job(boards: Boards) -> dict[str, Any]:
    """Return a job posted now that matches the profile."""
    return a_job(
        1,
        title="Senior Python Engineer",
        content=f"<p>{MATCHING_TEXT}</p>",
        first_published=boards.clock.at.isoformat(),
        location={"name": "Portland, OR"},
    )


def evaluate_listings(boards: Boards) -> MatchRunResult:
    async def run() -> MatchRunResult:
        ctx = boards.ctx
        worker = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds)
        async with a_fetcher(ctx.settings, boards.web.port) as fetcher:
            return await match_listings(ctx, worker, fetcher)

    return asyncio.run(run())


def matches_and_notifications(boards: Boards) -> tuple[list[tuple[str, int]], int]:
    """Return status and score of each match, and the number of notifications."""
    matches = rows(boards.store, job_matches)
    return [(match.status, match.score) for match in matches], len(rows(boards.store, outbox))


@pytest.mark.slow
def test_a_match_is_withdrawn_with_its_posting_and_returns_without_a_notification(boards: Boards) -> None:
    others = jobs(*range(2, 12))
    boards.poll(others)
    evaluate_listings(boards)
    matching_posting = matching_job(boards)
    boards.poll([matching_posting, *others])
    evaluate_listings(boards)
    first = matches_and_notifications(boards)

    boards.poll(others)
    boards.poll(others)
    gone = matches_and_notifications(boards)
    boards.poll([matching_posting, *others])
    evaluate_listings(boards)

    assert (first, gone) == (([("new", 100)], 1), ([("withdrawn", 100)], 1))
    assert matches_and_notifications(boards) == ([("new", 72)], 1)  # the posting is older by now


@pytest.mark.slow
def test_a_listing_that_only_the_second_board_lists_takes_its_text(boards: Boards) -> None:
    boards.add(a_board(id=SECOND, url="https://boards.greenhouse.io/second"))
    others = jobs(*range(2, 12))
    matching_posting = matching_job(boards)
    boards.serve_jobs([matching_posting], "second")
    boards.poll([matching_posting, *others])
    evaluate_listings(boards)
    boards.poll(others)
    boards.poll(others)

    boards.serve_jobs([{**matching_posting, "title": "Staff Python Engineer"}], "second")
    boards.poll(others)

    [listing] = [row for row in boards.listings() if "Python" in row.title]
    assert (listing.title, listing.status) == ("Staff Python Engineer", "open")
    assert evaluate_listings(boards).counts.matched == 1
    assert boards.source_row(SECOND).last_outcome == "1 found, 1 updated"
