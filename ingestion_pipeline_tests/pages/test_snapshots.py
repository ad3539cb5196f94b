"""What is kept of pages: those that said something, each once."""

from __future__ import annotations

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.polling.results import PollCounts
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import chapters, snapshots
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import a_feed, given_sources, poll, rows, source_row


def polled_once(ctx: RunContext, web: FakeWeb, clock: FixedClock) -> None:
    """One source with chapters 1 to 3, due again."""
    given_sources(ctx.store, a_definition(url="http://a.test/solo"))
    web.routes["/solo"] = a_feed(1, 2, 3)
    poll(ctx, web)
    clock.advance(days=1)


def test_a_feed_that_differs_only_in_its_bytes_is_no_change(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    """Many feeds state when they were built: at every poll another body, and nothing new."""
    polled_once(ctx, web, clock)
    before = source_row(store).last_changed_at, rows(store, snapshots), rows(store, chapters)
    web.routes["/solo"] = a_feed(1, 2, 3) + b"<!-- built just now -->"

    polled = poll(ctx, web)

    assert polled.counts == PollCounts(unchanged=1)
    assert (source_row(store).last_changed_at, rows(store, snapshots), rows(store, chapters)) == before
    assert source_row(store).last_checked_at == clock.at


def test_a_page_that_cannot_be_read_is_kept_to_be_looked_at_once(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    polled_once(ctx, web, clock)
    web.routes["/solo"] = b"<!doctype html><html><title>Solo</title></html>"

    for _ in range(2):
        poll(ctx, web)
        clock.advance(days=2)

    [good, broken] = rows(store, snapshots)
    assert (good.failure, broken.failure) == (None, "not_a_feed")
    assert broken.body_hash == broken.content_hash
    assert ctx.content.get(broken.content_hash).startswith(b"<!doctype html>")
