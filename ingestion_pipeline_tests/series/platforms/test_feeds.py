"""The registry of platforms, and lists of chapters in JSON and RSS."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pydantic import create_model

from ingestion_pipeline.reading.structured.items import MAX_RECORDS, ParsedFeed
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.platforms import PLATFORMS, BadConfig, SeriesFeed, UnknownPlatform, platform
from ingestion_pipeline.sources.platform_config import PlatformConfig, Text
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.builders import a_release


def test_every_platform_is_found_by_its_name() -> None:
    assert set(PLATFORMS) == {"html", "json", "mangadex", "rss"}
    assert all(platform(name).name == name for name in PLATFORMS)


@pytest.mark.slow
def test_an_unknown_platform_error_lists_the_platforms() -> None:
    with pytest.raises(UnknownPlatform, match=r"'mangadx'; there are: html, json, mangadex, rss"):
        platform("mangadx")


@pytest.mark.slow
def test_the_platform_adapters_are_light_to_import() -> None:
    heavy = {"dateparser", "feedparser", "httpx", "selectolax", "dagster", "pandas", "pydantic"}
    code = f"import sys, ingestion_pipeline.series; print({heavy!r} & set(sys.modules))"

    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert process.stdout.strip() == "set()"


URL = "https://a.test/api/series/7"
NOW = datetime(2026, 3, 10, 12, 34, tzinfo=UTC)
CONFIG: dict[str, object] = {
    "items": "data.chapters",
    "fields": {
        "number": "no",
        "title": ["names.en", "names.ja"],
        "url": "links[0]",
        "language": "lang",
        "scanlation_group": "group.name",
        "source_chapter_id": "id",
        "volume": "vol",
        "published_at": "at",
    },
    "next": "next",
}
CHAPTER: dict[str, object] = {
    "id": 71,
    "no": 1.5,
    "names": {"ja": "Asa"},
    "links": ["/read/71"],
    "lang": "en",
    "group": {"name": "North"},
    "vol": 2,
    "at": 1772366400,
}


def configured(**config: object) -> SeriesFeed:
    return platform("json").configure(URL, {**CONFIG, **config})


def body(*chapters: object, **more: object) -> bytes:
    return json.dumps({"data": {"chapters": chapters}, **more}).encode()


def read(*chapters: object, now: datetime | None = NOW, **config: object) -> ParsedFeed[Release]:
    return configured(**config).read([body(*chapters)], content_types=[None], now=now)


def test_an_item_is_a_release() -> None:
    assert list(read(CHAPTER).records) == [
        a_release(
            number=Decimal("1.5"),
            title="Asa",
            url="https://a.test/read/71",
            scanlation_group="North",
            source_chapter_id="71",
            volume="2",
        )
    ]


def test_a_missing_number_is_parsed_from_the_label_and_not_from_the_series_title() -> None:
    fields = {"label": "name", "url": "links[0]"}
    chapter = {"name": "Salt 14 Chapter 3", "links": ["/3"]}

    (release,) = read(chapter, fields=fields, series_title="Salt 14", language="de").records

    assert (release.number, release.title, release.language) == (Decimal(3), "Salt 14 Chapter 3", "de")


def test_a_relative_date_counts_from_the_time_of_fetching() -> None:
    chapter = {**CHAPTER, "at": "2 days ago"}

    assert read(chapter).records[0].published_at == datetime(2026, 3, 8, tzinfo=UTC)


def test_a_date_that_cannot_be_read_is_a_problem_and_leaves_the_list_complete() -> None:
    parsed = read({**CHAPTER, "at": "2 days ago"}, now=None, complete=True)

    assert parsed.records[0].published_at is None
    assert [(problem.where, problem.hides_record) for problem in parsed.problems] == [("published_at", False)]
    assert parsed.is_complete


def test_a_list_is_a_window_unless_the_config_says_complete_and_every_item_was_parsed() -> None:
    assert not read(CHAPTER).is_complete
    assert read(CHAPTER, complete=True).is_complete
    assert not read(CHAPTER, {"id": 72}, complete=True).is_complete


def test_a_list_whose_last_page_has_a_next_page_is_not_complete() -> None:
    feed, page = configured(complete=True), body(CHAPTER, next="/api/series/7?page=2")

    assert not feed.read([page], content_types=[None]).is_complete
    assert feed.read([page, body()], content_types=[None, None]).is_complete


def test_the_next_page_is_fetched_from_the_same_host_only() -> None:
    feed = configured()
    following = feed.next_request(body(next="?page=2"))

    assert following is not None
    assert following.url == URL + "?page=2"
    assert feed.next_request(body(next=None)) is None
    assert feed.next_request(body(next="javascript:alert(1)")) is None
    with pytest.raises(Permanent, match=r"b\.test") as failure:
        feed.next_request(body(next="https://b.test/2"))
    assert failure.value.code == "foreign_next"


def test_the_list_can_be_fetched_from_another_url() -> None:
    assert configured(api_base="http://127.0.0.1:1/x").first_request().url == "http://127.0.0.1:1/x"
    with pytest.raises(BadConfig, match="address"):
        platform("json").configure("", CONFIG).first_request()


def test_every_problem_of_a_config_is_reported_at_once_without_secrets() -> None:
    fields = {"api_token": "canary", "title": 3, "url": "a[]"}

    with pytest.raises(BadConfig) as failure:
        configured(fields=fields, items="a..b", next="x[", nope="canary")

    for part in ("fields.api_token", "fields.title", "'a[]'", "'a..b'", "'x['", "nope is no key"):
        assert part in str(failure.value)
    assert "canary" not in str(failure.value)


@pytest.mark.parametrize("fields", [None, {}, {"volume": "vol"}, "title"])
def test_a_config_without_a_chapter_field_is_refused(fields: object) -> None:
    with pytest.raises(BadConfig, match="at least one of url, source_chapter_id"):
        configured(fields=fields)


@pytest.mark.parametrize("label", ["Chapter&#160;12", "Chapter &amp;#8211; 12"])
def test_character_references_in_a_label_are_not_numbers(label: str) -> None:
    fields = {"label": "label", "source_chapter_id": "id"}

    (release,) = read({"id": 1, "label": label}, fields=fields).records

    assert release.number == Decimal(12)
    assert release.title is not None
    assert "&" not in release.title


@pytest.mark.slow
def test_a_list_of_too_many_chapters_is_cut_and_incomplete() -> None:
    chapters = [{"id": n, "no": n, "links": [f"/{n}"]} for n in range(MAX_RECORDS + 10)]

    parsed = read(*chapters, complete=True)

    assert len(parsed.records) == MAX_RECORDS
    assert "too_many_records" in [problem.code for problem in parsed.problems]
    assert not parsed.is_complete


RSS_URL = "https://a.test/series/feed.xml"
BODY = b"""<rss version="2.0"><channel><title>Salt 14</title>
<item><title>Salt 14 Chapter 3: Dawn</title><link>/read/3?a=1&amp;b=2</link><guid>g3</guid>
  <author>North</author><pubDate>Sun, 01 Mar 2026 12:00:00 GMT</pubDate></item>
