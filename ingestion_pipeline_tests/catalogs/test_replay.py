"""Dead letters of pages, requeued."""

import pytest

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.registry import replay
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, extractions
from ingestion_pipeline.tasks.ended_tasks import list_dead_letters
from ingestion_pipeline_tests.catalog_extractions import (
    a_catalog,
    complete_extractions,
    crawl,
    crawl_all,
    link_page,
    page_statuses,
)
from ingestion_pipeline_tests.catalogs.course_pages import course_page, serve_courses
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.polling_runs import RunningClock, add_sources, rows

LATER = Reply(b"", 429, {"retry-after": "7200"})


def replay_all(store: Store) -> list[str]:
    with store.begin() as connection:
        now = store.clock.now(connection)
        return [
            replay(connection, dead_letter["id"], actor="me", now=now) for dead_letter in list_dead_letters(connection)
        ]


def open_dead_letters(store: Store) -> int:
    with store.read() as connection:
        return len(list_dead_letters(connection))


@pytest.mark.slow
def test_a_requeued_page_is_fetched_while_its_extraction_is_active(
    ctx: RunContext, store: Store, web: FakeWeb, clock: RunningClock
) -> None:
    web.routes |= {"a.test/": link_page("/c/1", "http://b.test/c/2"), "a.test/c/1": 404}
    web.routes["b.test/c/2"] = LATER
    add_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    assert page_statuses(store) == {"SUCCESS": 1, "ERROR": 1, "WAITING": 1}

    assert replay_all(store) == ["queued"]
    web.routes["a.test/c/1"] = link_page()
    crawl(ctx, web)

    assert page_statuses(store) == {"SUCCESS": 1, "EXTRACTED_NO_DATA": 1, "WAITING": 1}
    assert open_dead_letters(store) == 0


@pytest.mark.slow
def test_a_finished_extraction_resumes_for_a_requeued_page_alone(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/": link_page("/c/1", "/c/2"), "/c/1": 404, "/c/2": 404}
    add_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    assert rows(store, extractions)[0].status == "COMPLETE"
    web.routes |= {"/c/1": link_page(), "/c/2": link_page()}
    web.requests.clear()

    with store.begin() as connection:
        first = min(dead_letter["id"] for dead_letter in list_dead_letters(connection))
        assert replay(connection, first, actor="me", now=store.clock.now(connection)) == "queued"
    crawl(ctx, web)
    complete_extractions(ctx)

    assert len(web.requests) == 1
    assert page_statuses(store) == {"SUCCESS": 1, "EXTRACTED_NO_DATA": 1, "ERROR": 1}
    assert rows(store, extractions)[0].status == "COMPLETE"
    assert open_dead_letters(store) == 1


@pytest.mark.slow
def test_a_page_that_a_later_extraction_has_is_not_requeued_and_its_dead_letter_stays(
    ctx: RunContext, store: Store, web: FakeWeb, clock: RunningClock
) -> None:
    web.routes |= {"/": link_page("/c/1"), "/c/1": 404}
    add_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    clock.advance(days=40)
    web.routes["/c/1"] = link_page()
    crawl_all(ctx, web.port)
    assert [row.status for row in rows(store, extractions)] == ["COMPLETE", "COMPLETE"]

    [answer] = replay_all(store)

    assert "extraction 2 is newer and covers the page" in answer
    assert open_dead_letters(store) == 1


@pytest.mark.slow
def test_a_page_that_lost_its_records_is_fetched_again_when_it_is_requeued(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    serve_courses(web, 101, 102, 103)
    add_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    web.routes["/c/102"] = "<html><body><h1>Something went wrong</h1></body></html>"
    crawl_all(ctx, web.port)
    web.routes["/c/102"] = course_page(102, about="other things")
    web.requests.clear()

    assert replay_all(store) == ["queued"]
    crawl(ctx, web)
    complete_extractions(ctx)

    assert web.paths == ["/c/102"]
    assert open_dead_letters(store) == 0
    newest = max(row.dataset_id for row in rows(store, data_items))
    courses = [row.data for row in rows(store, data_items) if row.dataset_id == newest]
    assert len(courses) == 3
    assert [course["course_id"] for course in courses if "other things" in course["course_description"]] == ["MATH 102"]
