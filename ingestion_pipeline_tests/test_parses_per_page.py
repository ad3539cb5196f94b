"""How often each step parses a page: once, whatever it reads of it."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from selectolax import lexbor
from selectolax.lexbor import LexborHTMLParser

from ingestion_pipeline.catalogs.detection.detector import matching_links
from ingestion_pipeline.catalogs.detection.page_analysis import analyze_page
from ingestion_pipeline.catalogs.extraction.entity_type import entity_type
from ingestion_pipeline.companies.analysis.company_pages import Role, parse_company_page
from ingestion_pipeline.companies.platforms.job_lists import RecognisedReader, configure_json_ld
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.markdown import read_page, visible_page
from ingestion_pipeline.websites.business import FetchedPage

URL = "https://www.example.com/jobs/"
NOW = datetime(2026, 3, 1, tzinfo=UTC)
POSTING = '<script type="application/ld+json">{"@type": "JobPosting", "title": "Baker"}</script>'
JOBS = "".join(f'<li><a href="/jobs/{n}-software-engineer">Software Engineer {n}</a></li>' for n in range(9))
PAGE = f"<html><head><title>Jobs</title>{POSTING}</head><body><ul>{JOBS}</ul><p>Words enough.</p></body></html>"


def analyze() -> None:
    page = analyze_page(PAGE, URL, kind=entity_type("course"))
    assert page.title


def read_listing() -> None:
    """Read what a listing's own page states, then its text."""
    document = Document.of(PAGE.encode(), "text/html", url=URL)
    assert configure_json_ld(URL, {}).read_documents([document], urls=[URL], now=NOW).records
    assert "Words enough" in document.main_content


STEPS: dict[str, Callable[[], object]] = {
    "crawl": lambda: visible_page(Document(PAGE, url=URL)),
    "read": lambda: read_page(Document(PAGE, url=URL)),
    "detection": analyze,
    "company": lambda: parse_company_page(PAGE, url=URL, role=Role.HOME),
    "board": lambda: RecognisedReader().read(PAGE.encode(), url=URL, content_type="text/html"),
    "postings": lambda: configure_json_ld(URL, {}).read([PAGE.encode()], content_types=["text/html"], urls=[URL]),
    "listing": read_listing,
    "website": lambda: FetchedPage(url=URL, html=PAGE).facts,
}


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the whole pages that are parsed from now on."""
    pages: list[str] = []

    class CountingParser(LexborHTMLParser):
        def __init__(self, html: str | bytes) -> None:
            text = html if isinstance(html, str) else html.decode()
            pages.extend([text] if "<title>" in text else [])
            super().__init__(html)

    monkeypatch.setattr(lexbor, "LexborHTMLParser", CountingParser)
    return pages


@pytest.mark.parametrize("step", STEPS)
def test_a_step_parses_its_page_once(step: str, parsed: list[str]) -> None:
    STEPS[step]()

    assert len(parsed) == 1


def test_all_patterns_that_are_tried_on_a_page_share_one_parse(parsed: list[str]) -> None:
    page = analyze_page(PAGE, URL, kind=entity_type("course"))
    before = len(parsed)

    links_by_pattern = [matching_links(page, pattern) for pattern in (r"/jobs/\d+[\w-]*", "/none/", "/jobs/1")]

    assert [bool(links) for links in links_by_pattern] == [True, False, True]
    assert len(parsed) - before == 1
