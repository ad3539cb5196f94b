"""What a list leaves out: descriptions from a listing's own page, deadlines, and scores of the strong model."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ingestion_pipeline.companies.boards.board_plan import content_hash
from ingestion_pipeline.companies.job_listing import fingerprint, is_expired
from ingestion_pipeline.companies.matching.listing_runs import are_listings_waiting, proved_columns
from ingestion_pipeline.companies.matching.tasks import same_content
from ingestion_pipeline.companies.platforms import platform
from ingestion_pipeline.companies.records import JOB
from ingestion_pipeline.demo.model_server import Fail, ModelRequest, Say, ScriptedModel
from ingestion_pipeline.demo.model_server import Reply as ModelReply
from ingestion_pipeline.store.tables import (
    dead_letters,
    job_listings,
    job_matches,
    model_calls,
    outbox,
    snapshots,
    tasks,
)
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.companies.matching.listings import (
    BOARD,
    MATCHING_TEXT,
    PLAIN_PAGE,
    POSTING,
    PROFILE,
    Listings,
)
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.reading.llm.model_questions import settings_with_model

JSON_LD_PAGE = f'<html><script type="application/ld+json">{json.dumps(POSTING)}</script><p>A job</p>'


def scrape(listings: Listings, web: FakeWeb, page: Any, **changes: Any) -> Any:
    """Evaluate a listing without a description, whose own page is this; return its row."""
    web.routes |= {"/1": page}
    return listings.evaluated(description=None, **changes)


def job_task_row(listings: Listings) -> Any:
    [row] = [row for row in listings.rows(tasks) if row.kind == JOB]
    return row


def test_a_missing_description_is_read_from_the_listings_page(listings: Listings, web: FakeWeb) -> None:
    web.routes |= {"/1": JSON_LD_PAGE}
    id_ = listings.add(description=None, company_name=None)

    counts = listings.run().counts

    assert counts.scraped == 1
    listing = listings.row(job_listings, id_)
    assert listing.description.startswith("We look for somebody")
    assert (listing.company_name, listing.company_website) == ("Northwind", "https://northwind.test")
    assert listing.salary["maximum"] == "190000"
    assert web.robots_requests


def test_the_page_of_a_listing_is_stored_as_a_snapshot_of_its_board(listings: Listings, web: FakeWeb) -> None:
    web.routes |= {"/1": PLAIN_PAGE}
    listing = listings.evaluated(description=None)

    [snapshot] = listings.rows(snapshots)
    assert listing.detail_snapshot_id == snapshot.id
    assert (snapshot.url, snapshot.source_id) == ("http://jobs.test/1", BOARD)
    assert listings.ctx.content.get(snapshot.body_hash).decode() == PLAIN_PAGE


def test_a_page_without_structured_data_gives_its_main_text(listings: Listings, web: FakeWeb) -> None:
    listing = scrape(listings, web, PLAIN_PAGE)

    assert "Home Jobs About" not in listing.description
    assert (listing.decision, len(listings.rows(job_matches))) == ("matched", 1)


def test_a_platform_with_a_detail_api_is_asked_for_details(listings: Listings, web: FakeWeb) -> None:
    listings.add_board(
        "job_board:smart",
        url="https://careers.smartrecruiters.com/InitechLLC",
        platform="smartrecruiters",
        config={"api_base": "http://api.test"},
    )
    detail = {"id": "1", "name": "Engineer", "jobAd": {"sections": {"jobDescription": {"text": MATCHING_TEXT}}}}
    path = "/v1/companies/InitechLLC/postings/1"
    web.routes |= {f"api.test{path}": Reply(json.dumps(detail).encode())}
    listing = listings.evaluated(source_id="job_board:smart", description=None, url="http://jobs.test/9")

    assert web.paths == [path]
    assert listing.description


def test_a_listing_of_a_sitemap_gets_the_title_of_its_page(listings: Listings, web: FakeWeb) -> None:
    listings.add_board("job_board:map", url="http://jobs.test/sitemap.xml", platform="sitemap")
    place = {"@type": "Place", "address": {"addressLocality": "Berlin", "addressCountry": "DE"}}
    posting = POSTING | {"title": "Senior Python Engineer (m/f/d)", "jobLocation": place}
    web.routes |= {"/1": f'<script type="application/ld+json">{json.dumps(posting)}</script><p>A job</p>'}

    listing = listings.evaluated(source_id="job_board:map", description=None, title="Senior python engineer")

    assert listing.title == "Senior Python Engineer (m/f/d)"
    assert listing.places == [{"town": "Berlin", "country": "DE"}]


def test_a_listing_on_a_stop_list_is_not_fetched(listings: Listings, web: FakeWeb) -> None:
    listings.add(description=None, company_name="Spamco Ltd")

    listings.run()

    assert job_task_row(listings).status == "SKIPPED"
    assert (web.requests, web.robots_requests) == ([], [])


def test_a_listing_whose_page_is_gone_is_skipped(listings: Listings) -> None:
    listings.add(description=None)

    listings.run()

    assert (job_task_row(listings).status, job_task_row(listings).error_code) == ("SKIPPED", "listing_gone")
    assert "its own page is gone" in job_task_row(listings).error


def test_a_page_blocked_by_robots_txt_is_not_fetched_and_flagged(listings: Listings, web: FakeWeb) -> None:
    web.routes |= {"/robots.txt": b"User-agent: *\nDisallow: /", "/1": JSON_LD_PAGE}
    listing = listings.evaluated(description=None)

    assert web.requests == []
    assert (listing.decision, listing.quality) == ("skipped", {"description_not_read": True})


@pytest.mark.slow
def test_a_page_that_fails_three_times_is_a_dead_letter_and_flagged(listings: Listings, web: FakeWeb) -> None:
    web.routes |= {"/1": 500}
    id_ = listings.add(description=None)

    counts = listings.run().counts

    assert (counts.failed, counts.retried) == (1, 2)
    assert (job_task_row(listings).status, job_task_row(listings).stage) == ("FAILED", "SCRAPE")
    [dead_letter] = listings.rows(dead_letters)
    assert dead_letter.error_code == "http_500"
    assert "http://jobs.test/1" in dead_letter.error
    assert "ingest dead-letters replay" in dead_letter.error
    listing = listings.row(job_listings, id_)
    assert (listing.decision, listing.quality) == (None, {"description_not_read": True})


def test_a_fetched_page_is_not_fetched_again_after_waiting_for_a_profile(listings: Listings, web: FakeWeb) -> None:
    web.routes |= {"/1": PLAIN_PAGE}
    profile_text = listings.profile.read_text()
    listings.profile.unlink()
    listings.add(description=None)
    listings.run()

    listings.write_profile(profile_text)
    listings.run()

    assert web.paths == ["/1"]
    assert job_task_row(listings).status == "SUCCESS"


def test_values_of_the_cheap_model_must_appear_on_the_page() -> None:
    text = f"Menu Home\n\n{MATCHING_TEXT}\n\nApply now in Berlin"
    answer = {
        "first_words": "We look for somebody with 8 years of",
        "last_words": "five colleagues who have done so for years.",
        "company": "Acme Invented",
        "location": "Berlin",
        "salary": "$900k",
    }

    columns = proved_columns(answer, text)

    assert columns["description"].startswith("We look for")
    assert "Apply now" not in columns["description"]
    assert columns.keys() == {"description", "location"}


def test_scraped_text_updates_the_quality_and_keys_of_a_listing(listings: Listings, web: FakeWeb) -> None:
    row = scrape(listings, web, PLAIN_PAGE, quality={"missing": ["description"]})

    columns = row._asdict()
    assert row.quality["level"] == "minimal"
    assert "description" not in row.quality["missing"]
    assert row.content_hash == content_hash(columns)
    assert row.fingerprint == fingerprint(row.title, row.company_name, row.description)
    assert same_content(row.rules_hash, row.content_hash)


def test_a_page_shared_by_several_listings_is_not_their_description(listings: Listings, web: FakeWeb) -> None:
    listing = scrape(listings, web, PLAIN_PAGE, url_key=None)

    assert (listing.description, listing.decision is not None) == (None, True)
    assert "/1" not in web.paths


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
    before = (has_work(listings), [match.status for match in listings.rows(job_matches)])

    listings.advance(days=3)
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
    listing = listings.evaluated(description=None)

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


ANSWER: dict[str, Any] = {
    "score": 72,
    "skills_matched": [
        {"skill": "Python", "quote": "8 years of experience in Python"},
        {"skill": "Go", "quote": "fluent in Go"},
        {"skill": "Painting", "quote": "Python and PostgreSQL"},
    ],
    "skills_missing": [
        {"skill": "night shifts", "quote": "the night when it is needed"},
        {"skill": "Fortran", "quote": "decades of Fortran"},
    ],
    "summary": "Close to what you do.",
}


def scripted_model(listings: Listings, reply: ModelReply | None = None) -> ScriptedModel:
    """Return a model that always gives this reply, or a valid answer for each call site."""

    def script(request: ModelRequest) -> ModelReply:
        name = request.form["name"]
        answers: Mapping[str, Any] = {
            "listing_match": ANSWER,
            "listing_detail": dict.fromkeys(request.schema["properties"]),
        }
        return reply or Say(text=json.dumps(answers[name]))

    return ScriptedModel(script)


def evaluate_with(listings: Listings, model: ScriptedModel) -> Any:
    with model:
        settings = settings_with_model(
            model.base_url, listings.ctx.settings, INGESTION_MATCH__PROFILE=str(listings.profile)
        )
        listings.ctx = replace(listings.ctx, settings=settings)
        return listings.run()


def test_a_model_scores_and_only_grounded_skills_are_stored(listings: Listings) -> None:
    listings.add()
    model = scripted_model(listings)

    evaluate_with(listings, model)

    [match] = listings.rows(job_matches)
    assert (match.method, match.model, match.base_score) == ("model", "strong", 72)
    assert match.score == 72 + 15
    assert (match.skills_matched, match.skills_missing) == (["Python"], [])
    [listing] = listings.rows(job_listings)
    text = f"{listing.title}\n{listing.description}"
    span = match.grounding["Python"]
    assert text[span["start"] : span["end"]] == "Python"
    assert set(listing.match_result["dropped"]) == {"Go", "Painting", "night shifts", "Fortran"}
    assert "Close to what you do." in match.reason


def test_the_strong_model_evaluates_and_the_cheap_model_scrapes(listings: Listings, web: FakeWeb) -> None:
    web.routes |= {"/1": PLAIN_PAGE}
    listings.add(description=None)

    evaluate_with(listings, scripted_model(listings))

    calls = {(row.call_site, row.model) for row in listings.rows(model_calls)}
    assert calls == {("scrape_listing", "cheap"), ("match_listing", "strong")}


def test_a_listing_that_the_filter_rejects_is_not_sent_to_the_model(listings: Listings) -> None:
    listings.add(title="Junior Engineer")
    model = scripted_model(listings)

    evaluate_with(listings, model)

    assert model.requests == []


@pytest.mark.slow
def test_the_model_request_contains_the_profile_and_is_repeated_for_another_profile(listings: Listings) -> None:
    listings.add()
    first, second = scripted_model(listings), scripted_model(listings)
    evaluate_with(listings, first)
    listings.write_profile(PROFILE.replace("Go: 7", "Go: 2"))

    evaluate_with(listings, second)

    assert "Python 10, PostgreSQL 9, Go 7" in first.requests[0].text
    assert "Go 2" in second.requests[0].text


def test_without_a_usable_answer_the_rules_score_with_a_note(listings: Listings) -> None:
    listings.add()

    evaluate_with(listings, scripted_model(listings, Say(text="no idea")))

    [match] = listings.rows(job_matches)
    assert match.method == "rules"
    assert "the model gave no usable answer" in match.reason


@pytest.mark.parametrize("status", [401, 429])
def test_without_quota_a_listing_waits_and_no_attempt_is_counted(listings: Listings, status: int) -> None:
    id_ = listings.add()
    headers = {"retry-after": "86000"} if status == 429 else {}

    run_result = evaluate_with(listings, scripted_model(listings, Fail(status=status, headers=headers)))

    assert (run_result.counts.waiting, run_result.counts.matched) == (1, 0)
    [job] = [row for row in listings.rows(tasks) if row.kind == "job"]
    assert (job.status, job.error_class, job.attempts) == ("PENDING", "resource", 0)
    assert listings.row(job_listings, id_).decision is None
