"""Failures during a crawl: blocked pages, redirects of a browser, dead letters; and the checks that report them."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from ingestion_pipeline.catalogs.checks import empty_shells, failed_pages
from ingestion_pipeline.pages.visits.page import Rendered, RenderingOptions
from ingestion_pipeline.registry import replay
from ingestion_pipeline.sources import registry
from ingestion_pipeline.sources.status import Finding
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import (
    data_items,
    datasets,
    dead_letters,
    extractions,
    outbox,
    pages,
    tasks,
)
from ingestion_pipeline.tasks.ended_tasks import list_dead_letters
from ingestion_pipeline_tests.catalog_extractions import (
    CATALOG_ID,
    LINKS,
    LiveCatalog,
    a_catalog,
    crawl_until_done,
    crawled_pages,
    link_page,
)
from ingestion_pipeline_tests.catalogs.course_pages import course_page, crawl_courses, serve_courses
from ingestion_pipeline_tests.engine.polling.test_feeds import CHALLENGE, LOGIN
from ingestion_pipeline_tests.fakes import FakeWeb, Reply, redirect
from ingestion_pipeline_tests.pages.page_fetches import SHELL
from ingestion_pipeline_tests.polling_runs import RunningClock, a_fetcher, add_sources, rows

MINUTE = timedelta(minutes=1)
LATER = Reply(b"", 429, {"retry-after": "7200"})


def failure_codes(store: Store) -> dict[str, str | None]:
    """Return why each page was not fetched, by path."""
    return {
        page.path: page.failure["code"]
        for page in crawled_pages(store)
        if page.status != "EXTRACTED_NO_DATA" and page.failure
    }


def task_states(store: Store) -> Counter[tuple[str, int]]:
    """Count the fetch tasks by status and attempts."""
    fetch_tasks = [row for row in rows(store, tasks) if row.kind == "fetch_page"]
    return Counter((row.status, row.attempts) for row in fetch_tasks)


@pytest.mark.slow
def test_a_bot_check_during_the_crawl_cancels_it_and_disables_the_source(live: LiveCatalog) -> None:
    courses = [f"/c/{number}" for number in range(30)]
    live.web.routes |= {"/": link_page(*courses), **dict.fromkeys(courses, link_page())}
    live.web.routes["/c/3"] = CHALLENGE
    live.register()

    live.crawl_all()
    request_count = len(live.web.paths)
    live.poll()
    live.crawl()

    [extraction] = live.rows(extractions)
    assert (extraction.status, extraction.failure["code"]) == ("CANCELLED", "bot_wall")
    source = live.source_row()
    assert source.status == "disabled"
    assert "behind a bot wall" in source.status_reason
    assert request_count == len(live.web.paths) < 10  # not even what the run had claimed already
    assert "PENDING" not in {status for status, _ in task_states(live.store)}


@pytest.mark.parametrize("blocked_page", [CHALLENGE, LOGIN], ids=["a bot wall", "a login"])
def test_a_blocked_root_disables_the_source(live: LiveCatalog, blocked_page: bytes) -> None:
    live.serve({"/": blocked_page})

    live.crawl_all()

    [extraction] = live.rows(extractions)
    assert extraction.status in {"CANCELLED", "STALE"}
    source = live.source_row()
    assert (source.status, source.failure_count) == ("disabled", 0)
    assert f"behind a {extraction.failure['code'].replace('_', ' ')}" in source.status_reason


def test_a_login_page_in_place_of_one_course_fails_that_page_alone(live: LiveCatalog) -> None:
    live.web.routes |= {"/": link_page("/c/1", "/c/2", "/c/3"), "/c/1": link_page(), "/c/3": link_page()}
    live.web.routes["/c/2"] = LOGIN
    live.register()

    live.crawl_all()

    assert failure_codes(live.store) == {"/c/2": "login_wall"}
    assert live.page_statuses() == {"SUCCESS": 1, "EXTRACTED_NO_DATA": 2, "ERROR": 1}
    assert live.rows(extractions)[0].status == "COMPLETE"
    assert live.source_row().status == "active"


def serve_link_to_closed_host(store: Store, web: FakeWeb) -> None:
    """Serve a catalog that links to a host whose robots.txt is never available."""
    web.routes |= {
        "a.test/": link_page("http://b.test/c/1", "http://b.test/c/2", "/c/3"),
        "a.test/c/3": link_page(),
        "b.test/robots.txt": Reply(b"", 503),
    }
    add_sources(store, a_catalog())


@pytest.mark.slow
def test_a_host_that_never_recovers_does_not_keep_a_crawl_open(live: LiveCatalog, clock: RunningClock) -> None:
    serve_link_to_closed_host(live.store, live.web)

    live.crawl_all()
    assert live.rows(extractions)[0].status == "IN_PROGRESS"
    for _ in range(2):
        clock.advance(days=2)
        live.crawl()
    live.complete()

    [extraction] = live.rows(extractions)
    assert extraction.status == "COMPLETE"
    assert set(failure_codes(live.store).values()) == {"robots_unavailable"}
    assert live.page_statuses() == {"SUCCESS": 1, "EXTRACTED_NO_DATA": 1, "ERROR": 2}
    assert task_states(live.store) == {("SUCCESS", 1): 2, ("SKIPPED", 1): 2}
    assert live.rows(dead_letters) == []


@pytest.mark.slow
def test_a_page_that_answers_403_does_not_block_the_publication_of_the_others(
    live: LiveCatalog, clock: RunningClock
) -> None:
    """A 403 is retried twice, after four hours each; that is as long as the quiet time limit."""
    serve_courses(live.web, *range(101, 125))
    live.web.routes["/c/105"] = 403
    live.register()

    live.crawl_all()
    for _ in range(2):
        clock.advance(hours=4)
        live.complete()
        assert live.rows(extractions)[0].status == "IN_PROGRESS"
        live.crawl()
    live.complete()

    [extraction], [dataset] = live.rows(extractions), live.rows(datasets)
    assert (extraction.status, dataset.status, dataset.item_count) == ("COMPLETE", "published", 23)
    assert Counter(live.web.paths)["/c/105"] == 3
    [notice] = live.rows(outbox)
    [missing] = notice.payload["missing"]
    assert missing.startswith("http://a.test/c/105: http://a.test/c/105 answered 403")


def test_a_page_keeps_waiting_while_its_host_serves_other_pages(live: LiveCatalog, clock: RunningClock) -> None:
    """As on a slow host, whose large catalog takes weeks."""
    live.serve_and_crawl({"/": link_page("/c/1"), "/c/1": LATER})
    clock.advance(days=4)
    with live.store.begin() as connection:
        root = update(pages).where(pages.c.status == "SUCCESS")
        connection.execute(root.values(visited_at=clock.now(connection)))

    live.crawl()

    assert live.page_statuses() == {"SUCCESS": 1, "WAITING": 1}


def test_a_page_that_was_not_attempted_for_days_keeps_its_full_retry_time(
    live: LiveCatalog, clock: RunningClock
) -> None:
    live.serve({"/": LATER})
    live.poll()
    clock.advance(days=4)

    live.crawl()

    assert live.page_statuses() == {"WAITING": 1}


def failed_page_findings(store: Store, *, failed_share: float = 0.2) -> list[Finding]:
    with store.read() as connection:
        return failed_pages(connection, failed_share=failed_share)


def empty_shell_findings(store: Store) -> list[Finding]:
    with store.read() as connection:
        return empty_shells(connection)


def test_a_high_share_of_failed_pages_is_reported(live: LiveCatalog) -> None:
    live.web.routes |= {"/": link_page(*(f"/c/{n}" for n in range(9)))}
    live.serve({f"/c/{n}": 410 if n < 3 else link_page(text=str(n)) for n in range(9)})

    live.crawl_all()

    assert failed_page_findings(live.store) == [Finding(subject=CATALOG_ID, message="3 of 10 pages failed")]
    assert failed_page_findings(live.store, failed_share=0.3) == []


@pytest.mark.slow
def test_a_few_failed_pages_are_not_reported(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/c/1", "/c/2"), "/c/1": 410, "/c/2": link_page()})

    live.crawl_all()

    assert failed_page_findings(live.store) == []


def test_a_page_that_needs_a_browser_is_reported(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/c/1", "/c/2"), "/c/1": SHELL, "/c/2": link_page()})

    live.crawl_all()

    [finding] = empty_shell_findings(live.store)
    assert (finding.subject, "1" in finding.message) == (CATALOG_ID, True)


def test_a_crawl_without_failures_has_no_findings(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/c/1"), "/c/1": link_page()})

    live.crawl_all()

    assert (failed_page_findings(live.store), empty_shell_findings(live.store)) == ([], [])


LONG = "/c/" + "漢" * 700  # 2,100 bytes, and three times as many characters once escaped


@pytest.mark.slow
def test_a_link_that_is_too_long_once_escaped_is_skipped(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/c/1", LONG), "/c/1": link_page()})

    live.crawl_all()

    assert [page.path for page in live.pages()] == ["/", "/c/1"]
    assert [row.status for row in live.rows(extractions)] == ["COMPLETE"]


class RedirectedBrowser:
    """In place of the browser: it is redirected to another host."""

    rendered = 0

    async def render(self, url: str, rendering: RenderingOptions, *, check_url: Any = None) -> Rendered:
        self.rendered += 1
        check_url(url)
        check_url("http://sso.test/login")
        raise AssertionError("it went there")


def test_a_page_that_redirects_a_browser_to_another_host_fails_once(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/c/1")}, {**LINKS, "render": True})
    browser = RedirectedBrowser()

    async def run() -> None:
        async with a_fetcher(live.ctx.settings, live.web.port) as fetcher:
            await crawl_until_done(live.ctx, [CATALOG_ID], fetcher, renderer=browser)

    asyncio.run(run())

    [root] = live.pages()
    assert (root.status, root.failure and root.failure["code"]) == ("ERROR", "leads_elsewhere")
    assert browser.rendered == 1


@pytest.mark.slow
def test_an_exploratory_crawl_stays_on_its_host_wherever_a_redirect_leads(live: LiveCatalog) -> None:
    live.web.routes |= {"a.test/": link_page("/about", "/out"), "a.test/about": link_page()}
    live.serve(
        {"a.test/out": redirect("http://evil.test/"), "evil.test/": link_page("/1", "/2")}, {"page_type": "EXPLORATORY"}
    )

    live.crawl_all()

    assert [page.path for page in live.pages()] == ["/", "/about", "/out"]


@pytest.mark.parametrize("when", ["before", "while its pages wait"])
def test_a_crawl_of_a_disabled_source_ends_without_a_request(live: LiveCatalog, when: str) -> None:
    live.serve({"/": link_page("/c/1"), "/c/1": link_page()})
    if when != "before":
        live.poll()
    with live.store.begin() as connection:
        now = live.store.clock.now(connection)
        registry.disable(connection, CATALOG_ID, actor="ann", reason="later", now=now)

    live.crawl_all()

    assert live.web.paths == []


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
    live.serve_and_crawl({"/": link_page("/c/1", "/c/2"), "/c/1": 404, "/c/2": 404})
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
    live.serve_and_crawl({"/": link_page("/c/1"), "/c/1": 404})
    clock.advance(days=40)
    live.web.routes["/c/1"] = link_page()
    live.crawl_all()
    assert [row.status for row in live.rows(extractions)] == ["COMPLETE", "COMPLETE"]

    [answer] = replay_all(live.store)

    assert "extraction 2 is newer and covers the page" in answer
    assert open_dead_letters(live.store) == 1


@pytest.mark.slow
def test_a_page_that_lost_its_records_is_fetched_again_when_it_is_requeued(live: LiveCatalog) -> None:
    crawl_courses(live, 101, 102, 103)
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
