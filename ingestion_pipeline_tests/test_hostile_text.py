"""Text of strangers, as long and as odd as they like, is read in time: `re` holds the interpreter,
so that a field that takes seconds stops heartbeats and deadlines as well.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import pytest

from ingestion_pipeline.catalogs.extraction.rules.course_words import heading_credits, read_credits
from ingestion_pipeline.companies.job_listing import company_slug, fingerprint, salary_in
from ingestion_pipeline.companies.matching.listing_rules import adjustments, filter_listing, rule_score
from ingestion_pipeline.companies.platforms.job_lists import configure_json_ld
from ingestion_pipeline.reading.evidence.grounding import ground
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.markdown import to_markdown
from ingestion_pipeline.reading.structured.embedded import BadJson, read_json
from ingestion_pipeline.reading.structured.feeds import read_feed
from ingestion_pipeline.reading.structured.organizations import bare_name
from ingestion_pipeline.reading.text.values import read_date
from ingestion_pipeline.settings.groups import Filter, Match
from ingestion_pipeline.tasks.errors import WorkError
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.companies.matching.listings import a_listing, a_profile

CHARACTERS = 100_000
LIMIT_SECONDS = 1.5  # most take a hundredth of it; before, each of the worst took minutes
PIECES = {
    "blanks": " ",
    "other-blanks": "\u00a0",
    "line-ends": "\n",
    "dots": ".",
    "dashes": "-",
    "commas": ",",
    "figures": "1",
    "letters": "a",
    "legal-forms": "GmbH ",
    "link-targets": "](",
    "brackets": "(",
    "stars": "*",
    "dates": "2024-01-01T",
    "years": "5 years ",
}
FEED = """<rss version="2.0" xmlns:dc="http://purl.org/dc/elements/1.1/"><channel><title>A</title>
<item><title>Chapter 1</title><link>https://example.com/1</link>{0}</item></channel></rss>"""


@contextmanager
def in_time() -> Iterator[None]:
    started = time.process_time()
    yield
    assert time.process_time() - started < LIMIT_SECONDS


@pytest.fixture(params=PIECES.values(), ids=list(PIECES))
def text(request: pytest.FixtureRequest) -> str:
    return f"x{request.param * (CHARACTERS // len(request.param))}y"


@pytest.mark.parametrize("element", ["dc:date", "pubDate", "author", "dc:creator", "description"])
def test_an_element_of_a_feed_is_read_in_time(element: str, text: str) -> None:
    feed = FEED.format(f"<{element}>{text}</{element}>")

    with in_time():
        reading = read_feed(feed.encode())

    assert [entry.title for entry in reading.records] == ["Chapter 1"]


@pytest.mark.parametrize(
    "author",
    [
        "<author>{0}</author>",
        "<author><![CDATA[{0}]]></author>",
        "<author><b/><b/>{0}</author>",
        "<author><author></author>{0}</author>",
        "<author><name>{0}</name></author>",
        "<dc:creator>Ann</dc:creator><author>{0}",
    ],
    ids=["plain", "cdata", "after-tags", "nested", "named", "unclosed"],
)
def test_an_author_of_100_kb_is_read_in_time_however_it_is_written(author: str) -> None:
    feed = FEED.format(author.format("-" * CHARACTERS))

    with in_time(), suppress(WorkError):
        read_feed(feed.encode())


def test_the_author_and_date_of_an_ordinary_entry_are_parsed() -> None:
    entry = "<author>ann@example.com (Ann Lee)</author><dc:date>2024-01-02T03:04:05Z</dc:date>"

    [read] = read_feed(FEED.format(entry).encode()).records

    assert read.author == "ann@example.com (Ann Lee)"
    assert read.published_at is not None


@pytest.mark.slow
@pytest.mark.parametrize("field", ["datePosted", "validThrough", "description", "title", "employmentType", "industry"])
def test_a_field_of_a_job_posting_is_read_in_time(field: str, text: str) -> None:
    posting = {"@type": "JobPosting", "title": "Cook", field: text}

    with in_time():
        reading = read_posting(posting)

    assert len(reading) == 1


@pytest.mark.parametrize("address", ["{0}", "addressLocality", "addressCountry"])
def test_the_place_of_a_job_posting_is_read_in_time(address: str, text: str) -> None:
    place = text if address == "{0}" else {"@type": "PostalAddress", address: text}
    posting = {"@type": "JobPosting", "title": "Cook", "jobLocation": {"address": place}}

    with in_time():
        read_posting(posting | {"hiringOrganization": {"name": text}})


def read_posting(posting: Mapping[str, object]) -> list[object]:
    body = f'<script type="application/ld+json">{json.dumps(posting)}</script>'
    board = configure_json_ld("https://jobs.test/", {})
    return list(board.read([body.encode()], content_types=["text/html"], now=NOON).records)


def test_the_name_of_a_company_is_read_in_time(text: str) -> None:
    with in_time():
        company_slug(text)
        bare_name(text)
        fingerprint("Cook", text, text)


@pytest.mark.parametrize("count", [2_000, 100_000])
def test_a_company_with_commas_for_a_name_has_an_id_in_time(count: int) -> None:
    with in_time():
        company_slug("Acme" + "," * count + "x")


def test_embedded_json_is_read_in_time(text: str) -> None:
    with in_time():
        Document(f'<script type="application/ld+json">{{"name": "{text}"}}</script>').preload("embedded")
        with suppress(BadJson):
            read_json(text)
        with suppress(BadJson):
            read_json('{"name": "' + text)


@pytest.mark.parametrize("tail", ["", ";", " ; ", "-->", "//]]>", "/* ]]> */", "]]>;\n// --->", ";;\n"])
def test_what_ends_a_script_is_no_part_of_its_json(tail: str) -> None:
    assert read_json('{"name": "Acme"}' + tail) == {"name": "Acme"}


def test_a_long_job_description_is_evaluated_in_time(text: str) -> None:
    listing = a_listing(description=text * 2, locations=(text,), company=text)
    profile = a_profile(home_city="Portland, OR", time_zone="America/Los_Angeles")

    with in_time():
        filter_listing(listing, profile, Filter(), at=NOON)
        rule_score(listing, profile)
        adjustments(listing, profile, Match(), at=NOON)
        salary_in(text)


@pytest.mark.slow
def test_a_date_is_read_in_time(text: str) -> None:
    with in_time():
        read_date(text, now=NOON)


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["3 credits ", "credits: 3 ", "2024-01-01 ", "1-", "(3) "])
def test_the_credits_of_a_long_heading_are_read_in_time(piece: str) -> None:
    text = "Algebra " + piece * (CHARACTERS // len(piece)) + "x"

    with in_time():
        heading_credits(text)
        read_credits(text)


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["the ", "1 ", "word for word "])
def test_a_value_of_words_that_a_page_repeats_is_grounded_in_time(piece: str) -> None:
    text = piece * (CHARACTERS // len(piece))

    with in_time():
        ground(f"{text[:10_000]}else", text)


@pytest.mark.parametrize("inner", ["{0}", "<b>{0}</b>", "<pre>{0}</pre>"])
def test_a_link_of_many_empty_lines_is_converted_in_time(inner: str) -> None:
    label = inner.format("Cook" + "\n" * CHARACTERS + "wanted")

    with in_time():
        markdown = to_markdown(f"<ul><li><a href='https://jobs.test/1'>{label}</a></li></ul>")

    assert "Cook" in markdown
    assert "wanted" in markdown
