import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline.series.chapter import Release, chapters_of
from ingestion_pipeline.series.platforms import BadConfig, SeriesFeed, platform
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError
from ingestion_pipeline_tests.builders import a_release
from ingestion_pipeline_tests.samples import sample

MANGA = "736a2bf0-f875-4b52-a7b4-e8c40505b68a"
URL = f"https://mangadex.org/title/{MANGA}/mob-psycho-100"


def mangadex(url: str = URL, **config: object) -> SeriesFeed:
    return platform("mangadex").configure(url, config)


def read(*bodies: bytes, **config: object) -> ParsedFeed[Release]:
    return platform("mangadex").configure(URL, config).read(bodies, content_types=[None] * len(bodies))


def a_chapter(chapter_id: str = "c1", /, **attributes: object) -> dict[str, Any]:
    defaults = {
        "volume": "1",
        "chapter": "1",
        "title": "Dawn",
        "translatedLanguage": "en",
        "externalUrl": None,
        "publishAt": "2026-03-01T21:00:00+09:00",
    }
    return {"id": chapter_id, "type": "chapter", "attributes": defaults | attributes}


def a_page(*chapters: object, offset: int = 0, limit: int = 2, total: int | None = None) -> bytes:
    page = {"result": "ok", "response": "collection", "data": chapters, "limit": limit}
    return json.dumps(page | {"offset": offset, "total": len(chapters) if total is None else total}).encode()


def query(address: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(address).query)


@pytest.mark.parametrize(
    ("url", "config"),
    [
        (URL, {}),
        (f"https://api.mangadex.org/manga/{MANGA}/feed?limit=9", {}),
        (f"https://api.mangadex.org/manga/{MANGA}", {}),
        ("https://mangadex.org/", {"manga_id": MANGA}),
        ("", {"manga_id": MANGA}),
    ],
    ids=["title", "feed", "manga", "config", "config-only"],
)
def test_the_manga_id_is_taken_from_url_or_config(url: str, config: dict[str, object]) -> None:
    request = platform("mangadex").configure(url, config).first_request()

    assert request.url.startswith(f"https://api.mangadex.org/manga/{MANGA}/feed?")


def test_the_first_request_follows_the_config() -> None:
    feed = mangadex(languages=["en", "PT-BR"], limit=100, include_external=False)

    assert query(feed.first_request().url) == {
        "limit": ["100"],
        "offset": ["0"],
        "order[createdAt]": ["asc"],
        "order[chapter]": ["asc"],
        "includes[]": ["scanlation_group"],
        "translatedLanguage[]": ["en", "pt-br"],
        "contentRating[]": ["safe", "suggestive", "erotica"],
        "includeExternalUrl": ["0"],
    }


def test_a_self_hosted_server_replaces_the_api() -> None:
    feed = mangadex(f"http://127.0.0.1:8/manga/{MANGA}", api_base="http://127.0.0.1:8/")

    assert feed.first_request().url.startswith(f"http://127.0.0.1:8/manga/{MANGA}/feed?")


@pytest.mark.parametrize(
    ("page", "offset"),
    [
        (a_page(a_chapter(), a_chapter("c2"), total=3), ["2"]),
        (a_page(a_chapter(), a_chapter("c2"), total=2), None),
        (a_page(total=0), None),
        (a_page(a_chapter(), offset=9_996, limit=2, total=20_000), ["9998"]),
        (a_page(a_chapter(), offset=9_998, limit=2, total=20_000), None),
    ],
    ids=["more", "last", "empty", "to-the-limit", "beyond-the-limit"],
)
def test_every_page_is_requested_to_the_end(page: bytes, offset: list[str] | None) -> None:
    request = mangadex(limit=2).next_request(page)

    assert (request and query(request.url)["offset"]) == offset


def test_the_mob_psycho_100_sample_is_parsed_and_incomplete() -> None:
    body = sample("manga/mangadex/feed_mob_psycho_100.json").read_bytes()

    parsed = read(body)
    request = mangadex(limit=100).next_request(body)

    assert len(parsed.records) == 100
    assert len({release.number for release in parsed.records}) == 82
    assert (parsed.is_complete, list(parsed.problems)) == (False, [])
    assert parsed.records[0].number == Decimal("60.5")
    assert parsed.records[0].title is None
    assert request is not None
    assert query(request.url)["offset"] == ["100"]


