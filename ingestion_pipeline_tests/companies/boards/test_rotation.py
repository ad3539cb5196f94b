"""SCRAPE: boards ahead of schedule, oldest first, until enough jobs match."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, update

from ingestion_pipeline.companies.boards.rotation import BOARDS_AT_ONCE, ScrapeRequest, request_scrape, run_scrape
from ingestion_pipeline.sources.lookup import UnknownSource
from ingestion_pipeline.store.tables import job_matches, sources, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.queue import Refusal
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline_tests.companies.boards.polling import ACME, Boards, a_board, jobs
from ingestion_pipeline_tests.companies.boards.test_ingestion import a_match
from ingestion_pipeline_tests.pollers import rows

BOARDS = [f"job_board:b{n}" for n in range(8)]


def given_boards(boards: Boards) -> None:
    """Eight boards, the last one checked longest ago, none due."""
    boards.given(*(a_board(id=one, url=f"https://boards.greenhouse.io/{one[10:]}") for one in BOARDS))
    later = boards.clock.at + timedelta(days=9)
    with boards.store.begin() as connection:
        connection.execute(update(tasks).values(not_before=later))
        for n, one in enumerate(BOARDS):
            at = boards.clock.at - timedelta(hours=n)
            connection.execute(
                update(sources).where(sources.c.id == one).values(last_checked_at=at, next_check_at=later)
            )


def ask(boards: Boards, wish: ScrapeRequest) -> int | Refusal:
    with boards.store.begin() as connection:
        return request_scrape(connection, wish, now=boards.clock.at, settings=boards.ctx.settings)


def step(boards: Boards) -> Any:
    """One claim of the SCRAPE task, as the job does it."""
    boards.clock.advance(minutes=1)
    now = boards.clock.at
    with boards.store.begin() as connection:
        wanted = ClaimFilter(kind="scrape")
        claimed = claims.claim(connection, wanted, owner="w", limit=1, now=now, lease=timedelta(minutes=5))
        move = run_scrape(connection, claimed[0], now=now, settings=boards.ctx.settings)
        claims.apply(connection, [move], now=now)
    return move


def due(boards: Boards) -> set[str]:
    polls = [one for one in rows(boards.store, tasks) if one.kind == "poll"]
    return {one.source_id for one in polls if one.not_before <= boards.clock.at}


def test_named_boards_are_due_now(boards: Boards) -> None:
    given_boards(boards)

    assert isinstance(ask(boards, ScrapeRequest(source_ids=BOARDS[:2])), int)
    move = step(boards)

    assert (move.status, due(boards)) == (TaskStatus.SUCCESS, set(BOARDS[:2]))


def test_a_rotation_takes_those_scraped_longest_ago_a_few_at_a_time(boards: Boards) -> None:
    given_boards(boards)
    ask(boards, ScrapeRequest(max_sources=7))

    assert step(boards).status is TaskStatus.PENDING
    assert due(boards) == set(BOARDS[-BOARDS_AT_ONCE:])
    assert step(boards).state["taken"] == BOARDS[: -BOARDS_AT_ONCE - 1 : -1]  # not polled yet

    with boards.store.begin() as connection:
        connection.execute(update(sources).values(last_checked_at=boards.clock.at))
    assert len(step(boards).state["taken"]) == 7
    assert step(boards).status is TaskStatus.SUCCESS


def test_a_rotation_ends_when_enough_jobs_match(boards: Boards) -> None:
    boards.given()
    ask(boards, ScrapeRequest(target_matches=1))
    step(boards)
    boards.poll(jobs(1))
    match = a_match(boards.listings()[0].id) | {"created_at": boards.clock.at}
    with boards.store.begin() as connection:
        connection.execute(insert(job_matches), [match])

    move = step(boards)

    assert (move.status, move.state["matches"]) == (TaskStatus.SUCCESS, 1)
    assert move.state["taken"] == [ACME]


def test_the_same_wish_waits_once_and_a_stranger_is_refused(boards: Boards) -> None:
    boards.given()

    assert isinstance(ask(boards, ScrapeRequest()), int)
    assert ask(boards, ScrapeRequest()) is Refusal.ACTIVE_DUPLICATE
    assert isinstance(ask(boards, ScrapeRequest(max_sources=3)), int)
    with pytest.raises(UnknownSource, match="job_board:none"):
        ask(boards, ScrapeRequest(source_ids=["job_board:none"]))
