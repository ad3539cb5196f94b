"""Requeued listings: evaluated again for a changed profile or a replayed dead letter, announced once."""

from datetime import timedelta

import pytest
from sqlalchemy import delete, update

from ingestion_pipeline.companies.matching.listing_runs import CLOSED, is_work_waiting, requeue_outdated, rules_of
from ingestion_pipeline.companies.records import JOB
from ingestion_pipeline.registry import replay
from ingestion_pipeline.store.tables import dead_letters, job_listings, job_matches, outbox, sources, tasks
from ingestion_pipeline_tests.companies.matching.listings import PLAIN_PAGE, PROFILE, Listings
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import RunningClock

pytestmark = pytest.mark.both_databases

PAINTER = PROFILE.replace("Python: 10", "Painting: 10").replace("PostgreSQL: 9", "Drawing: 9")
PAINTING = "You paint and you draw: Painting and Drawing are what you have done for 9 years. " * 5


def has_work(listings: Listings) -> bool:
    with listings.ctx.store.read() as connection:
        now = listings.ctx.store.clock.now(connection)
        return is_work_waiting(connection, rules_of(listings.ctx.settings), now=now)


def match_statuses(listings: Listings) -> dict[int, str]:
    return {row.listing_id: row.status for row in listings.rows(job_matches)}


def test_a_changed_profile_reevaluates_open_listings_and_withdraws_matches(listings: Listings) -> None:
    coder = listings.add(url="http://jobs.test/1")
    painter = listings.add(url="http://jobs.test/2", title="Senior Painter", description=PAINTING)
    listings.run()
    before = match_statuses(listings)

    listings.write_profile(PAINTER)
    is_waiting = has_work(listings)
    run_result = listings.run()

    assert before == {coder: "new"}
    assert is_waiting
    assert (run_result.rejudged, run_result.counts.withdrawn) == (2, 1)
    assert match_statuses(listings) == {coder: "withdrawn", painter: "new"}
    assert not has_work(listings)


def test_a_match_that_returns_is_not_announced_again(listings: Listings) -> None:
    id_ = listings.add()
    listings.run()
    listings.write_profile(PAINTER)
    listings.run()

    listings.write_profile(PROFILE)
    run_result = listings.run()

    assert (run_result.counts.matched, run_result.counts.new_matches, run_result.counts.told) == (1, 0, 0)
    assert match_statuses(listings) == {id_: "new"}
    assert len(listings.rows(outbox)) == 1


def test_a_job_of_a_first_sync_is_not_announced_when_another_profile_matches_it(listings: Listings) -> None:
    """A changed profile is no news about the job; it is listed among the matches."""
    first = listings.add(url="http://jobs.test/1", title="Senior Painter", description=PAINTING)
    later = listings.add(url="http://jobs.test/2", title="Staff Painter", description=PAINTING)
    synced_at = listings.row(job_listings, first).first_seen_at
    listings.update(job_listings, later, first_seen_at=synced_at + timedelta(hours=1))
    with listings.ctx.store.begin() as connection:
        connection.execute(update(sources).values(synced_at=synced_at))
    listings.run()

    listings.write_profile(PAINTER)
    run_result = listings.run()

    assert match_statuses(listings) == {first: "new", later: "new"}
    assert run_result.counts.told == 1
    assert [row.subject_id for row in listings.rows(outbox)] == [str(later)]


def test_a_reevaluated_listing_stays_in_its_lineage(listings: Listings) -> None:
    id_ = listings.add()
    listings.run()
    listings.write_profile(PAINTER)
    listings.run()

    requeued_task = [row for row in listings.rows(tasks) if row.payload.get("listing_id") == id_][-1]

    assert requeued_task.tracking_id == listings.row(job_listings, id_).tracking_id


def test_a_profile_changed_weeks_later_does_not_make_a_listing_older(listings: Listings) -> None:
    id_ = listings.add()
    listings.run()
    clock = listings.ctx.store.clock
    assert isinstance(clock, RunningClock)
    clock.advance(days=20)

    listings.write_profile(PROFILE.replace("Go: 7", "Go: 6"))
    listings.run()

    assert match_statuses(listings) == {id_: "new"}
    assert listings.row(job_listings, id_).match_result["adjustments"][0]["points"] == 15


