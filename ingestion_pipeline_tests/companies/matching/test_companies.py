"""From the poll of a board to a match and its withdrawal; the companies of listings are added and waited for."""

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from ingestion_pipeline.companies.matching.listing_runs import MatchRunResult, match_listings
from ingestion_pipeline.companies.records import COMPANY, JOB
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import audit_log, companies, job_listings, job_matches, outbox, tasks
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask
from ingestion_pipeline_tests.companies.boards.job_boards import Boards, a_board, a_job, jobs
from ingestion_pipeline_tests.companies.company_sites import transaction
from ingestion_pipeline_tests.companies.matching.listings import MATCHING_TEXT, PROFILE, Listings
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import a_fetcher, a_run_context, fast_settings, rows

pytestmark = pytest.mark.both_databases

SITE = "https://northwind.test/"


def queued_analyses(listings: Listings) -> list[tuple[str, str]]:
    return [(row.dedupe_key, row.url) for row in listings.rows(tasks) if row.kind == COMPANY]


def test_an_unknown_company_with_a_website_is_queued_for_analysis_once(listings: Listings) -> None:
    for number in range(3):
        listings.add(url=f"http://jobs.test/{number}", company_website="https://Northwind.test")

    listings.run()

    assert queued_analyses(listings) == [("northwind", SITE)]
    [task] = [row for row in listings.rows(tasks) if row.kind == COMPANY]
    parents = {row.id: row for row in listings.rows(tasks)}
    assert parents[task.parent_id].kind == JOB
    assert (task.tracking_id, task.spawn_depth) == (parents[task.parent_id].tracking_id, 1)
    assert {row.company_id for row in listings.rows(job_listings)} == {"northwind"}


def test_companies_with_the_same_website_are_one_company(listings: Listings) -> None:
    listings.add(url="http://jobs.test/1", company_website=SITE)
    listings.run()
    listings.add(url="http://jobs.test/2", company_name="NW Trading", company_website=SITE)

    listings.run()

    assert [row.id for row in listings.rows(companies)] == ["northwind"]
    assert len(queued_analyses(listings)) == 1


def test_the_company_of_the_boards_source_takes_precedence(listings: Listings) -> None:
    listings.add_board("job_board:other", url="http://other.test/", company="acme")
    listing = listings.evaluated(url="http://other.test/1", source_id="job_board:other")

    assert listing.company_id == "acme"
    assert [row.id for row in listings.rows(companies)] == ["acme"]


def test_a_listing_without_a_company_name_has_no_company(listings: Listings) -> None:
    id_ = listings.add(company_name=None)

    counts = listings.run().counts

    assert (counts.matched, listings.row(job_listings, id_).company_id) == (1, None)
    assert listings.rows(companies) == []


@pytest.mark.parametrize(
    "name",
    [
        *("Unknown", "N/A", "n.a.", "Confidential", "Confidential Company", "-", "???", "TBD"),
        *("Not provided", "No company", "Hiring company", "Stealth Startup", "nicht angegeben"),
    ],
)
def test_a_placeholder_name_is_not_a_company(listings: Listings, name: str) -> None:
    listing = listings.evaluated(company_name=name, company_website="https://unknown.test/")

    assert listing.company_id is None
    assert (listings.rows(companies), queued_analyses(listings)) == ([], [])


def test_a_partners_job_on_a_companys_board_does_not_change_the_company(listings: Listings) -> None:
    listings.add_board("job_board:other", url="http://other.test/", company="acme")
    columns: dict[str, Any] = {"source_id": "job_board:other", "company_website": SITE}

    listings.add(url="http://other.test/1", company_name="Northwind GmbH", **columns)
    listings.run()

    [acme] = listings.rows(companies)
    assert (acme.id, acme.name, acme.website) == ("acme", None, None)
    assert queued_analyses(listings) == []


