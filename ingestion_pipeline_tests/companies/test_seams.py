"""From a board's poll to a match and back: what one room leaves, the next one takes up."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ingestion_pipeline.companies.matching.runs import MatchRunResult, match_listings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import job_matches, outbox
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline_tests.companies.boards.polling import Boards, a_board, a_job, jobs
from ingestion_pipeline_tests.companies.matching.listings import GOOD, PROFILE
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import a_fetcher, a_run_context, rows, settings_of

SECOND = "job_board:second"


@pytest.fixture
def board(store: Store, database_url: str, tmp_path: Path, now: datetime, web: FakeWeb) -> Boards:
    clock = FixedClock(now)
    store.clock = clock
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE)
    settings = settings_of(tmp_path / "home", database_url, match__profile=str(profile))
    boards = Boards(ctx=a_run_context(store, settings), web=web, clock=clock)
    boards.given()
    return boards


def fitting(board: Boards) -> dict[str, Any]:
    """A job of this moment that fits the profile."""
    return a_job(
        1,
        title="Senior Python Engineer",
        content=f"<p>{GOOD}</p>",
        first_published=board.clock.at.isoformat(),
        location={"name": "Portland, OR"},
    )


def judge(board: Boards) -> MatchRunResult:
    async def run() -> MatchRunResult:
        ctx = board.ctx
        worker = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds)
        async with a_fetcher(ctx.settings, board.web.port) as fetcher:
            return await match_listings(ctx, worker, fetcher)

    return asyncio.run(run())


def told(board: Boards) -> tuple[list[tuple[str, int]], int]:
    """The matches with their scores, and how many notices there are of them."""
    found = rows(board.store, job_matches)
    return [(one.status, one.score) for one in found], len(rows(board.store, outbox))


def test_a_match_goes_with_its_posting_and_comes_back_with_it_untold(board: Boards) -> None:
    others = jobs(*range(2, 12))
    board.poll(others)
    judge(board)
    wanted = fitting(board)
    board.poll([wanted, *others])
    judge(board)
    first = told(board)

    board.poll(others)
    board.poll(others)
    gone = told(board)
    board.poll([wanted, *others])
    judge(board)

    assert (first, gone) == (([("new", 100)], 1), ([("withdrawn", 100)], 1))
    assert told(board) == ([("new", 72)], 1)  # it is older by now


def test_what_only_the_second_board_still_lists_says_what_that_one_says(board: Boards) -> None:
    board.given(a_board(id=SECOND, url="https://boards.greenhouse.io/second"))
    others = jobs(*range(2, 12))
    wanted = fitting(board)
    board.lists([wanted], "second")
    board.poll([wanted, *others])
    judge(board)
    board.poll(others)
    board.poll(others)

    board.lists([{**wanted, "title": "Staff Python Engineer"}], "second")
    board.poll(others)

    [listing] = [one for one in board.listings() if "Python" in one.title]
    assert (listing.title, listing.status) == ("Staff Python Engineer", "open")
    assert judge(board).counts.matched == 1
    assert board.row(SECOND).last_outcome == "1 found, 1 updated"
