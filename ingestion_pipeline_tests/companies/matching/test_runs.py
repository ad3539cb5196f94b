"""Runs that evaluate listings once, and again for a changed profile or a replayed dead letter."""

from datetime import timedelta

import pytest
from sqlalchemy import delete, select, update

from ingestion_pipeline.companies.matching import listing_runs
from ingestion_pipeline.companies.matching.listing_runs import CLOSED, is_work_waiting, requeue_outdated
from ingestion_pipeline.companies.matching.tasks import ListingItem, ListingWork, open_listings
from ingestion_pipeline.companies.records import JOB
from ingestion_pipeline.companies.reports import list_matches
from ingestion_pipeline.engine.handler import Failed
from ingestion_pipeline.registry import replay
from ingestion_pipeline.store.tables import companies, dead_letters, job_listings, job_matches, outbox, sources, tasks
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.errors import Transient
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.companies.company_sites import transaction
from ingestion_pipeline_tests.companies.matching.listings import (
    BOARD,
    MATCHING_TEXT,
    PLAIN_PAGE,
    PROFILE,
    Listings,
    evaluated,
    write_outcomes,
)
from ingestion_pipeline_tests.fakes import FakeWeb

pytestmark = pytest.mark.both_databases

CHEAP = {"minimum": None, "maximum": "50000", "currency": "USD", "period": "year"}


def task_statuses(listings: Listings) -> dict[str, str]:
    """Return the status of each task by the URL of its listing."""
    return {row.url: row.status for row in listings.rows(tasks) if row.kind == JOB}


def test_a_matching_listing_is_stored_with_its_reason_and_announced(listings: Listings) -> None:
    id_ = listings.add()

    run_result = listings.run()

    assert (run_result.counts.matched, run_result.counts.told, run_result.problem) == (1, 1, None)
    [match] = listings.rows(job_matches)
    assert (match.listing_id, match.status, match.priority) == (id_, "new", "high")
    assert (match.method, match.model) == ("rules", None)
    assert match.skills_matched == ["Python", "PostgreSQL"]
    assert "names Python, PostgreSQL" in match.reason
    listing = listings.row(job_listings, id_)
    assert (listing.decision, listing.company_id) == ("matched", "northwind")
    assert listing.filter_result["passed"] is True
    [notification] = listings.rows(outbox)
    assert (notification.subject_kind, notification.subject_id) == ("job_match", str(id_))
    assert notification.payload["text"].endswith("http://jobs.test/1")
    [task] = listings.rows(tasks)[-1:]
    assert (task.status, task.stage) == ("SUCCESS", "SAVE")
    [company] = listings.rows(companies)
    assert (company.id, company.name, company.status) == ("northwind", "Northwind", "pending")
    assert company.about is None
    assert "about" in company.quality["missing"]


def test_matches_with_equal_scores_are_listed_best_first(listings: Listings) -> None:
    listings.write_profile(PROFILE.replace("Go: 7", "Go: 7, Rust: 6, Kafka: 5"))
    base_text = f"{MATCHING_TEXT} Python, PostgreSQL, Go"
    texts = {"three": base_text, "five": f"{base_text}, Rust, Kafka", "four": f"{base_text}, Kafka"}
    ids = {name: listings.add(url=f"http://jobs.test/{name}", description=text) for name, text in texts.items()}

    listings.run()

    with listings.ctx.store.read() as connection:
        matches = list_matches(connection)
    assert {match["score"] for match in matches} == {100}
    assert [match["listing_id"] for match in matches] == [ids["five"], ids["four"], ids["three"]]