def test_a_listing_waits_for_its_company_three_times_and_is_then_evaluated(listings: Listings) -> None:
    listings.add(company_website=SITE)
    waiting: list[tuple[int, str | None]] = []

    for _ in range(4):
        counts = listings.run().counts
        [job] = [row for row in listings.rows(tasks) if row.kind == JOB]
        waiting.append((counts.matched, job.error_code if job.status == "PENDING" else None))
        listings.advance(minutes=2)

    assert waiting == [(0, "company_sparse")] * 3 + [(1, None)]
    assert listings.rows(tasks)[-2].attempts <= 1


def test_a_listing_is_evaluated_once_its_company_is_analysed(listings: Listings) -> None:
    listings.add(company_website=SITE)
    listings.run()
    listings.execute(companies.update().values(status="active", size_category="large"))
    listings.advance(minutes=2)

    listings.run()

    [listing] = listings.rows(job_listings)
    assert ("company_size", 10) in {
        (adjustment["name"], adjustment["points"]) for adjustment in listing.match_result["adjustments"]
    }


def test_a_company_in_the_lineage_is_refused_and_the_refusal_is_audited(listings: Listings) -> None:
    """The company's board led to the job: spawning the company again would be a cycle."""
    listings.add(company_website=SITE)
    with transaction(listings.ctx) as (connection, now):
        root = NewTask(kind=COMPANY, dedupe_key="nw", not_before=now, url=SITE)
        [root_id] = insert_tasks(connection, [root], now=now)
        tracking_id = connection.execute(select(tasks.c.tracking_id).where(tasks.c.id == root_id)).scalar_one()
        lineage = {"tracking_id": tracking_id, "parent_id": root_id, "ancestry": [root_id], "spawn_depth": 1}
        connection.execute(tasks.update().where(tasks.c.kind == JOB).values(lineage))

    listings.run()

    assert queued_analyses(listings) == [("nw", SITE)]
    [refusal] = [row for row in listings.rows(audit_log) if row.action == "spawn.refused"]
    assert (refusal.detail["reason"], refusal.detail["url"]) == ("in_ancestry", SITE)
    assert refusal.subject == f"task:{tracking_id}"


def test_a_company_without_a_website_is_analysed_once_a_listing_states_it(listings: Listings) -> None:
    listings.add(url="http://jobs.test/1")
    listings.run()
    assert queued_analyses(listings) == []

    for number in (2, 3):
        listings.add(url=f"http://jobs.test/{number}", company_website=SITE)
        listings.run()

    assert queued_analyses(listings) == [("northwind", SITE)]
    assert [row for row in listings.rows(audit_log) if row.action == "spawn.refused"] == []


@pytest.mark.slow
def test_a_thin_company_whose_board_led_to_the_job_is_not_analysed_again(listings: Listings) -> None:
    listings.add(url="http://jobs.test/1", company_website=SITE)
    listings.run()
    listings.execute(tasks.update().where(tasks.c.kind == COMPANY).values(status="SKIPPED"))

    for _ in range(3):  # the listing waits for its company each time
        listings.advance(minutes=2)
        listings.run()

    assert len(queued_analyses(listings)) == 1
    [refusal] = [row for row in listings.rows(audit_log) if row.action == "spawn.refused"]
    assert refusal.detail["reason"] == "terminal_in_lineage"


def test_another_website_does_not_start_a_second_analysis_of_the_boards_company(listings: Listings) -> None:
    listings.add_board("job_board:other", url="http://other.test/", company="acme")
    columns: dict[str, Any] = {"source_id": "job_board:other", "company_name": "Acme GmbH"}
    listings.add(url="http://other.test/1", company_website=SITE, **columns)
    listings.run()
    listings.execute(tasks.update().where(tasks.c.kind == COMPANY).values(status="SKIPPED"))
    listings.add(url="http://other.test/2", company_website="https://southwind.test/", **columns)

    listings.run()

    assert queued_analyses(listings) == [("acme", SITE)]


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
    boards.add(a_board("second"))
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