<item><title>An announcement</title><link>javascript:alert(1)</link><guid>g0</guid></item>
</channel></rss>"""


def read_rss(body: bytes = BODY, **config: object) -> ParsedFeed[Release]:
    feed = platform("rss").configure(RSS_URL, config)
    return feed.read([body], content_types=["application/rss+xml"])


def test_an_entry_is_a_release() -> None:
    (release, _) = read_rss(series_title="Salt 14", language="en").records

    assert release == a_release(
        number=Decimal(3),
        title="Salt 14 Chapter 3: Dawn",
        url="https://a.test/read/3?a=1&b=2",
        scanlation_group="North",
        source_chapter_id="g3",
    )


ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>Salt</title><entry><id>a</id>
<title>{}</title><updated>2026-03-01T12:00:00Z</updated></entry></feed>"""
RSS = "<rss version='2.0'><channel><item><guid>g</guid><title>{}</title></item></channel></rss>"


@pytest.mark.parametrize("feed", [ATOM, RSS], ids=["atom", "rss"])
@pytest.mark.parametrize(
    ("title", "number", "volume"), [("Salt Vol. 03 Ch. 12: Dawn", "12", "3"), ("Salt Chapter 12", "12", None)]
)
def test_the_volume_is_read_from_the_title_of_an_entry(feed: str, title: str, number: str, volume: str | None) -> None:
    (release,) = read_rss(feed.format(title).encode(), series_title="Salt").records

    assert (release.number, release.volume) == (Decimal(number), volume)


