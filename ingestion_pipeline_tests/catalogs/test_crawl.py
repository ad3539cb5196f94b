"""Crawls of a catalog from its root to its last page, on a loopback web."""

import asyncio
from collections import Counter
from datetime import datetime, timedelta

import pytest

from ingestion_pipeline.catalogs import crawl_handler
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.sources.registry import disable
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import dead_letters, extractions, hosts, pages, snapshots, tasks
from ingestion_pipeline.tasks.task import Suspicion
from ingestion_pipeline_tests.catalog_extractions import (
    CATALOG_ID,
    LINKS,
    a_catalog,
    complete_extractions,
    crawl,
    crawl_all,
    crawled_pages,
    link_page,
    page_statuses,
    poll_catalogs,
)
from ingestion_pipeline_tests.fakes import FakeWeb, RawAnswer, Reply
from ingestion_pipeline_tests.polling_runs import (
    RunningClock,
    add_sources,
    record_fsyncs,
    rows,
    slow_answer,
    source_row,
    with_settings,
)

pytestmark = pytest.mark.both_databases

ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"])


@pytest.mark.slow
def test_a_catalog_is_crawled_from_its_root_to_its_detail_pages(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    recipe = {"page_type": "CATEGORY_LINKS", "link_selector": "ul a", "links": LINKS}
    web.routes |= {
        "/": link_page("/math", "/art"),
        "/math": link_page("/c/1", "/c/2", "/about"),
        "/art": link_page("/c/2", "/c/3"),
        **{f"/c/{number}": link_page("/c/99") for number in (1, 2, 3)},
    }
    add_sources(store, a_catalog(recipe))

    poll_catalogs(ctx, web)
    counts = crawl(ctx, web)

    assert (counts.new, counts.failed) == (6, 0)
    assert Counter(web.paths) == dict.fromkeys(["/", "/math", "/art", "/c/1", "/c/2", "/c/3"], 1)
    assert [(page.path, page.step, page.status) for page in crawled_pages(store)] == [
        ("/", "root", "SUCCESS"),
        ("/math", "root/links", "SUCCESS"),
        ("/art", "root/links", "SUCCESS"),
        ("/c/1", "root/links/links", "EXTRACTED_NO_DATA"),
        ("/c/2", "root/links/links", "EXTRACTED_NO_DATA"),
        ("/c/3", "root/links/links", "EXTRACTED_NO_DATA"),
    ]
    complete_extractions(ctx)
    [extraction] = rows(store, extractions)
    assert (extraction.status, extraction.page_count) == ("COMPLETE", 6)
    source = source_row(store, CATALOG_ID)
    assert source.last_outcome == f"extraction {extraction.id}: 6 pages, 6 new, 0 failed"
    assert source.last_success_at is not None


def test_a_page_is_in_progress_while_it_is_fetched(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    observed: dict[str, tuple[str, str]] = {}

    def observing(path: str, body: str) -> RawAnswer:
        async def answer(writer: asyncio.StreamWriter) -> None:
            page = {page.path: page.status for page in crawled_pages(store)}[path]
            observed[path] = page, rows(store, extractions)[0].status
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body.encode())
            await writer.drain()

        return answer

    web.routes |= {"/": observing("/", link_page("/c/1")), "/c/1": observing("/c/1", link_page())}
    add_sources(store, a_catalog())
    poll_catalogs(ctx, web)
    before = page_statuses(store), rows(store, extractions)[0].status

    crawl(ctx, web)

    assert before == ({"WAITING": 1}, "WAITING")
    assert observed == dict.fromkeys(["/", "/c/1"], ("IN_PROGRESS", "IN_PROGRESS"))
    assert "IN_PROGRESS" not in page_statuses(store)


def test_the_pages_of_a_crawl_are_synced_to_the_disk(
    ctx: RunContext, store: Store, web: FakeWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = record_fsyncs(monkeypatch)
    web.routes |= {"/": link_page("/c/1"), "/c/1": link_page()}
    add_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    assert len(rows(store, snapshots)) == 2
    assert len(synced) >= 4  # the objects of each page, and their folders


@pytest.mark.slow
def test_an_unchanged_catalog_is_checked_page_by_page_and_adds_no_snapshot(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {
        "/": Reply(link_page("/c/1", "/c/2").encode(), headers={"ETag": '"root"'}),
        "/c/1": link_page(),
        "/c/2": Reply(link_page().encode(), headers={"ETag": '"two"'}),
    }
    add_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    before = rows(store, snapshots)

    counts = crawl_all(ctx, web.port)

    assert (counts.new, counts.same) == (0, 3)
    assert Counter(web.paths) == {"/": 2, "/c/1": 2, "/c/2": 2}
    assert rows(store, snapshots) == before
    first, second = [row.snapshot_id for row in rows(store, pages)][:3], rows(store, pages)[3:]
    assert [row.snapshot_id for row in second] == first


@pytest.mark.slow
def test_only_changed_pages_count_as_new(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/": link_page("/c/1", "/c/2"), "/c/1": link_page(), "/c/2": link_page()}
    add_sources(store, a_catalog())
    crawl_all(ctx, web.port)

    web.routes |= {"/": link_page("/c/1", "/c/2", "/c/3"), "/c/2": link_page(text="changed"), "/c/3": "3"}
    counts = crawl_all(ctx, web.port)

    assert (counts.new, counts.same) == (3, 1)


@pytest.mark.slow
def test_a_numbered_list_is_followed_and_each_page_fetched_once(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    pagination = {"url_pattern": "/list?page={page_num}", "total_pages": 3}
    web.routes |= {"/": link_page("/c/9")}
    web.routes |= {f"/list?page={n}": link_page(f"/c/{n}", "/c/0", "/list?page=1") for n in (1, 2, 3)}
    web.routes |= {f"/c/{n}": link_page() for n in (0, 1, 2, 3, 9)}
    add_sources(store, a_catalog({**LINKS, "pagination": pagination}))

    crawl_all(ctx, web.port)

    steps = Counter(page.step for page in crawled_pages(store))
    assert steps == {"root": 1, "root/pages": 3, "root/links": 4}
    assert set(Counter(web.paths).values()) == {1}


@pytest.mark.slow
def test_a_failed_page_is_retried_then_dead_lettered_and_the_crawl_continues(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/": link_page("/c/1", "/c/2", "/c/3"), "/c/1": [503, link_page()], "/c/2": 500, "/c/3": 410}
    add_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    assert Counter(web.paths) == {"/": 1, "/c/1": 2, "/c/2": 3, "/c/3": 1}
    pages = {page.path: (page.status, (page.failure or {}).get("code")) for page in crawled_pages(store)}
    assert pages == {
        "/": ("SUCCESS", None),
        "/c/1": ("EXTRACTED_NO_DATA", "no_data"),
        "/c/2": ("ERROR", "http_500"),
        "/c/3": ("ERROR", "http_410"),
    }
    codes = Counter(row.error_code for row in rows(store, dead_letters))
    assert codes == {"http_500": 1, "http_410": 1}
    [extraction] = rows(store, extractions)
    assert (extraction.status, source_row(store, CATALOG_ID).failure_count) == ("COMPLETE", 0)


def test_a_catalog_whose_root_fails_is_stale_and_counts_a_failure(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/": 404}
    add_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    [extraction] = rows(store, extractions)
    assert (extraction.status, extraction.failure["code"]) == ("STALE", "http_404")
    source = source_row(store, CATALOG_ID)
    assert (source.failure_count, source.last_success_at) == (1, None)
    assert "failed: http://a.test/ answered 404" in source.last_outcome


def test_a_root_without_matching_links_is_an_error_that_names_the_rule(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/": link_page("/elsewhere")}
    add_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    [root] = crawled_pages(store)
    assert (root.status, root.failure and root.failure["code"]) == ("ERROR", "nothing_to_do")
    assert "'/c/'" in source_row(store, CATALOG_ID).last_outcome


@pytest.mark.slow
def test_pages_that_robots_txt_forbids_are_skipped_and_the_crawl_completes(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/robots.txt": b"User-agent: *\nDisallow: /c/secret"}
    web.routes |= {"/": link_page("/c/1", "/c/secret"), "/c/1": link_page()}
    add_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    assert Counter(web.paths) == {"/": 1, "/c/1": 1}
    assert {page.path: page.status for page in crawled_pages(store)}["/c/secret"] == "ERROR"
    assert rows(store, dead_letters) == []
    assert rows(store, extractions)[0].status == "COMPLETE"


def test_a_root_that_robots_txt_forbids_counts_no_failure(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/robots.txt": b"User-agent: *\nDisallow: /", "/": link_page("/c/1")}
    add_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    assert web.paths == []
    assert (rows(store, extractions)[0].status, source_row(store, CATALOG_ID).failure_count) == ("STALE", 0)


@ON_SQLITE
def test_a_page_whose_host_is_leased_by_another_run_is_released_without_an_attempt(
    ctx: RunContext, store: Store, web: FakeWeb, now: datetime
) -> None:
    web.routes |= {"/": link_page("/c/1")}
    add_sources(store, a_catalog())
    poll_catalogs(ctx, web)
    until = now + timedelta(minutes=1)
    with store.begin() as connection:
        lease = {"host": "a.test", "lease_owner": "another", "lease_until": until}
        connection.execute(hosts.insert().values(lease))

    counts = crawl(ctx, web)

    assert (counts.given_back, web.paths) == (1, [])
    [page] = [row for row in rows(store, tasks) if row.kind == "fetch_page"]
    assert (page.status, page.attempts, page.not_before) == ("PENDING", 0, until)
    assert page.error_code == "host_busy"
    assert page_statuses(store) == {"WAITING": 1}


@ON_SQLITE
def test_no_second_extraction_starts_while_one_is_active(
    ctx: RunContext, store: Store, web: FakeWeb, clock: RunningClock
) -> None:
    add_sources(store, a_catalog())
    poll_catalogs(ctx, web)

    clock.advance(days=40)
    poll_catalogs(ctx, web)

    [extraction] = rows(store, extractions)
    last_outcome = source_row(store, CATALOG_ID).last_outcome
    assert last_outcome == f"extraction {extraction.id} is already running: 1 pages waiting"


@ON_SQLITE
def test_the_next_poll_is_due_by_the_change_model_and_starts_an_extraction(
    ctx: RunContext, store: Store, web: FakeWeb, clock: RunningClock
) -> None:
    web.routes |= {"/": link_page("/c/1"), "/c/1": link_page()}
    add_sources(store, a_catalog())
    poll_catalogs(ctx, web)
    crawl(ctx, web)
    complete_extractions(ctx)

    due = source_row(store, CATALOG_ID).next_check_at - store.now()
    clock.advance(days=8)
    poll_catalogs(ctx, web)

    assert timedelta(days=2) < due < timedelta(days=3)  # a change a month, between HOT and WARM
    assert [row.status for row in rows(store, extractions)] == ["COMPLETE", "WAITING"]


@ON_SQLITE
def test_a_disabled_source_is_not_crawled(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    add_sources(store, a_catalog())
    poll_catalogs(ctx, web)
    with store.begin() as connection:
        disable(connection, CATALOG_ID, actor="test", reason="too loud", now=store.clock.now(connection))

    crawl(ctx, web)

    assert (web.paths, page_statuses(store)) == ([], {"WAITING": 1})


@pytest.mark.slow
def test_a_crawl_on_demand_does_not_wait_for_the_backoff(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    ctx = with_settings(ctx, crawl__backoff_base_seconds="600")
    web.routes |= {"/": [503, link_page("/c/1")], "/c/1": link_page()}
    add_sources(store, a_catalog())
    poll_catalogs(ctx, web)
    crawl(ctx, web)

    counts = crawl_all(ctx, web.port)

    assert (counts.new, len(rows(store, extractions))) == (2, 1)


@pytest.mark.slow
@ON_SQLITE
def test_a_large_catalog_does_not_starve_a_small_one(
    ctx: RunContext, store: Store, web: FakeWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its two pages used to be requested after the two hundred that were discovered before."""
    monkeypatch.setattr(crawl_handler, "PAGES_PER_SOURCE", 10)
    monkeypatch.setattr(crawl_handler, "PAGES_HELD", 40)
    web.routes |= {"a.test/": link_page(*(f"/c/{n}" for n in range(200)))}
    web.routes |= {f"a.test/c/{n}": slow_answer(b"<p>slow</p>", 0.02) for n in range(200)}
    web.routes |= {"b.test/": link_page("/c/1"), "b.test/c/1": link_page()}
    add_sources(store, a_catalog(), a_catalog(name="small", url="http://b.test/"))
    poll_catalogs(ctx, web)

    crawl(ctx, web)

    request_hosts = [request.host for request in web.requests]
    assert Counter(request_hosts) == {"a.test": 201, "b.test": 2}
    assert request_hosts.index("b.test") < 30
    assert len(request_hosts) - request_hosts[::-1].index("b.test") < 150


@ON_SQLITE
def test_a_page_that_killed_its_workers_is_failed(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/": link_page("/c/1")}
    add_sources(store, a_catalog())
    poll_catalogs(ctx, web)
    with store.begin() as connection:
        where = tasks.c.kind == "fetch_page"
        connection.execute(tasks.update().where(where).values(attempts=3, suspicion=Suspicion.ALONE))

    crawl(ctx, web)

    [root] = crawled_pages(store)
    assert (root.status, root.failure and root.failure["code"]) == ("ERROR", "worker_lost")
    assert web.paths == []
