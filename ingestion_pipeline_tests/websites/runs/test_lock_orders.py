"""The task of a phase is locked before its analysis, also by a replayed dead letter."""

from datetime import datetime
from typing import Any, cast

import pytest
from sqlalchemy import Connection, insert, select

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import tasks, website_analyses
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask
from ingestion_pipeline.websites.analysis_rows import FIRST, requeue_phase
from ingestion_pipeline_tests.lock_orders import ON_POSTGRES, rows_locked_while_waiting
from ingestion_pipeline_tests.polling_runs import add_sources
from ingestion_pipeline_tests.websites.website_runs import a_website

pytestmark = pytest.mark.both_databases


@ON_POSTGRES
def test_replaying_a_dead_letter_waits_for_its_task_without_locking_the_analysis(store: Store, now: datetime) -> None:
    add_sources(store, a_website())
    row = {"source_id": "website:acme", "url": "http://acme.test/", "status": "failed"}
    row |= {"current_step": "failed", "priority": 1, "tracking_id": "t", "phase_times": {}}
    with store.begin() as connection:
        times = {"created_at": now, "updated_at": now}
        insert_analysis = insert(website_analyses).values(row | times).returning(website_analyses.c.id)
        id_ = connection.execute(insert_analysis).scalar_one()
        new = NewTask(kind=FIRST.kind, dedupe_key="1", not_before=now)
        [task_id] = insert_tasks(connection, [new], now=now)
    dead_letter = {"task_id": task_id, "task_kind": FIRST.kind, "payload": {"analysis": id_}}

    def replay(connection: Connection) -> None:
        assert requeue_phase(connection, cast("Any", dead_letter), now) == "queued"

    locked_task = select(tasks.c.id).where(tasks.c.id == task_id)
    analysis_ids = select(website_analyses.c.id)
    assert rows_locked_while_waiting(store, replay, held=locked_task, among=analysis_ids) == []