def test_an_unchanged_profile_reevaluates_nothing(listings: Listings) -> None:
    listings.add()
    listings.run()
    listings.write_profile(PROFILE + "# with another comment\n")

    run_result = listings.run()

    assert (run_result.rejudged, run_result.counts.matched) == (0, 0)


def test_closed_listings_are_not_requeued_and_the_others_up_to_a_limit(listings: Listings) -> None:
    ids = [listings.add(url=f"http://jobs.test/{number}") for number in range(5)]
    listings.run()
    listings.update(job_listings, ids[0], status="closed")
    listings.write_profile(PAINTER)
    rules = rules_of(listings.ctx.settings)
    assert rules is not None

    with listings.ctx.store.begin() as connection:
        now = listings.ctx.store.clock.now(connection)
        first = requeue_outdated(connection, rules, now=now, limit=3)
        second = requeue_outdated(connection, rules, now=now)

    assert (first, second) == (3, 1)


def test_listings_that_share_one_url_are_each_reevaluated(listings: Listings) -> None:
    """Some boards have one page for all jobs: only the first has a URL key."""
    ids = [listings.add(url=f"http://jobs.test/{number}") for number in range(3)]
    listings.run()
    for id_ in ids[1:]:
        listings.update(job_listings, id_, url="http://jobs.test/0", url_key=None)
    listings.write_profile(PAINTER)

    run_result = listings.run()

    assert run_result.rejudged == len(ids)
    assert not has_work(listings)


def test_a_listing_whose_page_is_gone_is_reevaluated_only_once(listings: Listings) -> None:
    listings.write_profile(PROFILE.replace("[Spamco]", "[Northwind]"))
    id_ = listings.add(description=None)  # the stop list rejects it before its page is fetched
    listings.run()
    listings.write_profile(PROFILE)  # now its page is fetched, and is gone

    run_result = listings.run()

    assert (run_result.rejudged, run_result.counts.skipped) == (1, 1)
    assert listings.row(job_listings, id_).decision == "skipped"
    assert not has_work(listings)
    assert listings.run().rejudged == 0


@pytest.mark.slow
def test_a_dead_lettered_listing_is_not_reevaluated(listings: Listings, web: FakeWeb) -> None:
    listings.write_profile(PROFILE.replace("[Spamco]", "[Northwind]"))
    listings.add(description=None)
    listings.run()
    web.routes |= {"/1": "<html><body>a page without a word of the job</body></html>"}
    listings.write_profile(PROFILE)

    run_result = listings.run()
    listings.run()

    assert (run_result.rejudged, run_result.counts.failed) == (1, 1)
    assert not has_work(listings)
    assert len(listings.rows(dead_letters)) == 1


@pytest.fixture
def dead_lettered_id(listings: Listings, web: FakeWeb) -> int:
    """The id of a dead-lettered listing whose page was empty and has a description now."""
    web.routes |= {"/1": "<html><body>nothing</body></html>"}
    id_ = listings.add(description=None)
    listings.run()
    web.routes |= {"/1": PLAIN_PAGE}
    return id_


def replay_dead_letter(listings: Listings) -> str:
    [dead_letter] = listings.rows(dead_letters)
    with listings.ctx.store.begin() as connection:
        now = listings.ctx.store.clock.now(connection)
        return replay(connection, dead_letter.id, actor="test", now=now)


@pytest.mark.slow
@pytest.mark.parametrize("has_task", [True, False])
def test_a_replayed_listing_is_evaluated_even_without_its_task(
    listings: Listings, dead_lettered_id: int, has_task: bool
) -> None:
    if not has_task:
        with listings.ctx.store.begin() as connection:
            connection.execute(delete(tasks).where(tasks.c.kind == JOB))

    replay_result = replay_dead_letter(listings)
    listings.run()

    assert replay_result == "queued"
    assert listings.row(job_listings, dead_lettered_id).decision == "matched"
    assert listings.rows(dead_letters)[0].replayed_at is not None


@pytest.mark.slow
def test_a_listing_that_closed_meanwhile_is_not_requeued(listings: Listings, dead_lettered_id: int) -> None:
    listings.update(job_listings, dead_lettered_id, status="closed")

    assert replay_dead_letter(listings) == CLOSED
