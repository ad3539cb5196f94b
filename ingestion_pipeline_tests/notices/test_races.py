"""Two concurrent transactions on one notice; on PostgreSQL, since SQLite has one writer."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from ingestion_pipeline.notices import queries
from ingestion_pipeline.notices.queries import DELIVER
from ingestion_pipeline.series.series_changes import merge
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.task import rearmed
from ingestion_pipeline_tests.notices.notice_harness import NoticeHarness
from ingestion_pipeline_tests.operations.test_retention import wait_until_blocked

pytestmark = pytest.mark.parametrize(
    "database", [pytest.param("postgres", marks=pytest.mark.postgres)], ids=["postgres"]
)


def test_a_notice_added_while_its_delivery_is_rescheduled_advances_it(
    harness: NoticeHarness, clock: FixedClock
) -> None:
    harness.add_follower()
    harness.publish(1)
    harness.deliver()
    clock.advance(seconds=15)
    worker = Worker(harness.store, lease_seconds=120)
    [task] = worker.claim(ClaimFilter(kind=DELIVER), limit=1)
    harness.publish(2)

    with ThreadPoolExecutor(1) as pool:
        with harness.store.begin() as connection:
            assert claims.held(connection, [(task.id, task.fence)])
            expansion = pool.submit(harness.expand)
            wait_until_blocked(harness.store)
            later = rearmed(task, not_before=clock.at + timedelta(days=1), priority=1)
            claims.apply(connection, [later], now=clock.at)
        assert expansion.result(60).notices == 1

    assert harness.task().not_before == clock.at + timedelta(seconds=15)


def test_a_merge_during_a_delivery_keeps_the_sealed_notice(harness: NoticeHarness, clock: FixedClock) -> None:
    harness.add_follower("ann", "solo", "other")
    harness.publish(1)
    harness.publish(1, series_id="other")
    harness.expand()
    [sealed] = harness.notices(series_id="solo")

    def merge_now() -> None:
        with harness.store.begin() as connection:
            merge(connection, "solo", "other", actor="test", now=clock.at)

    with ThreadPoolExecutor(1) as pool:
        with harness.store.begin() as connection:
            queries.seal(connection, [sealed.id], "d-1")
            merging = pool.submit(merge_now)
            wait_until_blocked(harness.store)
        merging.result(60)

    assert [(row.id, row.delivery_id) for row in harness.notices()] == [(sealed.id, "d-1")]
