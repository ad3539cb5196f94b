"""Outcomes of a claimed poll while it is fetched, on both databases, from a real server."""

import os
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.sources.source import Definition, Kind
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import batch_items, dead_letters, metadata, sources, tasks
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import Suspicion
from ingestion_pipeline_tests import polling_runs
from ingestion_pipeline_tests.builders import a_definition, a_new_task
from ingestion_pipeline_tests.fakes import ConcurrencyProbe, FakeWeb, Reply, drop, redirect
from ingestion_pipeline_tests.polling_runs import (
    RunningClock,
    a_feed,
    add_sources,
    fetch,
    poll,
    record_fsyncs,
    rows,
    source_row,
    task_row,
    with_settings,
)
from ingestion_pipeline_tests.processes import POLLS, Child

pytestmark = pytest.mark.both_databases

DAY = timedelta(days=1)


@pytest.fixture
def running_clock(store: Store, now: datetime) -> RunningClock:
    """Let the store's clock run from noon, for waits inside a run."""
    store.clock = RunningClock(now)
    return store.clock


def a_source(name: str = "solo", **changes: Any) -> Definition:
    values = {"id": f"series:{name}", "url": f"http://a.test/{name}", "series": name}
    return a_definition(**(values | changes))


def dead_letter(store: Store) -> Any:
    [row] = rows(store, dead_letters)
    return row


def set_source(store: Store, **values: Any) -> None:
    with store.begin() as connection:
        connection.execute(update(sources).values(**values))


def test_a_changed_feed_stays_claimed_and_waits_in_a_batch(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    add_sources(store, a_source())
    web.routes["/solo"] = Reply(a_feed(1), headers={"ETag": '"v1"', "Content-Type": "text/xml"})

    worker, fetched = fetch(ctx, web)

    assert (fetched.counts.changed, fetched.owner) == (1, worker.owner)
    [batch_item] = rows(store, batch_items)
    task, [page] = task_row(store), batch_item.fetched["pages"]
    assert [batch_item.batch_id] == fetched.batch_ids
    assert (batch_item.task_id, batch_item.fence) == (task.id, task.fence)
    assert (task.status, task.lease_owner, task.stage) == ("PROCESSING", worker.owner, "fetched")
    assert (page["etag"], page["content_type"]) == ('"v1"', "text/xml")
    assert ctx.content.get(page["content_hash"]) == a_feed(1)
    assert source_row(store).last_checked_at is None


@pytest.mark.slow
@pytest.mark.parametrize("has_etag", [True, False], ids=["by 304", "by equal hash"])
def test_an_unchanged_poll_writes_its_source_and_its_task_and_nothing_else(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock, has_etag: bool
) -> None:
    add_sources(store, a_source())
    web.routes["/solo"] = Reply(a_feed(1, 2), headers={"ETag": '"v1"'} if has_etag else {})
    poll(ctx, web)
    before = all_rows(store)
    later = clock.advance(days=1)

    polled = poll(ctx, web)

    after = all_rows(store)
    assert polled.counts.unchanged == 1
    assert {name for name in after if after[name] != before[name]} == {"sources", "tasks", "hosts"}
    assert (web.requests[1].headers.get("if-none-match") == '"v1"') is has_etag
    source, task = source_row(store), task_row(store)
    assert (source.last_checked_at, source.last_outcome) == (later, "unchanged")
    assert source.last_changed_at == later - DAY
    assert (task.status, task.attempts, task.not_before) == ("PENDING", 0, source.next_check_at)


def all_rows(store: Store) -> dict[str, list[Any]]:
    return {name: rows(store, table) for name, table in metadata.tables.items()}


@pytest.mark.slow
def test_a_changed_feed_is_ingested_before_a_long_retry_of_another_source(
    ctx: RunContext, store: Store, web: FakeWeb, running_clock: RunningClock
) -> None:
    add_sources(store, a_source("good"), a_source("bad"))
    web.routes |= {"/good": a_feed(1), "/bad": drop}

    _, fetched = fetch(with_settings(ctx, polling__run_seconds="1", work__backoff_base_seconds="2"), web)

    assert (fetched.counts.changed, fetched.counts.retried, fetched.counts.failed) == (1, 1, 0)
    assert (len(fetched.batch_ids), web.paths.count("/bad")) == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("configured", "most"), [({}, 32), ({"polling__concurrency": "3"}, 3)])
