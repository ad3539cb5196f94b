"""Jobs that say when they end: past that they are neither matched nor told, and they are closed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from ingestion_pipeline.companies.listing import is_expired
from ingestion_pipeline.companies.matching.runs import are_listings_waiting
from ingestion_pipeline.companies.platforms import platform
from ingestion_pipeline.store.tables import job_listings, job_matches, outbox
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.companies.matching.listings import Listings
from ingestion_pipeline_tests.companies.matching.test_scraping import POSTING
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import GoingClock

MIDNIGHT = NOON.replace(hour=0, minute=0, second=0, microsecond=0)


def waits(some: Listings) -> bool:
    with some.ctx.store.read() as connection:
        now = some.ctx.store.clock.now(connection)
        return are_listings_waiting(connection, some.ctx.settings, now=now)


def now_of(some: Listings) -> datetime:
    with some.ctx.store.read() as connection:
        return some.ctx.store.clock.now(connection)


@pytest.mark.parametrize(
    ("valid_until", "expired"),
    [
        (NOON - timedelta(seconds=1), True),
        (NOON + timedelta(seconds=1), False),
        (MIDNIGHT, False),
        (MIDNIGHT - timedelta(days=1), True),
        (datetime(9999, 12, 31, tzinfo=UTC), False),
        (None, False),
    ],
    ids=[*("a second ago", "in a second", "a date: today", "a date: yesterday", "the last of dates"), "not stated"],
)
def test_a_date_without_a_time_counts_to_its_end(valid_until: datetime | None, *, expired: bool) -> None:
    assert is_expired(valid_until, now=NOON) is expired


def test_a_listing_that_ended_is_closed_and_neither_matched_nor_told(some: Listings) -> None:
    id_ = some.add(valid_until=now_of(some) - timedelta(hours=1))

    done = some.run()

    listing = some.row(job_listings, id_)
    assert (listing.status, listing.closed_reason) == ("closed", "its deadline has passed")
    assert (some.rows(job_matches), some.rows(outbox), done.closed) == ([], [], 1)


def test_a_match_is_withdrawn_when_its_listing_ends(some: Listings) -> None:
    id_ = some.add(valid_until=now_of(some) + timedelta(days=2, hours=1))
    some.run()
    clock = some.ctx.store.clock
    assert isinstance(clock, GoingClock)
    before = (waits(some), [match.status for match in some.rows(job_matches)])

    clock.advance(days=3)
    is_waiting = waits(some)
    some.run()

    assert before == (False, ["new"])
    assert is_waiting
    assert not waits(some)
    assert some.row(job_listings, id_).status == "closed"
    assert [match.status for match in some.rows(job_matches)] == ["withdrawn"]


def test_a_listing_whose_own_page_says_that_it_ended_is_not_matched(some: Listings, web: FakeWeb) -> None:
    ended = POSTING | {"validThrough": "2020-01-31"}
    web.routes |= {"/1": f'<html><script type="application/ld+json">{json.dumps(ended)}</script>'}
    id_ = some.add(description=None)

    some.run()

    listing = some.row(job_listings, id_)
    assert (listing.verdict, listing.filter_result["rejected_by"]) == ("filtered", "expired")
    assert (some.rows(job_matches), some.rows(outbox)) == ([], [])


@pytest.mark.parametrize(("config", "day"), [({}, (2026, 2, 1)), ({"day_first": True}, (2026, 1, 2))])
def test_a_deadline_is_read_as_the_config_says_that_dates_are_written(
    config: dict[str, object], day: tuple[int, int, int]
) -> None:
    body = json.dumps(POSTING | {"validThrough": "02/01/2026"}).encode()
    board = platform("jsonld").configure("http://acme.test/jobs", config)

    [listing] = board.read([body], content_types=["application/ld+json"]).records

    assert listing.valid_until == datetime(*day, tzinfo=UTC)
