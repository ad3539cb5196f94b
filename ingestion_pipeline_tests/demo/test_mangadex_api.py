from typing import Any

import pytest

from ingestion_pipeline.demo.content import LIGHTHOUSE_ID, SALT_ID
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline_tests.demo.site_requests import all_chapters, manga_feed

DATES = ("publishAt", "readableAt", "createdAt", "updatedAt")


def numbers(chapters: list[dict[str, Any]]) -> list[str | None]:
    return [chapter["attributes"]["chapter"] for chapter in chapters]


def groups(chapter: dict[str, Any]) -> list[str]:
    related = chapter["relationships"]
    return [relation["attributes"]["name"] for relation in related if relation["type"] == "scanlation_group"]


def test_paging_shows_every_release_once_and_in_the_same_order(site: DemoSite) -> None:
    by_25 = all_chapters(site, 25)
    at_once = manga_feed(site, LIGHTHOUSE_ID, limit=500).json

    assert len({chapter["id"] for chapter in by_25}) == len(by_25) == at_once["total"] > 50
    assert by_25 == at_once["data"]


def test_a_page_states_its_own_offset_and_limit(site: DemoSite) -> None:
    page = manga_feed(site, LIGHTHOUSE_ID, limit=25, offset=50).json

    assert (page["result"], page["response"]) == ("ok", "collection")
    assert (page["limit"], page["offset"]) == (25, 50)
    assert len(page["data"]) == page["total"] - 50


def test_a_page_past_the_end_is_empty_and_still_has_the_total(site: DemoSite) -> None:
    page = manga_feed(site, LIGHTHOUSE_ID, offset=1000).json

    assert page["data"] == []
    assert page["total"] > 50


def test_the_lighthouse_has_the_variety_of_real_feeds(site: DemoSite) -> None:
    chapters = all_chapters(site, 100)

    assert len(set(numbers(chapters)) - {None}) == 24
    assert "10.5" in numbers(chapters)
    assert numbers(chapters).count(None) == 1
    assert numbers(chapters).count("2") > 1
    assert {chapter["attributes"]["translatedLanguage"] for chapter in chapters} == {"en", "es"}
    assert len({name for chapter in chapters for name in groups(chapter)}) == 2


def test_exactly_one_chapter_is_external_and_has_no_pages(site: DemoSite) -> None:
    chapters = all_chapters(site, 100)

    (external,) = [chapter for chapter in chapters if chapter["attributes"]["externalUrl"]]
    assert external["attributes"]["pages"] == 0
    assert groups(external) == []
    assert numbers(chapters).count(external["attributes"]["chapter"]) == 1


def test_an_item_is_shaped_like_the_real_api_s(site: DemoSite) -> None:
    chapter = manga_feed(site, SALT_ID, limit=1).json["data"][0]

    assert chapter["type"] == "chapter"
    assert chapter["attributes"] == {
        "volume": "1",
        "chapter": "1",
        "title": "The Weighing House",
        "translatedLanguage": "en",
        "externalUrl": None,
        "pages": 22,
        "version": 1,
    } | dict.fromkeys(DATES, "2026-07-05T09:00:00+00:00")
    assert {"id": SALT_ID, "type": "manga"} in chapter["relationships"]


def test_a_language_filter_narrows_the_feed_and_its_total(site: DemoSite) -> None:
    everything = manga_feed(site, LIGHTHOUSE_ID).json["total"]
    spanish = manga_feed(site, LIGHTHOUSE_ID, **{"translatedLanguage[]": ["es"]}).json
    both = manga_feed(site, LIGHTHOUSE_ID, **{"translatedLanguage[]": ["es", "en"]}).json

    assert {chapter["attributes"]["translatedLanguage"] for chapter in spanish["data"]} == {"es"}
    assert 0 < spanish["total"] == len(spanish["data"]) < everything
    assert both["total"] == everything


def test_an_unknown_manga_is_the_api_s_own_404(site: DemoSite) -> None:
    reply = manga_feed(site, "00000000-0000-4000-8000-000000000000")

    assert reply.status == 404
    assert reply.json["result"] == "error"
    (error,) = reply.json["errors"]
    assert (error["status"], error["title"]) == (404, "not_found_http_exception")


@pytest.mark.parametrize("query", [{"limit": 501}, {"limit": 0}, {"limit": "x"}, {"offset": -1}], ids=str)
def test_an_invalid_offset_or_limit_is_refused(site: DemoSite, query: dict[str, object]) -> None:
    reply = manga_feed(site, LIGHTHOUSE_ID, **query)

    assert reply.status == 400
    assert reply.json["errors"][0]["title"] == "validation_exception"
