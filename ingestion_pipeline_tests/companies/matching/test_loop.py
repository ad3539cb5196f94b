"""Listings as work: claimed, judged, written once, whatever happens in between."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import select

from ingestion_pipeline.companies.matching.reporting import list_matches
from ingestion_pipeline.companies.matching.results import write_results
from ingestion_pipeline.companies.matching.runs import rules_of
from ingestion_pipeline.companies.matching.stages import Rules
from ingestion_pipeline.companies.matching.tasks import Evaluated, NotEvaluated, open_listings
from ingestion_pipeline.companies.states import JOB
from ingestion_pipeline.store.tables import companies, dead_letters, job_listings, job_matches, outbox, tasks
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.errors import Transient
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.companies.matching.listings import BOARD, GOOD, PROFILE, Listings
from ingestion_pipeline_tests.pollers import changed

CHEAP = {"minimum": None, "maximum": "50000", "currency": "USD", "period": "year"}


def statuses(some: Listings) -> dict[str, str]:
    """The end of each task by the listing's URL."""
    return {row.url: row.status for row in some.rows(tasks) if row.kind == JOB}


def the_rules(some: Listings) -> Rules:
    rules = rules_of(some.ctx.settings)
    assert rules is not None
    return rules


def test_a_listing_that_fits_is_a_match_with_its_reason_and_is_told(some: Listings) -> None:
    id_ = some.add()

    done = some.run()

    assert (done.counts.matched, done.counts.told, done.problem) == (1, 1, None)
    [match] = some.rows(job_matches)
    assert (match.listing_id, match.status, match.priority) == (id_, "new", "high")
    assert (match.method, match.model) == ("rules", None)
    assert match.skills_matched == ["Python", "PostgreSQL"]
    assert "names Python, PostgreSQL" in match.reason
    listing = some.row(job_listings, id_)
    assert (listing.verdict, listing.company_id) == ("matched", "northwind")
    assert listing.filter_result["passed"] is True
    [told] = some.rows(outbox)
    assert (told.subject_kind, told.subject_id) == ("job_match", str(id_))
    assert told.payload["text"].endswith("http://jobs.test/1")
    [task] = some.rows(tasks)[-1:]
    assert (task.status, task.stage) == ("SUCCESS", "SAVE")
    [company] = some.rows(companies)
    assert (company.id, company.name, company.status) == ("northwind", "Northwind", "pending")
    assert company.about is None
    assert "about" in company.quality["missing"]


def test_matches_of_one_score_are_listed_best_first(some: Listings) -> None:
    some.wishes(PROFILE.replace("Go: 7", "Go: 7, Rust: 6, Kafka: 5"))
    three = f"{GOOD} Python, PostgreSQL, Go"
    texts = {"three": three, "five": f"{three}, Rust, Kafka", "four": f"{three}, Kafka"}
    ids = {name: some.add(url=f"http://jobs.test/{name}", description=text) for name, text in texts.items()}

    some.run()

    with some.ctx.store.read() as connection:
        listed = list_matches(connection)
    assert {match["score"] for match in listed} == {100}
    assert [match["listing_id"] for match in listed] == [ids["five"], ids["four"], ids["three"]]


def test_each_end_of_a_listing_is_an_end_of_its_task_with_its_reason(some: Listings) -> None:
    ids = {
        "fits": some.add(url="http://jobs.test/fits"),
        "cheap": some.add(url="http://jobs.test/cheap", salary=CHEAP),
        "stop": some.add(url="http://spam.test/stop"),
        "weak": some.add(
            url="http://jobs.test/weak", title="Senior Engineer", description="You paint, and tell others of it. " * 10
        ),
        "closed": some.add(url="http://jobs.test/closed", status="closed"),
    }

    counts = some.run().counts

    assert (counts.matched, counts.filtered, counts.skipped) == (1, 1, 3)
    assert statuses(some) == {
        "http://jobs.test/fits": "SUCCESS",
        "http://jobs.test/cheap": "FILTERED",
        "http://spam.test/stop": "SKIPPED",
        "http://jobs.test/weak": "SKIPPED",
        "http://jobs.test/closed": "SKIPPED",
    }
    cheap = some.row(job_listings, ids["cheap"])
    assert (cheap.verdict, cheap.filter_result["rejected_by"]) == ("filtered", "salary")
    assert cheap.match_result is None
    weak = some.row(job_listings, ids["weak"])
    assert weak.verdict == "skipped"
    assert weak.match_result["score"] < weak.match_result["threshold"]
    stop = some.row(job_listings, ids["stop"])
    assert stop.filter_result["rejected_by"] == "stop_domain"
    errors = {row.url: row.error for row in some.rows(tasks)}
    assert "your floor is 100,000" in errors["http://jobs.test/cheap"]
    assert some.row(job_listings, ids["closed"]).verdict is None


def test_the_first_sync_of_a_board_makes_matches_and_tells_nobody(some: Listings) -> None:
    some.add(payload={"is_first_sync": True})

    counts = some.run().counts

    assert (counts.matched, counts.told) == (1, 0)
    assert len(some.rows(job_matches)) == 1
    assert some.rows(outbox) == []


def test_a_match_of_a_first_sync_is_told_once_when_another_board_comes_to_list_it(some: Listings) -> None:
    id_ = some.add(payload={"is_first_sync": True})
    some.run()

    told: list[int] = []
    for _ in range(2):
        some.ask_again(id_, is_unreported=True)
        told.append(some.run().counts.told)

    assert told == [1, 0]
    assert [row.subject_kind for row in some.rows(outbox)] == ["job_match"]