def test_each_outcome_of_a_listing_is_the_status_of_its_task_with_a_reason(listings: Listings) -> None:
    ids = {
        "fits": listings.add(url="http://jobs.test/fits"),
        "cheap": listings.add(url="http://jobs.test/cheap", salary=CHEAP),
        "stop": listings.add(url="http://spam.test/stop"),
        "weak": listings.add(
            url="http://jobs.test/weak", title="Senior Engineer", description="You paint, and tell others of it. " * 10
        ),
        "closed": listings.add(url="http://jobs.test/closed", status="closed"),
    }

    counts = listings.run().counts

    assert (counts.matched, counts.filtered, counts.skipped) == (1, 1, 3)
    assert task_statuses(listings) == {
        "http://jobs.test/fits": "SUCCESS",
        "http://jobs.test/cheap": "FILTERED",
        "http://spam.test/stop": "SKIPPED",
        "http://jobs.test/weak": "SKIPPED",
        "http://jobs.test/closed": "SKIPPED",
    }
    cheap = listings.row(job_listings, ids["cheap"])
    assert (cheap.decision, cheap.filter_result["rejected_by"]) == ("filtered", "salary")
    assert cheap.match_result is None
    weak = listings.row(job_listings, ids["weak"])
    assert weak.decision == "skipped"
    assert weak.match_result["score"] < weak.match_result["threshold"]
    stop = listings.row(job_listings, ids["stop"])
    assert stop.filter_result["rejected_by"] == "stop_domain"
    errors = {row.url: row.error for row in listings.rows(tasks)}
    assert "your floor is 100,000" in errors["http://jobs.test/cheap"]
    assert listings.row(job_listings, ids["closed"]).decision is None


def test_the_first_sync_of_a_board_adds_matches_without_notifications(listings: Listings) -> None:
    listings.add(payload={"is_first_sync": True})

    counts = listings.run().counts

    assert (counts.matched, counts.told) == (1, 0)
    assert len(listings.rows(job_matches)) == 1
    assert listings.rows(outbox) == []


def test_a_match_of_a_first_sync_is_announced_once_when_another_board_adds_it(listings: Listings) -> None:
    id_ = listings.add(payload={"is_first_sync": True})
    listings.run()

    announced: list[int] = []
    for _ in range(2):
        listings.requeue(id_, is_unreported=True)
        announced.append(listings.run().counts.told)

    assert announced == [1, 0]
    assert [row.subject_kind for row in listings.rows(outbox)] == ["job_match"]


@pytest.mark.slow
def test_many_listings_are_processed_in_batches_without_duplicates(
    listings: Listings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing_runs, "LISTINGS_HELD", 20)
    for number in range(50):
        listings.add(url=f"http://jobs.test/{number}", title=f"Senior Python Engineer {number}")

    first, second = listings.run().counts, listings.run().counts

    assert (first.matched, first.companies, second.matched) == (50, 1, 0)
    assert len(listings.rows(job_matches)) == len(listings.rows(outbox)) == 50


def test_without_a_profile_listings_are_filtered_and_the_rest_waits(listings: Listings) -> None:
    listings.profile.unlink()
    listings.add(url="http://jobs.test/fits")
    listings.add(url="http://jobs.test/cheap", salary=CHEAP)

    run_result = listings.run()

    assert "there is no profile" in (run_result.problem or "")
    assert (run_result.counts.filtered, run_result.counts.waiting) == (1, 1)
    [waiting] = [row for row in listings.rows(tasks) if row.status == "PENDING" and row.kind == JOB]
    assert (waiting.error_code, waiting.error_class) == ("no_profile", "resource")
    assert (waiting.stage, waiting.attempts) == ("ANALYZE", 0)


def test_a_listing_that_waits_for_a_profile_is_due_once_it_exists(listings: Listings) -> None:
    profile_text = listings.profile.read_text()
    listings.profile.unlink()
    listings.add()
    listings.run()

    listings.write_profile(profile_text)
    counts = listings.run().counts

    assert (counts.matched, counts.told) == (1, 1)


def test_with_an_invalid_profile_nothing_is_evaluated_and_all_mistakes_are_reported(listings: Listings) -> None:
    listings.write_profile("skills: {Python: 99}\ncolour: red\n")
    listings.add()

    run_result = listings.run()

    assert "skills.Python" in (run_result.problem or "")
    assert "colour" in (run_result.problem or "")
    assert set(task_statuses(listings).values()) == {"PENDING"}


