"""What may happen in the middle of a crawl: a wall, a full disk, a page that moved to another host.

On a real web, on both databases.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.politeness.hosts import lease_hosts
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import datasets, dead_letters, extractions, hosts, outbox, pages, snapshots, tasks
from ingestion_pipeline.tasks.errors import Fatal
from ingestion_pipeline_tests.catalogs.courses import given_courses
from ingestion_pipeline_tests.crawlers import (
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
from ingestion_pipeline_tests.fakes import FakeWeb, Raw, Reply, redirect
from ingestion_pipeline_tests.pages.test_walls import BOT_WALL, LOGIN
from ingestion_pipeline_tests.pollers import GoingClock, given_sources, rows, source_row

MINUTE = timedelta(minutes=1)
LATER = Reply(b"", 429, {"retry-after": "7200"})


def codes(store: Store) -> dict[str, str | None]:
    """Why each page was not got, by its path."""
    return {
        one.path: one.failure["code"] for one in found_pages(store) if one.status != "EXTRACTED_NO_DATA" and one.failure
    }


def page_tasks(store: Store) -> Counter[tuple[str, int]]:
    """The states of all pages' tasks, with their attempts."""
    found = [row for row in rows(store, tasks) if row.kind == "fetch_page"]
    return Counter((row.status, row.attempts) for row in found)


