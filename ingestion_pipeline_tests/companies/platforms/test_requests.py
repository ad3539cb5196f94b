"""Requests of each board, page by page, and when a list is complete."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from ingestion_pipeline.companies.platforms import (
    PLATFORMS,
    BadConfig,
    JobBoard,
    UnknownPlatform,
    board_identity,
    platform,
)
from ingestion_pipeline.engine.context import ChangedFeed, FetchState, fetch_feed
from ingestion_pipeline.pages.http.request import Answer, Fetched, Request, Secret, SecretPlace
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.companies.cases import with_cases
from ingestion_pipeline_tests.companies.platform_fixtures import (
    BOARDS,
    CONFIGS,
    NOW,
    URLS,
    configured_board,
    fixture_body,
    parse_board,
)

FIRST: dict[str, str] = {name: board.get("first_request", board["url"]) for name, board in BOARDS.items()}
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
    with pytest.raises(UnknownPlatform, match=r"'bananas'.*ashby, bamboohr"):
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


@with_cases("count", "total", "following")
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


@with_cases("name", "file", "url")
def test_a_posting_is_fetched_where_the_list_omits_its_text(name: str, file: str, url: str) -> None:
    listing = parse_board(name, fixture_body(file)).records[0]
    request = configured_board(name).detail_request(listing)

    assert request is not None
    assert (request.url, request.body) == (url, None)


@pytest.mark.parametrize(
    ("name", "file", "url"),
    [
        ("oracle_hcm", "oracle_hcm.json", FIRST["oracle_hcm"].replace("offset=0", "offset=100")),
        ("join", "join.html", "https://join.com/companies/virtucon?page=2"),
        ("icims", "icims.html", "https://careers-duff.icims.com/jobs/search?ss=1&in_iframe=1&pr=1"),
        ("teamtailor", "teamtailor.json", "https://monarch.na.teamtailor.com/jobs.json?page=2"),
    ],
)
def test_a_declared_board_is_paged_as_its_declaration_says(name: str, file: str, url: str) -> None:
    configured = configured_board(name)
    following = configured.next_request(fixture_body(file), previous=configured.first_request())

    assert following is not None
    assert following.url == url
    assert not parse_board(name, fixture_body(file)).is_complete
    assert configured.next_request(BOARDS[name]["empty"].encode(), previous=following) is None


def test_a_sitemap_index_leads_to_its_sitemap_of_jobs() -> None:
    entries = ("pages", "jobs", "news")
    index = "".join(f"<sitemap><loc>https://nostromo.test/{name}-1.xml</loc></sitemap>" for name in entries)
    configured = configured_board("sitemap")

    following = configured.next_request(
        f"<sitemapindex>{index}</sitemapindex>".encode(), previous=configured.first_request()
    )

    assert following is not None
    assert following.url == "https://nostromo.test/jobs-1.xml"
    with pytest.raises(Permanent, match="give the one of jobs"):
        configured.next_request(
            f"<sitemapindex>{index.replace('jobs', 'careers2')}</sitemapindex>".encode(),
            previous=configured.first_request(),
        )


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("https://acme.wd3.myworkdayjobs.com/en-US/Careers", "https://acme.wd3.myworkdayjobs.com/Careers/job/x", True),
        ("https://acme.wd3.myworkdayjobs.com/Careers", "https://acme.wd3.myworkdayjobs.com/Graduates", False),
        (
            "https://a.fa.us2.oraclecloud.com/hcmUI/CandidateExperience/en/sites/CX_1",
            "https://a.fa.us2.oraclecloud.com/hcmUI/CandidateExperience/de/sites/CX_1/job/7",
            True,
        ),
        (
            "https://a.fa.us2.oraclecloud.com/hcmUI/CandidateExperience/en/sites/CX_1",
            "https://a.fa.us2.oraclecloud.com/hcmUI/CandidateExperience/en/sites/CX_2",
            False,
        ),
    ],
)
def test_boards_of_one_tenant_are_told_apart_by_their_site(first: str, second: str, is_same: bool) -> None:
    name = "workday" if "workday" in first else "oracle_hcm"

    assert (board_identity(name, first, {}) == board_identity(name, second, {})) is is_same


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


URL = "https://a.test/api/jobs?team=x"
FIELDS = {"title": "t", "external_id": "id"}


def a_list(pagination: Mapping[str, Any], **config: Any) -> JobBoard:
    settings = {"items": "jobs", "fields": FIELDS, "pagination": dict(pagination), **config}
    return platform("json").configure(URL, settings)


def a_page(*numbers: int, **more: Any) -> bytes:
    jobs = [{"t": f"Job {n}", "id": str(n)} for n in numbers]
    return json.dumps({"jobs": jobs, **more}).encode()


def fetch_all(board: JobBoard, *bodies: bytes, max_pages: int = 50) -> tuple[list[Request], list[Fetched]]:
    """Return the requests in order and the fetched pages; a request after the last body answers 404."""
    requests: list[Request] = []

    async def fetch(request: Request) -> Answer:
        requests.append(request)
        if len(requests) > len(bodies):
            raise Permanent("gone", code="http_404")
        return Fetched(
            url=request.url,
            final_url=request.url,
            status_code=200,
            body=bodies[len(requests) - 1],
            content_type=None,
            etag=None,
            last_modified=None,
        )

    feed = asyncio.run(
        fetch_feed(board, FetchState(), parser_version="r", fetch=fetch, max_pages=max_pages, may_be_cut=True)
    )
    assert isinstance(feed, ChangedFeed)
    return requests, list(feed.pages)


def parse(board: JobBoard, pages: list[Fetched]) -> tuple[list[str | None], bool]:
    reading = board.read([page.body for page in pages], content_types=[None] * len(pages))
    return [listing.external_id for listing in reading.records], reading.is_complete


def test_numbered_pages_are_fetched_until_one_is_empty() -> None:
    board = a_list({"kind": "page_num", "parameter": "p"}, complete=True)

    requests, pages = fetch_all(board, a_page(1, 2), a_page(3), a_page())

    assert [request.url for request in requests] == [
        f"https://a.test/api/jobs?team=x&p={number}" for number in (1, 2, 3)
    ]
    assert parse(board, pages) == (["1", "2", "3"], True)


def test_numbered_pages_end_at_a_missing_page() -> None:
    board = a_list({"kind": "url_template", "url_template": "https://a.test/p/{page}"})

    requests, pages = fetch_all(board, a_page(1))

    assert [request.url for request in requests] == ["https://a.test/p/1", "https://a.test/p/2"]
    assert len(pages) == 1


def test_a_server_that_repeats_its_last_page_ends_the_list() -> None:
    board = a_list({"kind": "page_num"}, complete=True)

    requests, pages = fetch_all(board, a_page(1), *[a_page(2)] * 9)

    assert len(requests) == 3
    assert parse(board, pages) == (["1", "2"], True)


def test_offsets_grow_by_the_size_of_a_page() -> None:
    board = a_list({"kind": "offset", "size": 2, "size_parameter": "limit"})

    requests, _ = fetch_all(board, a_page(1, 2), a_page(3), a_page())

    assert [request.url.partition("x&")[2] for request in requests] == [
        "limit=2&offset=0",
        "limit=2&offset=2",
        "limit=2&offset=4",
    ]


def test_a_cursor_is_followed_until_there_is_none() -> None:
    board = a_list({"kind": "cursor", "cursor": "meta.next"})

    requests, _ = fetch_all(board, a_page(1, meta={"next": "a b"}), a_page(2, meta={"next": None}))

    assert [request.url.partition("team=x")[2] for request in requests] == ["", "&cursor=a+b"]


def test_a_post_request_carries_its_page_in_its_body() -> None:
    board = a_list({"kind": "offset", "parameter": "from", "size": 20}, body={"q": "*"})

    requests, _ = fetch_all(board, a_page(1), a_page())

    assert [json.loads(request.body or b"") for request in requests] == [{"q": "*", "from": 0}, {"q": "*", "from": 20}]
    assert {request.url for request in requests} == {URL}


def test_a_list_cut_at_its_page_limit_is_incomplete() -> None:
    board = a_list({"kind": "page_num", "max_pages": 2}, complete=True)

    requests, pages = fetch_all(board, a_page(1), a_page(2), a_page(3))

    assert len(requests) == 2
    assert parse(board, pages) == (["1", "2"], False)


def test_a_workday_list_cut_at_the_page_limit_is_incomplete() -> None:
    board = platform("workday").configure("https://globex.wd3.myworkdayjobs.com/Careers", {})
    bodies = [
        json.dumps(
            {
                "total": 40,  # wrong: there are more
                "jobPostings": [{"title": f"J{n}", "externalPath": f"/job/O/J_R-{page}{n}"} for n in range(20)],
            }
        ).encode()
        for page in range(5)
    ]

    _, pages = fetch_all(board, *bodies, max_pages=2)

    assert len(pages) == 2
    assert parse(board, pages)[1] is False


def test_html_pages_end_at_a_page_without_items() -> None:
    config = {"items": "li", "fields": {"title": "a", "url": "a@href"}, "pagination": {"kind": "page_num"}}
    board = platform("html").configure("https://a.test/careers", config)

    _, pages = fetch_all(board, b"<ul><li><a href='/1'>One</a></ul>", b"<html><p>none</p></html>")

    assert len(parse(board, pages)[0]) == 1


def test_a_request_names_its_secret_without_the_value() -> None:
    auth = {"place": "header", "name": "X-Api-Key", "env": "ACME_KEY"}

    request = a_list({"kind": "page_num"}, auth=auth).first_request()

    assert request.secret == Secret(place=SecretPlace.HEADER, name="X-Api-Key", variable="ACME_KEY")


def test_every_mistake_in_pagination_and_auth_is_reported_at_once() -> None:
    auth = {"place": "cookie", "env": "INGESTION_HOME", "value": "hunter2"}
    pagination = {"kind": "offset", "cursor": "a", "max_pages": 51, "pages": 3}

    with pytest.raises(BadConfig) as caught:
        a_list(pagination, auth=auth)

    message = str(caught.value)
    for part in ("auth.place", "auth.env", "auth.value is no key", "pagination.size"):
        assert part in message
    for part in ("pagination.cursor", "pagination.max_pages", "pagination.pages is no key"):
        assert part in message
    assert "hunter2" not in message


def test_an_aggregator_is_filtered_by_company_and_a_remote_board_is_remote() -> None:
    config = {
        "items": "jobs",
        "fields": {**FIELDS, "company": "c", "salary_min": "low", "salary_currency": "cur"},
        "company_filter": "acme",
        "remote_only": True,
    }
    board = platform("json").configure(URL, config)
    jobs = [{"t": "A", "id": "1", "c": "Acme Inc", "low": "90000", "cur": "EUR"}, {"t": "B", "id": "2", "c": "Bolt"}]

    (listing,) = board.read([json.dumps({"jobs": jobs}).encode()], content_types=[None]).records

    assert (listing.company, listing.remote) == ("Acme Inc", "remote")
    assert listing.salary is not None
    assert (str(listing.salary.minimum), listing.salary.currency) == ("90000", "EUR")


def test_a_feed_is_parsed_by_configured_elements() -> None:
    feed = b"""<rss version="2.0" xmlns:job="http://x/job"><channel><title>F</title><item>
      <title>Engineer</title><link>https://a.test/1</link><job:company>Acme</job:company>
      <region>Oslo</region></item></channel></rss>"""
    fields = {"company": "job:company", "location": ["job:city", "region"]}
    board = platform("rss").configure("https://a.test/jobs.rss", {"fields": fields})

    (listing,) = board.read([feed], content_types=[None]).records

    assert (listing.company, listing.location) == ("Acme", "Oslo")


@pytest.mark.parametrize("auth", [{"env": "ACME_KEY"}, {"env": "ACME_KEY", "place": "bearer"}])
def test_a_bearer_token_needs_no_name_with_or_without_its_place(auth: dict[str, str]) -> None:
    secret = a_list({"kind": "page_num"}, auth=auth).first_request().secret

    assert secret is not None
    assert (secret.place, secret.variable) == ("bearer", "ACME_KEY")
