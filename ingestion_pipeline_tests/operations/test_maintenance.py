"""Maintenance: retention of alerts, concurrent runs, and the tables that are swept or retained."""

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, insert, select

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.operations.retention import SweepResult, maintain
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import (
    batch_items,
    chapter_sources,
    dead_letters,
    ingestions,
    metadata,
    notices,
    outbox,
    runs,
    tasks,
)
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline_tests.builders import a_definition, a_new_task
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.lock_orders import ON_POSTGRES
from ingestion_pipeline_tests.operations.failing_sources import add_healthy_sources, break_sources
from ingestion_pipeline_tests.polling_runs import (
    a_feed,
    a_run_context,
    add_sources,
    fast_settings,
    poll,
    rows,
)

pytestmark = pytest.mark.both_databases

DAY = timedelta(days=1)

# The tables whose rows are kept, and why; all others have a sweep in `retention`. A new table needs one of the two.
_PUBLISHED = "published records, the purpose of the pipeline"
_PER_SOURCE = "one row for each source, or less"

RETAINED_TABLES: dict[str, str] = {
    "series": _PUBLISHED,
    "chapters": _PUBLISHED,
    "chapter_sources": _PUBLISHED,
    "companies": _PUBLISHED,
    "job_listings": f"{_PUBLISHED}; a closed one is recognised when it returns",
    "listing_sources": f"{_PUBLISHED}; a closed one is recognised when it returns",
    "job_matches": f"{_PUBLISHED}; one at the most for each listing",
    "businesses": _PUBLISHED,
    "website_rankings": "histories are drawn from them; one row a day for each business",
    "sources": "removed by disabling only: their ids are permanent partitions",
    "source_versions": "lineage names them; one row for each change of a configuration",
    "source_health": _PER_SOURCE,
    "observed_health": _PER_SOURCE,
    "recipes": _PER_SOURCE,
    "learned_selectors": "one row for each source and type",
    "hosts": "one row for each server, which has its robots.txt and its pace",
    "recipients": "the operator's own",
    "follows": "the operator's own",
    "settings": "the operator's own; one row for each setting",
    "audit_log": "must be available however old; few rows a day",
    "export_cursors": "one row for each export and folder",
    "task_totals": "one row for each kind of task and way to end",
    "measurements": "one row for each figure that is measured",
    "service_heartbeats": "one row for each heartbeat",
    "model_endpoints": "one row for each server of models",
}


@pytest.fixture
def ctx(store: Store, settings: Settings, tmp_path: Path) -> RunContext:
    content = ContentStore(tmp_path / "content")
    return RunContext(store=store, settings=settings, content=content, systems={})


def test_sent_alerts_are_deleted_by_age_and_record_notices_stay(ctx: RunContext, now: datetime) -> None:
    notice_states = [
        ("source_degraded", "sent", 91),
        ("budget", "muted", 91),
        ("source_degraded", "failed", 91),
        ("run_failures", "pending", 91),
        ("daemon_silent", "sent", 89),
        ("chapter", "sent", 900),
        ("extraction", "sent", 900),
    ]
    with ctx.store.begin() as connection:
        for position, (kind, status, days) in enumerate(notice_states):
            row = {"recipient": "ops", "subject_kind": kind, "subject_id": str(position)}
            state = {"status": status, "mode": "immediate", "payload": {}}
            connection.execute(insert(notices).values(row | state | {"created_at": now - days * DAY}))

    sweep = maintain(ctx)

    assert sweep.errors == []
    assert sweep.counts["alerts"] == 2
    with ctx.store.read() as connection:
        remaining = connection.execute(select(notices.c.subject_id).order_by(notices.c.id)).scalars()
        assert list(remaining) == ["2", "3", "4", "5", "6"]


@pytest.mark.slow
def test_two_concurrent_maintenance_runs_sweep_and_alert_once(ctx: RunContext, now: datetime) -> None:
    with ctx.store.begin() as connection:
        break_sources(connection, add_healthy_sources(connection, 200, now=now), per_failure=10, now=now)
        finished = [a_new_task(kind="page", dedupe_key=f"t{n}") for n in range(300)]
        insert_tasks(connection, finished, now=now)
        is_page = tasks.c.kind == "page"
        old = {"status": "SUCCESS", "updated_at": now - DAY}
        connection.execute(tasks.update().where(is_page).values(old))

    with ThreadPoolExecutor(2) as pool:
        sweeps: list[SweepResult] = list(pool.map(lambda _: maintain(ctx), range(2)))

    assert [sweep.errors for sweep in sweeps] == [[], []]
    for name, count in (("finished_tasks", 300), ("health", 50)):
        assert sum(sweep.counts[name] for sweep in sweeps) == count
    with ctx.store.read() as connection:
        kinds = list(connection.execute(select(outbox.c.subject_kind)).scalars())
    assert len(kinds) == 50