def test_a_bot_wall_in_the_middle_cancels_the_crawl_and_disables_its_source(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    courses = [f"/c/{number}" for number in range(30)]
    web.routes |= {"/": a_page(*courses), **dict.fromkeys(courses, a_page())}
    web.routes["/c/3"] = BOT_WALL
    given_sources(store, a_catalog())

    crawl_all(ctx, web.port)
    asked = len(web.paths)
    begin(ctx, web)
    crawl(ctx, web)

    [extraction] = rows(store, extractions)
    assert (extraction.status, extraction.failure["code"]) == ("CANCELLED", "bot_wall")
    source = source_row(store, SHOP)
    assert source.status == "disabled"
    assert "behind a bot wall" in source.status_reason
    assert asked == len(web.paths) < 10  # not even what the run had claimed already
    assert "PENDING" not in {status for status, _ in page_tasks(store)}


@pytest.mark.parametrize("wall", [BOT_WALL, LOGIN], ids=["a bot wall", "a login"])
def test_a_wall_at_the_root_disables_the_source(ctx: RunContext, store: Store, web: FakeWeb, wall: bytes) -> None:
    web.routes |= {"/": wall}
    given_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    [extraction] = rows(store, extractions)
    assert extraction.status in {"CANCELLED", "STALE"}
    source = source_row(store, SHOP)
    assert (source.status, source.failure_count) == ("disabled", 0)
    assert f"behind a {extraction.failure['code'].replace('_', ' ')}" in source.status_reason


def test_a_login_in_front_of_one_course_is_that_pages_error_alone(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/": a_page("/c/1", "/c/2", "/c/3"), "/c/1": a_page(), "/c/3": a_page()}
    web.routes["/c/2"] = LOGIN
    given_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    assert codes(store) == {"/c/2": "login_wall"}
    assert statuses(store) == {"SUCCESS": 1, "EXTRACTED_NO_DATA": 2, "ERROR": 1}
    assert rows(store, extractions)[0].status == "COMPLETE"
    assert source_row(store, SHOP).status == "active"


def take_away(folder: Path) -> None:
    folder.rename(folder.with_name("away"))
    folder.write_text("a file where a folder should be")


def breaking(folder: Path, body: bytes) -> Raw:
    """A good answer, after which nothing more can be written to the folder."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        take_away(folder)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    return answer


def test_a_disk_that_fails_in_the_middle_puts_the_pages_back_and_the_crawl_goes_on_later(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    content = ctx.settings.home / "content"
    web.routes |= {"/": a_page("/c/1", "/c/2", "/c/3"), "/c/1": a_page(), "/c/3": a_page()}
    web.routes["/c/2"] = breaking(content, a_page().encode())
    given_sources(store, a_catalog())

    with pytest.raises(Fatal, match="content store"):
        crawl_all(ctx, web.port)

    assert statuses(store) == {"SUCCESS": 1, "WAITING": 3}
    assert page_tasks(store) == {("SUCCESS", 1): 1, ("PENDING", 0): 3}
    assert len(rows(store, snapshots)) == 1
    assert rows(store, dead_letters) == []
    assert source_row(store, SHOP).failure_count == 0

    content.unlink()
    content.with_name("away").rename(content)
    web.routes["/c/2"] = a_page()
    crawl_all(ctx, web.port)

    assert statuses(store) == {"SUCCESS": 1, "EXTRACTED_NO_DATA": 3}
    assert [row.status for row in rows(store, extractions)] == ["COMPLETE"]
    assert Counter(web.paths)["/"] == 1


def test_a_course_that_moved_to_another_host_is_got_by_that_hosts_rules_and_lease(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"a.test/": a_page("/c/1", "/c/2"), "b.test/there": a_page()}
    web.routes |= {"a.test/c/1": redirect("http://b.test/there")}
    web.routes |= {"a.test/c/2": redirect("http://b.test/private")}
    web.routes |= {"b.test/robots.txt": b"User-agent: *\nDisallow: /private"}
    given_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    assert [one.path for one in web.requests if one.host == "b.test"] == ["/there"]
    assert codes(store) == {"/c/2": "blocked_by_robots"}
    assert [one.host for one in web.robots_requests] == ["a.test", "b.test"]
    there = next(row for row in rows(store, hosts) if row.host == "b.test")
    assert there.lease_owner is None
    assert there.next_allowed_at is not None


def test_a_course_that_moved_to_a_host_that_another_run_has_waits_for_it(
    ctx: RunContext, store: Store, web: FakeWeb, now: datetime
) -> None:
    web.routes |= {"a.test/": a_page("/c/1", "/c/2"), "a.test/c/2": a_page()}
    web.routes |= {"a.test/c/1": redirect("http://b.test/there"), "b.test/there": a_page()}
    given_sources(store, a_catalog())
    begin(ctx, web)
    with store.begin() as connection:
        lease_hosts(connection, ["b.test"], owner="another", now=now, lease=MINUTE)

    counts = crawl(ctx, web).counts

    assert [one.path for one in web.requests if one.host == "b.test"] == []
    assert (counts.new, counts.given_back) == (2, 1)
    assert codes(store) == {"/c/1": "host_busy"}
    assert page_tasks(store) == {("SUCCESS", 1): 2, ("PENDING", 0): 1}


def closed_next_door(store: Store, web: FakeWeb) -> None:
    """A catalogue that links to a host whose robots.txt is never to be had."""
    web.routes |= {
        "a.test/": a_page("http://b.test/c/1", "http://b.test/c/2", "/c/3"),
        "a.test/c/3": a_page(),
        "b.test/robots.txt": Reply(b"", 503),
    }
    given_sources(store, a_catalog())


def test_a_host_that_never_recovers_does_not_keep_a_crawl_open(
    ctx: RunContext, store: Store, web: FakeWeb, clock: GoingClock
) -> None:
    closed_next_door(store, web)

    crawl_all(ctx, web.port)
    assert rows(store, extractions)[0].status == "IN_PROGRESS"
    for _ in range(2):
        clock.advance(days=2)
        crawl(ctx, web)
    conclude(ctx)

    [extraction] = rows(store, extractions)
    assert extraction.status == "COMPLETE"
    assert set(codes(store).values()) == {"robots_unavailable"}
    assert statuses(store) == {"SUCCESS": 1, "EXTRACTED_NO_DATA": 1, "ERROR": 2}
    assert page_tasks(store) == {("SUCCESS", 1): 2, ("SKIPPED", 1): 2}
    assert rows(store, dead_letters) == []


def test_a_page_that_is_forbidden_for_ever_does_not_keep_the_others_from_being_shown(
    ctx: RunContext, store: Store, web: FakeWeb, clock: GoingClock
) -> None:
    """A 403 is asked again after four hours, twice; that is as long as nothing may change."""
    given_courses(web, *range(101, 125))
    web.routes["/c/105"] = 403
    given_sources(store, a_catalog())

    crawl_all(ctx, web.port)
    for _ in range(2):
        clock.advance(hours=4)
        conclude(ctx)
        assert rows(store, extractions)[0].status == "IN_PROGRESS"
        crawl(ctx, web)
    conclude(ctx)

    [extraction], [dataset] = rows(store, extractions), rows(store, datasets)
    assert (extraction.status, dataset.status, dataset.item_count) == ("COMPLETE", "published", 23)
    assert Counter(web.paths)["/c/105"] == 3
    [told] = rows(store, outbox)
    [missing] = told.payload["missing"]
    assert missing.startswith("http://a.test/c/105: http://a.test/c/105 answered 403")


def test_a_page_waits_on_while_its_host_gives_others(
    ctx: RunContext, store: Store, web: FakeWeb, clock: GoingClock
) -> None:
    """As on a slow host, whose large catalogue takes weeks."""
    web.routes |= {"/": a_page("/c/1"), "/c/1": LATER}
    given_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    clock.advance(days=4)
    with store.begin() as connection:
        root = update(pages).where(pages.c.status == "SUCCESS")
        connection.execute(root.values(visited_at=clock.now(connection)))

    crawl(ctx, web)

    assert statuses(store) == {"SUCCESS": 1, "WAITING": 1}


def test_a_page_that_nobody_came_for_in_days_has_all_patience_left(
    ctx: RunContext, store: Store, web: FakeWeb, clock: GoingClock
) -> None:
    web.routes |= {"/": LATER}
    given_sources(store, a_catalog())
    begin(ctx, web)
    clock.advance(days=4)

    crawl(ctx, web)

    assert statuses(store) == {"WAITING": 1}
