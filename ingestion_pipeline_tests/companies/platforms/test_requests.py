"""Requests of each board, page by page, and when a list is complete."""

import json
from typing import Any

import pytest

from ingestion_pipeline.companies.platforms import PLATFORMS, BadConfig, UnknownPlatform, platform
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.companies.platform_fixtures import (
    CONFIGS,
    NOW,
    URLS,
    configured_board,
    fixture_body,
    parse_board,
)

FIRST = {
    "greenhouse": "https://boards-api.greenhouse.io/v1/boards/northwind/jobs?content=true&pay_transparency=true",
    "lever": "https://api.eu.lever.co/v0/postings/acme?mode=json",
    "ashby": "https://api.ashbyhq.com/posting-api/job-board/Open%20Space%20Labs?includeCompensation=true",
    "workday": "https://globex.wd3.myworkdayjobs.com/wday/cxs/globex/Careers/jobs",
    "smartrecruiters": "https://api.smartrecruiters.com/v1/companies/InitechLLC/postings?limit=100&offset=0",
    "recruitee": "https://hooli.recruitee.com/api/offers/",
    "workable": "https://apply.workable.com/api/v1/widget/accounts/vandelay?details=true",
    "personio": "https://tyrell.jobs.personio.com/xml",
    "jsonld": URLS["jsonld"],
    "rss": URLS["rss"],
    "json": URLS["json"],
    "html": URLS["html"],
}
APIS = [name for name in FIRST if FIRST[name] != URLS[name]]


def request_body(request: Request | None) -> dict[str, Any]:
    assert request is not None
    return json.loads(request.body or b"")


def workday_page(count: int, total: int) -> bytes:
    postings = [{"title": f"Job {n}", "externalPath": f"/job/Oslo/Job_R-{n}"} for n in range(count)]
    return json.dumps({"total": total, "jobPostings": postings}).encode()


@pytest.mark.parametrize("name", PLATFORMS)
def test_a_boards_first_request_follows_from_its_address(name: str) -> None:
    assert configured_board(name).first_request().url == FIRST[name]


@pytest.mark.parametrize("name", APIS)
def test_a_board_can_be_fetched_from_a_custom_server(name: str) -> None:
    request = configured_board(name, api_base="http://127.0.0.1:8080/x/").first_request()

    assert request.url.startswith("http://127.0.0.1:8080/x/")
    assert "//" not in request.url.removeprefix("http://")


@pytest.mark.parametrize("name", APIS)
def test_without_a_token_a_board_makes_no_request(name: str) -> None:
    configured = platform(name).configure("https://example.com/board", {})

    with pytest.raises(BadConfig, match=r"board_token|career site"):
        configured.first_request()


@pytest.mark.parametrize("name", PLATFORMS)
def test_a_bad_config_is_refused_with_the_key(name: str) -> None:
    config = {**CONFIGS.get(name, {}), "banana": 1, "api_base": "ftp://a.test"}

    with pytest.raises(BadConfig, match=r"api_base is 'ftp://a.test'.*banana is no key"):
        platform(name).configure(URLS[name], config)


def test_a_configured_list_needs_a_title_and_a_url_or_id() -> None:
    with pytest.raises(BadConfig, match="title, and url or external_id"):
        platform("json").configure(URLS["json"], {"fields": {"title": "name"}})
    with pytest.raises(BadConfig, match=r"items: needed.*CSS"):
        platform("html").configure(URLS["html"], {"fields": {"title": "a", "url": "a@href"}})


def test_an_unknown_platform_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownPlatform, match=r"'bananas'.*ashby, greenhouse"):
        platform("bananas")


def test_a_token_may_be_configured_and_is_escaped() -> None:
    configured = platform("greenhouse").configure("", {"board_token": "a/b c"})

    assert "/v1/boards/a%2Fb%20c/jobs" in configured.first_request().url


def test_workday_is_paged_by_post_with_an_offset() -> None:
    workday = configured_board("workday")
    first = workday.first_request()
    second = workday.next_request(workday_page(20, 45), previous=first)

    assert (request_body(first)["offset"], request_body(first)["limit"]) == (0, 20)
    assert request_body(second)["offset"] == 20


@pytest.mark.parametrize(
    ("count", "total", "following"),
    [
        (20, 45, 20),
        (4, 644, 4),  # a page shorter than requested, and the total states more
        (20, 0, 20),  # later pages state a total of 0
        (20, 20, 20),  # the total is capped at 2,000
        (3, 0, None),
        (3, 3, None),
        (0, 45, None),
    ],
)
def test_workdays_total_does_not_end_the_list(count: int, total: int, following: int | None) -> None:
    workday = configured_board("workday")
    request = workday.next_request(workday_page(count, total), previous=workday.first_request())

    assert (request_body(request)["offset"] if request else None) == following


