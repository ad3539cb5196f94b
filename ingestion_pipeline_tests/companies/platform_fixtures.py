"""Job boards of every platform, and fixture bodies parsed by them."""

from datetime import UTC, datetime
from pathlib import Path

from ingestion_pipeline.companies import Listing
from ingestion_pipeline.companies.platforms import JobBoard, platform
from ingestion_pipeline.reading.structured.items import ParsedFeed

FIXTURES = Path(__file__).parent.parent / "fixtures" / "jobs"
NOW = datetime(2026, 3, 5, 15, 30, tzinfo=UTC)
URLS = {
    "greenhouse": "https://boards.greenhouse.io/northwind",
    "lever": "https://jobs.eu.lever.co/acme",
    "ashby": "https://jobs.ashbyhq.com/Open%20Space%20Labs",
    "workday": "https://globex.wd3.myworkdayjobs.com/en-US/Careers",
    "smartrecruiters": "https://careers.smartrecruiters.com/InitechLLC",
    "recruitee": "https://hooli.recruitee.com/",
    "workable": "https://apply.workable.com/vandelay/",
    "personio": "https://tyrell.jobs.personio.com/",
    "jsonld": "https://aperture.test/careers",
    "rss": "https://a.test/jobs.rss",
    "json": "https://a.test/api/jobs",
    "html": "https://a.test/careers/",
}
CONFIGS: dict[str, dict[str, object]] = {
    "json": {
        "items": "data.results",
        "next": "links.next",
        "fields": {
            "title": "name",
            "url": "href",
            "external_id": "key",
            "location": "city",
            "salary": "pay",
            "remote": "mode",
            "posted_at": "when",
            "description": "text",
        },
    },
    "html": {
        "items": "li.job",
        "next": "a.next",
        "day_first": True,
        "fields": {"title": "a", "url": "a@href", "external_id": "@data-id", "location": ".where", "posted_at": "time"},
    },
}


def configured_board(name: str, **config: object) -> JobBoard:
    return platform(name).configure(URLS[name], {**CONFIGS.get(name, {}), **config})


def fixture_body(file: str) -> bytes:
    return (FIXTURES / file).read_bytes()


def parse_board(name: str, *bodies: bytes, **config: object) -> ParsedFeed[Listing]:
    return configured_board(name, **config).read(list(bodies), content_types=[None] * len(bodies), now=NOW)
