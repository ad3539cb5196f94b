"""A listing that was given up is judged when an operator replays its letter, however late."""

from __future__ import annotations

import pytest
from sqlalchemy import delete

from ingestion_pipeline.companies.matching.replay import CLOSED
from ingestion_pipeline.companies.states import JOB
from ingestion_pipeline.registry import replay
from ingestion_pipeline.store.tables import dead_letters, job_listings, tasks
from ingestion_pipeline_tests.companies.matching.listings import Listings
from ingestion_pipeline_tests.companies.matching.test_scraping import PLAIN
from ingestion_pipeline_tests.fakes import FakeWeb


@pytest.fixture
def given_up(some: Listings, web: FakeWeb) -> int:
    """A listing whose page said nothing, and does now."""
    web.routes |= {"/1": "<html><body>nothing</body></html>"}
    id_ = some.add(description=None)
    some.run()
    web.routes |= {"/1": PLAIN}
    return id_


def replayed(some: Listings) -> str:
    [dead_letter] = some.rows(dead_letters)
    with some.ctx.store.begin() as connection:
        now = some.ctx.store.clock.now(connection)
        return replay(connection, dead_letter.id, actor="test", now=now)


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_replayed_listing_is_judged_also_if_its_task_was_cleared_away(
    some: Listings, given_up: int, is_kept: bool
) -> None:
    if not is_kept:
        with some.ctx.store.begin() as connection:
            connection.execute(delete(tasks).where(tasks.c.kind == JOB))

    said = replayed(some)
    some.run()

    assert said == "queued"
    assert some.row(job_listings, given_up).verdict == "matched"
    assert some.rows(dead_letters)[0].replayed_at is not None


def test_a_listing_that_closed_meanwhile_is_not_queued(some: Listings, given_up: int) -> None:
    some.change(job_listings, given_up, status="closed")

    assert replayed(some) == CLOSED
