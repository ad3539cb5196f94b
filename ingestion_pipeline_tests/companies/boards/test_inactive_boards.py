"""When boards are polled: failures and operators disable them, SCRAPE tasks poll them ahead of schedule."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update

from ingestion_pipeline.companies.boards.board_polls import (
    BOARDS_AT_ONCE,
    ScrapeRequest,
    drain_scrapes,
    request_scrape,
    run_scrape,
)
from ingestion_pipeline.companies.boards.listing_rows import close_inactive_boards, has_inactive_boards
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.lookup import UnknownSource
from ingestion_pipeline.sources.registry import disable, enable, register, remove
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import audit_log, job_matches, sources, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.queue import Refusal
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline_tests.companies.boards.job_boards import ACME, Boards, a_board, a_job, a_match, jobs
from ingestion_pipeline_tests.companies.matching.listings import MATCHING_TEXT, PROFILE, Listings
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.polling_runs import a_run_context, fast_settings, poll, rows


def close_inactive(boards: Boards) -> int:
    return boards.apply(close_inactive_boards)


def has_inactive(boards: Boards) -> bool:
    with boards.store.read() as connection:
        return has_inactive_boards(connection, now=boards.clock.at)


def disable_board(boards: Boards, source_id: str = ACME) -> None:
    boards.apply(disable, source_id, actor="ann", reason="enough")


def listing_statuses(boards: Boards) -> list[str]:
    return [row.status for row in boards.listings()]


def test_jobs_of_a_board_that_an_operator_disables_are_closed_with_a_reason(boards: Boards) -> None:
    boards.start(jobs(1, 2))
    boards.execute(insert(job_matches).values(a_match(boards.listings()[0].id)))
    assert (has_inactive(boards), close_inactive(boards)) == (False, 0)

    disable_board(boards)
    assert (has_inactive(boards), close_inactive(boards)) == (True, 2)

    assert listing_statuses(boards) == ["closed", "closed"]
    assert boards.listings()[0].closed_reason == f"its board is no longer polled: {ACME}"
    assert [row.status for row in rows(boards.store, job_matches)] == ["withdrawn"]
    audit_rows = [row for row in rows(boards.store, audit_log) if row.action == "board.unwatched"]
    assert [(row.subject, row.detail) for row in audit_rows] == [(ACME, {"closed": 2, "reason": "ann: enough"})]
    assert (has_inactive(boards), close_inactive(boards)) == (False, 0)


@pytest.mark.slow
def test_enabling_the_board_reopens_its_jobs_although_its_answer_is_unchanged(boards: Boards) -> None:
    boards.start(jobs(1, 2))
    disable_board(boards)
    close_inactive(boards)

    boards.apply(enable, ACME, actor="ann")
    boards.poll()

    assert listing_statuses(boards) == ["open", "open"]
    assert {row.closed_reason for row in boards.listings()} == {None}
    assert [row.available for row in boards.links()] == [True, True]
    assert boards.source_row().record_count == 2


def test_a_job_that_another_board_lists_stays_open(boards: Boards) -> None:
    boards.add_two()
    boards.serve_jobs(jobs(1), token="other")
    boards.poll(jobs(1, 2))

    boards.apply(remove, ACME, actor="ann")

    assert close_inactive(boards) == 1
    by_title = {row.title: row.status for row in boards.listings()}
    assert by_title == {"Engineer 1": "open", "Engineer 2": "closed"}


@pytest.mark.slow
def test_jobs_of_a_board_that_failures_disabled_stay_open_for_a_fortnight(boards: Boards) -> None:
    boards.start(jobs(1))
    boards.serve(404)
    for _ in range(5):
        boards.poll()
    assert boards.source_row().status == "disabled"
    assert close_inactive(boards) == 0

    boards.clock.at += timedelta(days=14)

    assert (close_inactive(boards), listing_statuses(boards)) == (1, ["closed"])


BOT_CHALLENGE = Reply(
    b"<html><head><title>Just a moment...</title></head><body>cf-challenge</body></html>",
    403,
    {"cf-mitigated": "challenge", "Content-Type": "text/html"},
)


def poll_failing(boards: Boards, times: int) -> None:
    boards.serve(404)
    for _ in range(times):
        boards.poll()


@pytest.mark.slow
def test_five_failed_polls_in_a_row_disable_a_board(boards: Boards) -> None:
    boards.start(jobs(1))

    poll_failing(boards, 4)
    assert (boards.source_row().status, boards.source_row().failure_count) == ("active", 4)
    poll_failing(boards, 1)

    row = boards.source_row()
    assert row.status == "disabled"
    assert row.status_reason.startswith("disabled after 5 failed polls in a row")
    request_count = len(boards.web.requests)
    boards.serve_jobs(jobs(1))
    for _ in range(3):
        boards.poll()
    assert (len(boards.web.requests), boards.source_row().status) == (request_count, "disabled")
    assert boards.listings()[0].status == "open"


def test_a_blocked_page_disables_a_board_at_once_with_its_own_reason(boards: Boards) -> None:
    boards.add()
    boards.serve(BOT_CHALLENGE)

    boards.poll()

    row = boards.source_row()
    assert (row.status, row.failure_count) == ("disabled", 0)
    assert "behind a bot wall" in row.status_reason


@pytest.mark.slow
def test_only_an_operator_enables_a_board_that_failures_disabled(boards: Boards) -> None:
    boards.add()
    poll_failing(boards, 5)

    changed = a_board(name="Acme", config={"api_base": "http://api.test", "company": "Acme"})
    for definition in (a_board(), changed):
        boards.apply(register, [definition])
        assert boards.source_row().status == "disabled"

    boards.apply(enable, ACME, actor="me")
    boards.poll(jobs(1))
    assert (boards.source_row().status, len(boards.listings())) == ("active", 1)


BOARDS = [f"job_board:b{n}" for n in range(8)]


def add_boards(boards: Boards) -> None:
    """Add eight boards: none is due, and the last was checked longest ago."""
    boards.add(*(a_board(id=board_id, url=f"https://boards.greenhouse.io/{board_id[10:]}") for board_id in BOARDS))
    later = boards.clock.at + timedelta(days=9)
    with boards.store.begin() as connection:
        connection.execute(update(tasks).values(not_before=later))
        for number, board_id in enumerate(BOARDS):
            at = boards.clock.at - timedelta(hours=number)
            connection.execute(
                update(sources).where(sources.c.id == board_id).values(last_checked_at=at, next_check_at=later)
            )


def queue_scrape(boards: Boards, scrape_request: ScrapeRequest) -> int | Refusal:
    return boards.apply(request_scrape, scrape_request)


def run_scrape_step(boards: Boards) -> Any:
    """Claim the SCRAPE task once, run it and apply its move."""
    boards.clock.advance(minutes=1)
    now = boards.clock.at
    with boards.store.begin() as connection:
        claim_filter = ClaimFilter(kind="scrape")
        claimed = claims.claim(connection, claim_filter, owner="w", limit=1, now=now, lease=timedelta(minutes=5))
        move = run_scrape(connection, claimed[0], now=now)
        claims.apply(connection, [move], now=now)
    return move


def due_boards(boards: Boards) -> set[str]:
    polls = [task for task in rows(boards.store, tasks) if task.kind == "poll"]
    return {task.source_id for task in polls if task.not_before <= boards.clock.at}


def test_named_boards_are_due_now(boards: Boards) -> None:
    add_boards(boards)

    assert isinstance(queue_scrape(boards, ScrapeRequest(source_ids=BOARDS[:2])), int)
    move = run_scrape_step(boards)

    assert (move.status, due_boards(boards)) == (TaskStatus.SUCCESS, set(BOARDS[:2]))


def test_a_rotation_takes_those_scraped_longest_ago_a_few_at_a_time(boards: Boards) -> None:
    add_boards(boards)
    queue_scrape(boards, ScrapeRequest(max_sources=7))

    assert run_scrape_step(boards).status is TaskStatus.PENDING
    assert due_boards(boards) == set(BOARDS[-BOARDS_AT_ONCE:])
    assert run_scrape_step(boards).state["taken"] == BOARDS[: -BOARDS_AT_ONCE - 1 : -1]  # not polled yet

    boards.execute(update(sources).values(last_checked_at=boards.clock.at))
    assert len(run_scrape_step(boards).state["taken"]) == 7
    assert run_scrape_step(boards).status is TaskStatus.SUCCESS


def test_a_rotation_ends_when_enough_jobs_match(boards: Boards) -> None:
    boards.add()
    queue_scrape(boards, ScrapeRequest(target_matches=1))
    run_scrape_step(boards)
    boards.poll(jobs(1))
    match = a_match(boards.listings()[0].id) | {"created_at": boards.clock.at}
    boards.execute(insert(job_matches).values(match))

    move = run_scrape_step(boards)

    assert (move.status, move.state["matches"]) == (TaskStatus.SUCCESS, 1)
    assert move.state["taken"] == [ACME]


def test_a_repeated_scrape_request_and_an_unknown_board_are_refused(boards: Boards) -> None:
    boards.add()

    assert isinstance(queue_scrape(boards, ScrapeRequest()), int)
    assert queue_scrape(boards, ScrapeRequest()) is Refusal.ACTIVE_DUPLICATE
    assert isinstance(queue_scrape(boards, ScrapeRequest(max_sources=3)), int)
    with pytest.raises(UnknownSource, match="job_board:none"):
        queue_scrape(boards, ScrapeRequest(source_ids=["job_board:none"]))


MATCHING_TOKENS = ("b4", "b1")  # boards are polled from b7 to b0


@pytest.fixture
def matching_boards(store: Store, clock: FixedClock, settings: Settings, tmp_path: Path) -> Iterator[Boards]:
    """Eight boards with one job each, two of which match the profile."""
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE)
    profile_settings = fast_settings(settings.home, settings.database_url, match__profile=str(profile))
    with FakeWeb({"/robots.txt": 404}) as web:
        boards = Boards(a_run_context(store, profile_settings), web, clock)
        add_boards(boards)
        for number, board_id in enumerate(BOARDS):
            boards.serve_jobs([board_job(number, board_id[10:], clock)], token=board_id[10:])
        yield boards


def board_job(number: int, token: str, clock: FixedClock) -> dict[str, Any]:
    title = "Senior Python Engineer" if token in MATCHING_TOKENS else "Junior Painter"
    return a_job(
        number,
        title=f"{title} {number}",
        content=f"<p>{token}: {MATCHING_TEXT}</p>",
        first_published=clock.at.isoformat(),
        absolute_url=f"https://boards.greenhouse.io/{token}/jobs/{number}",
        company_name=token,
    )


def run_until_done(boards: Boards, tmp_path: Path) -> tuple[list[set[str]], Any]:
    """Run the three jobs until the rotation ends; return the boards polled in each run, and its task."""
    listings = Listings(ctx=boards.ctx, profile=tmp_path / "profile.yaml", port=boards.web.port)
    polled_tokens: list[set[str]] = []
    for _ in range(6):
        boards.clock.advance(minutes=1)
        worker = Worker(boards.store, lease_seconds=300)
        drain_scrapes(boards.store, worker)
        before = len(boards.web.requests)
        poll(boards.ctx, boards.web)
        listings.run()
        paths = [request.path.split("/")[3] for request in boards.web.requests[before:] if "/v1/" in request.path]
        polled_tokens.append(set(paths))
        [scrape] = [row for row in rows(boards.store, tasks) if row.kind == "scrape"]
        if scrape.status == "SUCCESS":
            return [tokens for tokens in polled_tokens if tokens], scrape
    raise AssertionError("the rotation did not end")


@pytest.mark.slow
def test_a_rotation_polls_from_the_oldest_until_enough_jobs_match(matching_boards: Boards, tmp_path: Path) -> None:
    queue_scrape(matching_boards, ScrapeRequest(target_matches=2, max_sources=8))

    polled_tokens, scrape = run_until_done(matching_boards, tmp_path)

    assert polled_tokens == [{"b7", "b6", "b5", "b4", "b3"}, {"b2", "b1", "b0"}]
    assert scrape.state["matches"] == 2


@pytest.mark.slow
def test_a_rotation_ends_at_the_requested_number_of_matches(matching_boards: Boards, tmp_path: Path) -> None:
    queue_scrape(matching_boards, ScrapeRequest(target_matches=1, max_sources=8))

    polled_tokens, scrape = run_until_done(matching_boards, tmp_path)

    assert polled_tokens == [{"b7", "b6", "b5", "b4", "b3"}]
    assert scrape.state["matches"] == 1


@pytest.mark.slow
def test_a_rotation_polls_no_more_boards_than_its_limit(matching_boards: Boards, tmp_path: Path) -> None:
    queue_scrape(matching_boards, ScrapeRequest(target_matches=5, max_sources=2))

    polled_tokens, scrape = run_until_done(matching_boards, tmp_path)

    assert polled_tokens == [{"b7", "b6"}]
    assert (scrape.state["matches"], len(scrape.state["taken"])) == (0, 2)
