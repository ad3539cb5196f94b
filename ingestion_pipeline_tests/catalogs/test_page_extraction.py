"""Downloaded pages become a dataset exactly once; and content selectors of a recipe."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from selectolax import lexbor
from selectolax.lexbor import LexborHTMLParser
from sqlalchemy import select, update

from ingestion_pipeline.catalogs.recipes.recipe import content_selectors
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, extractions, pages, snapshots, sources, tasks
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline_tests.catalog_extractions import CATALOG_ID, LINKS, LiveCatalog, a_catalog
from ingestion_pipeline_tests.catalogs.course_pages import (
    claim_page_reads,
    course_codes,
    course_html,
    course_page,
    crawl_courses,
    dataset_rows,
    download_courses,
    read_by_rules,
    serve_courses,
    set_dataset_status,
    write_readings,
)
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import add_sources

pytestmark = pytest.mark.both_databases


@pytest.mark.slow
def test_each_downloaded_page_has_one_read_task_of_its_lineage(live: LiveCatalog) -> None:
    download_courses(live.ctx, live.web, 101, 102)

    assert live.page_statuses() == {"SUCCESS": 1, "DOWNLOADED": 2}
    fetched = {row.url: row for row in live.rows(tasks) if row.kind == "fetch_page"}
    waiting = [row for row in live.rows(tasks) if row.kind == EXTRACT_PAGE]
    [extraction] = live.rows(extractions)
    assert [row.parent_id for row in waiting] == [fetched[row.url].id for row in waiting]
    assert {row.tracking_id for row in waiting} == {extraction.tracking_id}
    assert [row.dedupe_key for row in waiting] == [f"{extraction.id}:{row.payload['page']}" for row in waiting]
    assert extraction.status == "IN_PROGRESS"
    assert dataset_rows(live.store) == []


@pytest.mark.slow
def test_pages_become_items_with_evidence_and_the_extraction_completes(live: LiveCatalog) -> None:
    serve_courses(live.web, 101, 102)
    live.web.routes |= {"/c/102": course_page(102, 103), "/": course_links(101, 102, 104)}
    live.serve({"/c/104": "<html><body><p>Nothing is taught here.</p></body></html>"})

    live.crawl_all()

    assert course_codes(live.store) == ["MATH 101", "MATH 102", "MATH 103"]
    assert live.page_statuses() == {"SUCCESS": 3, "EXTRACTED_NO_DATA": 1}
    [dataset] = dataset_rows(live.store)
    [extraction] = live.rows(extractions)
    assert (dataset["version"], dataset["status"]) == (1, "published")
    assert (extraction.dataset_id, extraction.status) == (dataset["id"], "COMPLETE")
    first = min(live.rows(data_items), key=lambda row: row.item_key)
    assert first.item_key == "math 101 | numbers 101"
    assert first.grounding["course_id"]["status"] == "exact"
    assert (first.extraction_method, first.is_flagged, first.is_repeat) == ("selectors", False, False)
    counts = {row.url[-3:]: (row.item_count, row.extraction_method) for row in live.rows(pages)[1:]}
    assert counts == {"101": (1, "selectors"), "102": (2, "selectors"), "104": (0, None)}
    assert all(row.reader_hash and row.read_started_at and row.read_at for row in live.rows(pages)[1:])


def course_links(*numbers: int) -> str:
    links = "".join(f'<a href="/c/{number}">{number}</a>' for number in numbers)
    return f"<html><body><h1>Catalogue</h1>{links}</body></html>"


@pytest.mark.slow
def test_an_unchanged_catalog_is_not_read_and_adds_no_row(live: LiveCatalog) -> None:
    serve_courses(live.web, 101, 102)
    live.web.routes["/c/102"] = "<html><body><p>Nothing is taught here.</p></body></html>"
    live.register()
    live.crawl_all()
    set_dataset_status(live.store)
    items, before = live.rows(data_items), live.rows(pages)

    live.crawl_all()

    assert live.rows(data_items) == items
    assert len(dataset_rows(live.store)) == 1
    again = live.rows(pages)[3:]
    assert [row.status for row in again] == ["SUCCESS", "SUCCESS", "EXTRACTED_NO_DATA"]
    assert [row.carried_from for row in again] == [None, before[1].id, before[2].id]
    assert [row.item_count for row in again] == [None, 1, 0]
    note = "rules found no course; rules found no record"
    assert [(row.failure or {}).get("message", "")[: len(note)] for row in again] == ["", "", note]
    assert Counter(row.kind for row in live.rows(tasks))[EXTRACT_PAGE] == 2
    assert [row.status for row in live.rows(extractions)] == ["COMPLETE", "COMPLETE"]


@pytest.mark.slow
def test_a_page_is_parsed_once_to_fetch_it_and_once_to_extract_it(
    live: LiveCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []

    class CountingParser(LexborHTMLParser):
        def __init__(self, html: str | bytes) -> None:
            parsed.append(html if isinstance(html, str) else html.decode())
            super().__init__(html)

    monkeypatch.setattr(lexbor, "LexborHTMLParser", CountingParser)

    download_courses(live.ctx, live.web, 101)
    to_fetch = sum("MATH 101" in page for page in parsed)
    live.read()
    to_extract = sum("MATH 101" in page for page in parsed) - to_fetch

    assert course_codes(live.store) == ["MATH 101"]
    assert (to_fetch, to_extract) == (1, 1)


@pytest.mark.slow
def test_only_a_changed_page_is_read_and_the_others_are_carried_over(live: LiveCatalog) -> None:
    crawl_courses(live, 101, 102, 103)
    set_dataset_status(live.store)
    live.web.routes["/c/102"] = course_page(102, about="other things")

    live.crawl_all()

    second = live.rows(pages)[5:]
    assert [row.carried_from is not None for row in second] == [True, False, True]
    assert [dataset["version"] for dataset in dataset_rows(live.store)] == [1, 2]
    new = [row for row in live.rows(data_items) if row.dataset_id == dataset_rows(live.store)[1]["id"]]
    is_new_by_code = {row.data["course_id"]: "other things" in row.data["course_description"] for row in new}
    assert is_new_by_code == {"MATH 101": False, "MATH 102": True, "MATH 103": False}


@pytest.mark.slow
@pytest.mark.parametrize("status", ["building", "quarantined"])
def test_nothing_is_carried_over_from_an_unpublished_dataset(live: LiveCatalog, status: str) -> None:
    crawl_courses(live, 101)
    set_dataset_status(live.store, status)

    live.crawl_all()

    assert [row.carried_from for row in live.rows(pages)] == [None] * 4
    assert course_codes(live.store) == ["MATH 101", "MATH 101"]


@pytest.mark.slow
def test_a_page_read_under_another_schema_is_read_again(live: LiveCatalog) -> None:
    crawl_courses(live, 101)
    set_dataset_status(live.store)
    with live.store.begin() as connection:
        connection.execute(update(pages).values(reader_hash="another"))

    live.crawl_all()

    assert live.rows(pages)[3].carried_from is None
    assert course_codes(live.store) == ["MATH 101", "MATH 101"]


def test_a_page_that_was_read_in_the_meantime_is_not_written_again(live: LiveCatalog) -> None:
    download_courses(live.ctx, live.web, 101)
    [work] = claim_page_reads(live.ctx, Worker(live.store, lease_seconds=60))
    late = read_by_rules(live.ctx, work)
    with live.store.begin() as connection:
        is_it = pages.c.id == work.page_id
        connection.execute(update(pages).where(is_it).values(status="SUCCESS", item_count=7))

    write_readings(live.ctx, [late])

    assert live.rows(data_items) == []
    assert dataset_rows(live.store) == []
    assert live.rows(pages)[1].item_count == 7


def test_a_read_that_finishes_before_the_fetch_is_recorded_stays_read(live: LiveCatalog) -> None:
    """Trap 8: the original fetch worker overwrote the status of a quick extraction."""
    serve_courses(live.web, 101)
    live.register()
    live.poll()
    finish_pages_while_fetched(live.store, live.web)

    live.fetch()

    assert live.page_statuses() == {"SUCCESS": 2}
    assert [row.kind for row in live.rows(tasks)].count(EXTRACT_PAGE) == 0


def finish_pages_while_fetched(store: Store, web: FakeWeb) -> None:
    """Mark the page as read while its response is on the way."""
    body = course_page(101)

    async def answer(writer: asyncio.StreamWriter) -> None:
        with store.begin() as connection:
            is_detail = pages.c.page_type == "DETAIL"
            connection.execute(update(pages).where(is_detail).values(status="SUCCESS"))
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body.encode())
        await writer.drain()

    web.routes["/c/101"] = answer


@pytest.mark.slow
def test_a_page_that_is_read_twice_has_its_items_once(live: LiveCatalog) -> None:
    download_courses(live.ctx, live.web, 101)
    live.read()
    reset_reads(live.store)

    live.read()

    assert course_codes(live.store) == ["MATH 101"]
    assert [dataset["version"] for dataset in dataset_rows(live.store)] == [1]
    assert live.page_statuses() == {"SUCCESS": 2}


def reset_reads(store: Store) -> None:
    """Reset pages and tasks as an operator's retry does."""
    with store.begin() as connection:
        connection.execute(update(extractions).values(status="IN_PROGRESS", finished_at=None))
        is_detail = pages.c.page_type == "DETAIL"
        connection.execute(update(pages).where(is_detail).values(status="DOWNLOADED"))
        is_reading = tasks.c.kind == EXTRACT_PAGE
        connection.execute(update(tasks).where(is_reading).values(status="PENDING", attempts=0))


