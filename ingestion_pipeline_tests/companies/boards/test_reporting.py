"""What Dagster is told of a board, and what turns its checks red."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import update

from ingestion_pipeline.companies.boards import checks
from ingestion_pipeline.companies.boards.reporting import BoardReport, board_reports
from ingestion_pipeline.sources.status import mark_reported
from ingestion_pipeline.store.tables import job_listings
from ingestion_pipeline_tests.companies.boards.polling import ACME, Boards, a_board, a_job, jobs


def report(boards: Boards, source_id: str = ACME) -> BoardReport:
    with boards.store.read() as connection:
        [found] = board_reports(connection, [source_id])
    return found


def judge(boards: Boards, verdict: str, *ids: int, by: str = "salary") -> None:
    item = {"category": "rejection", "name": by}
    result = {"passed": False, "rejected_by": by, "items": [item]}
    values = {"verdict": verdict, "filter_result": result}
    with boards.store.begin() as connection:
        connection.execute(update(job_listings).where(job_listings.c.id.in_(ids)).values(values))


def test_a_boards_funnel_counts_what_became_of_its_jobs(boards: Boards) -> None:
    boards.given(a_board(), a_board(id="job_board:other", url="https://boards.greenhouse.io/other"))
    boards.lists(jobs(1, 2, 3, 4, 5), token="acme")
    boards.lists([a_job(1), a_job(9)], token="other")
    boards.poll()
    ids = [one.id for one in boards.listings() if one.source_id == ACME]
    judge(boards, "filtered", *ids[:2])
    judge(boards, "filtered", ids[2], by="age")
    judge(boards, "matched", ids[3])

    one, other = report(boards), report(boards, "job_board:other")

    assert (one.found, one.matched, one.skipped, one.waiting) == (5, 1, 0, 1)
    assert one.filtered == {"salary": 2, "age": 1}
    assert {(one.new, one.duplicate), (other.new, other.duplicate)} <= {(5, 0), (4, 1), (2, 0), (1, 1)}
    assert one.new + other.new == 6
    assert one.duplicate + other.duplicate == 1


def test_a_report_counts_from_the_last_one(boards: Boards) -> None:
    boards.given()
    boards.poll(jobs(1, 2))
    with boards.store.begin() as connection:
        mark_reported(connection, [ACME])

    boards.poll([a_job(1, title="Lead"), *jobs(2, 3)])

    told = report(boards)
    assert (told.new, told.updated, told.closed, told.found) == (1, 1, 0, 3)
    assert [one.is_new for one in told.newest] == [True, False, False]


def test_a_drop_and_a_lost_field_are_different_findings(boards: Boards) -> None:
    boards.given()
    boards.poll(jobs(1, 2))

    boards.poll([])
    with boards.store.read() as connection:
        assert [one.subject for one in checks.dropped(connection)] == [ACME]
        assert checks.lost_fields(connection) == []

    boards.poll(jobs(1, 2, location=None))
    with boards.store.read() as connection:
        assert checks.dropped(connection) == []
        (lost,) = checks.lost_fields(connection)
    assert "2 of 2 known jobs have lost their location" in lost.message


def test_a_board_is_stale_after_two_weeks_without_success(boards: Boards) -> None:
    boards.given()
    boards.poll(jobs(1))
    settings = boards.ctx.settings

    def stale_after(days: int) -> int:
        now = boards.clock.at + timedelta(days=days)
        with boards.store.read() as connection:
            return len(checks.stale(connection, now=now, settings=settings))

    assert (stale_after(13), stale_after(15)) == (0, 1)


def test_a_board_that_failures_disabled_is_a_finding(boards: Boards) -> None:
    boards.given()
    boards.answers(404)
    for _ in range(5):
        boards.poll()

    with boards.store.read() as connection:
        (found,) = checks.stale(connection, now=boards.clock.at, settings=boards.ctx.settings)
    assert "5 failed polls" in found.message


def test_a_board_whose_jobs_are_all_filtered_is_a_finding(boards: Boards) -> None:
    boards.given()
    boards.poll(jobs(*range(6)))
    ids = [one.id for one in boards.listings()]

    judge(boards, "filtered", *ids)
    with boards.store.read() as connection:
        assert [one.subject for one in checks.all_filtered(connection)] == [ACME]

    judge(boards, "skipped", ids[0])
    with boards.store.read() as connection:
        assert checks.all_filtered(connection) == []