def test_concurrent_requests_never_exceed_the_configured_limit(
    ctx: RunContext, store: Store, web: FakeWeb, configured: dict[str, str], most: int
) -> None:
    crowd = ConcurrencyProbe(a_feed(1), most=most)
    web.routes["/feed"] = crowd
    names = [f"s{number}" for number in range(most + 3)]
    add_sources(store, *(a_source(name, url=f"http://{name}.test/feed") for name in names))

    fetch(with_settings(ctx, **configured), web)

    assert (len(rows(store, batch_items)), crowd.peak) == (len(names), most)


def test_a_fetched_body_is_synced_to_disk(
    ctx: RunContext, store: Store, web: FakeWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = record_fsyncs(monkeypatch)
    add_sources(store, a_source())
    web.routes["/solo"] = a_feed(1)

    fetch(ctx, web)

    assert len(rows(store, batch_items)) == 1
    assert len(synced) >= 2  # the object, and its folder


def test_a_redirect_to_a_refused_address_is_blocked_and_not_followed(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    add_sources(store, a_source())
    web.routes["/solo"] = redirect(web.url("/secret"))

    fetch(ctx, web)

    assert web.paths == ["/solo"]
    assert dead_letter(store).error_code == "blocked_address"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"platform": "geocities"}, "no series platform is called 'geocities'"),
        ({"config": {"colour": "red"}}, "colour is"),
        ({"id": "website:x", "kind": Kind.WEBSITE}, "nothing polls sources of kind website"),
    ],
    ids=["platform", "config", "kind"],
)
def test_a_source_that_cannot_work_is_a_dead_letter_without_a_request(
    ctx: RunContext, store: Store, web: FakeWeb, changes: dict[str, Any], message: str
) -> None:
    add_sources(store, a_source(**changes))

    fetch(replace(ctx, deferred_systems={}), web)

    assert web.requests == []
    assert dead_letter(store).error_code == "bad_config"
    assert message in dead_letter(store).error


