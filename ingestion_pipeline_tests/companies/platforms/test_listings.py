"""Listings that each platform adapter parses from fixtures/jobs, and lists recognised on pages of any layout."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from ingestion_pipeline.companies import Listing, Remote
from ingestion_pipeline.companies.platforms import BadConfig, platform
from ingestion_pipeline.companies.platforms.job_board import description_of
from ingestion_pipeline.companies.platforms.job_lists import recognised_jobs
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.structured.items import MAX_RECORDS
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.companies.cases import with_cases
from ingestion_pipeline_tests.companies.platform_fixtures import fixture_body, parse_board


@dataclass(frozen=True)
class ExpectedListing:
    """The first listing of a fixture file."""

    file: str
    listing: Listing


EXPECTED = TypeAdapter(dict[str, ExpectedListing]).validate_json(
    (Path(__file__).parent / "expected" / "listings.json").read_bytes()
)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_listing_has_every_field_that_its_board_states(name: str) -> None:
    expected = EXPECTED[name]

    assert parse_board(name, fixture_body(expected.file)).records[0] == expected.listing


@pytest.mark.parametrize("name", ["lever", "ashby", "workable", "recruitee", "smartrecruiters"])
def test_a_field_that_a_board_does_not_state_is_none(name: str) -> None:
    listing = parse_board(name, fixture_body(EXPECTED[name].file)).records[1]

    assert (listing.location, listing.posted_at, listing.description) == (None, None, None)
    assert (listing.department, listing.salary, listing.other_locations) == (None, None, ())


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("greenhouse", "item 1"),
        ("personio", "position 1"),
        ("jsonld", "posting 1"),
        ("rss", "entry 1"),
        ("json", "item 1"),
    ],
)
def test_a_malformed_listing_is_a_problem_and_the_others_are_parsed(name: str, where: str) -> None:
    complete_config = {"complete": True} if name in {"jsonld", "rss", "json"} else {}
    reading = parse_board(name, fixture_body(EXPECTED[name].file), **complete_config)

    assert len(reading.records) >= 1
    assert [problem.where for problem in reading.problems] == [where]
    assert not reading.is_complete


def test_an_unlisted_job_of_ashby_is_not_listed() -> None:
    job = {"id": "a", "title": "Sailor", "jobUrl": "https://jobs.ashbyhq.com/x/a"}
    body = json.dumps({"jobs": [job | {"isListed": True}, job | {"id": "b", "isListed": False}, job | {"id": "c"}]})

    listings = parse_board("ashby", body.encode()).records

    assert [listing.external_id for listing in listings] == ["a", "c"]


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("rippling", "rippling_detail.json", "We map caves.\n\nMeasure **deep** ones."),
        ("bamboohr", "bamboohr_detail.json", "Bake **wafers**."),
        ("oracle_hcm", "oracle_hcm_detail.json", "Look at **bridges**.\n\n- Tap them\n\nA hammer."),
    ],
)
def test_a_jobs_own_response_has_its_description(name: str, file: str, words: str) -> None:
    feed = parse_board(name, fixture_body(file))

    assert [listing.description for listing in feed.records] == [words]
    assert feed.records[0].external_id == EXPECTED[name].listing.external_id
    assert not feed.is_complete


def test_a_script_link_and_an_invalid_date_are_none() -> None:
    listing = parse_board("greenhouse", fixture_body("greenhouse.json")).records[1]

    assert (listing.title, listing.url, listing.posted_at) == ("Rope Maker", None, None)


def test_workdays_relative_dates_count_from_the_time_of_fetching() -> None:
    listings = parse_board("workday", fixture_body("workday_list.json")).records

    assert [listing.posted_at and listing.posted_at.date().isoformat() for listing in listings] == [
        "2026-03-02",
        "2026-02-03",
        "2026-03-05",
    ]


def test_a_number_of_locations_is_not_a_location_and_the_id_is_the_postings() -> None:
    listing = parse_board("workday", fixture_body("workday_list.json")).records[1]

    assert (listing.location, listing.remote) == (None, Remote.REMOTE)
    assert listing.external_id == "R-1002-1"


def test_a_workday_detail_is_the_same_posting_with_its_text_and_its_exact_day() -> None:
    (detail,) = parse_board("workday", fixture_body("workday_detail.json")).records
    listing = parse_board("workday", fixture_body("workday_list.json")).records[0]

    assert (detail.external_id, detail.url) == (listing.external_id, listing.url)
    assert detail.description == "Build **bridges**."
    assert detail.posted_at == datetime(2026, 2, 25, tzinfo=UTC)
    assert detail.valid_until == datetime(2026, 12, 24, tzinfo=UTC)
    assert (detail.company, detail.other_locations) == ("Globex AS", ("Oslo",))


def test_a_smartrecruiters_detail_is_the_same_posting_with_its_text() -> None:
    (detail,) = parse_board("smartrecruiters", fixture_body("smartrecruiters_detail.json")).records

    assert detail.external_id == "744000012345678"
    assert detail.description == "We print.\n\nYou mend."
    assert detail.remote is Remote.HYBRID


def test_data_in_a_script_is_read_by_its_variable_name() -> None:
    fields = {"title": "title", "external_id": "id"}
    reading = parse_board(
        "json", fixture_body("list.html"), script="window.board", items="jobs", next=None, fields=fields
    )

    assert [(listing.external_id, listing.title) for listing in reading.records] == [("71", "Bell Ringer")]


def test_reading_a_board_twice_gives_the_same_listings() -> None:
    for name, expected in EXPECTED.items():
        once = parse_board(name, fixture_body(expected.file)).records
        assert list(parse_board(name, fixture_body(expected.file)).records) == list(once), name


@pytest.mark.parametrize(
    ("raw_title", "title"),
    [
        ("Sales &amp; Marketing", "Sales & Marketing"),
        ("Sales &amp;amp; Marketing", "Sales & Marketing"),
        ("Chef&#39;s Assistant &#x2013; Caf&eacute;", "Chef's Assistant \u2013 Café"),
        ("R&D Engineer, Q&A; C++", "R&D Engineer, Q&A; C++"),
        ("🚀 Rocket &amp; Star Engineer", "🚀 Rocket & Star Engineer"),
    ],
)
@pytest.mark.parametrize("name", ["greenhouse", "jsonld", "rss"])
def test_character_references_in_a_title_are_resolved_at_any_depth(name: str, raw_title: str, title: str) -> None:
    in_xml = raw_title.replace("&", "&amp;")
    bodies = {
        "greenhouse": json.dumps({"jobs": [{"id": 1, "title": raw_title, "absolute_url": "/1"}]}),
        "jsonld": json.dumps({"@type": "JobPosting", "title": raw_title}),
        "rss": f"<rss><channel><title>Jobs</title><item><title>{in_xml}</title><link>/1</link></item></channel></rss>",
    }

    (listing,) = parse_board(name, bodies[name].encode()).records

    assert listing.title == title


def test_character_references_in_other_fields_of_a_listing_are_resolved() -> None:
    listing = Listing(
        external_id="a&amp;b",
        title="Pilot",
        url="https://a.test/?a=1&amp;b=2",
        location="Trinidad &amp; Tobago",
        company="Smith &amp; Sons",
        department="R&amp;D",
        other_locations=("Bosnia &amp; Herzegovina",),
    )

    assert (listing.location, listing.company) == ("Trinidad & Tobago", "Smith & Sons")
    assert (listing.department, listing.other_locations) == ("R&D", ("Bosnia & Herzegovina",))
    assert (listing.external_id, listing.url) == ("a&amp;b", "https://a.test/?a=1&amp;b=2")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["greenhouse", "json", "jsonld", "html", "personio"])
def test_a_list_of_too_many_jobs_is_cut_and_incomplete(name: str) -> None:
    count = MAX_RECORDS + 10
    jobs = [{"id": str(n), "title": f"Job {n}", "absolute_url": f"/{n}"} for n in range(count)]
    postings = [{"@type": "JobPosting", "title": f"Job {n}", "url": f"/{n}"} for n in range(count)]
    items = "".join(f"<li><a href='/{n}'>Job {n}</a></li>" for n in range(count))
    positions = "".join(f"<position><id>{n}</id><name>Job {n}</name></position>" for n in range(count))
    by_path = {"items": "jobs", "fields": {"title": "title", "url": "absolute_url"}, "next": None}
    by_css = {"items": "li", "fields": {"title": "a", "url": "a@href"}, "next": None}
    bodies: dict[str, tuple[str, dict[str, object]]] = {
        "greenhouse": (json.dumps({"jobs": jobs}), {}),
        "json": (json.dumps({"jobs": jobs}), {**by_path, "complete": True}),
        "jsonld": (json.dumps(postings), {"complete": True}),
        "html": (f"<html><ul>{items}</ul></html>", {**by_css, "complete": True}),
        "personio": (f"<workzag-jobs>{positions}</workzag-jobs>", {}),
    }
    body_text, config = bodies[name]

    reading = parse_board(name, body_text.encode(), **config)

    assert len(reading.records) == MAX_RECORDS
    assert [problem.code for problem in reading.problems] == ["too_many_records"]
    assert not reading.is_complete


@with_cases("raw", "markdown")
def test_a_description_is_converted_to_markdown_at_any_depth_of_escaping(raw: str, markdown: str | None) -> None:
    assert description_of(raw) == markdown


URL = "https://acme.test/careers"
MENU = "<nav><a href='/about'>About us</a><a href='/careers'>Careers</a><a href='/blog'>Blog</a></nav>"
FOOT = "<footer><a href='/jobs/a'>Engineer privacy</a><a href='/jobs/b'>Manager terms</a></footer>"


def page(body: str) -> str:
    return f"<html><body>{MENU}<main><h1>Work with us</h1>{body}</main>{FOOT}</body></html>"


CARDS = "".join(
    f"<div class='card'><h3>{title}</h3><span class='job-location'>{place}</span>"
    f"<p>Full-time</p><a class='more' href='/careers/{n}'>Learn more</a></div>"
    for n, (title, place) in enumerate([("Data Engineer", "Oslo"), ("Welder", "Bergen")])
)
ROWS = "".join(
    f"<tr class='row{n}'><td><a href='detail.php?job_id={n}'>{title}</a></td><td class='city'>Porto</td></tr>"
    for n, title in enumerate(["Sales Manager", "Head of Painting", "Porter"])
)
WHOLE = "".join(
    f"<li><a href='https://jobs.acme.test/o/{n}'><div>{title}</div><span>Köln</span></a></li>"
    for n, title in enumerate(["Entwickler (m/w/d)", "Bäcker (m/w/d)", "Sachbearbeiterin"])
)


@pytest.mark.parametrize(
    ("body", "titles", "last"),
    [
        (CARDS, ["Data Engineer", "Welder"], "https://acme.test/careers/1"),
        (
            f"<table>{ROWS}</table>",
            ["Sales Manager", "Head of Painting", "Porter"],
            "https://acme.test/detail.php?job_id=2",
        ),
        (
            f"<ul>{WHOLE}</ul>",
            ["Entwickler (m/w/d)", "Bäcker (m/w/d)", "Sachbearbeiterin"],
            "https://jobs.acme.test/o/2",
        ),
    ],
    ids=["cards", "rows", "links"],
)
def test_jobs_are_recognised_by_repeated_blocks(body: str, titles: list[str], last: str) -> None:
    jobs = recognised_jobs(Document(page(body)), url=URL)

    assert [job["title"] for job in jobs] == titles
    assert jobs[-1]["url"] == last


def test_a_block_gives_its_location_and_employment_type() -> None:
    first = recognised_jobs(Document(page(CARDS)), url=URL)[0]

    assert (first["location"], first["employment_type"]) == ("Oslo", "Full-time")


@with_cases("body", ids=["prose", "menu", "blog", "one", "the same", "a script's", "empty"])
def test_an_uncertain_list_of_jobs_is_refused_and_never_empty(body: str) -> None:
    board = platform("html").configure(URL, {"recognise": True})

    assert recognised_jobs(Document(page(body)), url=URL) == []
    with pytest.raises(Permanent, match="no list of jobs is recognised"):
        board.read([page(body).encode()], content_types=["text/html"])


def test_a_recognised_board_gives_a_complete_list_of_listings() -> None:
    board = platform("html").configure(URL, {"recognise": True, "company": "Acme"})

    reading = board.read([page(CARDS).encode()], content_types=["text/html"])

    assert [(listing.title, listing.location, listing.company) for listing in reading.records] == [
        ("Data Engineer", "Oslo", "Acme"),
        ("Welder", "Bergen", "Acme"),
    ]
    assert reading.is_complete


def test_selectors_together_with_recognition_are_refused() -> None:
    with pytest.raises(BadConfig, match="items"):
        platform("html").configure(URL, {"recognise": True, "items": "li"})
