from datetime import UTC, datetime
from urllib.parse import urlsplit

from ingestion_pipeline.demo.commands import demo_file
from ingestion_pipeline.demo.content import DemoState, mutate
from ingestion_pipeline.demo.site import page_at
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.platforms import platform

NOW = datetime(2026, 11, 16, 12, 30, tzinfo=UTC)
CLOCKMAKER = next(source for source in demo_file().definitions if source.id == "series:clockmaker-list")


def body_at(state: DemoState, url: str) -> bytes:
    target = urlsplit(url)
    page = page_at(state, target.netloc, target.path, target.query)
    assert page.status_code == 200
    return page.body


def read_list(state: DemoState) -> tuple[list[str], ParsedFeed[Release]]:
    """Return the URLs of the list's pages and their records, read by the demo's own source."""
    feed = platform("html").configure(CLOCKMAKER.url, CLOCKMAKER.config)
    following: Request | None = feed.first_request()
    urls: list[str] = []
    bodies: list[bytes] = []
    while following is not None:
        urls.append(following.url)
        bodies.append(body_at(state, following.url))
        following = feed.next_request(bodies[-1], url=following.url)
    types = [None] * len(bodies)
    return urls, feed.read(bodies, content_types=types, urls=urls, now=NOW)


def test_the_list_is_read_completely_over_its_two_pages() -> None:
    urls, feed = read_list(DemoState())

    assert urls == [CLOCKMAKER.url, f"{CLOCKMAKER.url}?page=2"]
    assert [str(release.number) for release in feed.records] == [
        *("12", "11", "10", "9", "8", "7", "6.5", "6", "5", "4", "3", "2", "1")
    ]
    assert feed.is_complete
    assert feed.problems == []
    assert (feed.records[3].title, feed.records[3].url) == ("Brass & Bone", "http://lists.demo.test/clockmaker/9")


def test_new_rows_have_relative_dates_and_old_ones_absolute_dates() -> None:
    dates = [release.published_at for release in read_list(DemoState())[1].records]

    assert dates[:4] == [
        datetime(2026, 11, 15, tzinfo=UTC),
        datetime(2026, 11, 13, tzinfo=UTC),
        datetime(2026, 11, 9, tzinfo=UTC),
        datetime(2026, 9, 7, tzinfo=UTC),
    ]


def test_a_mutation_adds_a_row_and_changes_no_url() -> None:
    before, after = read_list(DemoState())[1].records, read_list(mutate(DemoState()))[1].records

    assert str(after[0].number) == "13"
    assert [release.url for release in after[1:]] == [release.url for release in before]


def test_a_page_past_the_end_is_a_404() -> None:
    for query in ("page=3", "page=0", "page=x"):
        assert page_at(DemoState(), "lists.demo.test", "/clockmaker", query).status_code == 404
