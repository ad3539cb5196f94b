"""Parsing and ingesting batches of changed feeds: fenced, and each record exactly once."""

import gzip
import logging
from datetime import timedelta
from decimal import Decimal
from hashlib import sha256
from typing import Any

import pytest
from sqlalchemy import text, update

from ingestion_pipeline.engine.context import RunContext, hash_of_bodies
from ingestion_pipeline.engine.ingesting import extract_batch, ingest_batch
from ingestion_pipeline.engine.poll_handler import PollCounts, PollRunResult
from ingestion_pipeline.series.platforms import platform
from ingestion_pipeline.sources.registry import disable
from ingestion_pipeline.sources.source import Definition
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import (
    batch_items,
    changes,
    chapter_sources,
    chapters,
    dead_letters,
    hosts,
    ingestions,
    outbox,
    series,
    snapshots,
    sources,
    tasks,
)
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline.tasks.errors import Fatal
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.lock_orders import ON_POSTGRES
from ingestion_pipeline_tests.polling_runs import a_feed, add_sources, fetch, ingest, poll, rows, source_row, task_row
from ingestion_pipeline_tests.processes import POLLS

pytestmark = pytest.mark.both_databases


def a_source(name: str = "solo", **changes: Any) -> Definition:
    values = {"id": f"series:{name}", "url": f"http://a.test/{name}", "series": name}
    return a_definition(**(values | changes))


def numbers(store: Store, *, available: bool = True) -> list[Decimal]:
    """Return the chapter numbers that some source has, or no longer has."""
    linked = {row.chapter_id for row in rows(store, chapter_sources) if row.available is available}
    return sorted(row.number for row in rows(store, chapters) if row.id in linked)


def add_polled_sources(ctx: RunContext, web: FakeWeb, clock: FixedClock, *definitions: Definition) -> None:
    """Add sources with chapters 1 to 3 and an etag, poll them, and make them due again."""
    add_sources(ctx.store, *definitions)
    for definition in definitions:
        path = definition.url.removeprefix("http://a.test")
        web.routes[path] = Reply(a_feed(1, 2, 3), headers={"ETag": '"v1"'})
    poll(ctx, web)
    web.requests.clear()
    clock.advance(days=1)


def fetch_two_feeds(ctx: RunContext, web: FakeWeb) -> tuple[Worker, PollRunResult]:
    add_sources(ctx.store, a_source("1"), a_source("2"))
    web.routes |= {"/1": a_feed(1), "/2": a_feed(2)}
    return fetch(ctx, web)


def take_over(store: Store, clock: FixedClock) -> None:
    """Let another worker claim all claimed tasks after their lease."""
    clock.advance(hours=1)
    assert Worker(store, lease_seconds=600).claim(POLLS, limit=100)


