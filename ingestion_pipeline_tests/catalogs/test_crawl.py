"""A catalogue from its root to its last page, on a real web, on both databases."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime, timedelta

import pytest

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.sources.registry import disable
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import dead_letters, extractions, hosts, pages, snapshots, tasks
from ingestion_pipeline_tests.crawlers import (
    LINKS,
    SHOP,
    a_catalog,
    a_page,
    begin,
    conclude,
    crawl,
    crawl_all,
    found_pages,
    statuses,
)
from ingestion_pipeline_tests.fakes import FakeWeb, Raw, Reply
from ingestion_pipeline_tests.pollers import (
    GoingClock,
    changed,
    given_sources,
    recorded_syncs,
    rows,
    slowly,
    source_row,
)

ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"])


def test_a_catalogue_is_walked_through_from_its_root_to_its_details(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    recipe = {"page_type": "CATEGORY_LINKS", "link_selector": "ul a", "links": LINKS}
    web.routes |= {
        "/": a_page("/math", "/art"),
        "/math": a_page("/c/1", "/c/2", "/about"),
        "/art": a_page("/c/2", "/c/3"),
        **{f"/c/{number}": a_page("/c/99") for number in (1, 2, 3)},
    }
    given_sources(store, a_catalog(recipe))

    begin(ctx, web)
    counts = crawl(ctx, web).counts

    assert (counts.new, counts.failed) == (6, 0)
    assert Counter(web.paths) == dict.fromkeys(["/", "/math", "/art", "/c/1", "/c/2", "/c/3"], 1)
    assert [(one.path, one.step, one.status) for one in found_pages(store)] == [
        ("/", "root", "SUCCESS"),
        ("/math", "root/links", "SUCCESS"),
        ("/art", "root/links", "SUCCESS"),
        ("/c/1", "root/links/links", "EXTRACTED_NO_DATA"),
        ("/c/2", "root/links/links", "EXTRACTED_NO_DATA"),
        ("/c/3", "root/links/links", "EXTRACTED_NO_DATA"),
    ]
    conclude(ctx)
    [extraction] = rows(store, extractions)
    assert (extraction.status, extraction.page_count) == ("COMPLETE", 6)
    source = source_row(store, SHOP)
    assert source.last_outcome == f"extraction {extraction.id}: 6 pages, 6 new, 0 failed"
    assert source.last_success_at is not None


def test_a_page_is_in_progress_while_it_is_fetched(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    observed: dict[str, tuple[str, str]] = {}

    def observing(path: str, body: str) -> Raw:
        async def answer(writer: asyncio.StreamWriter) -> None:
            page = {one.path: one.status for one in found_pages(store)}[path]
            observed[path] = page, rows(store, extractions)[0].status
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body.encode())
            await writer.drain()

        return answer

    web.routes |= {"/": observing("/", a_page("/c/1")), "/c/1": observing("/c/1", a_page())}
    given_sources(store, a_catalog())
    begin(ctx, web)
    before = statuses(store), rows(store, extractions)[0].status

    crawl(ctx, web)

    assert before == ({"WAITING": 1}, "WAITING")
    assert observed == dict.fromkeys(["/", "/c/1"], ("IN_PROGRESS", "IN_PROGRESS"))
    assert "IN_PROGRESS" not in statuses(store)


def test_the_pages_of_a_crawl_are_synced_to_the_disk(
    ctx: RunContext, store: Store, web: FakeWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = recorded_syncs(monkeypatch)
    web.routes |= {"/": a_page("/c/1"), "/c/1": a_page()}
    given_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    assert len(rows(store, snapshots)) == 2
    assert len(synced) >= 4  # the objects of each page, and their folders


def test_an_unchanged_catalogue_is_checked_page_by_page_and_leaves_no_snapshot(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {
        "/": Reply(a_page("/c/1", "/c/2").encode(), headers={"ETag": '"root"'}),
        "/c/1": a_page(),
        "/c/2": Reply(a_page().encode(), headers={"ETag": '"two"'}),
    }
    given_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    before = rows(store, snapshots)

    counts = crawl_all(ctx, web.port)

    assert (counts.new, counts.same) == (0, 3)
    assert Counter(web.paths) == {"/": 2, "/c/1": 2, "/c/2": 2}
    assert rows(store, snapshots) == before
    first, second = [row.snapshot_id for row in rows(store, pages)][:3], rows(store, pages)[3:]
    assert [row.snapshot_id for row in second] == first


def test_only_what_has_changed_is_new(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/": a_page("/c/1", "/c/2"), "/c/1": a_page(), "/c/2": a_page()}
    given_sources(store, a_catalog())
    crawl_all(ctx, web.port)

    web.routes |= {"/": a_page("/c/1", "/c/2", "/c/3"), "/c/2": a_page(text="changed"), "/c/3": "3"}
    counts = crawl_all(ctx, web.port)

    assert (counts.new, counts.same) == (3, 1)


def test_a_list_is_followed_by_numbers_and_each_page_of_it_once(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    pagination = {"url_pattern": "/list?page={page_num}", "total_pages": 3}
    web.routes |= {"/": a_page("/c/9")}
    web.routes |= {f"/list?page={n}": a_page(f"/c/{n}", "/c/0", "/list?page=1") for n in (1, 2, 3)}
    web.routes |= {f"/c/{n}": a_page() for n in (0, 1, 2, 3, 9)}
    given_sources(store, a_catalog({**LINKS, "pagination": pagination}))

    crawl_all(ctx, web.port)

    steps = Counter(one.step for one in found_pages(store))
    assert steps == {"root": 1, "root/pages": 3, "root/links": 4}
    assert set(Counter(web.paths).values()) == {1}


def test_a_failed_page_is_retried_then_given_up_with_its_reason_and_the_rest_goes_on(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/": a_page("/c/1", "/c/2", "/c/3"), "/c/1": [503, a_page()], "/c/2": 500, "/c/3": 410}
    given_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    assert Counter(web.paths) == {"/": 1, "/c/1": 2, "/c/2": 3, "/c/3": 1}
    found = {one.path: (one.status, (one.failure or {}).get("code")) for one in found_pages(store)}
    assert found == {
        "/": ("SUCCESS", None),
        "/c/1": ("EXTRACTED_NO_DATA", "no_data"),
        "/c/2": ("ERROR", "http_500"),
        "/c/3": ("ERROR", "http_410"),
    }
    letters = Counter(row.error_code for row in rows(store, dead_letters))
    assert letters == {"http_500": 1, "http_410": 1}
    [extraction] = rows(store, extractions)
    assert (extraction.status, source_row(store, SHOP).failure_count) == ("COMPLETE", 0)


def test_a_catalogue_whose_root_fails_is_never_complete_and_has_a_strike(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/": 404}
    given_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    [extraction] = rows(store, extractions)
    assert (extraction.status, extraction.failure["code"]) == ("STALE", "http_404")
    source = source_row(store, SHOP)
    assert (source.failure_count, source.last_success_at) == (1, None)
    assert "failed: http://a.test/ answered 404" in source.last_outcome


def test_a_root_that_leads_nowhere_is_an_error_with_the_rule(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/": a_page("/elsewhere")}
    given_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    [root] = found_pages(store)
    assert (root.status, root.failure and root.failure["code"]) == ("ERROR", "nothing_to_do")
    assert "'/c/'" in source_row(store, SHOP).last_outcome


def test_what_robots_txt_forbids_is_not_asked_for_and_holds_nothing_up(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/robots.txt": b"User-agent: *\nDisallow: /c/secret"}
    web.routes |= {"/": a_page("/c/1", "/c/secret"), "/c/1": a_page()}
    given_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    assert Counter(web.paths) == {"/": 1, "/c/1": 1}
    assert {one.path: one.status for one in found_pages(store)}["/c/secret"] == "ERROR"
    assert rows(store, dead_letters) == []
    assert rows(store, extractions)[0].status == "COMPLETE"


def test_a_root_that_robots_txt_forbids_is_nobodys_fault(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/robots.txt": b"User-agent: *\nDisallow: /", "/": a_page("/c/1")}
    given_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    assert web.paths == []
    assert (rows(store, extractions)[0].status, source_row(store, SHOP).failure_count) == ("STALE", 0)


@ON_SQLITE
def test_a_page_of_a_host_that_another_run_has_goes_back_with_no_attempt(
    ctx: RunContext, store: Store, web: FakeWeb, now: datetime
) -> None:
    web.routes |= {"/": a_page("/c/1")}
    given_sources(store, a_catalog())
    begin(ctx, web)
    until = now + timedelta(minutes=1)
    with store.begin() as connection:
        given = {"host": "a.test", "lease_owner": "another", "lease_until": until}
        connection.execute(hosts.insert().values(given))

    counts = crawl(ctx, web).counts

    assert (counts.given_back, web.paths) == (1, [])
    [page] = [row for row in rows(store, tasks) if row.kind == "fetch_page"]
    assert (page.status, page.attempts, page.not_before) == ("PENDING", 0, until)
    assert page.error_code == "host_busy"
    assert statuses(store) == {"WAITING": 1}


@ON_SQLITE
def test_no_second_extraction_begins_while_one_goes_on(
    ctx: RunContext, store: Store, web: FakeWeb, clock: GoingClock
) -> None:
    given_sources(store, a_catalog())
    begin(ctx, web)

    clock.advance(days=40)
    begin(ctx, web)

    [extraction] = rows(store, extractions)
    said = source_row(store, SHOP).last_outcome
    assert said == f"extraction {extraction.id} is already running: 1 pages waiting"


@ON_SQLITE
def test_a_poll_waits_as_its_like_would_and_the_next_one_begins_again(
    ctx: RunContext, store: Store, web: FakeWeb, clock: GoingClock
) -> None:
    web.routes |= {"/": a_page("/c/1"), "/c/1": a_page()}
    given_sources(store, a_catalog())
    begin(ctx, web)
    crawl(ctx, web)
    conclude(ctx)

    due = source_row(store, SHOP).next_check_at - store.now()
    clock.advance(days=8)
    begin(ctx, web)

    assert timedelta(days=2) < due < timedelta(days=3)  # a change a month, between HOT and WARM
    assert [row.status for row in rows(store, extractions)] == ["COMPLETE", "WAITING"]


@ON_SQLITE
def test_a_disabled_source_is_not_walked_on(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    given_sources(store, a_catalog())
    begin(ctx, web)
    with store.begin() as connection:
        disable(connection, SHOP, actor="test", reason="too loud", now=store.clock.now(connection))

    crawl(ctx, web)

    assert (web.paths, statuses(store)) == ([], {"WAITING": 1})


def test_what_is_asked_for_by_hand_does_not_wait_for_its_retry(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    ctx = changed(ctx, crawl__backoff_base_seconds="600")
    web.routes |= {"/": [503, a_page("/c/1")], "/c/1": a_page()}
    given_sources(store, a_catalog())
    begin(ctx, web)
    crawl(ctx, web)

    counts = crawl_all(ctx, web.port)

    assert (counts.new, len(rows(store, extractions))) == (2, 1)


@ON_SQLITE
def test_a_large_catalogue_does_not_starve_a_small_one(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    """Its two pages were asked for after all of the two hundred that were found before."""
    ctx = changed(ctx, crawl__per_source="10", crawl__batch_size="40")
    web.routes |= {"a.test/": a_page(*(f"/c/{n}" for n in range(200)))}
    web.routes |= {f"a.test/c/{n}": slowly(b"<p>slow</p>", 0.02) for n in range(200)}
    web.routes |= {"b.test/": a_page("/c/1"), "b.test/c/1": a_page()}
    given_sources(store, a_catalog(), a_catalog(name="small", url="http://b.test/"))
    begin(ctx, web)

    crawl(ctx, web)

    asked = [one.host for one in web.requests]
    assert Counter(asked) == {"a.test": 201, "b.test": 2}
    assert asked.index("b.test") < 30
    assert len(asked) - asked[::-1].index("b.test") < 150


@ON_SQLITE
def test_a_page_that_killed_its_workers_is_given_up(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/": a_page("/c/1")}
    given_sources(store, a_catalog())
    begin(ctx, web)
    with store.begin() as connection:
        where = tasks.c.kind == "fetch_page"
        connection.execute(tasks.update().where(where).values(attempts=3))

    crawl(ctx, web)

    [root] = found_pages(store)
    assert (root.status, root.failure and root.failure["code"]) == ("ERROR", "worker_lost")
    assert web.paths == []
