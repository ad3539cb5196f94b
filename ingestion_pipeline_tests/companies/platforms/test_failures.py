"""A failed read is never an empty read: error bodies, unexpected pages and hostile input."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingestion_pipeline.companies.job_listing import listing_as_dict
from ingestion_pipeline.companies.platforms import PLATFORMS
from ingestion_pipeline.reading.structured.embedded import read_json
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError
from ingestion_pipeline_tests.companies.platform_fixtures import BOARDS, FIXTURES, fixture_body, parse_board

EMPTY = {name: board["empty"].encode() for name, board in BOARDS.items() if "empty" in board}
JSON_APIS = [name for name, empty in EMPTY.items() if empty[:1] in b"{[" and name != "json"]
HTML = b"<!doctype html><html><head><title>Checking your browser</title></head><body>x</body></html>"
ITEM_KEYS = {"greenhouse": "jobs", "ashby": "jobs", "workday": "jobPostings", "recruitee": "offers"}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_board_has_neither_records_nor_problems(name: str) -> None:
    reading = parse_board(name, EMPTY[name])

    assert (list(reading.records), list(reading.problems)) == ([], [])


def test_a_page_without_a_job_may_be_empty_only_if_its_config_says_so() -> None:
    with pytest.raises(Permanent, match="may_be_empty"):
        parse_board("jsonld", HTML)
    with pytest.raises(Permanent, match="may_be_empty"):
        parse_board("html", HTML)

    assert list(parse_board("jsonld", HTML, may_be_empty=True).records) == []
    assert list(parse_board("html", HTML, may_be_empty=True).records) == []


@pytest.mark.parametrize("name", EMPTY)
def test_a_web_page_instead_of_a_board_is_an_error(name: str) -> None:
    with pytest.raises(Permanent) as caught:
        parse_board(name, HTML)

    assert caught.value.code in {"not_json", "not_a_feed", "not_xml", "unexpected_body", "xml_entity"}


@pytest.mark.parametrize("name", JSON_APIS)
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"status": 404, "error": "Board not found"}, Permanent),
        ({"ok": False, "error": "Document not found"}, Permanent),
        ({"errorCode": "HTTP_404", "httpStatus": 404, "message": "gone"}, Permanent),
        ({"errors": [{"code": "INVALID", "message": "no such company"}]}, Permanent),
        ({"status": 429, "error": "slow down"}, Transient),
        ({"status": 503, "message": "down"}, Transient),
        ({"error": "Rate limit exceeded"}, Transient),
        ({"success": False, "message": "temporarily unavailable"}, Transient),
    ],
)
def test_an_error_body_is_classified_as_permanent_or_transient(
    name: str, error: dict[str, Any], kind: type[WorkError]
) -> None:
    with pytest.raises(kind) as caught:
        parse_board(name, json.dumps(error).encode())

    assert caught.value.code == "api_error"
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ITEM_KEYS)
def test_an_error_beside_an_empty_list_is_an_error(name: str) -> None:
    with pytest.raises(Permanent, match="no such board"):
        parse_board(name, json.dumps({ITEM_KEYS[name]: [], "error": "no such board"}).encode())


@pytest.mark.parametrize("name", JSON_APIS)
def test_an_unexpected_body_is_an_error_that_names_its_keys(name: str) -> None:
    with pytest.raises(Permanent, match="'bananas'") as caught:
        parse_board(name, b'{"bananas": []}')

    assert caught.value.code == "unexpected_body"


@pytest.mark.parametrize("name", ITEM_KEYS)
def test_a_board_whose_fields_were_renamed_is_an_error_and_not_empty(name: str) -> None:
    renamed = {ITEM_KEYS[name]: [{"job_name": "Cook", "job_id": n} for n in range(3)]}

    with pytest.raises(Permanent, match="3 that are no listings"):
        parse_board(name, json.dumps(renamed).encode())


@pytest.mark.parametrize("name", [*JSON_APIS, "personio", "rss"])
def test_a_truncated_body_is_a_transient_error(name: str) -> None:
    file = {"personio": "personio.xml", "rss": "rss.xml", "workday": "workday_list.json"}
    full_body = fixture_body(file.get(name, f"{name}.json"))

    for cut in (0, len(full_body) // 2):
        with pytest.raises((Transient, Permanent)) as caught:
            parse_board(name, full_body[:cut])
        assert cut == 0 or isinstance(caught.value, Transient)


@pytest.mark.parametrize(
    "bomb",
    [
        b'<!DOCTYPE x [<!ENTITY a "b">]><workzag-jobs>&a;</workzag-jobs>',
        b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><workzag-jobs/>',
        b"<?xml version='1.0'?><!doctype workzag-jobs><workzag-jobs/>",
    ],
)
def test_a_document_type_is_refused(bomb: bytes) -> None:
    with pytest.raises(Permanent):
        parse_board("personio", bomb)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLATFORMS)
@pytest.mark.parametrize(
    "bomb",
    [
        b"[" * 100_000,
        b'{"jobs":' * 50_000,
        b"<a>" * 100_000,
        b"<div>" * 100_000,
        b'{"jobs": [{"id": ' + b"9" * 100_000 + b', "title": "x"}]}',
        b'<script type="application/ld+json">{"@type": "JobPosting", "title": "x", "identifier": '
        + b"9" * 10_000
        + b"}</script>",
        b"\xff\xfe\x00",
        b"\x00" * 1_000,
    ],
    ids=["lists", "objects", "elements", "blocks", "digits", "digits-in-page", "bom", "nul"],
)
def test_a_hostile_body_does_not_crash_a_parser(name: str, bomb: bytes) -> None:
    try:
        reading = parse_board(name, bomb)
    except WorkError:
        return

    assert all(listing.title for listing in reading.records)


def test_a_number_with_many_digits_is_parsed_as_none() -> None:
    assert read_json('{"a": ' + "9" * 10_000 + "}") == {"a": None}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=8), inside),
    max_leaves=8,
)
NAMES = sorted(
    {
        *("jobs", "content", "offers", "jobPostings", "jobPostingInfo", "meta", "total", "title"),
        *("id", "text", "name", "location", "categories", "absolute_url", "jobUrl", "hostedUrl"),
        *("metadata", "departments", "lists", "compensation", "summaryComponents", "createdAt"),
        *("publishedAt", "salary", "salaryRange", "min", "max", "postedOn", "bulletFields", "jobAd"),
        *("externalPath", "description", "pay_input_ranges", "min_cents", "@type", "baseSalary"),
        *("value", "jobLocation", "address", "datePosted", "identifier", "@graph", "shortcode"),
    }
)
SHAPED = st.recursive(
    VALUES | st.sampled_from(["JobPosting", "Salary", "2026-01-01", "Posted 3 Days Ago", "1e999"]),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inside, min_size=1, max_size=6)
    ),
    max_leaves=25,
)


@pytest.mark.parametrize("name", [*JSON_APIS, "jsonld", "json"])
@given(document=SHAPED)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_arbitrary_json_does_not_crash_a_parser(name: str, document: object) -> None:
    keys = {**ITEM_KEYS, "smartrecruiters": "content", "workable": "jobs"}
    wrapped = {keys[name]: [document, document]} if name in keys else [document]
    for value in (document, wrapped):
        try:
            reading = parse_board(name, json.dumps(value).encode())
        except WorkError:
            continue
        records = [listing_as_dict(listing) for listing in reading.records]
        json.dumps(records, allow_nan=False).encode()
        assert all(record["title"] and record["external_id"] for record in records)


@pytest.mark.parametrize("name", PLATFORMS)
@given(data=st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_arbitrary_bytes_do_not_crash_a_parser(name: str, data: st.DataObject) -> None:
    noise = data.draw(st.binary(max_size=200))
    file = data.draw(st.sampled_from(sorted(FIXTURES.iterdir())))
    full_body = file.read_bytes()
    at = data.draw(st.integers(0, len(full_body)))
    for damaged in (noise, full_body[:at] + noise + full_body[at:], full_body[:at] + noise):
        with suppress(WorkError):
            assert all(listing.title for listing in parse_board(name, damaged).records)
