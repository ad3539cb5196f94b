from datetime import UTC, datetime
from decimal import Decimal

import pytest

from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.platforms import BadConfig, platform
from ingestion_pipeline.sources.source import ConfigReader
from ingestion_pipeline.tasks.errors import Permanent

URL = "https://a.test/series/feed.xml"
BODY = b"""<rss version="2.0"><channel><title>Salt 14</title>
<item><title>Salt 14 Chapter 3: Dawn</title><link>/read/3?a=1&amp;b=2</link><guid>g3</guid>
  <author>North</author><pubDate>Sun, 01 Mar 2026 12:00:00 GMT</pubDate></item>
<item><title>An announcement</title><link>javascript:alert(1)</link><guid>g0</guid></item>
</channel></rss>"""


def read(body: bytes = BODY, **config: object) -> ParsedFeed[Release]:
    feed = platform("rss").configure(URL, config)
    return feed.read([body], content_types=["application/rss+xml"])


def test_an_entry_is_a_release() -> None:
    (release, _) = read(series_title="Salt 14", language="en").records

    assert release == Release(
        number=Decimal(3),
        title="Salt 14 Chapter 3: Dawn",
        url="https://a.test/read/3?a=1&b=2",
        language="en",
        scanlation_group="North",
        source_chapter_id="g3",
        volume=None,
        published_at=datetime(2026, 3, 1, 12, tzinfo=UTC),
    )


ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>Salt</title><entry><id>a</id>
<title>{}</title><updated>2026-03-01T12:00:00Z</updated></entry></feed>"""
RSS = "<rss version='2.0'><channel><item><guid>g</guid><title>{}</title></item></channel></rss>"


@pytest.mark.parametrize("feed", [ATOM, RSS], ids=["atom", "rss"])
@pytest.mark.parametrize(
    ("title", "number", "volume"), [("Salt Vol. 03 Ch. 12: Dawn", "12", "3"), ("Salt Chapter 12", "12", None)]
)
def test_the_volume_is_read_from_the_title_of_an_entry(feed: str, title: str, number: str, volume: str | None) -> None:
    (release,) = read(feed.format(title).encode(), series_title="Salt").records

    assert (release.number, release.volume) == (Decimal(number), volume)


@pytest.mark.parametrize("feed", [ATOM, RSS], ids=["atom", "rss"])
def test_the_volume_of_an_entry_is_not_the_one_in_the_title_of_its_series(feed: str) -> None:
    (release,) = read(feed.format("Band 9 Chapter 2").encode(), series_title="Band 9").records

    assert (release.number, release.volume) == (Decimal(2), None)


def test_an_entry_without_number_stays_unnumbered_and_a_script_link_is_dropped() -> None:
    (_, announcement) = read().records

    assert (announcement.number, announcement.url) == (None, None)


@pytest.mark.parametrize("link", ["", "<link>http://[</link>"], ids=["none", "malformed"])
def test_an_invalid_link_is_dropped(link: str) -> None:
    body = f"<rss version='2.0'><channel><item><guid isPermaLink='false'>g</guid>{link}</item>"

    (release,) = read(f"{body}</channel></rss>".encode()).records

    assert (release.source_chapter_id, release.url) == ("g", None)


def test_the_configured_group_beats_the_author() -> None:
    assert read(scanlation_group="South").records[0].scanlation_group == "South"


def test_a_feed_is_a_window_unless_the_config_says_complete() -> None:
    broken = BODY.replace(b"Dawn", b"Dawn & Dusk")

    assert not read().is_complete
    assert read(complete=True).is_complete
    assert not read(broken, complete=True).is_complete


def test_the_feed_is_one_request() -> None:
    feed = platform("rss").configure(URL, {"api_base": "http://127.0.0.1:1/feed"})

    assert feed.first_request().url == "http://127.0.0.1:1/feed"
    assert feed.next_request(BODY) is None
    assert platform("rss").configure(URL, {}).first_request().url == URL


def test_an_html_page_in_place_of_the_feed_is_an_error() -> None:
    with pytest.raises(Permanent, match="HTML page"):
        read(b"<html><body>Bad gateway</body></html>")


def test_a_saved_body_can_be_parsed_without_a_url() -> None:
    feed = platform("rss").configure("", {})

    assert len(feed.read([BODY], content_types=[None]).records) == 2
    with pytest.raises(BadConfig, match="address"):
        feed.first_request()


def test_every_problem_of_a_config_is_reported_at_once() -> None:
    config = {"complete": "yes", "langauge": "en", "language": 3, "api_base": "ftp://x"}

    with pytest.raises(BadConfig) as failure:
        platform("rss").configure("file:///etc/passwd", config)

    for part in ("complete is 'yes'", "langauge is no key", "language is 3", "'ftp://x'", "url is"):
        assert part in str(failure.value)


def test_an_invalid_url_is_refused() -> None:
    with pytest.raises(BadConfig, match=r"url is 'http://\['"):
        platform("rss").configure("http://[", {})


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(BadConfig, match="credentials") as failure:
        platform("rss").configure("https://user:hunter2@a.test/feed", {})

    assert "hunter2" not in str(failure.value)


@pytest.mark.parametrize(
    "config",
    [
        {"api_token": "canary"},
        {"langauge": "canary"},
        {"headers": {"authorization": "canary"}},
        {"api_base": "ftp://a.test/?token=canary"},
    ],
    ids=lambda config: next(iter(config)),
)
def test_a_refused_config_names_its_key_and_repeats_no_secret(config: dict[str, object]) -> None:
    with pytest.raises(BadConfig) as failure:
        platform("rss").configure(URL, config)

    assert next(iter(config)) in str(failure.value)
    assert "canary" not in str(failure.value)


@pytest.mark.parametrize("key", ["api_token", "ApiKey", "client_secret", "password", "auth"])
def test_the_value_of_a_key_that_looks_secret_is_never_repeated(key: str) -> None:
    reader = ConfigReader("rss", {key: ["canary"]})
    reader.text(key)

    with pytest.raises(BadConfig, match=f"{key} is not accepted; accepted: text") as failure:
        reader.finish()
    assert "canary" not in str(failure.value)


def test_rss_honours_robots_and_publishes_no_rate() -> None:
    assert platform("rss").honours_robots
    assert platform("rss").rate is None
