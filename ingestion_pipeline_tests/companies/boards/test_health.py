"""Trap 19: what disables a board and who enables it again."""

import pytest

from ingestion_pipeline.sources.registry import enable, register
from ingestion_pipeline_tests.companies.boards.job_boards import ACME, Boards, a_board, jobs
from ingestion_pipeline_tests.fakes import Reply

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
    boards.add()
    boards.poll(jobs(1))

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


@pytest.mark.slow
def test_four_failures_a_success_and_four_failures_do_not_disable_a_board(boards: Boards) -> None:
    boards.add()

    poll_failing(boards, 4)
    boards.poll(jobs(1))
    poll_failing(boards, 4)

    assert (boards.source_row().status, boards.source_row().failure_count) == ("active", 4)


@pytest.mark.slow
def test_a_rate_limit_is_not_counted_as_a_failure(boards: Boards) -> None:
    boards.add()
    boards.serve(Reply(b"slow down", 429, {"Retry-After": "60"}))

    for _ in range(6):
        boards.poll()

    assert (boards.source_row().status, boards.source_row().failure_count) == ("active", 0)
    assert boards.dead_letters() == []


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
        with boards.store.begin() as connection:
            register(connection, [definition], now=boards.clock.at)
        assert boards.source_row().status == "disabled"

    with boards.store.begin() as connection:
        enable(connection, ACME, actor="me", now=boards.clock.at)
    boards.poll(jobs(1))
    assert (boards.source_row().status, len(boards.listings())) == ("active", 1)
