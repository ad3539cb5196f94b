"""Dead letters of pages, requeued."""

import pytest

from ingestion_pipeline.registry import replay
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, extractions
from ingestion_pipeline.tasks.ended_tasks import list_dead_letters
from ingestion_pipeline_tests.catalog_extractions import (
    LiveCatalog,
    link_page,
)
from ingestion_pipeline_tests.catalogs.course_pages import course_page, serve_courses
from ingestion_pipeline_tests.fakes import Reply
from ingestion_pipeline_tests.polling_runs import RunningClock

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
def test_a_requeued_page_is_fetched_while_its_extraction_is_active(live: LiveCatalog, clock: RunningClock) -> None:
    live.web.routes |= {"a.test/": link_page("/c/1", "http://b.test/c/2"), "a.test/c/1": 404}
    live.web.routes["b.test/c/2"] = LATER
    live.register()
    live.crawl_all()
    assert live.page_statuses() == {"SUCCESS": 1, "ERROR": 1, "WAITING": 1}

    assert replay_all(live.store) == ["queued"]
    live.web.routes["a.test/c/1"] = link_page()
    live.crawl()

    assert live.page_statuses() == {"SUCCESS": 1, "EXTRACTED_NO_DATA": 1, "WAITING": 1}
    assert open_dead_letters(live.store) == 0


@pytest.mark.slow
def test_a_finished_extraction_resumes_for_a_requeued_page_alone(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/c/1", "/c/2"), "/c/1": 404, "/c/2": 404})
    live.crawl_all()
    assert live.rows(extractions)[0].status == "COMPLETE"
    live.web.routes |= {"/c/1": link_page(), "/c/2": link_page()}
    live.web.requests.clear()

    with live.store.begin() as connection:
        first = min(dead_letter["id"] for dead_letter in list_dead_letters(connection))
        assert replay(connection, first, actor="me", now=live.store.clock.now(connection)) == "queued"
    live.crawl()
    live.complete()

    assert len(live.web.requests) == 1
    assert live.page_statuses() == {"SUCCESS": 1, "EXTRACTED_NO_DATA": 1, "ERROR": 1}
    assert live.rows(extractions)[0].status == "COMPLETE"
    assert open_dead_letters(live.store) == 1


@pytest.mark.slow
def test_a_page_that_a_later_extraction_has_is_not_requeued_and_its_dead_letter_stays(
    live: LiveCatalog, clock: RunningClock
) -> None:
    live.serve({"/": link_page("/c/1"), "/c/1": 404})
    live.crawl_all()
    clock.advance(days=40)
    live.web.routes["/c/1"] = link_page()
    live.crawl_all()
    assert [row.status for row in live.rows(extractions)] == ["COMPLETE", "COMPLETE"]

    [answer] = replay_all(live.store)

    assert "extraction 2 is newer and covers the page" in answer
    assert open_dead_letters(live.store) == 1


@pytest.mark.slow
def test_a_page_that_lost_its_records_is_fetched_again_when_it_is_requeued(live: LiveCatalog) -> None:
    serve_courses(live.web, 101, 102, 103)
    live.register()
    live.crawl_all()
    live.web.routes["/c/102"] = "<html><body><h1>Something went wrong</h1></body></html>"
    live.crawl_all()
    live.web.routes["/c/102"] = course_page(102, about="other things")
    live.web.requests.clear()

    assert replay_all(live.store) == ["queued"]
    live.crawl()
    live.complete()

    assert live.web.paths == ["/c/102"]
    assert open_dead_letters(live.store) == 0
    newest = max(row.dataset_id for row in live.rows(data_items))
    courses = [row.data for row in live.rows(data_items) if row.dataset_id == newest]
    assert len(courses) == 3
    assert [course["course_id"] for course in courses if "other things" in course["course_description"]] == ["MATH 102"]
