"""The companies of listings: a row at once, analysed where somebody knows how, waited for."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from ingestion_pipeline.companies.states import COMPANY, JOB
from ingestion_pipeline.store.tables import audit_log, companies, job_listings, tasks
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask
from ingestion_pipeline_tests.companies.matching.listings import Listings
from ingestion_pipeline_tests.pollers import GoingClock

SITE = "https://northwind.test/"


def analyses(some: Listings) -> list[tuple[str, str]]:
    return [(row.dedupe_key, row.url) for row in some.rows(tasks) if row.kind == COMPANY]


def test_an_unknown_company_with_a_website_is_to_be_analysed_once(some: Listings) -> None:
    for number in range(3):
        some.add(url=f"http://jobs.test/{number}", company_website="https://Northwind.test")

    some.run()

    assert analyses(some) == [("northwind", SITE)]
    [task] = [row for row in some.rows(tasks) if row.kind == COMPANY]
    parents = {row.id: row for row in some.rows(tasks)}
    assert parents[task.parent_id].kind == JOB
    assert (task.tracking_id, task.spawn_depth) == (parents[task.parent_id].tracking_id, 1)
    assert {row.company_id for row in some.rows(job_listings)} == {"northwind"}


def test_a_company_of_the_same_website_is_the_same_under_any_name(some: Listings) -> None:
    some.add(url="http://jobs.test/1", company_website=SITE)
    some.run()
    some.add(url="http://jobs.test/2", company_name="NW Trading", company_website=SITE)

    some.run()

    assert [row.id for row in some.rows(companies)] == ["northwind"]
    assert len(analyses(some)) == 1


def test_the_company_that_the_boards_source_names_is_believed(some: Listings) -> None:
    some.board("job_board:other", url="http://other.test/", company="acme")
    id_ = some.add(url="http://other.test/1", source_id="job_board:other")

    some.run()

    assert some.row(job_listings, id_).company_id == "acme"
    assert [row.id for row in some.rows(companies)] == ["acme"]


def test_a_listing_without_a_company_has_none(some: Listings) -> None:
    id_ = some.add(company_name=None)

    counts = some.run().counts

    assert (counts.matched, some.row(job_listings, id_).company_id) == (1, None)
    assert some.rows(companies) == []


@pytest.mark.parametrize(
    "name",
    [
        *("Unknown", "N/A", "n.a.", "Confidential", "Confidential Company", "-", "???", "TBD"),
        *("Not provided", "No company", "Hiring company", "Stealth Startup", "nicht angegeben"),
    ],
)
def test_a_word_for_nothing_is_no_company(some: Listings, name: str) -> None:
    id_ = some.add(company_name=name, company_website="https://unknown.test/")

    some.run()

    assert some.row(job_listings, id_).company_id is None
    assert (some.rows(companies), analyses(some)) == ([], [])


def test_a_partners_job_on_the_companys_board_does_not_name_the_company(some: Listings) -> None:
    some.board("job_board:other", url="http://other.test/", company="acme")
    listed: dict[str, Any] = {"source_id": "job_board:other", "company_website": SITE}

    some.add(url="http://other.test/1", company_name="Northwind GmbH", **listed)
    some.run()

    [acme] = some.rows(companies)
    assert (acme.id, acme.name, acme.website) == ("acme", None, None)
    assert analyses(some) == []


def test_a_listing_waits_for_its_company_three_times_and_then_goes_on(some: Listings) -> None:
    some.add(company_website=SITE)
    waiting: list[tuple[int, str | None]] = []
    clock = some.ctx.store.clock
    assert isinstance(clock, GoingClock)

    for _ in range(4):
        counts = some.run().counts
        [job] = [row for row in some.rows(tasks) if row.kind == JOB]
        waiting.append((counts.matched, job.error_code if job.status == "PENDING" else None))
        clock.advance(minutes=2)

    assert waiting == [(0, "company_sparse")] * 3 + [(1, None)]
    assert some.rows(tasks)[-2].attempts <= 1


def test_once_its_company_is_analysed_a_listing_waits_no_more(some: Listings) -> None:
    some.add(company_website=SITE)
    some.run()
    with some.ctx.store.begin() as connection:
        connection.execute(companies.update().values(status="active", size_category="large"))
    clock = some.ctx.store.clock
    assert isinstance(clock, GoingClock)
    clock.advance(minutes=2)

    some.run()

    [listing] = some.rows(job_listings)
    assert ("company_size", 10) in {(one["name"], one["points"]) for one in listing.match_result["adjustments"]}


def test_a_company_that_its_lineage_has_seen_is_refused_and_the_refusal_can_be_read(some: Listings) -> None:
    """A job that leads to its company, whose board led to the job: the circle ends here."""
    some.add(company_website=SITE)
    with some.ctx.store.begin() as connection:
        now = some.ctx.store.clock.now(connection)
        root = NewTask(kind=COMPANY, dedupe_key="nw", not_before=now, url=SITE)
        [root_id] = insert_tasks(connection, [root], now=now)
        of = connection.execute(select(tasks.c.tracking_id).where(tasks.c.id == root_id)).scalar_one()
        lineage = {"tracking_id": of, "parent_id": root_id, "ancestry": [root_id], "spawn_depth": 1}
        connection.execute(tasks.update().where(tasks.c.kind == JOB).values(lineage))

    some.run()

    assert analyses(some) == [("nw", SITE)]
    [refusal] = [row for row in some.rows(audit_log) if row.action == "spawn.refused"]
    assert (refusal.detail["reason"], refusal.detail["url"]) == ("in_ancestry", SITE)
    assert refusal.subject == f"task:{of}"


def test_a_company_known_by_its_name_alone_is_analysed_once_its_website_is_stated(some: Listings) -> None:
    some.add(url="http://jobs.test/1")
    some.run()
    assert analyses(some) == []

    for number in (2, 3):
        some.add(url=f"http://jobs.test/{number}", company_website=SITE)
        some.run()

    assert analyses(some) == [("northwind", SITE)]
    assert [row for row in some.rows(audit_log) if row.action == "spawn.refused"] == []


def test_a_thin_company_whose_board_led_to_the_job_is_not_analysed_in_circles(some: Listings) -> None:
    some.add(url="http://jobs.test/1", company_website=SITE)
    some.run()
    with some.ctx.store.begin() as connection:
        connection.execute(tasks.update().where(tasks.c.kind == COMPANY).values(status="SKIPPED"))
    clock = some.ctx.store.clock
    assert isinstance(clock, GoingClock)

    for _ in range(3):  # it waits for its company each time
        clock.advance(minutes=2)
        some.run()

    assert len(analyses(some)) == 1
    [refusal] = [row for row in some.rows(audit_log) if row.action == "spawn.refused"]
    assert refusal.detail["reason"] == "terminal_in_lineage"


def test_the_site_of_another_company_is_not_the_boards_own(some: Listings) -> None:
    some.board("job_board:other", url="http://other.test/", company="acme")
    listed: dict[str, Any] = {"source_id": "job_board:other", "company_name": "Acme GmbH"}
    some.add(url="http://other.test/1", company_website=SITE, **listed)
    some.run()
    with some.ctx.store.begin() as connection:
        connection.execute(tasks.update().where(tasks.c.kind == COMPANY).values(status="SKIPPED"))
    some.add(url="http://other.test/2", company_website="https://southwind.test/", **listed)

    some.run()

    assert analyses(some) == [("acme", SITE)]
