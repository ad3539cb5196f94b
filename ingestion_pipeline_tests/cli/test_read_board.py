"""`ingest read` of job boards: the listings of saved bodies."""

from __future__ import annotations

import json

from ingestion_pipeline.cli.read import kind_for
from ingestion_pipeline.companies.platforms import PLATFORMS
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.sources.platforms import READERS
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.companies.sampled import FIXTURES

GREENHOUSE = ("read", str(FIXTURES / "greenhouse.json"), "--platform", "greenhouse")


def test_a_board_may_be_read_by_every_platform_that_has_an_adapter() -> None:
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


def test_people_get_a_table_of_listings(ingest: Ingest) -> None:
    result = ingest(*GREENHOUSE)

    assert result.exit_code == 0
    assert "Harbour Pilot" in result.stdout
    assert "2 records, 1 problems" in result.stdout


def test_an_empty_board_is_a_success_and_an_error_body_is_not(ingest: Ingest) -> None:
    how = ("read", "-", "--platform", "greenhouse", "--json")
    empty = ingest(*how, stdin=b'{"jobs": []}')
    error = ingest(*how, stdin=b'{"status": 404, "error": "Board not found"}')

    assert (empty.exit_code, json.loads(empty.stdout)) == (0, {"records": [], "problems": []})
    assert error.exit_code == 1
    assert [one["code"] for one in json.loads(error.stdout)["problems"]] == ["api_error"]


def test_a_format_needs_its_kind_and_a_platform_has_its_own(ingest: Ingest) -> None:
    assert kind_for("lever", None) is Kind.JOB_BOARD
    assert kind_for("rss", Kind.JOB_BOARD) is Kind.JOB_BOARD
    assert "job_board" in ingest.refused("read", "-", "--platform", "html")
    assert "job_board" in ingest.refused("read", "-", "--platform", "lever", "--kind", "series")


def test_json_ld_is_read_as_what_it_states(ingest: Ingest) -> None:
    page = str(FIXTURES / "jsonld.html")
    records = json.loads(ingest("read", page, "--platform", "jsonld", "--json").stdout)["records"]

    assert [one["title"] for one in records] == ["Test Subject"]
