"""What each adapter makes of a body of its platform; the bodies are hand-made, in fixtures/jobs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from ingestion_pipeline.companies import Listing, Remote, Salary
from ingestion_pipeline.reading.structured.items import MAX_RECORDS
from ingestion_pipeline_tests.companies.sampled import body, read

LISTINGS: dict[str, tuple[str, Listing]] = {
    "greenhouse": (
        "greenhouse.json",
        Listing(
            external_id="4012345007",
            title="Harbour Pilot",
            url="https://job-boards.greenhouse.io/northwind/jobs/4012345007",
            location="Lisbon (Hybrid)",
            posted_at=datetime(2026, 3, 2, 3, 30, tzinfo=UTC),
            description="## The R&D fleet\n\nSteer **ships**.",
            company="Northwind",
            department="Fleet",
            employment_type="Full time",
            remote=Remote.HYBRID,
            salary=Salary(minimum=Decimal(50000), maximum=Decimal("62500.5"), currency="EUR", period="year"),
            valid_until=datetime(2027, 1, 31, tzinfo=UTC),
        ),
    ),
    "lever": (
        "lever.json",
        Listing(
            external_id="0f6a3c1e-1111-4a4a-9b9b-000000000001",
            title="Rocket Welder",
            url="https://jobs.lever.co/acme/0f6a3c1e-1111-4a4a-9b9b-000000000001",
            location="Oslo",
            posted_at=datetime(2026, 1, 1, tzinfo=UTC),
            description=("Weld & polish.\n\n### You bring\n\n- A steady hand\n- A mask\n\nWe are kind."),
            department="Works",
            employment_type="Permanent",
            remote=Remote.ON_SITE,
            salary=Salary(minimum=Decimal(55000), maximum=Decimal("65000.5"), currency="NOK", period="month"),
            other_locations=("Bergen",),
        ),
    ),
    "ashby": (
        "ashby.json",
        Listing(
            external_id="3f1b1c9e-6f0e-4f61-9d6e-2b1f7f0d5a11",
            title="Star Mapper",
            url="https://jobs.ashbyhq.com/Open%20Space%20Labs/3f1b1c9e-6f0e-4f61-9d6e-2b1f7f0d5a11",
            location="Reykjavik",
            posted_at=datetime(2026, 2, 3, 2, 5, 6, 789_000, tzinfo=UTC),
            description="Map *stars*.",
            department="Charts",
            employment_type="PartTime",
            remote=Remote.HYBRID,
            salary=Salary(minimum=Decimal(90000), maximum=Decimal(120000), currency="USD", period="year"),
            other_locations=("Remote",),
        ),
    ),
    "workday": (
        "workday_list.json",
        Listing(
            external_id="R-1001",
            title="Bridge Engineer",
            url="https://globex.wd3.myworkdayjobs.com/Careers/job/Bergen/Bridge-Engineer_R-1001",
            location="Bergen",
            posted_at=datetime(2026, 3, 2, tzinfo=UTC),
            employment_type="Full time",
            posted_is_relative=True,
        ),
    ),
    "smartrecruiters": (
        "smartrecruiters.json",
        Listing(
            external_id="744000012345678",
            title="Printer  Engineer",
            url="https://jobs.smartrecruiters.com/InitechLLC/744000012345678",
            location="Austin, TX, us",
            posted_at=datetime(2026, 2, 28, 10, 11, 12, tzinfo=UTC),
            company="Initech",
            department="Paper",
            employment_type="Full-time",
            remote=Remote.REMOTE,
        ),
    ),
    "recruitee": (
        "recruitee.json",
        Listing(
            external_id="7001",
            title="Sea Cook",
            url="https://hooli.recruitee.com/o/sea-cook",
            location="Rotterdam, Netherlands",
            posted_at=datetime(2026, 2, 1, 8, 9, 10, tzinfo=UTC),
            description="Cook.\n\n- Sea legs",
            company="Hooli",
            department="Galley",
            employment_type="fulltime",
            remote=Remote.ON_SITE,
            salary=Salary(minimum=Decimal(2800), maximum=None, currency="EUR", period="month"),
            other_locations=("Ghent, Belgium",),
        ),
    ),
    "workable": (
        "workable.json",
        Listing(
            external_id="AB12CD34EF",
            title="Latex Buyer",
            url="https://apply.workable.com/j/AB12CD34EF",
            location="Milan, Italy",
            posted_at=datetime(2026, 1, 15, tzinfo=UTC),
            description="Buy latex.",
            company="Vandelay",
            department="Imports",
            employment_type="Contract",
            other_locations=("Rome, Italy",),
        ),
    ),
    "personio": (
        "personio.xml",
        Listing(
            external_id="901",
            title="Augenmacher:in & Prüfer:in",
            url="https://tyrell.jobs.personio.com/job/901",
            location="Köln",
            posted_at=datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC),
            description="### Aufgaben\n\n- Augen **bauen**\n\n### Profil\n\nGenau.",
            company="Tyrell GmbH",
            department="Optik",
            employment_type="permanent, full-time",
            other_locations=("Bonn",),
        ),
    ),
    "jsonld": (
        "jsonld.html",
        Listing(
            external_id="41",
            title="Test Subject",
            url="https://aperture.test/jobs/1",
            location="Cleveland, OH, US",
            posted_at=datetime(2026, 1, 5, tzinfo=UTC),
            description="Jump & fall.",
            company="Aperture",
            employment_type="FULL_TIME, CONTRACTOR",
            remote=Remote.REMOTE,
            salary=Salary(minimum=Decimal(20), maximum=Decimal("25.5"), currency="USD", period="hour"),
            other_locations=("Detroit, US",),
            valid_until=datetime(2026, 12, 31, 22, 59, 59, tzinfo=UTC),
        ),
    ),
    "rss": (
        "rss.xml",
        Listing(
            external_id="job-5",
            title="Lamp Lighter",
            url="https://a.test/jobs/5",
            posted_at=datetime(2026, 3, 1, 11, tzinfo=UTC),
            description="Light **lamps**.",
            department="Streets",
        ),
    ),
    "json": (
        "list.json",
        Listing(
            external_id="12",
            title="Clock Winder",
            url="https://a.test/jobs/12",
            location="Bern",
            posted_at=datetime(2026, 2, 10, tzinfo=UTC),
            description="Tick.",
            remote=Remote.ON_SITE,
            salary=Salary(minimum=Decimal(80000), maximum=Decimal(90000), currency="CHF", period="year"),
        ),
    ),
    "html": (
        "list.html",
        Listing(
            external_id="71",
            title="Bell Ringer",
            url="https://a.test/careers/jobs/71",
            location="Ghent (Remote)",
            posted_at=datetime(2026, 2, 5, tzinfo=UTC),
            remote=Remote.REMOTE,
        ),
    ),
}


@pytest.mark.parametrize("name", LISTINGS)
def test_a_listing_has_all_that_its_board_states(name: str) -> None:
    file, listing = LISTINGS[name]

    assert read(name, body(file)).records[0] == listing


@pytest.mark.parametrize("name", ["lever", "ashby", "workable", "recruitee", "smartrecruiters"])
def test_what_a_board_does_not_state_is_none(name: str) -> None:
    listing = read(name, body(LISTINGS[name][0])).records[1]

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
def test_a_malformed_listing_is_a_problem_and_the_others_are_kept(name: str, where: str) -> None:
    says_it_is_whole = {"complete": True} if name in {"jsonld", "rss", "json"} else {}
    reading = read(name, body(LISTINGS[name][0]), **says_it_is_whole)

    assert len(reading.records) >= 1
    assert [problem.where for problem in reading.problems] == [where]
    assert not reading.is_complete


def test_a_link_that_is_a_script_is_none_and_an_unreadable_date_too() -> None:
    listing = read("greenhouse", body("greenhouse.json")).records[1]

    assert (listing.title, listing.url, listing.posted_at) == ("Rope Maker", None, None)


def test_workdays_relative_dates_count_from_the_time_of_fetching() -> None:
    listings = read("workday", body("workday_list.json")).records

    assert [one.posted_at and one.posted_at.date().isoformat() for one in listings] == [
        "2026-03-02",
        "2026-02-03",
        "2026-03-05",
    ]


def test_a_number_of_locations_is_no_location_and_the_id_is_that_of_the_posting() -> None:
    listing = read("workday", body("workday_list.json")).records[1]

    assert (listing.location, listing.remote) == (None, Remote.REMOTE)
    assert listing.external_id == "R-1002-1"


def test_a_workday_detail_is_the_same_posting_with_its_text_and_its_exact_day() -> None:
    (detail,) = read("workday", body("workday_detail.json")).records
    listed = read("workday", body("workday_list.json")).records[0]

    assert (detail.external_id, detail.url) == (listed.external_id, listed.url)
    assert detail.description == "Build **bridges**."
    assert detail.posted_at == datetime(2026, 2, 25, tzinfo=UTC)
    assert detail.valid_until == datetime(2026, 12, 24, tzinfo=UTC)
    assert (detail.company, detail.other_locations) == ("Globex AS", ("Oslo",))


def test_a_smartrecruiters_detail_is_the_same_posting_with_its_text() -> None:
    (detail,) = read("smartrecruiters", body("smartrecruiters_detail.json")).records

    assert detail.external_id == "744000012345678"
    assert detail.description == "We print.\n\nYou mend."
    assert detail.remote is Remote.HYBRID


def test_data_that_a_script_was_given_is_read_by_its_name() -> None:
    fields = {"title": "title", "external_id": "id"}
    reading = read("json", body("list.html"), script="window.board", items="jobs", next=None, fields=fields)

    assert [(one.external_id, one.title) for one in reading.records] == [("71", "Bell Ringer")]


def test_reading_a_board_twice_gives_the_same_listings() -> None:
    for name, (file, _) in LISTINGS.items():
        once = read(name, body(file)).records
        assert list(read(name, body(file)).records) == list(once), name


@pytest.mark.parametrize(
    ("written", "title"),
    [
        ("Sales &amp; Marketing", "Sales & Marketing"),
        ("Sales &amp;amp; Marketing", "Sales & Marketing"),
        ("Chef&#39;s Assistant &#x2013; Caf&eacute;", "Chef's Assistant \u2013 Café"),
        ("R&D Engineer, Q&A; C++", "R&D Engineer, Q&A; C++"),
        ("🚀 Rocket &amp; Star Engineer", "🚀 Rocket & Star Engineer"),
    ],
)
@pytest.mark.parametrize("name", ["greenhouse", "jsonld", "rss"])
def test_references_in_a_title_are_resolved_however_often_it_was_escaped(name: str, written: str, title: str) -> None:
    in_xml = written.replace("&", "&amp;")
    bodies = {
        "greenhouse": json.dumps({"jobs": [{"id": 1, "title": written, "absolute_url": "/1"}]}),
        "jsonld": json.dumps({"@type": "JobPosting", "title": written}),
        "rss": f"<rss><channel><title>Jobs</title><item><title>{in_xml}</title><link>/1</link></item></channel></rss>",
    }

    (listing,) = read(name, bodies[name].encode()).records

    assert listing.title == title


def test_references_in_the_other_names_of_a_listing_are_resolved_too() -> None:
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


@pytest.mark.parametrize("name", ["greenhouse", "json", "jsonld", "html", "personio"])
def test_a_list_of_too_many_jobs_is_cut_and_never_passes_for_the_whole_list(name: str) -> None:
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

    reading = read(name, body_text.encode(), **config)

    assert len(reading.records) == MAX_RECORDS
    assert [problem.code for problem in reading.problems] == ["too_many_records"]
    assert not reading.is_complete
