"""Reports of a board for Dagster, and the findings of its checks."""

from datetime import timedelta

import pytest
from sqlalchemy import update

from ingestion_pipeline.companies import checks
from ingestion_pipeline.companies.reports import BoardReport, board_reports
from ingestion_pipeline.sources.status import mark_reported
from ingestion_pipeline.store.tables import job_listings
from ingestion_pipeline_tests.companies.boards.job_boards import ACME, Boards, a_board, a_job, jobs

pytestmark = pytest.mark.both_databases


def board_report(boards: Boards, source_id: str = ACME) -> BoardReport:
    with boards.store.read() as connection:
        [board] = board_reports(connection, [source_id])
    return board


def set_decision(boards: Boards, decision: str, *ids: int, rejected_by: str = "salary") -> None:
    rejection = {"category": "rejection", "name": rejected_by}
    filter_result = {"passed": False, "rejected_by": rejected_by, "items": [rejection]}
    values = {"decision": decision, "filter_result": filter_result}
    with boards.store.begin() as connection:
        connection.execute(update(job_listings).where(job_listings.c.id.in_(ids)).values(values))


def test_the_funnel_of_a_board_counts_the_outcomes_of_its_jobs(boards: Boards) -> None:
    boards.add(a_board(), a_board(id="job_board:other", url="https://boards.greenhouse.io/other"))
    boards.serve_jobs(jobs(1, 2, 3, 4, 5), token="acme")
    boards.serve_jobs([a_job(1), a_job(9)], token="other")
    boards.poll()
    ids = [row.id for row in boards.listings() if row.source_id == ACME]
    set_decision(boards, "filtered", *ids[:2])
    set_decision(boards, "filtered", ids[2], rejected_by="age")
    set_decision(boards, "matched", ids[3])

    acme, other = board_report(boards), board_report(boards, "job_board:other")

    assert (acme.found, acme.matched, acme.skipped, acme.waiting) == (5, 1, 0, 1)
    assert acme.filtered == {"salary": 2, "age": 1}
    assert {(acme.new, acme.duplicate), (other.new, other.duplicate)} <= {(5, 0), (4, 1), (2, 0), (1, 1)}
    assert acme.new + other.new == 6
    assert acme.duplicate + other.duplicate == 1


@pytest.mark.slow
def test_a_report_counts_changes_since_the_previous_report(boards: Boards) -> None:
    boards.add()
    boards.poll(jobs(1, 2))
    with boards.store.begin() as connection:
        mark_reported(connection, [ACME])

    boards.poll([a_job(1, title="Lead"), *jobs(2, 3)])

    report = board_report(boards)
    assert (report.new, report.updated, report.closed, report.found) == (1, 1, 0, 3)
    assert [listing["is_new"] for listing in report.newest] == [True, False, False]


@pytest.mark.slow
def test_a_drop_and_a_lost_field_are_different_findings(boards: Boards) -> None:
    boards.add()
    boards.poll(jobs(1, 2))

    boards.poll([])
    with boards.store.read() as connection:
        assert [check_finding.subject for check_finding in checks.dropped(connection)] == [ACME]
        assert checks.lost_fields(connection) == []

    boards.poll(jobs(1, 2, location=None))
    with boards.store.read() as connection:
        assert checks.dropped(connection) == []
        (finding,) = checks.lost_fields(connection)
    assert "2 of 2 known jobs have lost their location" in finding.message


def test_a_board_is_stale_after_two_weeks_without_success(boards: Boards) -> None:
    boards.add()
    boards.poll(jobs(1))
    settings = boards.ctx.settings

    def stale_after(days: int) -> int:
        now = boards.clock.at + timedelta(days=days)
        with boards.store.read() as connection:
            return len(checks.stale_boards(connection, now=now, settings=settings))

    assert (stale_after(13), stale_after(15)) == (0, 1)


@pytest.mark.slow
def test_a_board_that_failures_disabled_is_a_finding(boards: Boards) -> None:
    boards.add()
    boards.serve(404)
    for _ in range(5):
        boards.poll()

    with boards.store.read() as connection:
        (finding,) = checks.stale_boards(connection, now=boards.clock.at, settings=boards.ctx.settings)
    assert "5 failed polls" in finding.message


def test_a_board_whose_jobs_are_all_filtered_is_a_finding(boards: Boards) -> None:
    boards.add()
    boards.poll(jobs(*range(6)))
    ids = [row.id for row in boards.listings()]

    set_decision(boards, "filtered", *ids)
    with boards.store.read() as connection:
        assert [row.subject for row in checks.all_filtered(connection)] == [ACME]

    set_decision(boards, "skipped", ids[0])
    with boards.store.read() as connection:
        assert checks.all_filtered(connection) == []
