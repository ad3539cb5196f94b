"""Dead letters of pages, replayed."""

from __future__ import annotations

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.registry import replay
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, extractions
from ingestion_pipeline.tasks.dead_letters import list_dead_letters
from ingestion_pipeline_tests.catalogs.courses import a_course_page, given_courses
from ingestion_pipeline_tests.crawlers import a_catalog, a_page, conclude, crawl, crawl_all, statuses
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.pollers import GoingClock, given_sources, rows

LATER = Reply(b"", 429, {"retry-after": "7200"})


def replay_all(store: Store) -> list[str]:
    with store.begin() as connection:
        now = store.clock.now(connection)
        return [replay(connection, one["id"], actor="me", now=now) for one in list_dead_letters(connection)]


def open_dead_letters(store: Store) -> int:
    with store.read() as connection:
        return len(list_dead_letters(connection))


def test_a_replayed_page_is_fetched_while_its_extraction_goes_on(
    ctx: RunContext, store: Store, web: FakeWeb, clock: GoingClock
) -> None:
    web.routes |= {"a.test/": a_page("/c/1", "http://b.test/c/2"), "a.test/c/1": 404}
    web.routes["b.test/c/2"] = LATER
    given_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    assert statuses(store) == {"SUCCESS": 1, "ERROR": 1, "WAITING": 1}

    assert replay_all(store) == ["queued"]
    web.routes["a.test/c/1"] = a_page()
    crawl(ctx, web)

    assert statuses(store) == {"SUCCESS": 1, "EXTRACTED_NO_DATA": 1, "WAITING": 1}
    assert open_dead_letters(store) == 0


def test_an_extraction_that_ended_goes_on_for_a_replayed_page_and_for_no_other(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/": a_page("/c/1", "/c/2"), "/c/1": 404, "/c/2": 404}
    given_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    assert rows(store, extractions)[0].status == "COMPLETE"
    web.routes |= {"/c/1": a_page(), "/c/2": a_page()}
    web.requests.clear()

    with store.begin() as connection:
        first = min(one["id"] for one in list_dead_letters(connection))
        assert replay(connection, first, actor="me", now=store.clock.now(connection)) == "queued"
    crawl(ctx, web)
    conclude(ctx)

    assert len(web.requests) == 1
    assert statuses(store) == {"SUCCESS": 1, "EXTRACTED_NO_DATA": 1, "ERROR": 1}
    assert rows(store, extractions)[0].status == "COMPLETE"
    assert open_dead_letters(store) == 1


def test_a_page_that_a_later_extraction_has_is_not_replayed_and_its_letter_stays(
    ctx: RunContext, store: Store, web: FakeWeb, clock: GoingClock
) -> None:
    web.routes |= {"/": a_page("/c/1"), "/c/1": 404}
    given_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    clock.advance(days=40)
    web.routes["/c/1"] = a_page()
    crawl_all(ctx, web.port)
    assert [row.status for row in rows(store, extractions)] == ["COMPLETE", "COMPLETE"]

    [said] = replay_all(store)

    assert "extraction 2 is newer and covers the page" in said
    assert open_dead_letters(store) == 1


def test_a_page_that_lost_its_records_is_fetched_again_and_not_read_again_by_a_replay(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    given_courses(web, 101, 102, 103)
    given_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    web.routes["/c/102"] = "<html><body><h1>Something went wrong</h1></body></html>"
    crawl_all(ctx, web.port)
    web.routes["/c/102"] = a_course_page(102, about="other things")
    web.requests.clear()

    assert replay_all(store) == ["queued"]
    crawl(ctx, web)
    conclude(ctx)

    assert web.paths == ["/c/102"]
    assert open_dead_letters(store) == 0
    newest = max(row.dataset_id for row in rows(store, data_items))
    told = [row.data for row in rows(store, data_items) if row.dataset_id == newest]
    assert len(told) == 3
    assert [one["course_id"] for one in told if "other things" in one["course_description"]] == ["MATH 102"]
