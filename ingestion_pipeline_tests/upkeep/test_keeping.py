"""What is kept of alerts, and that two who keep the house at once do no harm."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, select

from ingestion_pipeline.pages.content import ContentStore
from ingestion_pipeline.pages.workshop import Workshop
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import notices, outbox, tasks
from ingestion_pipeline.upkeep.keeping import Swept, maintain
from ingestion_pipeline.work.queue import insert_tasks
from ingestion_pipeline_tests.builders import a_new_task
from ingestion_pipeline_tests.upkeep.failing import broken, given

DAY = timedelta(days=1)


@pytest.fixture
def shop(store: Store, settings: Settings, tmp_path: Path) -> Workshop:
    content = ContentStore(tmp_path / "content")
    return Workshop(store=store, settings=settings, content=content, systems={})


def test_alerts_that_were_told_go_after_a_while_and_news_of_records_stay(
    shop: Workshop, now: datetime
) -> None:
    told = [
        ("source_degraded", "sent", 91),
        ("budget", "muted", 91),
        ("source_degraded", "failed", 91),
        ("run_failures", "pending", 91),
        ("daemon_silent", "sent", 89),
        ("chapter", "sent", 900),
        ("extraction", "sent", 900),
    ]
    with shop.store.begin() as connection:
        for place, (kind, status, days) in enumerate(told):
            row = {"recipient": "ops", "subject_kind": kind, "subject_id": str(place)}
            state = {"status": status, "mode": "immediate", "payload": {}}
            connection.execute(
                insert(notices).values(row | state | {"created_at": now - days * DAY})
            )

    done = maintain(shop)

    assert done.errors == []
    assert done.counts["alerts"] == 2
    with shop.store.read() as connection:
        left = connection.execute(select(notices.c.subject_id).order_by(notices.c.id)).scalars()
        assert list(left) == ["2", "3", "4", "5", "6"]


def test_two_who_keep_the_house_at_once_sweep_and_tell_everything_once(
    shop: Workshop, now: datetime
) -> None:
    with shop.store.begin() as connection:
        broken(connection, given(connection, 200, now=now), each=10, now=now)
        ended = [a_new_task(kind="page", dedupe_key=f"t{n}") for n in range(300)]
        insert_tasks(connection, ended, now=now)
        is_page = tasks.c.kind == "page"
        old = {"status": "SUCCESS", "updated_at": now - DAY}
        connection.execute(tasks.update().where(is_page).values(old))

    with ThreadPoolExecutor(2) as both:
        done: list[Swept] = list(both.map(lambda _: maintain(shop), range(2)))

    assert [one.errors for one in done] == [[], []]
    for name, count in (("finished_tasks", 300), ("health", 50)):
        assert sum(one.counts[name] for one in done) == count
    with shop.store.read() as connection:
        kinds = list(connection.execute(select(outbox.c.subject_kind)).scalars())
    assert len(kinds) == 50
