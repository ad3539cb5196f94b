"""Boards that are no longer polled: their jobs are closed, and reopened with the board."""

from datetime import timedelta

import pytest
from sqlalchemy import insert

from ingestion_pipeline.companies.boards.listing_rows import close_inactive_boards, has_inactive_boards
from ingestion_pipeline.sources.registry import disable, enable, remove
from ingestion_pipeline.store.tables import audit_log, job_matches
from ingestion_pipeline_tests.companies.boards.job_boards import ACME, Boards, a_board, a_match, jobs
from ingestion_pipeline_tests.polling_runs import rows

OTHER = "job_board:other"


def close_inactive(boards: Boards) -> int:
    with boards.store.begin() as connection:
        return close_inactive_boards(connection, now=boards.clock.at, settings=boards.ctx.settings)


def has_inactive(boards: Boards) -> bool:
    with boards.store.read() as connection:
        return has_inactive_boards(connection, now=boards.clock.at, settings=boards.ctx.settings)


def disable_board(boards: Boards, source_id: str = ACME) -> None:
    with boards.store.begin() as connection:
        disable(connection, source_id, actor="ann", reason="enough", now=boards.clock.at)


def listing_statuses(boards: Boards) -> list[str]:
    return [row.status for row in boards.listings()]


def test_jobs_of_a_board_that_an_operator_disables_are_closed_with_a_reason(boards: Boards) -> None:
    boards.add()
    boards.poll(jobs(1, 2))
    with boards.store.begin() as connection:
        connection.execute(insert(job_matches).values(a_match(boards.listings()[0].id)))
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
    boards.add()
    boards.poll(jobs(1, 2))
    disable_board(boards)
    close_inactive(boards)

    with boards.store.begin() as connection:
        enable(connection, ACME, actor="ann", now=boards.clock.at)
    boards.poll()

    assert listing_statuses(boards) == ["open", "open"]
    assert {row.closed_reason for row in boards.listings()} == {None}
    assert [row.available for row in boards.links()] == [True, True]
    assert boards.source_row().record_count == 2


def test_a_job_that_another_board_lists_stays_open(boards: Boards) -> None:
    address = "https://boards.greenhouse.io/other"
    boards.add(a_board(), a_board(id=OTHER, url=address))
    boards.serve_jobs(jobs(1), token="other")
    boards.poll(jobs(1, 2))

    with boards.store.begin() as connection:
        remove(connection, ACME, actor="ann", now=boards.clock.at)

    assert close_inactive(boards) == 1
    by_title = {row.title: row.status for row in boards.listings()}
    assert by_title == {"Engineer 1": "open", "Engineer 2": "closed"}


@pytest.mark.slow
def test_jobs_of_a_board_that_failures_disabled_stay_open_for_a_fortnight(boards: Boards) -> None:
    boards.add()
    boards.poll(jobs(1))
    boards.serve(404)
    for _ in range(5):
        boards.poll()
    assert boards.source_row().status == "disabled"
    assert close_inactive(boards) == 0

    boards.clock.at += timedelta(days=14)

    assert (close_inactive(boards), listing_statuses(boards)) == (1, ["closed"])
