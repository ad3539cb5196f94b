"""Deliverers that are really killed, and two that work at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.store import FixedClock, Store, open_store
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.notices.deliverers import Work, deliver
from ingestion_pipeline_tests.notices.telling import Telling
from ingestion_pipeline_tests.pollers import slowly
from ingestion_pipeline_tests.processes import Child

pytestmark = pytest.mark.slow


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """By the real clock, as the processes have it."""
    with closing(open_store(database_url)) as opened:
        yield opened


@pytest.fixture
def telling(store: Store, web: FakeWeb) -> Telling:
    return Telling(store, FixedClock(store.now()), load_settings({}), web)


def test_a_deliverer_killed_after_the_answer_repeats_the_message_under_the_same_key(
    telling: Telling, web: FakeWeb, database_url: str
) -> None:
    telling.given_follower()
    telling.publish(1, 2)
    work = Work(url=database_url, port=web.port, lease_seconds=1, stops_after_the_answer=True)
    victim = Child(deliver, work)
    victim.wait_until_stopped()
    assert (len(telling.asked()), telling.states()) == (1, ["pending", "pending"])

    victim.kill()
    telling.clock.at = telling.store.now()
    telling.publish(3)  # comes too late for a message that was begun
    time.sleep(1.1)  # real time: the dead one's lease
    second = Child(deliver, Work(url=database_url, port=web.port, lease_seconds=30)).result()

    assert (second["messages"], second["sent"]) == (1, 2)
    first, repeated = telling.asked()
    assert repeated.headers["idempotency-key"] == first.headers["idempotency-key"]
    assert repeated.headers["webhook-id"] == first.headers["webhook-id"]
    assert repeated.body == first.body
    assert telling.states() == ["sent", "sent", "pending"]


def test_two_deliverers_at_once_send_each_message_once(telling: Telling, web: FakeWeb, database_url: str) -> None:
    names = [f"r{number}" for number in range(30)]
    for name in names:
        telling.given_follower(name)
        web.routes[f"/{name}"] = slowly(b"taken", 0.05)
    telling.publish(1, 2, 3)
    work = Work(url=database_url, port=web.port, lease_seconds=30)

    pair = [Child(deliver, work) for _ in range(2)]
    results = [child.result() for child in pair]

    assert sorted(web.paths) == sorted(f"/{name}" for name in names)
    assert sum(one["messages"] for one in results) == 30
    assert sum(one["sent"] for one in results) == len(telling.notices(status="sent")) == 90
