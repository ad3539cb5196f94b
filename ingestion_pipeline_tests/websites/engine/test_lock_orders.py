"""A phase's task before its analysis: whoever works on it, and whoever replays its letter."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

from sqlalchemy import Connection, insert, select

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import tasks, website_analyses
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask
from ingestion_pipeline.websites.runs.starting import FIRST
from ingestion_pipeline.websites.runs.system import requeue_phase
from ingestion_pipeline_tests.lock_orders import ON_POSTGRES, locked_meanwhile
from ingestion_pipeline_tests.pollers import given_sources
from ingestion_pipeline_tests.websites.engine.analysing import a_website


@ON_POSTGRES
def test_a_letter_that_is_replayed_waits_for_its_task_without_holding_the_analysis(store: Store, now: datetime) -> None:
    given_sources(store, a_website())
    row = {"source_id": "website:acme", "url": "http://acme.test/", "status": "failed"}
    row |= {"current_step": "failed", "priority": 1, "tracking_id": "t", "phase_times": {}}
    with store.begin() as connection:
        times = {"created_at": now, "updated_at": now}
        made = insert(website_analyses).values(row | times).returning(website_analyses.c.id)
        id_ = connection.execute(made).scalar_one()
        new = NewTask(kind=FIRST.kind, dedupe_key="1", not_before=now)
        [task_id] = insert_tasks(connection, [new], now=now)
    dead_letter = {"task_id": task_id, "task_kind": FIRST.kind, "payload": {"analysis": id_}}

    def replay(connection: Connection) -> None:
        assert requeue_phase(connection, cast("Any", dead_letter), now) == "queued"

    held = select(tasks.c.id).where(tasks.c.id == task_id)
    among = select(website_analyses.c.id)
    assert locked_meanwhile(store, replay, held=held, among=among) == []