@ON_POSTGRES
def test_locked_rows_are_neither_swept_nor_waited_for(ctx: RunContext, now: datetime) -> None:
    swept = {
        "finished_tasks": (tasks, _task_row(now)),
        "dead_letters": (dead_letters, _dead_letter_row(now)),
        "batches": (batch_items, _batch_item_row(now)),
        "runs": (runs, {"run_id": "r", "job": "j", "lease_owner": "o", **_times(now)}),
        "outbox": (outbox, _outbox_row(now)),
    }
    with ctx.store.begin() as connection:
        for table, row in swept.values():
            connection.execute(insert(table).values(row))
    with ctx.store.begin() as holder, ThreadPoolExecutor(1) as pool:
        for table, _ in swept.values():
            holder.execute(select(*table.primary_key).with_for_update()).all()
        during = pool.submit(maintain, ctx).result(30)
    afterwards = maintain(ctx)

    assert (during.errors, afterwards.errors) == ([], [])
    assert {name: during.counts[name] for name in swept} == dict.fromkeys(swept, 0)
    assert {name: afterwards.counts[name] for name in swept} == dict.fromkeys(swept, 1)


def _times(now: datetime) -> dict[str, Any]:
    long_ago = now - 900 * DAY
    return {"started_at": long_ago, "ended_at": long_ago, "lease_until": long_ago}


def _task_row(now: datetime) -> dict[str, Any]:
    row = {"kind": "page", "dedupe_key": "old", "payload": {}, "status": "SUCCESS", "priority": 5}
    row |= {"shard": 0, "tracking_id": "t", "ancestry": [], "not_before": now, "created_at": now}
    return row | {"updated_at": now - DAY}


def _dead_letter_row(now: datetime) -> dict[str, Any]:
    row = {"task_id": 1, "task_kind": "page", "payload": {}, "error_class": "permanent"}
    row |= {"error_code": "http_404", "error": "404", "attempts": 1, "tracking_id": "t"}
    return row | {"failed_at": now - 900 * DAY, "replayed_at": now - 900 * DAY}


def _batch_item_row(now: datetime) -> dict[str, Any]:
    row = {"batch_id": "b", "task_id": 1, "fence": 1, "source_id": "series:a", "fetched": {}}
    return row | {"fetched_at": now - 900 * DAY}


def _outbox_row(now: datetime) -> dict[str, Any]:
    row = {"subject_kind": "chapter", "subject_id": "1", "payload": {}}
    return row | {"created_at": now - 900 * DAY, "handled_at": now - 900 * DAY}


DOCS = Path(__file__).parents[2] / "docs" / "operating" / "retention.md"


def swept_tables(ctx: RunContext) -> set[str]:
    """Return the tables that a maintenance run deletes from, by the statements that it sends."""
    sent: list[str] = []

    def record(_: Any, __: Any, statement: str, *___: Any) -> None:
        sent.append(statement)

    with ctx.store.read() as connection:
        engine = connection.engine
    event.listen(engine, "before_cursor_execute", record)
    assert maintain(ctx).errors == []
    event.remove(engine, "before_cursor_execute", record)
    return {match[1] for statement in sent if (match := re.search(r"DELETE FROM (\w+)", statement))}


def test_every_table_is_swept_or_has_a_reason_to_be_retained(store: Store, tmp_path: Path) -> None:
    swept = swept_tables(a_run_context(store, fast_settings(tmp_path, "")))

    assert swept | RETAINED_TABLES.keys() == metadata.tables.keys()
    assert swept & RETAINED_TABLES.keys() == set()
    assert all(len(reason.split()) >= 3 for reason in RETAINED_TABLES.values())


def test_retained_tables_are_documented() -> None:
    text = DOCS.read_text()

    assert [name for name in RETAINED_TABLES if f"`{name}`" not in text] == []


@pytest.mark.slow
def test_an_unreferenced_ingestion_is_deleted_by_age_and_a_referenced_one_stays(
    store: Store, clock: FixedClock, tmp_path: Path
) -> None:
    ctx = a_run_context(store, fast_settings(tmp_path, ""))
    add_sources(store, a_definition(url="http://a.test/solo"))
    with FakeWeb({"/solo": a_feed(1, 2)}) as web:
        poll(ctx, web)
        clock.advance(days=1)
        web.routes["/solo"] = a_feed(1, 2, note=" mended")
        poll(ctx, web)
    first, second = sorted(rows(store, ingestions), key=lambda row: row.ingested_at)
    retention_seconds = ctx.settings.retention.ingestions_seconds
    clock.advance(seconds=retention_seconds - timedelta(days=1).total_seconds() + 60)

    assert maintain(ctx, dry_run=True).counts["ingestions"] == 1
    assert len(rows(store, ingestions)) == 2
    assert maintain(ctx).counts["ingestions"] == 1
    clock.advance(days=60)
    assert maintain(ctx).counts["ingestions"] == 0

    assert [row.id for row in rows(store, ingestions)] == [second.id]
    assert first.id not in {row.ingestion_id for row in rows(store, chapter_sources)}
