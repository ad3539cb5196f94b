"""Boards that nobody asks any more: their jobs are closed, and come back with them."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import insert

from ingestion_pipeline.companies.boards.closing import close_inactive_boards, has_inactive_boards
from ingestion_pipeline.sources.registry import disable, enable, remove
from ingestion_pipeline.store.tables import audit_log, job_matches
from ingestion_pipeline_tests.companies.boards.polling import ACME, Boards, a_board, jobs
from ingestion_pipeline_tests.companies.boards.test_ingestion import a_match
from ingestion_pipeline_tests.pollers import rows

OTHER = "job_board:other"


def close(boards: Boards) -> int:
    with boards.store.begin() as connection:
        return close_inactive_boards(connection, now=boards.clock.at, settings=boards.ctx.settings)


def waits(boards: Boards) -> bool:
    with boards.store.read() as connection:
        return has_inactive_boards(connection, now=boards.clock.at, settings=boards.ctx.settings)


def switch_off(boards: Boards, source_id: str = ACME) -> None:
    with boards.store.begin() as connection:
        disable(connection, source_id, actor="ann", reason="enough", now=boards.clock.at)


def standing(boards: Boards) -> list[str]:
    return [one.status for one in boards.listings()]


def test_jobs_of_a_board_that_an_operator_disables_are_closed_with_a_reason(boards: Boards) -> None:
    boards.given()
    boards.poll(jobs(1, 2))
    with boards.store.begin() as connection:
        connection.execute(insert(job_matches).values(a_match(boards.listings()[0].id)))
    assert (waits(boards), close(boards)) == (False, 0)

    switch_off(boards)
    assert (waits(boards), close(boards)) == (True, 2)

    assert standing(boards) == ["closed", "closed"]
    assert boards.listings()[0].closed_reason == f"its board is no longer polled: {ACME}"
    assert [one.status for one in rows(boards.store, job_matches)] == ["withdrawn"]
    told = [one for one in rows(boards.store, audit_log) if one.action == "board.unwatched"]
    assert [(one.subject, one.detail) for one in told] == [(ACME, {"closed": 2, "reason": "ann: enough"})]
    assert (waits(boards), close(boards)) == (False, 0)


def test_enabling_the_board_brings_them_back_though_it_answers_as_before(boards: Boards) -> None:
    boards.given()
    boards.poll(jobs(1, 2))
    switch_off(boards)
    close(boards)

    with boards.store.begin() as connection:
        enable(connection, ACME, actor="ann", now=boards.clock.at)
    boards.poll()

    assert standing(boards) == ["open", "open"]
    assert {one.closed_reason for one in boards.listings()} == {None}
    assert [one.available for one in boards.links()] == [True, True]
    assert boards.row().record_count == 2


def test_a_job_that_another_board_lists_stays_open(boards: Boards) -> None:
    address = "https://boards.greenhouse.io/other"
    boards.given(a_board(), a_board(id=OTHER, url=address))
    boards.lists(jobs(1), token="other")
    boards.poll(jobs(1, 2))

    with boards.store.begin() as connection:
        remove(connection, ACME, actor="ann", now=boards.clock.at)

    assert close(boards) == 1
    by_title = {one.title: one.status for one in boards.listings()}
    assert by_title == {"Engineer 1": "open", "Engineer 2": "closed"}


def test_a_board_that_failures_disabled_is_believed_for_a_fortnight(boards: Boards) -> None:
    boards.given()
    boards.poll(jobs(1))
    boards.answers(404)
    for _ in range(5):
        boards.poll()
    assert boards.row().status == "disabled"
    assert close(boards) == 0

    boards.clock.at += timedelta(days=14)

    assert (close(boards), standing(boards)) == (1, ["closed"])
