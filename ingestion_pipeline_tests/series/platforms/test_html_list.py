"""Lists in HTML, by selectors and by themes; the bodies of themes are written by hand after each theme's markup."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
import yaml

from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.platforms import BadConfig, platform
from ingestion_pipeline.series.platforms.chapter_lists import THEMES
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.builders import a_release
from ingestion_pipeline_tests.samples import sample

URL = "https://a.test/manga/salt/"
NOW = datetime(2026, 3, 10, 12, 34, tzinfo=UTC)
LIST = b"""<html><body><table>
<tr class=c id=c2><td><a href="2/">Chapter 2</a></td><td>yesterday</td></tr>
<tr class=c id=c1><td><a href="1/">Chapter 1</a></td><td>2026-03-01</td></tr>
</table><a rel=next href="?page=2">older</a></body></html>"""
SELECTORS: dict[str, object] = {
    "items": "tr.c",
    "fields": {"label": "a", "url": "a@href", "source_chapter_id": "@id", "published_at": "td:last-child"},
    "next": "a[rel=next]",
}
MADARA = b"""<html><body><ul class="main version-chap">
<li class="wp-manga-chapter  "><a href="https://a.test/manga/salt/chapter-12-5/">
Chapter 12.5 - Dusk </a><span class="chapter-release-date"><a href="https://a.test/manga/salt/chapter-12-5/"
 title="3 hours ago" class="c-new-tag"><img src="/new.gif" alt=""></a></span></li>
