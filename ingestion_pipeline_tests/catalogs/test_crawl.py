"""Crawls of a catalog from its root to its last page, on a loopback web."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from ingestion_pipeline.catalogs import crawl_handler
from ingestion_pipeline.store.tables import dead_letters, extractions, pages, snapshots, tasks
from ingestion_pipeline.tasks.task import Suspicion
from ingestion_pipeline_tests.catalog_extractions import LINKS, LiveCatalog, a_catalog, link_page
from ingestion_pipeline_tests.fakes import RawAnswer, Reply
from ingestion_pipeline_tests.polling_runs import RunningClock, add_sources, record_fsyncs, slow_answer, with_settings

pytestmark = pytest.mark.both_databases

ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"])


@pytest.mark.slow
def test_a_catalog_is_crawled_from_its_root_to_its_detail_pages(live: LiveCatalog) -> None:
    recipe = {"page_type": "CATEGORY_LINKS", "link_selector": "ul a", "links": LINKS}
    live.serve(
        {
            "/": link_page("/math", "/art"),
            "/math": link_page("/c/1", "/c/2", "/about"),
            "/art": link_page("/c/2", "/c/3"),
            **{f"/c/{number}": link_page("/c/99") for number in (1, 2, 3)},
        },
        recipe,
    )

    live.poll()
    counts = live.crawl()

    assert (counts.new, counts.failed) == (6, 0)
    assert Counter(live.web.paths) == dict.fromkeys(["/", "/math", "/art", "/c/1", "/c/2", "/c/3"], 1)
    assert [(page.path, page.step, page.status) for page in live.pages()] == [
        ("/", "root", "SUCCESS"),
        ("/math", "root/links", "SUCCESS"),
        ("/art", "root/links", "SUCCESS"),
        ("/c/1", "root/links/links", "EXTRACTED_NO_DATA"),
        ("/c/2", "root/links/links", "EXTRACTED_NO_DATA"),
        ("/c/3", "root/links/links", "EXTRACTED_NO_DATA"),
    ]
    live.complete()
    [extraction] = live.rows(extractions)
    assert (extraction.status, extraction.page_count) == ("COMPLETE", 6)
    source = live.source_row()
    assert source.last_outcome == f"extraction {extraction.id}: 6 pages, 6 new, 0 failed; version 1 is quarantined"
    assert source.last_success_at is not None


def test_a_page_is_in_progress_while_it_is_fetched(live: LiveCatalog) -> None:
    observed: dict[str, tuple[str, str]] = {}

    def observing(path: str, body: str) -> RawAnswer:
        async def answer(writer: asyncio.StreamWriter) -> None:
            page = {page.path: page.status for page in live.pages()}[path]
            observed[path] = page, live.rows(extractions)[0].status
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body.encode())
            await writer.drain()

        return answer

    live.serve({"/": observing("/", link_page("/c/1")), "/c/1": observing("/c/1", link_page())})
    live.poll()
    before = live.page_statuses(), live.rows(extractions)[0].status

    live.crawl()

    assert before == ({"WAITING": 1}, "WAITING")
    assert observed == dict.fromkeys(["/", "/c/1"], ("IN_PROGRESS", "IN_PROGRESS"))
    assert "IN_PROGRESS" not in live.page_statuses()


def test_the_pages_of_a_crawl_are_synced_to_the_disk(live: LiveCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = record_fsyncs(monkeypatch)
    live.serve({"/": link_page("/c/1"), "/c/1": link_page()})

    live.crawl_all()

    assert len(live.rows(snapshots)) == 2
    assert len(synced) >= 4  # the objects of each page, and their folders


@pytest.mark.slow
def test_an_unchanged_catalog_is_checked_page_by_page_and_adds_no_snapshot(live: LiveCatalog) -> None:
    live.serve_and_crawl(
        {
            "/": Reply(link_page("/c/1", "/c/2").encode(), headers={"ETag": '"root"'}),
            "/c/1": link_page(),
            "/c/2": Reply(link_page().encode(), headers={"ETag": '"two"'}),
        }
    )
    before = live.rows(snapshots)

    counts = live.crawl_all()

    assert (counts.new, counts.same) == (0, 3)
    assert Counter(live.web.paths) == {"/": 2, "/c/1": 2, "/c/2": 2}
    assert live.rows(snapshots) == before
    first, second = [row.snapshot_id for row in live.rows(pages)][:3], live.rows(pages)[3:]
    assert [row.snapshot_id for row in second] == first


@pytest.mark.slow
def test_only_changed_pages_count_as_new(live: LiveCatalog) -> None:
    live.serve_and_crawl({"/": link_page("/c/1", "/c/2"), "/c/1": link_page(), "/c/2": link_page()})

    live.web.routes |= {"/": link_page("/c/1", "/c/2", "/c/3"), "/c/2": link_page(text="changed"), "/c/3": "3"}
    counts = live.crawl_all()

    assert (counts.new, counts.same) == (3, 1)


@pytest.mark.slow
def test_a_numbered_list_is_followed_and_each_page_fetched_once(live: LiveCatalog) -> None:
    pagination = {"url_pattern": "/list?page={page_num}", "total_pages": 3}
    live.web.routes |= {"/": link_page("/c/9")}
    live.web.routes |= {f"/list?page={n}": link_page(f"/c/{n}", "/c/0", "/list?page=1") for n in (1, 2, 3)}
    live.serve({f"/c/{n}": link_page() for n in (0, 1, 2, 3, 9)}, {**LINKS, "pagination": pagination})

    live.crawl_all()

    steps = Counter(page.step for page in live.pages())
    assert steps == {"root": 1, "root/pages": 3, "root/links": 4}
    assert set(Counter(live.web.paths).values()) == {1}


@pytest.mark.slow
def test_a_failed_page_is_retried_then_dead_lettered_and_the_crawl_continues(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/c/1", "/c/2", "/c/3"), "/c/1": [503, link_page()], "/c/2": 500, "/c/3": 410})

    live.crawl_all()

    assert Counter(live.web.paths) == {"/": 1, "/c/1": 2, "/c/2": 3, "/c/3": 1}
    pages = {page.path: (page.status, (page.failure or {}).get("code")) for page in live.pages()}
    assert pages == {
        "/": ("SUCCESS", None),
        "/c/1": ("EXTRACTED_NO_DATA", "no_data"),
        "/c/2": ("ERROR", "http_500"),
        "/c/3": ("ERROR", "http_410"),
    }
    codes = Counter(row.error_code for row in live.rows(dead_letters))
    assert codes == {"http_500": 1, "http_410": 1}
    [extraction] = live.rows(extractions)
    assert (extraction.status, live.source_row().failure_count) == ("COMPLETE", 0)


def test_a_catalog_whose_root_fails_is_stale_and_counts_a_failure(live: LiveCatalog) -> None:
    live.serve({"/": 404})

    live.crawl_all()

    [extraction] = live.rows(extractions)
    assert (extraction.status, extraction.failure["code"]) == ("STALE", "http_404")
    source = live.source_row()
    assert (source.failure_count, source.last_success_at) == (1, None)
    assert "failed: http://a.test/ answered 404" in source.last_outcome


def test_a_root_without_matching_links_is_an_error_that_names_the_rule(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/elsewhere")})

    live.crawl_all()

    [root] = live.pages()
    assert (root.status, root.failure and root.failure["code"]) == ("ERROR", "nothing_to_do")
    assert "'/c/'" in live.source_row().last_outcome


@pytest.mark.slow
def test_pages_that_robots_txt_forbids_are_skipped_and_the_crawl_completes(live: LiveCatalog) -> None:
    live.web.routes |= {"/robots.txt": b"User-agent: *\nDisallow: /c/secret"}
    live.serve({"/": link_page("/c/1", "/c/secret"), "/c/1": link_page()})

    live.crawl_all()

    assert Counter(live.web.paths) == {"/": 1, "/c/1": 1}
    assert {page.path: page.status for page in live.pages()}["/c/secret"] == "ERROR"
    assert live.rows(dead_letters) == []
    assert live.rows(extractions)[0].status == "COMPLETE"


def test_a_root_that_robots_txt_forbids_counts_no_failure(live: LiveCatalog) -> None:
    live.serve({"/robots.txt": b"User-agent: *\nDisallow: /", "/": link_page("/c/1")})

    live.crawl_all()

    assert live.web.paths == []
    assert (live.rows(extractions)[0].status, live.source_row().failure_count) == ("STALE", 0)


@ON_SQLITE
def test_no_second_extraction_starts_while_one_is_active(live: LiveCatalog, clock: RunningClock) -> None:
    live.register()
    live.poll()

    clock.advance(days=40)
    live.poll()

    [extraction] = live.rows(extractions)
    last_outcome = live.source_row().last_outcome
    assert last_outcome == f"extraction {extraction.id} is already running: 1 pages waiting"


@ON_SQLITE
def test_the_next_poll_is_due_by_the_change_model_and_starts_an_extraction(
    live: LiveCatalog, clock: RunningClock
) -> None:
    live.serve({"/": link_page("/c/1"), "/c/1": link_page()})
    live.poll()
    live.crawl()
    live.complete()

    due = live.source_row().next_check_at - live.store.now()
    clock.advance(days=8)
    live.poll()

    assert timedelta(days=2) < due < timedelta(days=3)  # a change a month, between HOT and WARM
    assert [row.status for row in live.rows(extractions)] == ["COMPLETE", "WAITING"]


@pytest.mark.slow
def test_a_crawl_on_demand_does_not_wait_for_the_backoff(live: LiveCatalog) -> None:
    live.ctx = with_settings(live.ctx, crawl__backoff_base_seconds="600")
    live.serve({"/": [503, link_page("/c/1")], "/c/1": link_page()})
    live.poll()
    live.crawl()

    counts = live.crawl_all()

    assert (counts.new, len(live.rows(extractions))) == (2, 1)


@pytest.mark.slow
@ON_SQLITE
def test_a_large_catalog_does_not_starve_a_small_one(live: LiveCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its two pages used to be requested after the two hundred that were discovered before."""
    monkeypatch.setattr(crawl_handler, "PAGES_PER_SOURCE", 10)
    monkeypatch.setattr(crawl_handler, "PAGES_HELD", 40)
    live.web.routes |= {"a.test/": link_page(*(f"/c/{n}" for n in range(200)))}
    live.web.routes |= {f"a.test/c/{n}": slow_answer(b"<p>slow</p>", 0.02) for n in range(200)}
    live.web.routes |= {"b.test/": link_page("/c/1"), "b.test/c/1": link_page()}
    add_sources(live.store, a_catalog(), a_catalog(name="small", url="http://b.test/"))
    live.poll()

    live.crawl()

    request_hosts = [request.host for request in live.web.requests]
    assert Counter(request_hosts) == {"a.test": 201, "b.test": 2}
    assert request_hosts.index("b.test") < 30
    assert len(request_hosts) - request_hosts[::-1].index("b.test") < 150


@ON_SQLITE
def test_a_page_that_killed_its_workers_is_failed(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/c/1")})
    live.poll()
    with live.store.begin() as connection:
        where = tasks.c.kind == "fetch_page"
        connection.execute(tasks.update().where(where).values(attempts=3, suspicion=Suspicion.ALONE))

    live.crawl()

    [root] = live.pages()
    assert (root.status, root.failure and root.failure["code"]) == ("ERROR", "worker_lost")
    assert live.web.paths == []
