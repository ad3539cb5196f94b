"""Another profile: open listings are judged anew, matches come and go, nobody is told twice."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import update

from ingestion_pipeline.companies.matching.requeue import is_work_waiting, requeue_outdated
from ingestion_pipeline.companies.matching.runs import rules_of
from ingestion_pipeline.store.tables import dead_letters, job_listings, job_matches, outbox, sources, tasks
from ingestion_pipeline_tests.companies.matching.listings import PROFILE, Listings
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import GoingClock

PAINTER = PROFILE.replace("Python: 10", "Painting: 10").replace("PostgreSQL: 9", "Drawing: 9")
PAINTING = "You paint and you draw: Painting and Drawing are what you have done for 9 years. " * 5


def waits(some: Listings) -> bool:
    with some.ctx.store.read() as connection:
        now = some.ctx.store.clock.now(connection)
        return is_work_waiting(connection, rules_of(some.ctx.settings), now=now)


def standing(some: Listings) -> dict[int, str]:
    return {row.listing_id: row.status for row in some.rows(job_matches)}


def test_a_changed_profile_judges_open_listings_anew_and_withdraws_what_fits_no_more(some: Listings) -> None:
    coder = some.add(url="http://jobs.test/1")
    painter = some.add(url="http://jobs.test/2", title="Senior Painter", description=PAINTING)
    some.run()
    before = standing(some)

    some.wishes(PAINTER)
    is_waiting = waits(some)
    done = some.run()

    assert before == {coder: "new"}
    assert is_waiting
    assert (done.rejudged, done.counts.withdrawn) == (2, 1)
    assert standing(some) == {coder: "withdrawn", painter: "new"}
    assert not waits(some)


def test_nobody_is_told_twice_when_a_match_returns(some: Listings) -> None:
    id_ = some.add()
    some.run()
    some.wishes(PAINTER)
    some.run()

    some.wishes(PROFILE)
    done = some.run()

    assert (done.counts.matched, done.counts.new_matches, done.counts.told) == (1, 0, 0)
    assert standing(some) == {id_: "new"}
    assert len(some.rows(outbox)) == 1


def test_a_job_of_a_first_listing_stays_untold_when_another_profile_makes_it_fit(some: Listings) -> None:
    """That we look at it with other eyes is no news; it is among the matches all the same."""
    first = some.add(url="http://jobs.test/1", title="Senior Painter", description=PAINTING)
    later = some.add(url="http://jobs.test/2", title="Staff Painter", description=PAINTING)
    synced_at = some.row(job_listings, first).first_seen_at
    some.change(job_listings, later, first_seen_at=synced_at + timedelta(hours=1))
    with some.ctx.store.begin() as connection:
        connection.execute(update(sources).values(synced_at=synced_at))
    some.run()

    some.wishes(PAINTER)
    done = some.run()

    assert standing(some) == {first: "new", later: "new"}
    assert done.counts.told == 1
    assert [row.subject_id for row in some.rows(outbox)] == [str(later)]


def test_a_listing_that_is_judged_anew_stays_in_its_lineage(some: Listings) -> None:
    id_ = some.add()
    some.run()
    some.wishes(PAINTER)
    some.run()

    again = [row for row in some.rows(tasks) if row.payload.get("listing_id") == id_][-1]

    assert again.tracking_id == some.row(job_listings, id_).tracking_id


def test_a_profile_changed_weeks_later_does_not_make_a_listing_older(some: Listings) -> None:
    id_ = some.add()
    some.run()
    clock = some.ctx.store.clock
    assert isinstance(clock, GoingClock)
    clock.advance(days=20)

    some.wishes(PROFILE.replace("Go: 7", "Go: 6"))
    some.run()

    assert standing(some) == {id_: "new"}
    assert some.row(job_listings, id_).match_result["adjustments"][0]["points"] == 15


def test_the_same_profile_judges_nothing_again(some: Listings) -> None:
    some.add()
    some.run()
    some.wishes(PROFILE + "# with another comment\n")

    done = some.run()

    assert (done.rejudged, done.counts.matched) == (0, 0)


def test_closed_listings_are_left_alone_and_the_number_of_the_others_is_bounded(some: Listings) -> None:
    ids = [some.add(url=f"http://jobs.test/{number}") for number in range(5)]
    some.run()
    some.change(job_listings, ids[0], status="closed")
    some.wishes(PAINTER)
    rules = rules_of(some.ctx.settings)
    assert rules is not None

    with some.ctx.store.begin() as connection:
        now = some.ctx.store.clock.now(connection)
        first = requeue_outdated(connection, rules, now=now, limit=3)
        second = requeue_outdated(connection, rules, now=now)

    assert (first, second) == (3, 1)


def test_listings_that_share_one_address_are_each_judged_anew(some: Listings) -> None:
    """Some boards have one page for all jobs: only the first is known by its address."""
    ids = [some.add(url=f"http://jobs.test/{number}") for number in range(3)]
    some.run()
    for id_ in ids[1:]:
        some.change(job_listings, id_, url="http://jobs.test/0", url_key=None)
    some.wishes(PAINTER)

    done = some.run()

    assert done.rejudged == len(ids)
    assert not waits(some)


def test_a_listing_whose_page_is_gone_is_not_judged_anew_for_ever(some: Listings) -> None:
    some.wishes(PROFILE.replace("[Spamco]", "[Northwind]"))
    id_ = some.add(description=None)  # the stop list ends it before its page is asked for
    some.run()
    some.wishes(PROFILE)  # now its page is asked for, and is not there

    done = some.run()

    assert (done.rejudged, done.counts.skipped) == (1, 1)
    assert some.row(job_listings, id_).verdict == "skipped"
    assert not waits(some)
    assert some.run().rejudged == 0


def test_a_listing_that_was_given_up_is_not_judged_anew_before_somebody_looks(some: Listings, web: FakeWeb) -> None:
    some.wishes(PROFILE.replace("[Spamco]", "[Northwind]"))
    some.add(description=None)
    some.run()
    web.routes |= {"/1": "<html><body>a page without a word of the job</body></html>"}
    some.wishes(PROFILE)

    done = some.run()
    some.run()

    assert (done.rejudged, done.counts.failed) == (1, 1)
    assert not waits(some)
    assert len(some.rows(dead_letters)) == 1
