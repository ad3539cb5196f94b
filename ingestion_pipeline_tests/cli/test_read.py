"""`ingest read` of job boards: the listings of saved bodies."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ingestion_pipeline.cli.read import kind_for
from ingestion_pipeline.companies.platforms import PLATFORMS
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.sources.platforms import READERS
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.companies.platform_fixtures import FIXTURES
from ingestion_pipeline_tests.samples import sample

FEED = b"""<rss version="2.0"><channel><title>Solo</title>
<item><title>Chapter 1.50</title><link>/c/1</link><guid>g1</guid>
<pubDate>Sun, 01 Mar 2026 13:00:00 +0100</pubDate></item></channel></rss>"""
EMPTY = b'<rss version="2.0"><channel><title>Solo</title></channel></rss>'
SERIES = ("--platform", "rss", "--kind", "series")


@pytest.fixture
def ingest(tmp_path: Path) -> Ingest:
    """`ingest read` must work where no database can be."""
    return Ingest({"INGESTION_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"})


def test_a_saved_feed_is_read_into_releases_of_exactly_these_fields(ingest: Ingest) -> None:
    result = ingest("read", "-", *SERIES, "--url", "https://a.test/feed", "--json", stdin=FEED)

    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "records": [
            {
                "number": "1.5",
                "title": "Chapter 1.50",
                "url": "https://a.test/c/1",
                "language": None,
                "scanlation_group": None,
                "source_chapter_id": "g1",
                "volume": None,
                "published_at": "2026-03-01T12:00:00+00:00",
            }
        ],
        "problems": [],
    }


def test_the_config_reaches_the_parser(ingest: Ingest) -> None:
    config = ("--config", '{"language": "en"}')

    result = ingest("read", "-", *SERIES, *config, "--json", stdin=FEED)

    assert json.loads(result.stdout)["records"][0]["language"] == "en"


def test_the_text_output_is_a_table(ingest: Ingest) -> None:
    result = ingest("read", "-", *SERIES, stdin=FEED)

    assert "Chapter 1.50" in result.stdout
    assert "1 records, 0 problems" in result.stdout


def test_a_body_that_is_no_feed_is_a_problem_and_fails(ingest: Ingest) -> None:
    result = ingest("read", "-", *SERIES, "--json", stdin=b"<html><title>Oops</title></html>")

    assert result.exit_code == 1
    (problem,) = json.loads(result.stdout)["problems"]
    assert problem["code"] == "not_a_feed"
    assert "Oops" in problem["message"]


def test_a_legitimately_empty_body_is_no_failure(ingest: Ingest) -> None:
    result = ingest("read", "-", *SERIES, "--json", stdin=EMPTY)

    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"records": [], "problems": []}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--platform", "rss"), "--kind series"),
        (("--platform", "nope"), "mangadex, page, personio"),
        (("--platform", "mangadex", "--kind", "catalog"), "it is read as: series"),
        ((*SERIES, "--config", '{"nope": 1}'), "nope is no key"),
        ((*SERIES, "--config", "{"), "not JSON"),
        ((*SERIES, "--entity", "course"), "--entity"),
        ((*SERIES, "--url", "ftp://a.test"), "url"),
    ],
)
def test_bad_input_is_refused_with_the_cure(ingest: Ingest, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in ingest.refused("read", "-", *arguments)


def test_a_missing_file_is_refused_by_name(ingest: Ingest, tmp_path: Path) -> None:
    assert "gone.xml" in ingest.refused("read", str(tmp_path / "gone.xml"), *SERIES)
    assert "directory" in ingest.refused("read", str(tmp_path), *SERIES)


def test_the_kind_follows_from_a_platform_that_has_one() -> None:
    assert kind_for("mangadex", None) is Kind.SERIES
    assert kind_for("rss", Kind.SERIES) is Kind.SERIES


def test_every_sample_feed_gives_json(ingest: Ingest) -> None:
    for path in sorted(sample("feeds").iterdir()):
        result = ingest("read", str(path), *SERIES, "--url", "https://a.test/x", "--json")
        reading = json.loads(result.stdout)
        assert reading["records"] or reading["problems"], path.name
        assert result.exit_code == (0 if reading["records"] else 1), path.name


@pytest.mark.parametrize(
    ("platform", "body", "config"),
    [
        ("json", b'{"list": [{"n": "1.50", "u": "/c/1"}]}', {"items": "list", "fields": {"number": "n", "url": "u"}}),
        (
            "html",
            b"<li><a href='/c/1'>Chapter 1.50</a></li>",
            {"items": "li", "fields": {"label": "a", "url": "a@href"}},
        ),
    ],
    ids=["json", "html"],
)
def test_a_list_is_parsed_by_the_config(ingest: Ingest, platform: str, body: bytes, config: object) -> None:
    options = ("--platform", platform, "--kind", "series", "--config", json.dumps(config))

    result = ingest("read", "-", *options, "--url", "https://a.test/x", "--json", stdin=body)

    (record,) = json.loads(result.stdout)["records"]
    assert (record["number"], record["url"]) == ("1.5", "https://a.test/c/1")


def test_a_bad_selector_is_refused_by_its_text(ingest: Ingest) -> None:
    options = ("--platform", "html", "--kind", "series", "--config", '{"items": "li["}')

    assert "'li['" in ingest.refused("read", "-", *options)


LIST = "<li><a>Chapter 2</a><i>hace 2 días</i></li><li><a>Chapter 1</a><i>?</i></li>".encode()
DATED = '{"items": "li", "fields": {"label": "a", "published_at": "i"}}'
LISTED = ("--platform", "html", "--kind", "series", "--config", DATED, "--json")


@pytest.mark.parametrize("fetched_at", ["2026-03-10T01:00:00+02:00", "2026-03-09T23:00:00"])
def test_a_relative_date_counts_from_when_the_body_was_fetched(ingest: Ingest, fetched_at: str) -> None:
    result = ingest("read", "-", *LISTED, "--fetched-at", fetched_at, stdin=LIST)

    reading = json.loads(result.stdout)
    assert [record["published_at"] for record in reading["records"]] == ["2026-03-07T00:00:00+00:00", None]
    assert ["1 of 2 dates" in problem["message"] for problem in reading["problems"]] == [True]


def test_a_file_counts_as_fetched_when_it_was_written(ingest: Ingest, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_bytes(LIST)
    os.utime(page, (0, datetime(2020, 5, 3, 12, tzinfo=UTC).timestamp()))

    result = ingest("read", str(page), *LISTED)

    assert json.loads(result.stdout)["records"][0]["published_at"] == "2020-05-01T00:00:00+00:00"


def test_a_bad_fetch_time_is_refused(ingest: Ingest) -> None:
    assert "2026-03-01T12:00:00Z" in ingest.refused("read", "-", *SERIES, "--fetched-at", "soon")


def test_a_detected_layout_is_noted_in_the_output(ingest: Ingest) -> None:
    page = b"<ul><li class='wp-manga-chapter'><a href='/c/1'>Chapter 1</a></li></ul>"
    options = ("--platform", "html", "--kind", "series", "--url", "https://a.test/x")

    result = ingest("read", "-", *options, "--json", stdin=page)

    assert json.loads(result.stdout)["records"][0]["url"] == "https://a.test/c/1"
    assert result.stderr == "note: read as theme madara\n"


GREENHOUSE = ("read", str(FIXTURES / "greenhouse.json"), "--platform", "greenhouse")


def test_a_board_can_be_parsed_by_every_platform_with_an_adapter() -> None:
    assert set(READERS[Kind.JOB_BOARD]) == set(PLATFORMS)


def test_a_listing_has_exactly_these_fields(ingest: Ingest) -> None:
    answer = json.loads(ingest(*GREENHOUSE, "--json").stdout)

    assert answer["records"][0] == {
        "external_id": "4012345007",
        "title": "Harbour Pilot",
        "url": "https://job-boards.greenhouse.io/northwind/jobs/4012345007",
        "location": "Lisbon (Hybrid)",
        "posted_at": "2026-03-02T03:30:00+00:00",
        "description": "## The R&D fleet\n\nSteer **ships**.",
        "company": "Northwind",
        "department": "Fleet",
        "employment_type": "Full time",
        "remote": "hybrid",
        "salary": {"minimum": "50000", "maximum": "62500.5", "currency": "EUR", "period": "year"},
        "other_locations": [],
        "valid_until": "2027-01-31T00:00:00+00:00",
        "company_website": None,
    }
    assert [problem["where"] for problem in answer["problems"]] == ["item 1"]


def test_the_text_output_of_listings_is_a_table(ingest: Ingest) -> None:
    result = ingest(*GREENHOUSE)

    assert result.exit_code == 0
    assert "Harbour Pilot" in result.stdout
    assert "2 records, 1 problems" in result.stdout


def test_an_empty_board_is_a_success_and_an_error_body_is_not(ingest: Ingest) -> None:
    options = ("read", "-", "--platform", "greenhouse", "--json")
    empty = ingest(*options, stdin=b'{"jobs": []}')
    error = ingest(*options, stdin=b'{"status": 404, "error": "Board not found"}')

    assert (empty.exit_code, json.loads(empty.stdout)) == (0, {"records": [], "problems": []})
    assert error.exit_code == 1
    assert [problem["code"] for problem in json.loads(error.stdout)["problems"]] == ["api_error"]


def test_a_format_needs_its_kind_and_a_platform_has_its_own(ingest: Ingest) -> None:
    assert kind_for("lever", None) is Kind.JOB_BOARD
    assert kind_for("rss", Kind.JOB_BOARD) is Kind.JOB_BOARD
    assert "job_board" in ingest.refused("read", "-", "--platform", "html")
    assert "job_board" in ingest.refused("read", "-", "--platform", "lever", "--kind", "series")


def test_json_ld_is_parsed_as_the_type_it_states(ingest: Ingest) -> None:
    page = str(FIXTURES / "jsonld.html")
    records = json.loads(ingest("read", page, "--platform", "jsonld", "--json").stdout)["records"]

    assert [record["title"] for record in records] == ["Test Subject"]