def test_a_poll_whose_source_was_deleted_is_skipped(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    with store.begin() as connection:
        insert_tasks(connection, [a_new_task()], now=store.clock.now(connection))

    _, fetched = fetch(ctx, web)

    assert (fetched.counts.skipped, task_row(store).status) == (1, "SKIPPED")


def test_a_poll_that_killed_three_workers_is_dead_lettered_without_a_request(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    add_sources(store, a_source("poison"))
    for _ in range(3):
        assert len(Worker(store, lease_seconds=60).claim(POLLS, limit=1)) == 1
        with store.begin() as connection:
            connection.execute(update(tasks).values(stage="fetched", suspicion=Suspicion.ALONE))
        clock.advance(minutes=2)
    add_sources(store, a_source("other"))
    web.routes |= {"/poison": a_feed(1), "/other": a_feed(1)}

    _, fetched = fetch(ctx, web)

    assert web.paths == ["/other"]
    assert (fetched.counts.failed, fetched.counts.changed) == (1, 1)
    assert (dead_letter(store).error_code, dead_letter(store).stage) == ("worker_lost", "fetched")
    assert "worker lost 3 times" in dead_letter(store).error
    assert (source_row(store, "series:poison").failure_count) == 1


def test_every_due_source_is_polled_even_in_small_batches(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    """A run once ended as soon as its visits had, even if other sources were due."""
    names = ["one", "two", "three", "four", "five"]
    add_sources(store, *map(a_source, names))
    web.routes |= {f"/{name}": a_feed(1) for name in names}

    _, fetched = fetch(with_settings(ctx, polling__batch_size="2"), web)

    assert fetched.counts.changed == 5
    assert sorted(web.paths) == sorted(f"/{name}" for name in names)


@pytest.mark.parametrize(
    "changes",
    [{"needs_full_read": True}, {"parser_version": "rss:0:{}"}],
    ids=["needs a full read", "was read by another reader"],
)
def test_a_source_that_must_be_read_again_is_fetched_unconditionally(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock, changes: dict[str, Any]
) -> None:
    add_sources(store, a_source())
    web.routes["/solo"] = Reply(a_feed(1), headers={"ETag": '"v1"'})
    poll(ctx, web)
    set_source(store, **changes)
    clock.advance(days=1)

    _, fetched = fetch(ctx, web)

    assert "if-none-match" not in web.requests[1].headers
    assert fetched.counts.changed == 1


def test_a_manual_poll_fetches_only_the_requested_source_even_if_it_is_not_due(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    add_sources(store, a_source("one"), a_source("two"))
    web.routes |= {"/one": a_feed(1), "/two": a_feed(1)}
    poll(ctx, web)
    add_sources(store, a_source("due"))

    polled = poll(ctx, web, ClaimFilter(kind="poll", source_ids=["series:two"]))

    assert web.paths[2:] == ["/two"]
    assert polled.counts.unchanged == 1


def test_a_manual_poll_of_more_sources_than_a_batch_polls_each_once(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    """The first claim once took one batch, and the rest was never claimed."""
    names = ["one", "two", "three", "four", "five"]
    add_sources(store, *map(a_source, names))
    web.routes |= {f"/{name}": a_feed(1) for name in names}
    poll(ctx, web)
    web.requests.clear()

    by_hand = ClaimFilter(kind="poll", source_ids=[f"series:{name}" for name in names])
    polled = poll(with_settings(ctx, polling__batch_size="2"), web, by_hand)

    assert polled.counts.unchanged == 5
    assert sorted(web.paths) == sorted(f"/{name}" for name in names)


def test_a_manual_poll_retries_only_the_failed_source(
    ctx: RunContext, store: Store, web: FakeWeb, running_clock: RunningClock
) -> None:
    add_sources(store, a_source("one"), a_source("two"))
    web.routes |= {"/one": a_feed(1), "/two": [500, a_feed(1)]}
    claim_filter = ClaimFilter(kind="poll", source_ids=["series:one", "series:two"])

    fetch(ctx, web, claim_filter)

    assert web.paths == ["/one", "/two", "/two"]


@pytest.mark.slow
def test_a_full_disk_releases_even_the_tasks_fetched_before(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    """A real file size limit, in a separate process."""
    add_sources(store, a_source("1-small"), a_source("2-large"), a_source("3-never"))
    noise = os.urandom(4_000_000).hex().encode()
    web.routes |= {"/1-small": a_feed(1), "/2-large": noise, "/3-never": a_feed(1)}
    home, url = ctx.settings.home, ctx.settings.store_url
    job = polling_runs.WorkerJob(url=url, home=home, port=web.port, changes={})

    message = Child(polling_runs.poll_on_a_full_disk, job, 3_000_000).result()

    assert message.startswith("Fatal: the content store does not work: [Errno 27] File too large")
    assert web.paths == ["/1-small", "/2-large"]
    tasks_by_source = {task.source_id: task for task in rows(store, tasks)}
    assert {(task.status, task.attempts) for task in tasks_by_source.values()} == {("PENDING", 0)}
    assert tasks_by_source["series:2-large"].error_code == "storage"
    assert {source.failure_count for source in rows(store, sources)} == {0}
    assert rows(store, batch_items) == rows(store, dead_letters) == []
    assert list((ctx.settings.home / "content").rglob("*.tmp")) == []