def test_a_feed_becomes_chapters_and_its_poll_is_done(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    add_sources(store, a_source())
    web.routes["/solo"] = Reply(a_feed(1, 2), headers={"ETag": '"v1"'})

    polled = poll(ctx, web)

    assert polled.counts == PollCounts(changed=1)
    assert numbers(store) == [1, 2]
    assert rows(store, series)[0].latest_chapter == 2
    source, task = source_row(store), task_row(store)
    assert (source.last_outcome, source.record_count) == ("first sync: 2 new", 2)
    assert (source.etag, source.synced_at, source.last_changed_at) == ('"v1"', clock.at, clock.at)
    assert (task.status, task.attempts, task.lease_owner) == ("PENDING", 0, None)
    assert task.not_before == source.next_check_at
    assert rows(store, batch_items) == rows(store, outbox) == []


def test_links_of_a_moved_page_are_relative_to_its_final_url(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    page = "<li class=wp-manga-chapter><a href='{0}/'>Chapter {0}</a></li>{1}"
    web.routes |= {
        "/solo": Reply(b"", status=302, headers={"Location": "/manga/solo/"}),
        "/manga/solo/": page.format(2, "<a class=older href='old/'>older</a>").encode(),
        "/manga/solo/old/": page.format(1, "").encode(),
    }
    add_sources(store, a_source(platform="html", config={"next": "a.older"}))

    poll(ctx, web)

    assert source_row(store).last_outcome == "first sync: 2 new; read as theme madara"
    assert sorted(row.url for row in rows(store, chapter_sources)) == [
        "http://a.test/manga/solo/2/",
        "http://a.test/manga/solo/old/1/",
    ]


BOMB = (
    b"<!DOCTYPE rss ["
    + b"<!ENTITY a 'ha'>"
    + b"".join(b"<!ENTITY %c '%s'>" % (name, b"&%c;" % (name - 1) * 10) for name in b"bcdefgh")
    + b"]><rss><channel><title>&h;</title></channel></rss>"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "code", "polls"),
    [
        (b"<!doctype html><html><title>Solo</title></html>", "not_a_feed", 1),
        (Reply(b"<html><body>Sorry, an error occurred</body></html>"), "not_a_feed", 1),
        (b"", "not_a_feed", 1),
        (a_feed(1, 2, 3, 4)[:-40], "truncated_feed", 3),
        (BOMB, "xml_entity", 1),
        (Reply(gzip.compress(b" " * 9_000_000), headers={"Content-Encoding": "gzip"}), "decompression_bomb", 1),
    ],
    ids=["HTML page", "error page", "nothing", "truncated", "XML bomb", "gzip bomb"],
)
def test_a_body_that_is_no_feed_leaves_the_last_good_data(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock, answer: Reply | bytes, code: str, polls: int
) -> None:
    add_polled_sources(ctx, web, clock, a_source())
    before = rows(store, chapters), rows(store, chapter_sources), rows(store, series)
    web.routes["/solo"] = answer

    for _ in range(polls):
        assert rows(store, dead_letters) == []
        poll(ctx, web)
        clock.advance(minutes=1)

    [dead_letter] = rows(store, dead_letters)
    assert (dead_letter.error_code, dead_letter.attempts) == (code, polls)
    assert dead_letter.stack
    assert (rows(store, chapters), rows(store, chapter_sources), rows(store, series)) == before
    source, task = source_row(store), task_row(store)
    assert (source.failure_count, source.etag, source.record_count) == (1, '"v1"', 3)
    assert (task.status, task.attempts) == ("PENDING", 0)
    assert rows(store, batch_items) == []


def run_sql(store: Store, statement: str) -> None:
    with store.begin() as connection:
        connection.execute(text(statement))


@pytest.mark.slow
def test_a_feed_that_the_database_refuses_fails_alone(
    ctx: RunContext, store: Store, web: FakeWeb, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    """The database has an extra constraint here: no two chapters with one title."""
    request.addfinalizer(lambda: run_sql(store, "DROP INDEX one_title"))  # databases are reused
    run_sql(store, "CREATE UNIQUE INDEX one_title ON chapters (title)")
    add_sources(store, a_source("1"), a_source("2"), a_source("3"))
    web.routes |= {"/1": a_feed(1), "/2": a_feed(1), "/3": a_feed(3)}

    with caplog.at_level(logging.WARNING):
        polled = poll(ctx, web)

    assert [ingested.source_id for ingested in polled.ingested] == ["series:1", "series:3"]
    assert polled.counts == PollCounts(changed=2, failed=1)
    [dead_letter] = rows(store, dead_letters)
    assert (dead_letter.source_id, dead_letter.error_code) == ("series:2", "constraint")
    assert numbers(store) == [1, 3]
    assert {task.status for task in rows(store, tasks)} == {"PENDING"}
    assert rows(store, batch_items) == []


@pytest.mark.slow
def test_a_damaged_extraction_fails_alone(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    """Its size was once read outside of any try: one bad file, and nothing was ingested."""
    worker, fetched = fetch_two_feeds(ctx, web)
    extract_batch(ctx, worker, fetched.batch_ids[0])
    reading = rows(store, batch_items)[0].parsed_hash
    (ctx.settings.home / "content" / reading[:2] / reading[2:]).write_bytes(b"rust")

    ingestion = ingest_batch(ctx, worker, fetched.batch_ids[0])

    assert [ingested.source_id for ingested in ingestion.ingested] == ["series:2"]
    assert ingestion.counts == PollCounts(changed=-1, retried=1)
    assert task_row(store, "series:1").error_code == "content_damaged"


@pytest.mark.parametrize("stage", ["fetched", "extracted"])
def test_a_lost_claim_writes_nothing_and_is_counted(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock, stage: str
) -> None:
    worker, fetched = fetch_two_feeds(ctx, web)
    [batch_id] = fetched.batch_ids
    counts = fetched.counts
    if stage == "extracted":
        counts += extract_batch(ctx, worker, batch_id)
    take_over(store, clock)
    before = rows(store, tasks)

    counts += extract_batch(ctx, worker, batch_id)
    counts += ingest_batch(ctx, worker, batch_id).counts

    assert counts == PollCounts(lost=2)
    assert rows(store, tasks) == before
    assert rows(store, chapters) == rows(store, series) == rows(store, batch_items) == []
    assert source_row(store, "series:1").last_checked_at is None


class Overtaken(Worker):
    """A worker whose heartbeat is late: another worker has claimed everything by then."""

    def renew(self) -> int:
        with self.store.begin() as connection:
            connection.execute(update(tasks).values(fence=tasks.c.fence + 1))
        return super().renew()


@pytest.mark.slow
def test_a_claim_lost_at_the_last_moment_writes_nothing(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    worker, fetched = fetch_two_feeds(ctx, web)

    polled = ingest(ctx, Overtaken(store, lease_seconds=60, owner=worker.owner), fetched)

    assert polled.counts == PollCounts(lost=2)
    assert rows(store, chapters) == rows(store, batch_items) == []
    assert {task.status for task in rows(store, tasks)} == {"PROCESSING"}


def test_a_lost_claim_does_not_affect_the_rest_of_the_batch(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    worker, fetched = fetch_two_feeds(ctx, web)
    with store.begin() as connection:
        disable(connection, "series:1", actor="test", reason="enough", now=clock.at)

    polled = ingest(ctx, worker, fetched)

    assert polled.counts == PollCounts(changed=1, lost=1)
    assert numbers(store) == [2]
    assert task_row(store, "series:1").status == "SKIPPED"


@pytest.mark.slow
def test_an_empty_feed_after_a_full_one_is_quarantined_and_fetched_again(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    add_polled_sources(ctx, web, clock, a_source(config={"complete": True}))
    content_hash = source_row(store).content_hash
    web.routes["/solo"] = Reply(a_feed(), headers={"ETag": '"empty"'})

    polled = poll(ctx, web)
    clock.advance(days=1)
    repolled = poll(ctx, web)

    assert [ingested.quarantined for ingested in [*polled.ingested, *repolled.ingested]] == [True, True]
    assert "if-none-match" not in web.requests[1].headers
    source = source_row(store)
    assert (source.etag, source.content_hash, source.record_count) == (None, content_hash, 3)
    assert source.last_outcome.startswith("quarantined: lists nothing, 3 chapters are known")
    assert (source.failure_count, numbers(store)) == (0, [1, 2, 3])


@pytest.mark.slow
def test_a_withdrawn_chapter_is_confirmed_by_a_second_feed_of_the_same_bytes(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    add_polled_sources(ctx, web, clock, a_source(config={"complete": True}))
    web.routes["/solo"] = Reply(a_feed(1, 2), headers={"ETag": '"v2"'})

    poll(ctx, web)
    assert numbers(store) == [1, 2, 3]
    assert source_row(store).needs_full_read
    clock.advance(days=1)
    poll(ctx, web)

    assert (numbers(store), numbers(store, available=False)) == ([1, 2], [3])
    assert rows(store, series)[0].latest_chapter == 2
    clock.advance(days=1)
    assert poll(ctx, web).counts == PollCounts(unchanged=1)


@pytest.mark.slow
def test_a_feed_of_many_pages_stores_no_etag_and_is_always_read_to_its_end(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    """A 304 on the first page once hid changes on the second."""
    config = {"api_base": "http://a.test", "manga_id": "one", "limit": 1}
    add_sources(store, a_source(platform="mangadex", config=config))
    first = platform("mangadex").configure("", config).first_request().url
    paths = [first.removeprefix("http://a.test")]
    paths.append(paths[0].replace("offset=0", "offset=1"))
    web.routes[paths[0]] = Reply(a_manga_page(1, 0), headers={"ETag": '"p1"'})
    web.routes[paths[1]] = Reply(a_manga_page(2, 1), headers={"ETag": '"p2"'})

    for body in (a_manga_page(2, 1), a_manga_page(2, 1), a_manga_page(5, 1)):
        web.routes[paths[1]] = Reply(body, headers={"ETag": '"p2"'})
        poll(ctx, web)
        assert source_row(store).etag is None
        clock.advance(days=1)

    assert web.paths == paths * 3
    assert all("if-none-match" not in request.headers for request in web.requests)
    assert numbers(store) == [1, 2, 5]


def a_manga_page(number: int, offset: int) -> bytes:
    chapter = f'{{"id": "c{number}", "type": "chapter", "attributes": {{"chapter": "{number}"}}}}'
    return (
        f'{{"result": "ok", "response": "collection", "data": [{chapter}], "limit": 1, "offset": {offset}, "total": 2}}'
    ).encode()


@pytest.mark.parametrize("part", ["extract", "ingest"])
def test_a_broken_disk_stops_the_run_and_releases_the_whole_batch(
    ctx: RunContext, store: Store, web: FakeWeb, part: str
) -> None:
    worker, fetched = fetch_two_feeds(ctx, web)
    [batch_id] = fetched.batch_ids
    if part == "ingest":
        extract_batch(ctx, worker, batch_id)
    content = ctx.settings.home / "content"
    content.rename(content.with_name("gone"))
    content.write_text("a file where a folder was")

    with pytest.raises(Fatal, match="content store"):
        (extract_batch if part == "extract" else ingest_batch)(ctx, worker, batch_id)

    task_rows = rows(store, tasks)
    assert {(task.status, task.attempts) for task in task_rows} == {("PENDING", 0)}
    assert {task.error_code for task in task_rows} == {"storage"}
    assert rows(store, batch_items) == rows(store, dead_letters) == []


@pytest.mark.parametrize(("body", "cause"), [(a_feed(1, 2), "reader_changed"), (a_feed(1, 3), "source_changed")])
def test_a_change_is_caused_by_the_reader_if_it_alone_has_changed(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock, body: bytes, cause: str
) -> None:
    add_sources(store, a_source())
    web.routes["/solo"] = a_feed(1, 2)
    poll(ctx, web)
    older = hash_of_bodies([sha256(a_feed(1, 2)).digest()], parser_version="rss:0:{}")
    with store.begin() as connection:  # as an older reader left them
        connection.execute(update(sources).values(parser_version="rss:0:{}", content_hash=older, etag=None))
        connection.execute(update(chapter_sources).values(fingerprint="", ingestion_id=None))
    before = max(row.id for row in rows(store, changes))
    web.routes["/solo"] = body
    clock.advance(days=1)

    poll(ctx, web)

    recorded = [row for row in rows(store, changes) if row.id > before]
    assert {(row.cause, row.source_id) for row in recorded} == {(cause, "series:solo")}
    assert {row.ingestion_id for row in recorded} <= {row.id for row in rows(store, ingestions)}


def test_a_feed_that_differs_only_in_its_bytes_is_no_change(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    """Many feeds state their build time: the body differs at every poll without any news."""
    add_polled_sources(ctx, web, clock, a_definition(url="http://a.test/solo"))
    before = source_row(store).last_changed_at, rows(store, snapshots), rows(store, chapters)
    web.routes["/solo"] = a_feed(1, 2, 3) + b"<!-- built just now -->"

    polled = poll(ctx, web)

    assert polled.counts == PollCounts(unchanged=1)
    assert (source_row(store).last_changed_at, rows(store, snapshots), rows(store, chapters)) == before
    assert source_row(store).last_checked_at == clock.at


def test_a_page_that_cannot_be_parsed_is_stored_once_for_inspection(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    add_polled_sources(ctx, web, clock, a_definition(url="http://a.test/solo"))
    web.routes["/solo"] = b"<!doctype html><html><title>Solo</title></html>"

    for _ in range(2):
        poll(ctx, web)
        clock.advance(days=2)

    [parsed, broken] = rows(store, snapshots)
    assert (parsed.failure, broken.failure) == (None, "not_a_feed")
    assert broken.body_hash == broken.content_hash
    assert ctx.content.get(broken.content_hash).startswith(b"<!doctype html>")


CONFIG = {"items": "li", "fields": {"label": "a", "url": "a@href", "published_at": "i"}, "next": "a.next"}


def test_pages_become_chapters_whose_relative_dates_count_from_the_fetch(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    add_sources(store, a_definition(url="http://a.test/solo", platform="html", config=CONFIG))
    web.routes["/solo"] = "<li><a href=/2>Ch. 2</a><i>yesterday</i></li><a class=next href=/old>"
    web.routes["/old"] = "<li><a href=/1>Ch. 1</a><i>2 days ago</i></li>"

    poll(ctx, web)

    today = clock.at.replace(hour=0, minute=0, second=0, microsecond=0)
    assert {row.number: row.published_at for row in rows(store, chapters)} == {
        2: today - timedelta(days=1),
        1: today - timedelta(days=2),
    }


# A sequence is not rolled back: only the first attempt fails.
ABORTED_ONCE = """
CREATE SEQUENCE times;
CREATE FUNCTION aborted_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('times') = 1 THEN
        RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER aborted_once BEFORE UPDATE ON {table}
    FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION aborted_once();
"""


@ON_POSTGRES
@pytest.mark.parametrize(
    ("table", "when"),
    [
        pytest.param("tasks", "NEW.lease_owner IS NOT NULL", id="claim"),
        pytest.param("hosts", "NEW.lease_owner IS NOT NULL", id="lease"),
        pytest.param("hosts", "NEW.lease_owner IS NULL", id="release"),
        pytest.param("sources", "NEW.last_success_at IS NOT NULL", id="ingestion"),
    ],
)
def test_a_poll_takes_effect_once_even_if_the_database_aborts_one_of_its_transactions(
    ctx: RunContext, store: Store, web: FakeWeb, table: str, when: str
) -> None:
    web.routes["/feed"] = a_feed(1, 2)
    add_sources(store, a_definition(url="http://a.test/feed"))
    with store.begin() as connection:
        connection.execute(text(ABORTED_ONCE.format(table=table, when=when)))

    polled = poll(ctx, web)

    task = task_row(store)
    assert (polled.counts.changed, task.status, task.attempts) == (1, "PENDING", 0)
    assert len(rows(store, chapters)) == 2
    assert rows(store, dead_letters) == []
    assert [row.lease_owner for row in rows(store, hosts)] == [None]
    with store.begin() as connection:
        assert connection.execute(text("SELECT nextval('times')")).scalar_one() > 1