<li class="wp-manga-chapter  "><a href="https://a.test/manga/salt/chapter-12/">Chapter 12</a>
<span class="chapter-release-date"><i>March 1, 2026</i></span></li>
</ul></body></html>"""


def read(body: bytes, **config: object) -> ParsedFeed[Release]:
    feed = platform("html").configure(URL, config)
    return feed.read([body], content_types=["text/html"], now=NOW)


def test_an_element_is_a_release() -> None:
    (release, _) = read(LIST, **SELECTORS, language="en").records

    assert release == a_release(
        number=Decimal(2),
        title="Chapter 2",
        url="https://a.test/manga/salt/2/",
        source_chapter_id="c2",
        published_at=datetime(2026, 3, 9, tzinfo=UTC),
    )


@pytest.mark.parametrize(("fields", "volume"), [({}, "4"), ({"volume": "b"}, "Two")], ids=["label", "selector"])
def test_the_volume_is_read_by_its_selector_else_from_the_label(fields: dict[str, str], volume: str) -> None:
    body = LIST.replace(b"Chapter 2<", b"Volume 4 Chapter 2<").replace(b"<td>", b"<td><b>Two</b> ", 1)
    chosen = {**SELECTORS, "fields": {"label": "a", "url": "a@href", **fields}}

    release = read(body, **chosen).records[0]

    assert (release.number, release.volume) == (Decimal(2), volume)


def test_the_volume_of_an_element_is_not_the_one_in_the_title_of_its_series() -> None:
    body = LIST.replace(b"Chapter 2<", b"Band 9 Chapter 2<")

    release = read(body, **SELECTORS, series_title="Band 9").records[0]

    assert (release.number, release.volume) == (Decimal(2), None)


def test_pages_follow_the_link_and_the_last_one_makes_the_list_complete() -> None:
    feed = platform("html").configure(URL, {**SELECTORS, "complete": True})
    last = LIST.replace(b"rel=next", b"").replace(b"Chapter 1<", b"Chapter 0<")

    following = feed.next_request(LIST)
    parsed = feed.read([LIST, last], content_types=[None, None], now=NOW)

    assert following is not None
    assert following.url == URL + "?page=2"
    assert [release.number for release in parsed.records] == [Decimal(n) for n in (2, 1, 0)]
    assert parsed.is_complete


def test_a_page_that_was_cut_off_is_not_complete() -> None:
    cut = LIST[: LIST.index(b"</table>")]

    assert not read(cut, **SELECTORS, complete=True).is_complete


def test_a_page_without_the_list_is_an_error_and_no_empty_listing() -> None:
    with pytest.raises(Permanent, match="Just a moment"):
        read(b"<html><title>Just a moment...</title></html>", **SELECTORS)


def test_a_new_series_may_have_no_chapter_yet() -> None:
    assert read(b"<html></html>", **SELECTORS, may_be_empty=True).records == []


def test_a_madara_page_needs_its_theme_alone() -> None:
    parsed = read(MADARA, theme="madara")

    assert [(release.number, release.url, release.published_at) for release in parsed.records] == [
        (Decimal("12.5"), f"{URL}chapter-12-5/", datetime(2026, 3, 10, 9, tzinfo=UTC)),
        (Decimal(12), f"{URL}chapter-12/", datetime(2026, 3, 1, tzinfo=UTC)),
    ]
    assert parsed.records[0].title == "Chapter 12.5 - Dusk"
    assert not parsed.problems


def test_the_config_overrides_the_theme() -> None:
    parsed = read(MADARA, theme="madara", items="li:last-child", fields={"title": "i"})

    assert [(release.number, release.title) for release in parsed.records] == [(Decimal(12), "March 1, 2026")]


def test_the_mangareader_sample_gives_its_three_chapters() -> None:
    body = sample("manga/html/mangareader_overview.html").read_bytes()

    parsed = read(body, theme="mangareader", series_title="Fuuka")

    assert [(release.number, release.url) for release in parsed.records] == [
        (Decimal(n), f"https://a.test/fuuka/{n}") for n in (152, 1, 2)
    ]
    assert parsed.records[1].published_at == datetime(2014, 2, 10, tzinfo=UTC)


@pytest.mark.parametrize("name", ["first_page", "nth_page", "list"])
def test_a_mangareader_page_of_another_kind_is_an_error(name: str) -> None:
    body = sample(f"manga/html/mangareader_{name}.html").read_bytes()

    with pytest.raises(Permanent, match="nothing on the page matches"):
        read(body, theme="mangareader")


def test_a_chapter_that_is_listed_twice_counts_once_with_its_date() -> None:
    body = b"""<div id=mangaproperties><ul><li><a href="/s/2">S 2</a></li></ul></div><table>
    <tr><td><a href="/s/1">S 1</a></td><td>02/10/2014</td></tr>
    <tr><td><a href="/s/2">S 2</a></td><td>02/15/2014</td></tr></table>"""

    parsed = read(body, theme="mangareader")

    assert [(release.number, release.published_at) for release in parsed.records] == [
        (Decimal(2), datetime(2014, 2, 15, tzinfo=UTC)),
        (Decimal(1), datetime(2014, 2, 10, tzinfo=UTC)),
    ]


@pytest.mark.parametrize("theme", THEMES)
def test_every_theme_can_be_configured(theme: str) -> None:
    assert platform("html").configure(URL, {"theme": theme}).first_request().url == URL


def test_every_problem_of_a_config_is_reported_at_once() -> None:
    fields = {"url": "a[@href", "title": "b::nonsense"}

    with pytest.raises(BadConfig) as failure:
        read(LIST, items="li[", fields=fields, next="a:has(", theme="madra", may_be_empty="no")

    for part in ("'li['", "'a[@href'", "'b::nonsense'", "'a:has('", "'madra'", "may_be_empty"):
        assert part in str(failure.value)


def test_a_list_without_items_is_refused() -> None:
    with pytest.raises(BadConfig, match="items: needed"):
        read(LIST, fields={"url": "a@href"})


def test_links_are_relative_to_the_final_url_of_their_page() -> None:
    feed = platform("html").configure(URL, {**SELECTORS, "complete": True})
    moved = ["https://www.a.test/salt/", "https://www.a.test/salt/old/2"]
    second = LIST.replace(b'"2/"', b'"4/"').replace(b'"1/"', b'"3/"').replace(b"rel=next", b"")

    following = feed.next_request(LIST, url=moved[0])
    parsed = feed.read([LIST, second], content_types=[None, None], urls=moved, now=NOW)

    assert following is not None
    assert following.url == "https://www.a.test/salt/?page=2"
    assert [release.url for release in parsed.records] == [
        "https://www.a.test/salt/2/",
        "https://www.a.test/salt/1/",
        "https://www.a.test/salt/old/4/",
        "https://www.a.test/salt/old/3/",
    ]


def test_links_of_a_list_at_another_url_are_relative_to_the_site() -> None:
    parsed = read(LIST, **SELECTORS, api_base="https://api.test/lists/7")

    assert parsed.records[0].url == f"{URL}2/"


def test_a_base_element_decides_where_links_lead() -> None:
    based = LIST.replace(b"<body>", b"<base href='https://b.test/read/'><body>")

    assert read(based, **SELECTORS).records[0].url == "https://b.test/read/2/"


@pytest.mark.parametrize("link", ["javascript:void(0)", "mailto:a@a.test", "data:,x", "#top"])
def test_an_invalid_link_is_a_problem_and_the_chapter_counts(link: str) -> None:
    parsed = read(LIST.replace(b'"2/"', f'"{link}"'.encode()), **SELECTORS)

    assert [(release.number, release.url) for release in parsed.records] == [
        (Decimal(2), None),
        (Decimal(1), f"{URL}1/"),
    ]
    (problem,) = parsed.problems
    assert (problem.where, problem.hides_record) == ("url", False)
    assert f"1 of 2 links are no web addresses, the first is {link!r}" in problem.message


@pytest.mark.parametrize(("language", "month"), [(None, 2), ("en", 2), ("en-GB", 2), ("es", 10), ("pt-br", 10)])
def test_a_numeric_date_is_parsed_in_the_order_of_the_sources_language(language: str | None, month: int) -> None:
    day = 10 if month == 2 else 2
    body = LIST.replace(b"2026-03-01", b"02/10/2014")

    (_, release) = read(body, **SELECTORS, **({"language": language} if language else {})).records

    assert release.published_at == datetime(2014, month, day, tzinfo=UTC)


BODIES: dict[str, str] = yaml.safe_load((Path(__file__).parents[1] / "expected" / "theme_pages.yaml").read_text())
UNDATED = {"foolslide"}
GROUPED = {"foolslide"}


def read_page(body: str, **config: object) -> ParsedFeed[Release]:
    feed = platform("html").configure(URL, {"series_title": "Salt", **config})
    return feed.read([f"<html><body>{body}</body></html>".encode()], content_types=[None], now=NOW)


def test_every_theme_has_a_body_here() -> None:
    assert BODIES.keys() == THEMES.keys()


@pytest.mark.parametrize("theme", BODIES)
def test_a_theme_is_recognised_by_its_marks_and_named(theme: str) -> None:
    parsed = read_page(BODIES[theme])

    assert parsed.notes == [f"read as theme {theme}"]
    assert parsed.problems == []
    dates = [datetime(2026, 3, 10, 9, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)]
    assert [(release.number, release.url, release.published_at) for release in parsed.records] == [
        (Decimal(number), f"{URL}chapter-{number}/", None if theme in UNDATED else date)
        for number, date in zip((2, 1), dates, strict=True)
    ]
    assert {release.scanlation_group for release in parsed.records} == {"North" if theme in GROUPED else None}


@pytest.mark.parametrize("theme", BODIES)
def test_a_configured_theme_parses_the_same(theme: str) -> None:
    configured = read_page(BODIES[theme], theme=theme)

    assert configured.records == read_page(BODIES[theme]).records
    assert configured.notes == []


@pytest.mark.parametrize("theme", BODIES)
def test_no_theme_matches_the_page_of_another(theme: str) -> None:
    for other in THEMES.keys() - {theme}:
        with pytest.raises(Permanent, match="nothing on the page matches"):
            read_page(BODIES[theme], theme=other)


def test_a_page_that_fits_no_theme_names_them_and_the_config_to_write() -> None:
    with pytest.raises(Permanent) as failure:
        read_page("<title>Just a moment...</title><h1>Checking</h1><a href=/>home</a>")

    assert failure.value.code == "no_theme"
    for part in (*THEMES, "Just a moment...", "Checking", '"items": "li.chapter"'):
        assert part in str(failure.value)


def test_the_page_of_a_single_chapter_is_named_in_the_error() -> None:
    with pytest.raises(Permanent, match=r"the page of one chapter.*give the address of the series"):
        read_page("<h1>Salt 2</h1><div class='reading-content'><img src=1.png></div>")


def test_a_list_that_a_script_fills_is_an_error_and_no_empty_listing() -> None:
    with pytest.raises(Permanent, match=r"nothing on the page matches 'li\.wp-manga-chapter'"):
        read_page('<div id="manga-chapters-holder" data-id="7"></div>')


def test_a_themes_list_may_have_more_pages_and_may_be_empty_if_configured() -> None:
    body = f'{BODIES["madara"]}<a class=older href="?page=2">older</a>'
    feed = platform("html").configure(URL, {"next": "a.older"})

    following = feed.next_request(body.encode(), url=URL)

    assert following is not None
    assert following.url == f"{URL}?page=2"
    assert platform("html").configure(URL, {}).next_request(body.encode()) is None
    assert read_page('<div id="manga-chapters-holder"></div>', may_be_empty=True).records == []