def test_a_decision_on_outdated_content_is_discarded(listings: Listings) -> None:
    """A board that changes a listing during its evaluation cannot add a second task for it."""
    id_ = listings.add()
    worker = Worker(listings.ctx.store, lease_seconds=60)
    claimed = worker.claim(ClaimFilter(kind=JOB), limit=9)
    with listings.ctx.store.read() as connection:
        [work] = open_listings(connection, claimed, now=NOON)
    listings.update(job_listings, id_, content_hash="changed", salary=CHEAP)

    rules = listings.rules
    written = write_outcomes(listings.ctx, rules, evaluated(work))
    counts = listings.run().counts

    assert written["retried"] == 1
    assert (counts.filtered, counts.matched) == (1, 0)
    assert listings.row(job_listings, id_).rules_hash == rules.rules_hash("changed")


def test_the_third_failure_is_a_dead_letter_that_names_the_cure(listings: Listings) -> None:
    listings.add()
    for attempt in range(1, 4):
        worker = Worker(listings.ctx.store, lease_seconds=60)
        claimed = worker.claim(ClaimFilter(kind=JOB, source_ids=[BOARD]), limit=9)
        with listings.ctx.store.read() as connection:
            [work] = open_listings(connection, claimed, now=NOON)
        error = Transient(f"it broke, time {attempt}", code="broke")
        assert isinstance(work, ListingWork)
        failed = Failed(task=work.task, item=ListingItem(work=work), error=error)
        write_outcomes(listings.ctx, listings.rules, failed)

    assert task_statuses(listings) == {"http://jobs.test/1": "FAILED"}
    [dead_letter] = listings.rows(dead_letters)
    assert (dead_letter.attempts, dead_letter.error_code) == (3, "broke")
    assert "it broke, time 3" in dead_letter.error
    assert "ingest dead-letters replay" in dead_letter.error


def test_listings_of_one_board_can_be_evaluated_on_demand_before_they_are_due(listings: Listings) -> None:
    listings.add_board("job_board:other", url="http://other.test/")
    listings.add(url="http://jobs.test/1")
    listings.add(url="http://other.test/1", source_id="job_board:other")
    later = NOON + timedelta(hours=5)
    listings.execute(tasks.update().where(tasks.c.kind == JOB).values(not_before=later))

    run_result = listings.run([BOARD])

    assert (run_result.counts.matched, run_result.boards) == (1, {BOARD})
    with listings.ctx.store.read() as connection:
        query = select(job_listings.c.source_id).where(job_listings.c.decision.is_not(None))
        assert list(connection.execute(query).scalars()) == [BOARD]


PAINTER = PROFILE.replace("Python: 10", "Painting: 10").replace("PostgreSQL: 9", "Drawing: 9")
PAINTING = "You paint and you draw: Painting and Drawing are what you have done for 9 years. " * 5


def has_work(listings: Listings) -> bool:
    with listings.ctx.store.read() as connection:
        now = listings.ctx.store.clock.now(connection)
        return is_work_waiting(connection, listings.rules, now=now)


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
    assert (run_result.reevaluated, run_result.counts.withdrawn) == (2, 1)
    assert match_statuses(listings) == {coder: "withdrawn", painter: "new"}
    assert not has_work(listings)


def test_a_match_that_returns_is_not_announced_again(listings: Listings) -> None:
    id_ = listings.add()
    listings.run()
    listings.run_with(PAINTER)

    run_result = listings.run_with(PROFILE)

    assert (run_result.counts.matched, run_result.counts.new_matches, run_result.counts.told) == (1, 0, 0)
    assert match_statuses(listings) == {id_: "new"}
    assert len(listings.rows(outbox)) == 1


