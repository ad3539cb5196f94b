"""What a list leaves out is fetched politely: from the platform, or from the listing's own page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ingestion_pipeline.companies.boards.posting import content_hash
from ingestion_pipeline.companies.matching.details import main_text, proved_columns
from ingestion_pipeline.companies.matching.stages import same_content
from ingestion_pipeline.companies.names import fingerprint
from ingestion_pipeline.companies.states import JOB
from ingestion_pipeline.store.tables import dead_letters, job_listings, job_matches, snapshots, tasks
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.companies.matching.listings import BOARD, GOOD, Listings
from ingestion_pipeline_tests.fakes import FakeWeb, Reply

POSTING = {
    "@context": "https://schema.org",
    "@type": "JobPosting",
    "title": "Senior Python Engineer",
    "description": f"<p>{GOOD}</p>",
    "hiringOrganization": {"name": "Northwind", "url": "https://northwind.test"},
    "baseSalary": {"currency": "USD", "value": {"minValue": 160000, "maxValue": 190000, "unitText": "YEAR"}},
}
PAGE = f'<html><script type="application/ld+json">{json.dumps(POSTING)}</script><p>A job</p>'
PLAIN = f"<html><body><nav>Home Jobs About</nav><main><h1>Engineer</h1><p>{GOOD}</p></main>"


def job(some: Listings) -> Any:
    [row] = [row for row in some.rows(tasks) if row.kind == JOB]
    return row


def test_a_description_that_the_list_lacks_is_read_from_the_listings_page(some: Listings, web: FakeWeb) -> None:
    web.routes |= {"/1": PAGE}
    id_ = some.add(description=None, company_name=None)

    counts = some.run().counts

    assert counts.scraped == 1
    listing = some.row(job_listings, id_)
    assert listing.description.startswith("We look for somebody")
    assert (listing.company_name, listing.company_website) == ("Northwind", "https://northwind.test")
    assert listing.salary["maximum"] == "190000"
    assert web.robots_requests


def test_the_page_that_was_read_is_kept_as_a_snapshot_of_its_board(some: Listings, web: FakeWeb) -> None:
    web.routes |= {"/1": PLAIN}
    id_ = some.add(description=None)

    some.run()

    [snapshot] = some.rows(snapshots)
    assert some.row(job_listings, id_).detail_snapshot_id == snapshot.id
    assert (snapshot.url, snapshot.source_id) == ("http://jobs.test/1", BOARD)
    assert some.ctx.content.get(snapshot.body_hash).decode() == PLAIN


def test_a_page_without_data_for_machines_gives_its_main_part(some: Listings, web: FakeWeb) -> None:
    web.routes |= {"/1": PLAIN}
    id_ = some.add(description=None)

    some.run()

    listing = some.row(job_listings, id_)
    assert "Home Jobs About" not in listing.description
    assert (listing.verdict, len(some.rows(job_matches))) == ("matched", 1)


def test_a_platform_that_has_details_is_asked_for_them(some: Listings, web: FakeWeb) -> None:
    some.board(
        "job_board:smart",
        url="https://careers.smartrecruiters.com/InitechLLC",
        platform="smartrecruiters",
        config={"api_base": "http://api.test"},
    )
    detail = {"id": "1", "name": "Engineer", "jobAd": {"sections": {"jobDescription": {"text": GOOD}}}}
    path = "/v1/companies/InitechLLC/postings/1"
    web.routes |= {f"api.test{path}": Reply(json.dumps(detail).encode())}
    id_ = some.add(source_id="job_board:smart", description=None, url="http://jobs.test/9")

    some.run()

    assert web.paths == [path]
    assert some.row(job_listings, id_).description


def test_stop_lists_keep_a_page_from_being_fetched(some: Listings, web: FakeWeb) -> None:
    some.add(description=None, company_name="Spamco Ltd")

    some.run()

    assert job(some).status == "SKIPPED"
    assert (web.requests, web.robots_requests) == ([], [])


def test_a_listing_whose_page_is_gone_is_skipped(some: Listings) -> None:
    some.add(description=None)

    some.run()

    assert (job(some).status, job(some).error_code) == ("SKIPPED", "listing_gone")
    assert "its own page is gone" in job(some).error


def test_a_page_that_robots_txt_forbids_is_done_without(some: Listings, web: FakeWeb) -> None:
    web.routes |= {"/robots.txt": b"User-agent: *\nDisallow: /", "/1": PAGE}
    id_ = some.add(description=None)

    some.run()

    assert web.requests == []
    listing = some.row(job_listings, id_)
    assert (listing.verdict, listing.quality) == ("skipped", {"description_not_read": True})


def test_a_page_that_fails_three_times_is_a_dead_letter_and_flagged(some: Listings, web: FakeWeb) -> None:
    web.routes |= {"/1": 500}
    id_ = some.add(description=None)

    counts = some.run().counts

    assert (counts.failed, counts.retried) == (1, 2)
    assert (job(some).status, job(some).stage) == ("FAILED", "SCRAPE")
    [dead_letter] = some.rows(dead_letters)
    assert dead_letter.error_code == "http_500"
    assert "http://jobs.test/1" in dead_letter.error
    assert "ingest dead-letters replay" in dead_letter.error
    listing = some.row(job_listings, id_)
    assert (listing.verdict, listing.quality) == (None, {"description_not_read": True})


def test_what_was_fetched_is_not_fetched_again_when_the_match_has_to_wait(some: Listings, web: FakeWeb) -> None:
    web.routes |= {"/1": PLAIN}
    wishes = some.profile.read_text()
    some.profile.unlink()
    some.add(description=None)
    some.run()

    some.wishes(wishes)
    some.run()

    assert web.paths == ["/1"]
    assert job(some).status == "SUCCESS"


@pytest.mark.parametrize("html", ["<main></main><p>words</p>", "<main>a</main><main>b</main>words", "words"])
def test_without_one_main_part_the_whole_page_is_taken(html: str) -> None:
    assert "words" in main_text(html)


def test_what_the_cheap_model_points_at_must_stand_on_the_page() -> None:
    text = f"Menu Home\n\n{GOOD}\n\nApply now in Berlin"
    answer = {
        "first_words": "We look for somebody with 8 years of",
        "last_words": "five colleagues who have done so for years.",
        "company": "Acme Invented",
        "location": "Berlin",
        "salary": "$900k",
    }

    found = proved_columns(answer, text)

    assert found["description"].startswith("We look for")
    assert "Apply now" not in found["description"]
    assert found.keys() == {"description", "location"}


def test_what_was_scraped_counts_for_the_listings_quality_and_keys(some: Listings, web: FakeWeb) -> None:
    web.routes |= {"/1": PLAIN}
    id_ = some.add(description=None, quality={"missing": ["description"]})

    some.run()

    row = some.row(job_listings, id_)
    said = row._asdict()
    assert row.quality["level"] == "minimal"
    assert "description" not in row.quality["missing"]
    assert row.content_hash == content_hash(said)
    assert row.fingerprint == fingerprint(row.title, row.company_name, row.description)
    assert same_content(row.judged_as, row.content_hash)


def test_a_page_that_several_listings_share_describes_none_of_them(some: Listings, web: FakeWeb) -> None:
    web.routes |= {"/1": PLAIN}
    id_ = some.add(description=None, url_key=None)

    some.run()

    listing = some.row(job_listings, id_)
    assert (listing.description, listing.verdict is not None) == (None, True)
    assert "/1" not in web.paths


def test_a_page_that_would_take_the_parser_minutes_is_refused() -> None:
    with pytest.raises(Permanent) as refused:
        main_text("<html><body><select>" + "<option>a</option>" * 30_000)

    assert refused.value.code == "too_deep"