def test_42_releases_of_23_numbers_make_23_chapters() -> None:
    parsed = read(sample("manga/mangadex/feed_big_regression_42.json").read_bytes())

    chapters, problems = chapters_of(parsed.records, source_id="series:devil")

    assert (len(parsed.records), parsed.is_complete) == (42, True)
    assert (len(chapters), sum(len(c.releases) for c in chapters), problems) == (23, 42, [])


def test_a_release_has_all_its_facts() -> None:
    chapter = a_chapter(chapter="60.50")
    chapter["relationships"] = [
        {"id": "g1", "type": "scanlation_group", "attributes": {"name": "North"}},
        {"id": "u1", "type": "user"},
        {"id": "g2", "type": "scanlation_group"},
    ]

    assert read(a_page(chapter)).records == [
        a_release(
            number=Decimal("60.5"),
            title="Dawn",
            url="https://mangadex.org/chapter/c1",
            scanlation_group="North & g2",
            source_chapter_id="c1",
            volume="1",
        )
    ]


@pytest.mark.parametrize(
    ("attributes", "number", "title"),
    [
        ({"chapter": None, "title": "Oneshot"}, None, "Oneshot"),
        ({"chapter": "Extra", "title": "Tea"}, None, "Extra: Tea"),
        ({"chapter": "Extra", "title": ""}, None, "Extra"),
        ({"chapter": "S1"}, Decimal(1), "Dawn"),
        ({"chapter": "045.0"}, Decimal(45), "Dawn"),
        ({"chapter": 7.5}, Decimal("7.5"), "Dawn"),
        ({"chapter": "-1"}, None, "-1: Dawn"),
    ],
    ids=["null", "word", "word-alone", "season", "zeros", "json-number", "negative"],
)
def test_a_label_that_is_no_number_is_neither_0_nor_lost(
    attributes: dict[str, object], number: Decimal | None, title: str
) -> None:
    (release,) = read(a_page(a_chapter(**attributes))).records

    assert (release.number, release.title) == (number, title)


@pytest.mark.parametrize(
    ("dates", "published_at"),
    [
        ({"publishAt": "2026-03-01T12:00:00"}, datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ({"publishAt": None, "readableAt": "2026-03-02T00:00:00Z"}, datetime(2026, 3, 2, tzinfo=UTC)),
        ({"publishAt": "soon", "createdAt": "2026-03-03"}, datetime(2026, 3, 3, tzinfo=UTC)),
        ({"publishAt": "0001-01-01T00:00:00+09:00"}, None),
    ],
    ids=["no-zone", "readable", "created", "edge-of-calendar"],
)
def test_the_best_date_that_can_be_read_counts(dates: dict[str, object], published_at: datetime | None) -> None:
    assert read(a_page(a_chapter(**dates))).records[0].published_at == published_at


def test_an_external_chapter_is_where_it_is_hosted() -> None:
    external = a_chapter("c2", externalUrl="https://m.test/2")
    script = a_chapter("c3", externalUrl="javascript:alert(1)")
    page = a_page(external, script, total=2)

    addresses = [release.url for release in read(page).records]

    assert addresses == ["https://m.test/2", "https://mangadex.org/chapter/c3"]
    assert [r.source_chapter_id for r in read(page, include_external=False).records] == ["c3"]


def test_other_languages_are_left_out_even_where_the_server_sends_them() -> None:
    page = a_page(a_chapter(), a_chapter("c2", translatedLanguage="pl"))

    assert [release.language for release in read(page, languages=["pl"]).records] == ["pl"]


FIRST = a_page(a_chapter("c1"), a_chapter("c2"), total=3)
SECOND = a_page(a_chapter("c3"), offset=2, total=3)


@pytest.mark.parametrize(
    ("bodies", "is_complete"),
    [
        ([FIRST, SECOND], True),
        ([SECOND, FIRST], True),
        ([FIRST], False),
        ([SECOND], False),
        ([FIRST, a_page(a_chapter("c3"), offset=2, total=4)], False),
        ([a_page(a_chapter("c1"), a_chapter("c2"), total=4), SECOND], False),
        ([FIRST, a_page(a_chapter("c2"), offset=2, total=3)], False),
        ([a_page(total=0)], True),
        ([], False),
    ],
    ids=["all", "any-order", "first", "last", "grew", "shrank", "shifted", "empty", "nothing"],
)
def test_a_listing_is_complete_only_if_every_page_agrees(bodies: list[bytes], is_complete: bool) -> None:
    assert read(*bodies).is_complete is is_complete


def test_a_listing_longer_than_the_api_lists_is_a_problem() -> None:
    pages = [a_page(a_chapter(), offset=offset, limit=500, total=10_400) for offset in (0, 9_500)]

    parsed = read(*pages)

    assert not parsed.is_complete
    assert ["10000 of 10400" in problem.message for problem in parsed.problems] == [True]


def test_an_item_that_is_no_chapter_is_a_problem_and_the_rest_counts() -> None:
    oddities = [{"type": "chapter"}, {"id": "x", "attributes": None}, 7, {"type": "manga"}]
    page = a_page(a_chapter(), *oddities, limit=5)

    parsed = read(page)

    assert [release.source_chapter_id for release in parsed.records] == ["c1"]
    assert [p.where for p in parsed.problems] == ["item 1", "item 2", "item 3", "item 4"]
    assert not parsed.is_complete


def an_error(status: object) -> bytes:
    error = {"id": "e", "status": status, "title": "t", "detail": "no such manga"}
    return json.dumps({"result": "error", "errors": [error]}).encode()


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (an_error(404), Permanent, "api_error"),
        (an_error(400), Permanent, "api_error"),
        (an_error(403), Transient, "api_error"),
        (an_error(429), Transient, "api_error"),
        (an_error(503), Transient, "api_error"),
        (an_error(None), Transient, "api_error"),
        (b'{"result": "error"}', Transient, "api_error"),
        (b"<!DOCTYPE html><html>Bad gateway</html>", Permanent, "unexpected_body"),
        (b'{"result": "ok"}', Permanent, "unexpected_body"),
        (b"[]", Permanent, "unexpected_body"),
        (b'{"a": 1} extra', Permanent, "unexpected_body"),
        (b"[" * 200_000, Permanent, "unexpected_body"),
        (b'{"total": ' + b"9" * 9_000 + b"}", Permanent, "unexpected_body"),
        (a_page({"id": "m", "type": "manga"}), Permanent, "unexpected_body"),
        (a_page(limit=0), Permanent, "unexpected_body"),
        (FIRST[:-1], Transient, "truncated"),
        (FIRST[:100], Transient, "truncated"),
        (b'{"result": tr', Transient, "truncated"),
        (b"", Transient, "truncated"),
    ],
    ids=lambda value: value[:24].decode() if isinstance(value, bytes) else None,
)
def test_an_invalid_body_is_an_error_and_never_an_empty_listing(body: bytes, kind: type[WorkError], code: str) -> None:
    for act in (lambda: read(body), lambda: mangadex().next_request(body)):
        with pytest.raises(kind) as failure:
            act()
        assert failure.value.code == code


