import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from ingestion_pipeline.reading.structured.items import MAX_RECORDS, ParsedFeed
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.platforms import BadConfig, SeriesFeed, platform
from ingestion_pipeline.tasks.errors import Permanent

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
        Release(
            number=Decimal("1.5"),
            title="Asa",
            url="https://a.test/read/71",
            language="en",
            scanlation_group="North",
            source_chapter_id="71",
            volume="2",
            published_at=datetime(2026, 3, 1, 12, tzinfo=UTC),
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
