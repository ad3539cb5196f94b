"""Deliverer processes that are killed, and two that run at once."""

import time

import pytest

from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.notices.notice_harness import DelivererJob, NoticeHarness, run_deliverer
from ingestion_pipeline_tests.processes import Child

pytestmark = [pytest.mark.slow, pytest.mark.both_databases, pytest.mark.real_time]


@pytest.fixture
def harness(store: Store, web: FakeWeb) -> NoticeHarness:
    return NoticeHarness(store, FixedClock(store.now()), load_settings({}), web)


def test_a_deliverer_killed_after_the_answer_repeats_the_message_under_the_same_key(
    harness: NoticeHarness, web: FakeWeb, database_url: str
) -> None:
    harness.add_follower()
    harness.publish(1, 2)
    job = DelivererJob(url=database_url, port=web.port, lease_seconds=1, stops_after_the_answer=True)
    victim = Child(run_deliverer, job)
    victim.wait_until_stopped()
    assert (len(harness.requests_to()), harness.states()) == (1, ["pending", "pending"])

    victim.kill()
    harness.clock.at = harness.store.now()
    harness.publish(3)  # too late for a message that is sealed
    time.sleep(1.1)  # real time: the killed process's lease
    second = Child(run_deliverer, DelivererJob(url=database_url, port=web.port, lease_seconds=30)).result()

    assert (second["messages"], second["sent"]) == (1, 2)
    first, repeated = harness.requests_to()
    assert repeated.headers["idempotency-key"] == first.headers["idempotency-key"]
    assert repeated.headers["webhook-id"] == first.headers["webhook-id"]
    assert repeated.body == first.body
    assert harness.states() == ["sent", "sent", "pending"]
