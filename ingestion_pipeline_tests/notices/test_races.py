"""What two transactions that meet make of a notice; on PostgreSQL, where they can."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from ingestion_pipeline.notices import rows
from ingestion_pipeline.notices.tasks import DELIVER
from ingestion_pipeline.series.operator_changes import merge
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.task import rearmed
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline_tests.notices.telling import Telling
from ingestion_pipeline_tests.test_retention import wait_until_blocked

pytestmark = pytest.mark.parametrize(
    "database", [pytest.param("postgres", marks=pytest.mark.postgres)], ids=["postgres"]
)


def test_news_that_comes_while_its_recipient_is_put_off_till_tomorrow_wakes_them(
    telling: Telling, clock: FixedClock
) -> None:
    telling.given_follower()
    telling.publish(1)
    telling.deliver()
    clock.advance(seconds=15)
    worker = Worker(telling.store, lease_seconds=120)
    [task] = worker.claim(ClaimFilter(kind=DELIVER), limit=1)
    telling.publish(2)

    with ThreadPoolExecutor(1) as pool:
        with telling.store.begin() as connection:
            assert claims.held(connection, [(task.id, task.fence)])
            expansion = pool.submit(telling.expand)
            wait_until_blocked(telling.store)
            later = rearmed(task, not_before=clock.at + timedelta(days=1), priority=1)
            claims.apply(connection, [later], now=clock.at)
        assert expansion.result(60).notices == 1

    assert telling.task().not_before == clock.at + timedelta(seconds=15)


def test_a_merge_that_meets_a_deliverer_keeps_the_notice_that_is_being_sent(
    telling: Telling, clock: FixedClock
) -> None:
    telling.given_follower("ann", "solo", "other")
    telling.publish(1)
    telling.publish(1, series_id="other")
    telling.expand()
    [going] = telling.notices(series_id="solo")

    def merge_now() -> None:
        with telling.store.begin() as connection:
            merge(connection, "solo", "other", actor="test", now=clock.at)

    with ThreadPoolExecutor(1) as pool:
        with telling.store.begin() as connection:
            rows.seal(connection, [going.id], "d-1")
            merging = pool.submit(merge_now)
            wait_until_blocked(telling.store)
        merging.result(60)

    assert [(row.id, row.delivery_id) for row in telling.notices()] == [(going.id, "d-1")]
