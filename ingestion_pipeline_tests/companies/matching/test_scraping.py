"""Data missing from a list is fetched from the platform's API or from the listing's own page."""

import json
from typing import Any

import pytest

from ingestion_pipeline.companies.boards.board_plan import content_hash
from ingestion_pipeline.companies.job_listing import fingerprint
from ingestion_pipeline.companies.matching.listing_runs import main_text, proved_columns
from ingestion_pipeline.companies.matching.tasks import same_content
from ingestion_pipeline.companies.records import JOB
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.store.tables import dead_letters, job_listings, job_matches, snapshots, tasks
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.companies.matching.listings import BOARD, MATCHING_TEXT, PLAIN_PAGE, POSTING, Listings
from ingestion_pipeline_tests.fakes import FakeWeb, Reply

JSON_LD_PAGE = f'<html><script type="application/ld+json">{json.dumps(POSTING)}</script><p>A job</p>'


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
    id_ = listings.add(description=None)

    listings.run()

    [snapshot] = listings.rows(snapshots)
    assert listings.row(job_listings, id_).detail_snapshot_id == snapshot.id
    assert (snapshot.url, snapshot.source_id) == ("http://jobs.test/1", BOARD)
    assert listings.ctx.content.get(snapshot.body_hash).decode() == PLAIN_PAGE


def test_a_page_without_structured_data_gives_its_main_text(listings: Listings, web: FakeWeb) -> None:
    web.routes |= {"/1": PLAIN_PAGE}
    id_ = listings.add(description=None)

    listings.run()

    listing = listings.row(job_listings, id_)
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
    id_ = listings.add(source_id="job_board:smart", description=None, url="http://jobs.test/9")

    listings.run()

    assert web.paths == [path]
    assert listings.row(job_listings, id_).description


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
    id_ = listings.add(description=None)

    listings.run()

    assert web.requests == []
    listing = listings.row(job_listings, id_)
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


@pytest.mark.parametrize("html", ["<main></main><p>words</p>", "<main>a</main><main>b</main>words", "words"])
def test_without_a_single_main_element_the_whole_page_is_used(html: str) -> None:
    assert "words" in main_text(Document(html))


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
    web.routes |= {"/1": PLAIN_PAGE}
    id_ = listings.add(description=None, quality={"missing": ["description"]})

    listings.run()

    row = listings.row(job_listings, id_)
    columns = row._asdict()
    assert row.quality["level"] == "minimal"
    assert "description" not in row.quality["missing"]
    assert row.content_hash == content_hash(columns)
    assert row.fingerprint == fingerprint(row.title, row.company_name, row.description)
    assert same_content(row.rules_hash, row.content_hash)


def test_a_page_shared_by_several_listings_is_not_their_description(listings: Listings, web: FakeWeb) -> None:
    web.routes |= {"/1": PLAIN_PAGE}
    id_ = listings.add(description=None, url_key=None)

    listings.run()

    listing = listings.row(job_listings, id_)
    assert (listing.description, listing.decision is not None) == (None, True)
    assert "/1" not in web.paths


@pytest.mark.parametrize(
    ("body", "code"), [("<div>" * 30_000, "too_deep"), ("<select>" + "<option>a</option>" * 60_000, "too_large")]
)
def test_a_page_that_would_hold_up_the_parser_is_refused(body: str, code: str) -> None:
    with pytest.raises(Permanent) as refused:
        main_text(Document(f"<html><body>{body}"))

    assert refused.value.code == code
