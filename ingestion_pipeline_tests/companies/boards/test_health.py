"""Trap 19: what disables a board, what does not, and who enables it again."""

from __future__ import annotations

from ingestion_pipeline.sources.registry import enable, register
from ingestion_pipeline_tests.companies.boards.polling import ACME, Boards, a_board, jobs
from ingestion_pipeline_tests.fakes import Reply

WALL = Reply(
    b"<html><head><title>Just a moment...</title></head><body>cf-challenge</body></html>",
    403,
    {"cf-mitigated": "challenge", "Content-Type": "text/html"},
)


def fail(boards: Boards, times: int) -> None:
    boards.answers(404)
    for _ in range(times):
        boards.poll()


def test_five_failed_polls_in_a_row_disable_a_board(boards: Boards) -> None:
    boards.given()
    boards.poll(jobs(1))

    fail(boards, 4)
    assert (boards.row().status, boards.row().failure_count) == ("active", 4)
    fail(boards, 1)

    row = boards.row()
    assert row.status == "disabled"
    assert row.status_reason.startswith("disabled after 5 failed polls in a row")
    asked = len(boards.web.requests)
    boards.lists(jobs(1))
    for _ in range(3):
        boards.poll()
    assert (len(boards.web.requests), boards.row().status) == (asked, "disabled")
    assert boards.listings()[0].status == "open"


def test_four_failures_a_success_and_four_more_do_not(boards: Boards) -> None:
    boards.given()

    fail(boards, 4)
    boards.poll(jobs(1))
    fail(boards, 4)

    assert (boards.row().status, boards.row().failure_count) == ("active", 4)


def test_a_rate_limit_is_no_strike(boards: Boards) -> None:
    boards.given()
    boards.answers(Reply(b"slow down", 429, {"Retry-After": "60"}))

    for _ in range(6):
        boards.poll()

    assert (boards.row().status, boards.row().failure_count) == ("active", 0)
    assert boards.letters() == []


def test_a_bot_wall_disables_at_once_with_its_own_reason(boards: Boards) -> None:
    boards.given()
    boards.answers(WALL)

    boards.poll()

    row = boards.row()
    assert (row.status, row.failure_count) == ("disabled", 0)
    assert "behind a bot wall" in row.status_reason


def test_no_declaration_enables_what_failures_disabled_only_an_operator(boards: Boards) -> None:
    boards.given()
    fail(boards, 5)

    changed = a_board(name="Acme", config={"api_base": "http://api.test", "company": "Acme"})
    for definition in (a_board(), changed):
        with boards.store.begin() as connection:
            register(connection, [definition], now=boards.clock.at)
        assert boards.row().status == "disabled"

    with boards.store.begin() as connection:
        enable(connection, ACME, actor="me", now=boards.clock.at)
    boards.poll(jobs(1))
    assert (boards.row().status, len(boards.listings())) == ("active", 1)