def test_a_job_of_a_first_sync_is_not_announced_when_another_profile_matches_it(listings: Listings) -> None:
    """A changed profile is no news about the job; it is listed among the matches."""
    first = listings.add(url="http://jobs.test/1", title="Senior Painter", description=PAINTING)
    later = listings.add(url="http://jobs.test/2", title="Staff Painter", description=PAINTING)
    synced_at = listings.row(job_listings, first).first_seen_at
    listings.update(job_listings, later, first_seen_at=synced_at + timedelta(hours=1))
    listings.execute(update(sources).values(synced_at=synced_at))
    listings.run()

    run_result = listings.run_with(PAINTER)

    assert match_statuses(listings) == {first: "new", later: "new"}
    assert run_result.counts.told == 1
    assert [row.subject_id for row in listings.rows(outbox)] == [str(later)]


def test_a_reevaluated_listing_stays_in_its_lineage(listings: Listings) -> None:
    id_ = listings.add()
    listings.run()
    listings.run_with(PAINTER)

    requeued_task = [row for row in listings.rows(tasks) if row.payload.get("listing_id") == id_][-1]

    assert requeued_task.tracking_id == listings.row(job_listings, id_).tracking_id


def test_a_profile_changed_weeks_later_does_not_make_a_listing_older(listings: Listings) -> None:
    id_ = listings.add()
    listings.run()
    listings.advance(days=20)

    listings.run_with(PROFILE.replace("Go: 7", "Go: 6"))

    assert match_statuses(listings) == {id_: "new"}
    assert listings.row(job_listings, id_).match_result["adjustments"][0]["points"] == 15


def test_an_unchanged_profile_reevaluates_nothing(listings: Listings) -> None:
    listings.add()
    listings.run()

    run_result = listings.run_with(PROFILE + "# with another comment\n")

    assert (run_result.reevaluated, run_result.counts.matched) == (0, 0)


def test_closed_listings_are_not_requeued_and_the_others_up_to_a_limit(listings: Listings) -> None:
    ids = [listings.add(url=f"http://jobs.test/{number}") for number in range(5)]
    listings.run()
    listings.update(job_listings, ids[0], status="closed")
    listings.write_profile(PAINTER)
    rules = listings.rules

    with transaction(listings.ctx) as (connection, now):
        first = requeue_outdated(connection, rules, now=now, limit=3)
        second = requeue_outdated(connection, rules, now=now)

    assert (first, second) == (3, 1)


def test_listings_that_share_one_url_are_each_reevaluated(listings: Listings) -> None:
    """Some boards have one page for all jobs: only the first has a URL key."""
    ids = [listings.add(url=f"http://jobs.test/{number}") for number in range(3)]
    listings.run()
    for id_ in ids[1:]:
        listings.update(job_listings, id_, url="http://jobs.test/0", url_key=None)

    run_result = listings.run_with(PAINTER)

    assert run_result.reevaluated == len(ids)
    assert not has_work(listings)


def test_a_listing_whose_page_is_gone_is_reevaluated_only_once(listings: Listings) -> None:
    listings.write_profile(PROFILE.replace("[Spamco]", "[Northwind]"))
    id_ = listings.add(description=None)  # the stop list rejects it before its page is fetched
    listings.run()
    listings.write_profile(PROFILE)  # now its page is fetched, and is gone

    run_result = listings.run()

    assert (run_result.reevaluated, run_result.counts.skipped) == (1, 1)
    assert listings.row(job_listings, id_).decision == "skipped"
    assert not has_work(listings)
    assert listings.run().reevaluated == 0


@pytest.mark.slow
def test_a_dead_lettered_listing_is_not_reevaluated(listings: Listings, web: FakeWeb) -> None:
    listings.write_profile(PROFILE.replace("[Spamco]", "[Northwind]"))
    listings.add(description=None)
    listings.run()
    web.routes |= {"/1": "<html><body>a page without a word of the job</body></html>"}

    run_result = listings.run_with(PROFILE)
    listings.run()

    assert (run_result.reevaluated, run_result.counts.failed) == (1, 1)
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
    with transaction(listings.ctx) as (connection, now):
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
