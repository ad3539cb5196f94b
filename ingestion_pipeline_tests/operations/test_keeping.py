"""What is kept of alerts, and that two who keep the house at once do no harm."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.operations.retention import SweepResult, maintain
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import batch_items, dead_letters, notices, outbox, runs, tasks
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline_tests.builders import a_new_task
from ingestion_pipeline_tests.lock_orders import ON_POSTGRES
from ingestion_pipeline_tests.operations.failing import broken, given

DAY = timedelta(days=1)


@pytest.fixture
def ctx(store: Store, settings: Settings, tmp_path: Path) -> RunContext:
    content = ContentStore(tmp_path / "content")
    return RunContext(store=store, settings=settings, content=content, systems={})


def test_alerts_that_were_told_go_after_a_while_and_news_of_records_stay(ctx: RunContext, now: datetime) -> None:
    told = [
        ("source_degraded", "sent", 91),
        ("budget", "muted", 91),
        ("source_degraded", "failed", 91),
        ("run_failures", "pending", 91),
        ("daemon_silent", "sent", 89),
        ("chapter", "sent", 900),
        ("extraction", "sent", 900),
    ]
    with ctx.store.begin() as connection:
        for place, (kind, status, days) in enumerate(told):
            row = {"recipient": "ops", "subject_kind": kind, "subject_id": str(place)}
            state = {"status": status, "mode": "immediate", "payload": {}}
            connection.execute(insert(notices).values(row | state | {"created_at": now - days * DAY}))

    done = maintain(ctx)

    assert done.errors == []
    assert done.counts["alerts"] == 2
    with ctx.store.read() as connection:
        left = connection.execute(select(notices.c.subject_id).order_by(notices.c.id)).scalars()
        assert list(left) == ["2", "3", "4", "5", "6"]


def test_two_who_keep_the_house_at_once_sweep_and_tell_everything_once(ctx: RunContext, now: datetime) -> None:
    with ctx.store.begin() as connection:
        broken(connection, given(connection, 200, now=now), each=10, now=now)
        ended = [a_new_task(kind="page", dedupe_key=f"t{n}") for n in range(300)]
        insert_tasks(connection, ended, now=now)
        is_page = tasks.c.kind == "page"
        old = {"status": "SUCCESS", "updated_at": now - DAY}
        connection.execute(tasks.update().where(is_page).values(old))

    with ThreadPoolExecutor(2) as both:
        done: list[SweepResult] = list(both.map(lambda _: maintain(ctx), range(2)))

    assert [one.errors for one in done] == [[], []]
    for name, count in (("finished_tasks", 300), ("health", 50)):
        assert sum(one.counts[name] for one in done) == count
    with ctx.store.read() as connection:
        kinds = list(connection.execute(select(outbox.c.subject_kind)).scalars())
    assert len(kinds) == 50


@ON_POSTGRES
def test_what_somebody_has_locked_is_neither_swept_nor_waited_for(ctx: RunContext, now: datetime) -> None:
    swept = {
        "finished_tasks": (tasks, _task_row(now)),
        "dead_letters": (dead_letters, _letter_row(now)),
        "batches": (batch_items, _item_row(now)),
        "runs": (runs, {"run_id": "r", "job": "j", "lease_owner": "o", **_times(now)}),
        "outbox": (outbox, _told_row(now)),
    }
    with ctx.store.begin() as connection:
        for table, row in swept.values():
            connection.execute(insert(table).values(row))
    with ctx.store.begin() as another, ThreadPoolExecutor(1) as pool:
        for table, _ in swept.values():
            another.execute(select(*table.primary_key).with_for_update()).all()
        done = pool.submit(maintain, ctx).result(30)
    later = maintain(ctx)

    assert (done.errors, later.errors) == ([], [])
    assert {name: done.counts[name] for name in swept} == dict.fromkeys(swept, 0)
    assert {name: later.counts[name] for name in swept} == dict.fromkeys(swept, 1)


def _times(now: datetime) -> dict[str, Any]:
    long_ago = now - 900 * DAY
    return {"started_at": long_ago, "ended_at": long_ago, "lease_until": long_ago}


def _task_row(now: datetime) -> dict[str, Any]:
    row = {"kind": "page", "dedupe_key": "old", "payload": {}, "status": "SUCCESS", "priority": 5}
    row |= {"shard": 0, "tracking_id": "t", "ancestry": [], "not_before": now, "created_at": now}
    return row | {"updated_at": now - DAY}


def _letter_row(now: datetime) -> dict[str, Any]:
    row = {"task_id": 1, "task_kind": "page", "payload": {}, "error_class": "permanent"}
    row |= {"error_code": "http_404", "error": "404", "attempts": 1, "tracking_id": "t"}
    return row | {"failed_at": now - 900 * DAY, "replayed_at": now - 900 * DAY}


def _item_row(now: datetime) -> dict[str, Any]:
    row = {"batch_id": "b", "task_id": 1, "fence": 1, "source_id": "series:a", "fetched": {}}
    return row | {"fetched_at": now - 900 * DAY}


def _told_row(now: datetime) -> dict[str, Any]:
    row = {"subject_kind": "chapter", "subject_id": "1", "payload": {}}
    return row | {"created_at": now - 900 * DAY, "handled_at": now - 900 * DAY}
