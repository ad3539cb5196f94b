"""The line to the database is cut at every COMMIT of a poll in turn: still one effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import (
    batch_items,
    chapter_sources,
    chapters,
    dead_letters,
    ingestions,
    outbox,
    source_versions,
    sources,
    tasks,
)
from ingestion_pipeline.tasks.errors import WorkError
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.cut_lines import CuttingProxy
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import (
    GoingClock,
    a_feed,
    a_run_context,
    given_sources,
    poll,
    rows,
    settings_of,
    source_row,
)
from ingestion_pipeline_tests.postgres import PostgresServer

pytestmark = pytest.mark.postgres
MOST_COMMITS = 40  # of one poll; far more than there are


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[CuttingProxy]:
    with CuttingProxy(postgres_server.folder) as proxy:
        yield proxy


def a_run_context_at(url: str, clock: GoingClock, home: Path) -> RunContext:
    return a_run_context(open_store(url, clock=clock), settings_of(home, url))


def poll_and_be_cut(ctx: RunContext, web: FakeWeb) -> None:
    """A run, which may break off when its database goes away, with no other error than that."""
    with suppress(SQLAlchemyError, WorkError), closing(ctx.store):
        poll(ctx, web)


def poll_until_done(ctx: RunContext, web: FakeWeb, clock: GoingClock) -> None:
    """Runs that come when the claims of the first have expired."""
    for _ in range(3):
        clock.advance(minutes=10)
        if source_row(ctx.store).last_success_at is None:
            poll(ctx, web)


def forget(store: Store) -> None:
    with store.begin() as connection:
        for table in (outbox, chapter_sources, chapters, ingestions, tasks, source_versions, sources):
            connection.execute(table.delete())


@pytest.mark.parametrize("arrives", [True, False], ids=["done", "not-done"])
@pytest.mark.parametrize("database", ["postgres"])
def test_a_commit_whose_answer_is_lost_has_one_effect(
    database_url: str, proxy: CuttingProxy, tmp_path: Path, *, arrives: bool
) -> None:
    clock = GoingClock(datetime(2026, 3, 1, tzinfo=UTC))
    through = database_url.rpartition("host=")[0] + f"host={proxy.folder}"
    with FakeWeb({"/feed": a_feed(7)}) as web:
        ctx = a_run_context_at(database_url, clock, tmp_path / "home")
        cuts = 0
        for cut_at in range(1, MOST_COMMITS):
            given_sources(ctx.store, a_definition(url="http://a.test/feed"))
            with ctx.store.begin() as connection:
                connection.execute(update(sources).values(synced_at=NOON))
            proxy.arm(cut_at, arrives=arrives)
            poll_and_be_cut(a_run_context_at(through, clock, tmp_path / "home"), web)
            if not proxy.cuts:  # a whole poll has fewer commits
                break
            cuts += 1
            poll_until_done(ctx, web, clock)

            result = {item.name: len(rows(ctx.store, item)) for item in (chapters, outbox)}
            assert result == {"chapters": 1, "outbox": 1}, f"cut at commit {cut_at}"
            assert source_row(ctx.store).last_success_at is not None
            assert rows(ctx.store, dead_letters) == rows(ctx.store, batch_items) == []
            forget(ctx.store)
        ctx.store.close()
    assert 3 <= cuts < MOST_COMMITS - 1
