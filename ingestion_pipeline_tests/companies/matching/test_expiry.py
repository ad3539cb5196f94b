"""Jobs with a deadline: past it they are closed, neither matched nor announced."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from ingestion_pipeline.companies.job_listing import is_expired
from ingestion_pipeline.companies.matching.listing_runs import are_listings_waiting
from ingestion_pipeline.companies.platforms import platform
from ingestion_pipeline.store.tables import job_listings, job_matches, outbox
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.companies.matching.listings import POSTING, Listings
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import RunningClock

MIDNIGHT = NOON.replace(hour=0, minute=0, second=0, microsecond=0)


def has_work(listings: Listings) -> bool:
    with listings.ctx.store.read() as connection:
        now = listings.ctx.store.clock.now(connection)
        return are_listings_waiting(connection, listings.ctx.settings, now=now)


def current_time(listings: Listings) -> datetime:
    with listings.ctx.store.read() as connection:
        return listings.ctx.store.clock.now(connection)


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
def test_a_date_without_a_time_is_valid_until_its_end(valid_until: datetime | None, *, expired: bool) -> None:
    assert is_expired(valid_until, now=NOON) is expired


def test_an_expired_listing_is_closed_without_match_or_notification(listings: Listings) -> None:
    id_ = listings.add(valid_until=current_time(listings) - timedelta(hours=1))

    run_result = listings.run()

    listing = listings.row(job_listings, id_)
    assert (listing.status, listing.closed_reason) == ("closed", "its deadline has passed")
    assert (listings.rows(job_matches), listings.rows(outbox), run_result.closed) == ([], [], 1)


def test_a_match_is_withdrawn_when_its_listing_expires(listings: Listings) -> None:
    id_ = listings.add(valid_until=current_time(listings) + timedelta(days=2, hours=1))
    listings.run()
    clock = listings.ctx.store.clock
    assert isinstance(clock, RunningClock)
    before = (has_work(listings), [match.status for match in listings.rows(job_matches)])

    clock.advance(days=3)
    is_waiting = has_work(listings)
    listings.run()

    assert before == (False, ["new"])
    assert is_waiting
    assert not has_work(listings)
    assert listings.row(job_listings, id_).status == "closed"
    assert [match.status for match in listings.rows(job_matches)] == ["withdrawn"]


def test_a_listing_whose_page_states_a_past_deadline_is_not_matched(listings: Listings, web: FakeWeb) -> None:
    ended = POSTING | {"validThrough": "2020-01-31"}
    web.routes |= {"/1": f'<html><script type="application/ld+json">{json.dumps(ended)}</script>'}
    id_ = listings.add(description=None)

    listings.run()

    listing = listings.row(job_listings, id_)
    assert (listing.decision, listing.filter_result["rejected_by"]) == ("filtered", "expired")
    assert (listings.rows(job_matches), listings.rows(outbox)) == ([], [])


@pytest.mark.parametrize(("config", "day"), [({}, (2026, 2, 1)), ({"day_first": True}, (2026, 1, 2))])
def test_a_deadline_is_parsed_in_the_configured_date_order(
    config: dict[str, object], day: tuple[int, int, int]
) -> None:
    body = json.dumps(POSTING | {"validThrough": "02/01/2026"}).encode()
    board = platform("jsonld").configure("http://acme.test/jobs", config)

    [listing] = board.read([body], content_types=["application/ld+json"]).records

    assert listing.valid_until == datetime(*day, tzinfo=UTC)
