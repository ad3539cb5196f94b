"""Downloaded pages become a dataset: exactly once, whoever reads them and however often."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from sqlalchemy import update

from ingestion_pipeline.catalogs.extraction.results import write_readings
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, extractions, pages, tasks
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline_tests.catalogs.courses import (
    a_course_page,
    claimed_works,
    dataset_rows,
    downloaded,
    given_courses,
    names,
    publish,
    read_by_rules,
)
from ingestion_pipeline_tests.crawlers import a_catalog, begin, crawl_all, fetch_pages, read_pages, statuses
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import GoingClock, given_sources, rows


def test_each_downloaded_page_has_one_task_of_its_lineage(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    downloaded(ctx, web, 101, 102)

    assert statuses(store) == {"SUCCESS": 1, "DOWNLOADED": 2}
    fetched = {row.url: row for row in rows(store, tasks) if row.kind == "fetch_page"}
    waiting = [row for row in rows(store, tasks) if row.kind == EXTRACT_PAGE]
    [extraction] = rows(store, extractions)
    assert [row.parent_id for row in waiting] == [fetched[row.url].id for row in waiting]
    assert {row.tracking_id for row in waiting} == {extraction.tracking_id}
    assert [row.dedupe_key for row in waiting] == [f"{extraction.id}:{row.payload['page']}" for row in waiting]
    assert extraction.status == "IN_PROGRESS"
    assert dataset_rows(store) == []


def test_pages_become_items_with_evidence_and_the_extraction_ends(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    given_courses(web, 101, 102)
    web.routes |= {"/c/102": a_course_page(102, 103), "/": a_course_links(101, 102, 104)}
    web.routes |= {"/c/104": "<html><body><p>Nothing is taught here.</p></body></html>"}
    given_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    assert names(store) == ["MATH 101", "MATH 102", "MATH 103"]
    assert statuses(store) == {"SUCCESS": 3, "EXTRACTED_NO_DATA": 1}
    [dataset] = dataset_rows(store)
    [extraction] = rows(store, extractions)
    assert (dataset["version"], dataset["status"]) == (1, "published")
    assert (extraction.dataset_id, extraction.status) == (dataset["id"], "COMPLETE")
    first = min(rows(store, data_items), key=lambda row: row.item_key)
    assert first.item_key == "math 101 | numbers 101"
    assert first.grounding["course_id"]["status"] == "exact"
    assert (first.rung, first.is_flagged, first.is_repeat) == ("selectors", False, False)
    counts = {row.url[-3:]: (row.item_count, row.rung) for row in rows(store, pages)[1:]}
    assert counts == {"101": (1, "selectors"), "102": (2, "selectors"), "104": (0, None)}
    assert all(row.read_as and row.reading_at and row.read_at for row in rows(store, pages)[1:])


def a_course_links(*numbers: int) -> str:
    links = "".join(f'<a href="/c/{number}">{number}</a>' for number in numbers)
    return f"<html><body><h1>Catalogue</h1>{links}</body></html>"


def test_an_unchanged_catalogue_reads_nothing_and_adds_no_row(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    given_courses(web, 101, 102)
    web.routes["/c/102"] = "<html><body><p>Nothing is taught here.</p></body></html>"
    given_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    publish(store)
    items, before = rows(store, data_items), rows(store, pages)

    crawl_all(ctx, web.port)

    assert rows(store, data_items) == items
    assert len(dataset_rows(store)) == 1
    again = rows(store, pages)[3:]
    assert [row.status for row in again] == ["SUCCESS", "SUCCESS", "EXTRACTED_NO_DATA"]
    assert [row.carried_from for row in again] == [None, before[1].id, before[2].id]
    assert [row.item_count for row in again] == [None, 1, 0]
    note = "rules found no course; rules found no record"
    assert [(row.failure or {}).get("message", "")[: len(note)] for row in again] == ["", "", note]
    assert Counter(row.kind for row in rows(store, tasks))[EXTRACT_PAGE] == 2
    assert [row.status for row in rows(store, extractions)] == ["COMPLETE", "COMPLETE"]


def test_only_a_changed_page_is_read_and_the_others_are_carried(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    given_courses(web, 101, 102, 103)
    given_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    publish(store)
    web.routes["/c/102"] = a_course_page(102, about="other things")

    crawl_all(ctx, web.port)

    second = rows(store, pages)[5:]
    assert [row.carried_from is not None for row in second] == [True, False, True]
    assert [one["version"] for one in dataset_rows(store)] == [1, 2]
    new = [row for row in rows(store, data_items) if row.dataset_id == dataset_rows(store)[1]["id"]]
    told = {row.data["course_id"]: "other things" in row.data["course_description"] for row in new}
    assert told == {"MATH 101": False, "MATH 102": True, "MATH 103": False}


@pytest.mark.parametrize("status", ["building", "quarantined"])
def test_nothing_is_carried_from_what_was_not_published(
    ctx: RunContext, store: Store, web: FakeWeb, status: str
) -> None:
    given_courses(web, 101)
    given_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    publish(store, status)

    crawl_all(ctx, web.port)

    assert [row.carried_from for row in rows(store, pages)] == [None] * 4
    assert names(store) == ["MATH 101", "MATH 101"]


def test_a_page_read_under_another_schema_is_read_again(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    given_courses(web, 101)
    given_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    publish(store)
    with store.begin() as connection:
        connection.execute(update(pages).values(read_as="another"))

    crawl_all(ctx, web.port)

    assert rows(store, pages)[3].carried_from is None
    assert names(store) == ["MATH 101", "MATH 101"]


def test_a_reading_that_was_overtaken_leaves_nothing(
    ctx: RunContext, store: Store, web: FakeWeb, clock: GoingClock
) -> None:
    downloaded(ctx, web, 101)
    zombie = Worker(store, lease_seconds=60)
    [work] = claimed_works(ctx, zombie)
    late = read_by_rules(ctx, work)
    clock.advance(seconds=120)
    read_pages(ctx)
    items = rows(store, data_items)

    written = write_readings(ctx, [late])

    assert (written.counts.lost, written.counts.read) == (1, 0)
    assert rows(store, data_items) == items
    assert len(items) == 1


def test_a_page_that_was_read_meanwhile_is_not_written_again(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    downloaded(ctx, web, 101)
    [work] = claimed_works(ctx, Worker(store, lease_seconds=60))
    late = read_by_rules(ctx, work)
    with store.begin() as connection:
        is_it = pages.c.id == work.page_id
        connection.execute(update(pages).where(is_it).values(status="SUCCESS", item_count=7))

    write_readings(ctx, [late])

    assert rows(store, data_items) == []
    assert dataset_rows(store) == []
    assert rows(store, pages)[1].item_count == 7


def test_what_was_read_before_the_fetch_was_written_down_stays_read(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    """Trap 8: the origin's fetch worker wrote its own status over a quick extraction's."""
    given_courses(web, 101)
    given_sources(store, a_catalog())
    begin(ctx, web)
    overtake_detail_pages(store, web)

    fetch_pages(ctx, web)

    assert statuses(store) == {"SUCCESS": 2}
    assert [row.kind for row in rows(store, tasks)].count(EXTRACT_PAGE) == 0


def overtake_detail_pages(store: Store, web: FakeWeb) -> None:
    """While the page is on its way, somebody has it read."""
    body = a_course_page(101)

    async def overtaken(writer: asyncio.StreamWriter) -> None:
        with store.begin() as connection:
            is_detail = pages.c.page_type == "DETAIL"
            connection.execute(update(pages).where(is_detail).values(status="SUCCESS"))
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body.encode())
        await writer.drain()

    web.routes["/c/101"] = overtaken


def test_a_page_that_is_read_twice_has_its_items_once(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    downloaded(ctx, web, 101)
    read_pages(ctx)
    read_again(store)

    read_pages(ctx)

    assert names(store) == ["MATH 101"]
    assert [one["version"] for one in dataset_rows(store)] == [1]
    assert statuses(store) == {"SUCCESS": 2}


def read_again(store: Store) -> None:
    """As an operator's retry does it."""
    with store.begin() as connection:
        connection.execute(update(extractions).values(status="IN_PROGRESS", finished_at=None))
        is_detail = pages.c.page_type == "DETAIL"
        connection.execute(update(pages).where(is_detail).values(status="DOWNLOADED"))
        is_reading = tasks.c.kind == EXTRACT_PAGE
        connection.execute(update(tasks).where(is_reading).values(status="PENDING", attempts=0))
