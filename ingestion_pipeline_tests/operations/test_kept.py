"""Every table that grows is swept, or says why it keeps its rows."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import event

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.operations.retained_tables import RETAINED_TABLES
from ingestion_pipeline.operations.retention import maintain
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import chapter_sources, ingestions, metadata
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import a_feed, a_run_context, given_sources, poll, rows, settings_of

DOCS = Path(__file__).parents[2] / "docs" / "operating.md"


def deleted_from(ctx: RunContext) -> set[str]:
    """The tables that one maintenance takes rows from, by the statements that it sends."""
    sent: list[str] = []

    def hear(_: Any, __: Any, statement: str, *___: Any) -> None:
        sent.append(statement)

    with ctx.store.read() as connection:
        engine = connection.engine
    event.listen(engine, "before_cursor_execute", hear)
    assert maintain(ctx).errors == []
    event.remove(engine, "before_cursor_execute", hear)
    return {found[1] for one in sent if (found := re.search(r"DELETE FROM (\w+)", one))}


def test_every_table_is_swept_or_says_why_it_stays(store: Store, tmp_path: Path) -> None:
    swept = deleted_from(a_run_context(store, settings_of(tmp_path, "")))

    assert swept | RETAINED_TABLES.keys() == metadata.tables.keys()
    assert swept & RETAINED_TABLES.keys() == set()
    assert all(len(why.split()) >= 3 for why in RETAINED_TABLES.values())


def test_what_stays_is_written_down_for_the_operator() -> None:
    text = DOCS.read_text().split("### What is cleared away")[1].split("\n## ")[0]

    assert [name for name in RETAINED_TABLES if f"`{name}`" not in text] == []


def test_a_poll_that_no_row_names_goes_with_age_and_one_that_is_named_stays(
    store: Store, clock: FixedClock, tmp_path: Path
) -> None:
    ctx = a_run_context(store, settings_of(tmp_path, ""))
    given_sources(store, a_definition(url="http://a.test/solo"))
    with FakeWeb({"/solo": a_feed(1, 2)}) as web:
        poll(ctx, web)
        clock.advance(days=1)
        web.routes["/solo"] = a_feed(1, 2, note=" mended")
        poll(ctx, web)
    first, second = sorted(rows(store, ingestions), key=lambda one: one.ingested_at)
    kept = ctx.settings.retention.ingestions_seconds
    clock.advance(seconds=kept - timedelta(days=1).total_seconds() + 60)

    assert maintain(ctx, dry_run=True).counts["ingestions"] == 1
    assert len(rows(store, ingestions)) == 2
    assert maintain(ctx).counts["ingestions"] == 1
    clock.advance(days=60)
    assert maintain(ctx).counts["ingestions"] == 0

    assert [one.id for one in rows(store, ingestions)] == [second.id]
    assert first.id not in {one.ingestion_id for one in rows(store, chapter_sources)}