PAGE = (
    f"<html><body><h1>Courses</h1><aside>Also: {course_html(900)}</aside><main>{course_html(101)}</main></body></html>"
)


def selector_recipe(selector: str) -> dict[str, Any]:
    return {**LINKS, "links": {"page_type": "DETAIL", "content_selector": selector}}


def serve_page(store: Store, web: FakeWeb, selector: str) -> None:
    web.routes |= {"/": '<a href="/c/101">101</a>', "/c/101": PAGE}
    add_sources(store, a_catalog(selector_recipe(selector)))


@pytest.mark.slow
def test_only_the_selected_content_is_read_and_its_spans_are_those_of_the_stored_text(live: LiveCatalog) -> None:
    serve_page(live.store, live.web, "main")

    live.crawl_all()

    assert course_codes(live.store) == ["MATH 101"]
    [item] = live.rows(data_items)
    with live.store.read() as connection:
        query = select(snapshots.c.text_hash).where(snapshots.c.id == item.snapshot_id)
        text = live.ctx.content.get(connection.execute(query).scalar_one()).decode()
    proof = item.grounding["course_id"]
    assert proof["start"] > text.index("MATH 900")
    assert text[proof["start"] : proof["end"]] == "MATH 101"


@pytest.mark.slow
def test_a_content_selector_that_matches_nothing_is_an_error_for_an_unchanged_page_too(live: LiveCatalog) -> None:
    serve_page(live.store, live.web, "main")
    live.crawl_all()
    with live.store.begin() as connection:
        changed = {"recipe": selector_recipe("main#nothing")}
        connection.execute(update(sources).where(sources.c.id == CATALOG_ID).values(config=changed))

    live.crawl_all()

    failed = live.pages()[-1]
    assert (failed.path, failed.status) == ("/c/101", "ERROR")
    assert failed.failure is not None
    assert failed.failure["code"] == "content_selector"
    assert "main#nothing" in failed.failure["message"]
    assert course_codes(live.store) == ["MATH 101"]
    assert len(live.rows(extractions)) == 2


def test_every_level_of_a_recipe_may_have_a_content_selector() -> None:
    assert list(content_selectors(selector_recipe("main"))) == ["", "main"]