def test_pages_are_complete_only_when_they_reach_the_total() -> None:
    incomplete = parse_board("workday", workday_page(3, 45))
    complete = parse_board("workday", workday_page(3, 3))

    assert (incomplete.is_complete, complete.is_complete) == (False, True)
    assert list(incomplete.notes) == ["3 of 45 jobs: a part of the list"]


def test_a_listing_repeated_on_a_later_page_counts_once() -> None:
    assert len(parse_board("workday", workday_page(3, 6), workday_page(3, 6)).records) == 3


def test_smartrecruiters_is_paged_until_its_total() -> None:
    smartrecruiters = configured_board("smartrecruiters")
    first = smartrecruiters.first_request()
    second = smartrecruiters.next_request(fixture_body("smartrecruiters.json"), previous=first)

    assert second is not None
    assert second.url.endswith("?limit=100&offset=2")
    empty = b'{"offset": 2, "limit": 100, "totalFound": 3, "content": []}'
    assert smartrecruiters.next_request(empty, previous=second) is None


def test_a_configured_list_follows_next_links_on_its_own_host() -> None:
    configured = configured_board("json")
    request = configured.next_request(fixture_body("list.json"), previous=configured.first_request())
    html = configured_board("html").next_request(fixture_body("list.html"), previous=Request(url=URLS["html"]))

    assert request is not None
    assert request.url == "https://a.test/api/jobs?page=2"
    assert html is not None
    assert html.url == "https://a.test/careers/?page=2"
    foreign_link_page = b'{"data": {"results": []}, "links": {"next": "https://b.test/"}}'
    with pytest.raises(Permanent, match=r"b\.test.*another host"):
        configured.next_request(foreign_link_page, previous=configured.first_request())


def test_a_page_that_links_to_itself_is_the_last() -> None:
    page = fixture_body("list.html").replace(b"?page=2", b"")

    assert configured_board("html").next_request(page, previous=Request(url=URLS["html"])) is None


@pytest.mark.parametrize(
    ("name", "file", "url"),
    [
        (
            "workday",
            "workday_list.json",
            "https://globex.wd3.myworkdayjobs.com/wday/cxs/globex/Careers/job/Bergen/Bridge-Engineer_R-1001",
        ),
        (
            "smartrecruiters",
            "smartrecruiters.json",
            "https://api.smartrecruiters.com/v1/companies/InitechLLC/postings/744000012345678",
        ),
    ],
)
def test_a_posting_is_fetched_where_the_list_omits_its_text(name: str, file: str, url: str) -> None:
    listing = parse_board(name, fixture_body(file)).records[0]
    request = configured_board(name).detail_request(listing)

    assert request is not None
    assert (request.url, request.body) == (url, None)


def test_a_recruitee_board_on_its_own_domain_is_fetched_there() -> None:
    configured = platform("recruitee").configure("https://jobs.hooli.test/api/offers", {})

    assert configured.first_request().url == "https://jobs.hooli.test/api/offers/"


@pytest.mark.parametrize("name", ["greenhouse", "lever", "ashby", "recruitee", "personio", "rss"])
def test_a_complete_list_makes_no_further_request(name: str) -> None:
    configured = configured_board(name)
    file = {"personio": "personio.xml", "rss": "rss.xml"}.get(name, f"{name}.json")
    reading = configured.read([fixture_body(file)], content_types=[None], now=NOW)

    assert configured.detail_request(reading.records[0]) is None
    assert configured.next_request(fixture_body(file), previous=configured.first_request()) is None


@pytest.mark.parametrize(
    ("url", "site"),
    [
        ("https://wd5.myworkdaysite.com/en-US/recruiting/globex/Jobs", "globex/Jobs"),
        ("https://globex.wd3.myworkdayjobs.com/Jobs/job/Oslo/x_R-1", "globex/Jobs"),
        ("https://globex.wd3.myworkdayjobs.com/wday/cxs/globex/Jobs/jobs", "globex/Jobs"),
        ("https://globex.wd3.myworkdayjobs.com/en-us", "globex/en-us"),
    ],
)
def test_a_career_site_is_recognised_in_every_form_of_its_url(url: str, site: str) -> None:
    request = platform("workday").configure(url, {}).first_request()

    assert request.url.endswith(f"/wday/cxs/{site}/jobs")