def test_many_listings_go_through_in_batches_and_nothing_is_doubled(some: Listings) -> None:
    some.ctx = changed(some.ctx, match__profile=str(some.profile), match__batch_size="20")
    for number in range(50):
        some.add(url=f"http://jobs.test/{number}", title=f"Senior Python Engineer {number}")

    first, second = some.run().counts, some.run().counts

    assert (first.matched, first.companies, second.matched) == (50, 1, 0)
    assert len(some.rows(job_matches)) == len(some.rows(outbox)) == 50


def test_without_a_profile_the_filter_works_and_the_rest_waits(some: Listings) -> None:
    some.profile.unlink()
    some.add(url="http://jobs.test/fits")
    some.add(url="http://jobs.test/cheap", salary=CHEAP)

    done = some.run()

    assert "there is no profile" in (done.problem or "")
    assert (done.counts.filtered, done.counts.waiting) == (1, 1)
    [waiting] = [row for row in some.rows(tasks) if row.status == "PENDING" and row.kind == JOB]
    assert (waiting.error_code, waiting.error_class) == ("no_profile", "resource")
    assert (waiting.stage, waiting.attempts) == ("ANALYZE", 0)


def test_what_waits_for_a_profile_is_due_as_soon_as_there_is_one(some: Listings) -> None:
    wishes = some.profile.read_text()
    some.profile.unlink()
    some.add()
    some.run()

    some.wishes(wishes)
    counts = some.run().counts

    assert (counts.matched, counts.told) == (1, 1)


def test_with_a_bad_profile_nothing_is_judged_and_all_mistakes_are_named(some: Listings) -> None:
    some.wishes("skills: {Python: 99}\ncolour: red\n")
    some.add()

    done = some.run()

    assert "skills.Python" in (done.problem or "")
    assert "colour" in (done.problem or "")
    assert set(statuses(some).values()) == {"PENDING"}


def test_a_verdict_on_what_a_listing_said_before_does_not_count(some: Listings) -> None:
    """A board that changes a listing while it is judged cannot make a second task of it."""
    id_ = some.add()
    worker = Worker(some.ctx.store, lease_seconds=60)
    claimed = worker.claim(ClaimFilter(kind=JOB), limit=9)
    with some.ctx.store.read() as connection:
        [work] = open_listings(connection, claimed, now=NOON)
    some.change(job_listings, id_, content_hash="changed", salary=CHEAP)

    rules = the_rules(some)
    written = write_results(some.ctx, rules, [Evaluated(work=work)])  # pyright: ignore[reportArgumentType]
    counts = some.run().counts

    assert written.counts.retried == 1
    assert (counts.filtered, counts.matched) == (1, 0)
    assert some.row(job_listings, id_).judged_as == rules.judged_as("changed")


def test_whoever_lost_the_claim_writes_nothing(some: Listings) -> None:
    some.add()
    worker = Worker(some.ctx.store, lease_seconds=60)
    [task] = worker.claim(ClaimFilter(kind=JOB), limit=9)
    with some.ctx.store.read() as connection:
        [work] = open_listings(connection, [task], now=NOON)
    with some.ctx.store.begin() as connection:
        connection.execute(tasks.update().where(tasks.c.id == task.id).values(fence=task.fence + 1))

    written = write_results(some.ctx, the_rules(some), [Evaluated(work=work)])  # pyright: ignore[reportArgumentType]

    assert written.counts.lost == 1
    assert (some.rows(job_matches), some.rows(companies)) == ([], [])


def test_the_third_failure_is_the_last_and_its_letter_names_the_cure(some: Listings) -> None:
    some.add()
    for attempt in range(1, 4):
        worker = Worker(some.ctx.store, lease_seconds=60)
        claimed = worker.claim(ClaimFilter(kind=JOB, source_ids=[BOARD]), limit=9)
        with some.ctx.store.read() as connection:
            [work] = open_listings(connection, claimed, now=NOON)
        error = Transient(f"it broke, time {attempt}", code="broke")
        failed = NotEvaluated(work=work, error=error)  # pyright: ignore[reportArgumentType]
        write_results(some.ctx, the_rules(some), [failed])

    assert statuses(some) == {"http://jobs.test/1": "FAILED"}
    [dead_letter] = some.rows(dead_letters)
    assert (dead_letter.attempts, dead_letter.error_code) == (3, "broke")
    assert "it broke, time 3" in dead_letter.error
    assert "ingest dead-letters replay" in dead_letter.error


def test_one_board_can_be_judged_by_hand_whatever_its_listings_wait_for(some: Listings) -> None:
    some.board("job_board:other", url="http://other.test/")
    some.add(url="http://jobs.test/1")
    some.add(url="http://other.test/1", source_id="job_board:other")
    later = NOON + timedelta(hours=5)
    with some.ctx.store.begin() as connection:
        connection.execute(tasks.update().where(tasks.c.kind == JOB).values(not_before=later))

    done = some.run([BOARD])

    assert (done.counts.matched, done.boards) == (1, {BOARD})
    with some.ctx.store.read() as connection:
        query = select(job_listings.c.source_id).where(job_listings.c.verdict.is_not(None))
        assert list(connection.execute(query).scalars()) == [BOARD]
