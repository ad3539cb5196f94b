"""How far the house is behind, in numbers."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import insert, update

from ingestion_pipeline.operations.health import source_statuses
from ingestion_pipeline.operations.queues import Backlog, backlog, queues
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import batch_items, sources, tasks
from ingestion_pipeline_tests.operations.failing import given


def behind(store: Store, settings: Settings, now: datetime) -> Backlog:
    with store.read() as connection:
        facts = [one.facts for one in source_statuses(connection, settings, now=now)]
        waiting = queues(connection, now=now)
        return backlog(connection, facts, waiting, now=now, limits=settings.health)


def test_an_idle_house_is_behind_with_nothing(store: Store, settings: Settings, now: datetime) -> None:
    assert behind(store, settings, now) == Backlog(
        due=0, overdue=0, oldest_overdue_seconds=0, waiting_to_ingest=0, ingestion_lag_seconds=0
    )


def test_due_and_overdue_polls_and_fetched_listings_are_counted_with_their_age(
    store: Store, settings: Settings, now: datetime
) -> None:
    with store.begin() as connection:
        ids = given(connection, 6, now=now)
        ages = {ids[0]: timedelta(minutes=1), ids[1]: timedelta(days=3), ids[2]: timedelta(days=9)}
        for id_, age in ages.items():
            due = {"not_before": now - age}
            connection.execute(update(tasks).where(tasks.c.source_id == id_).values(due))
        off = update(sources).where(sources.c.id == ids[2])
        connection.execute(off.values(status="disabled"))  # nobody has to come for it
        item = {"batch_id": "b", "task_id": 1, "fence": 1, "source_id": ids[3], "fetched": {}}
        fetched_at = now - timedelta(minutes=7)
        connection.execute(insert(batch_items).values(item | {"fetched_at": fetched_at}))

    assert behind(store, settings, now) == Backlog(
        due=2, overdue=1, oldest_overdue_seconds=3 * 86_400, waiting_to_ingest=1, ingestion_lag_seconds=420
    )