def test_an_error_carries_the_message_of_the_api() -> None:
    with pytest.raises(Permanent, match="404: no such manga"):
        read(an_error(404))


@pytest.mark.parametrize("name", ["author", "group", "search_one_punch_man", "at_home_server"])
def test_other_api_responses_are_not_accepted_as_a_feed(name: str) -> None:
    with pytest.raises(Permanent) as failure:
        read(sample(f"manga/mangadex/{name}.json").read_bytes())

    assert failure.value.code == "unexpected_body"


def test_every_problem_of_a_config_is_reported_at_once() -> None:
    config = {"limit": 501, "languages": "en", "content_ratings": ["mild"], "lang": 1}

    with pytest.raises(BadConfig) as failure:
        mangadex("https://mangadex.org/title/12345", **config)

    for part in (
        "limit is 501; accepted: a whole number from 1 to 500",
        "languages is 'en'; accepted: a list of words",
        "content_ratings is ['mild']; accepted: a list of safe, suggestive, erotica, pornographic",
        "lang is no key of it; there are: api_base, content_ratings",
        "url is 'https://mangadex.org/title/12345'",
    ):
        assert part in str(failure.value)


@pytest.mark.parametrize("manga_id", ["../../admin", "12345", "a b"])
def test_an_id_that_is_no_uuid_is_refused(manga_id: str) -> None:
    with pytest.raises(BadConfig, match="accepted: the UUID of a manga"):
        mangadex(manga_id=manga_id)


def test_a_saved_body_can_be_parsed_without_a_url() -> None:
    feed = platform("mangadex").configure("", {})

    assert len(feed.read([FIRST], content_types=["application/json"]).records) == 2
    with pytest.raises(BadConfig, match="manga_id"):
        feed.first_request()


def test_the_published_rate_is_declared_and_the_api_needs_no_robots() -> None:
    assert platform("mangadex").rate == Pace(delay_seconds=0.2, burst=10)
    assert not platform("mangadex").honours_robots