@pytest.mark.parametrize("feed", [ATOM, RSS], ids=["atom", "rss"])
def test_the_volume_of_an_entry_is_not_the_one_in_the_title_of_its_series(feed: str) -> None:
    (release,) = read_rss(feed.format("Band 9 Chapter 2").encode(), series_title="Band 9").records

    assert (release.number, release.volume) == (Decimal(2), None)


def test_an_entry_without_number_stays_unnumbered_and_a_script_link_is_dropped() -> None:
    (_, announcement) = read_rss().records

    assert (announcement.number, announcement.url) == (None, None)


@pytest.mark.parametrize("link", ["", "<link>http://[</link>"], ids=["none", "malformed"])
def test_an_invalid_link_is_dropped(link: str) -> None:
    body = f"<rss version='2.0'><channel><item><guid isPermaLink='false'>g</guid>{link}</item>"

    (release,) = read_rss(f"{body}</channel></rss>".encode()).records

    assert (release.source_chapter_id, release.url) == ("g", None)


def test_the_configured_group_beats_the_author() -> None:
    assert read_rss(scanlation_group="South").records[0].scanlation_group == "South"


def test_a_feed_is_a_window_unless_the_config_says_complete() -> None:
    broken = BODY.replace(b"Dawn", b"Dawn & Dusk")

    assert not read_rss().is_complete
    assert read_rss(complete=True).is_complete
    assert not read_rss(broken, complete=True).is_complete


def test_the_feed_is_one_request() -> None:
    feed = platform("rss").configure(RSS_URL, {"api_base": "http://127.0.0.1:1/feed"})

    assert feed.first_request().url == "http://127.0.0.1:1/feed"
    assert feed.next_request(BODY) is None
    assert platform("rss").configure(RSS_URL, {}).first_request().url == RSS_URL


def test_an_html_page_in_place_of_the_feed_is_an_error() -> None:
    with pytest.raises(Permanent, match="HTML page"):
        read_rss(b"<html><body>Bad gateway</body></html>")


def test_a_saved_body_can_be_parsed_without_a_url() -> None:
    feed = platform("rss").configure("", {})

    assert len(feed.read([BODY], content_types=[None]).records) == 2
    with pytest.raises(BadConfig, match="address"):
        feed.first_request()


def test_every_problem_of_a_feeds_config_is_reported_at_once() -> None:
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
        platform("rss").configure(RSS_URL, config)

    assert next(iter(config)) in str(failure.value)
    assert "canary" not in str(failure.value)


@pytest.mark.parametrize("key", ["api_token", "ApiKey", "client_secret", "password", "auth"])
def test_the_value_of_a_key_that_looks_secret_is_never_repeated(key: str) -> None:
    model = create_model("Config", __base__=PlatformConfig, **{key: (Text, None)})  # pyright: ignore[reportCallIssue, reportArgumentType]

    with pytest.raises(BadConfig, match=f"{key} is not accepted; accepted: text") as failure:
        model.of("rss", RSS_URL, {key: ["canary"]})
    assert "canary" not in str(failure.value)


def test_rss_honours_robots_and_publishes_no_rate() -> None:
    assert platform("rss").honours_robots
    assert platform("rss").rate is None
