"""Themes: recognised by their marks. The bodies are written by hand after each theme's markup."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.platforms import platform
from ingestion_pipeline.series.platforms.chapter_lists import THEMES
from ingestion_pipeline.tasks.errors import Permanent

URL = "https://a.test/manga/salt/"
NOW = datetime(2026, 3, 10, 12, 34, tzinfo=UTC)

BODIES = {
    "madara": """<div id="manga-chapters-holder"><ul class="main version-chap">
<li class="wp-manga-chapter"><a href="chapter-2/">Chapter 2</a><span class="chapter-release-date">
<a title="3 hours ago"><img src="/new.gif"></a></span></li>
<li class="wp-manga-chapter"><a href="chapter-1/">Chapter 1</a><span class="chapter-release-date">
<i>March 1, 2026</i></span></li></ul></div>""",
    "mangastream": """<div class="eplister" id="chapterlist"><ul class="clstyle">
<li data-num="2"><div class="chbox"><div class="eph-num"><a href="chapter-2/">
<span class="chapternum">Chapter 2</span><span class="chapterdate">3 hours ago</span></a></div>
<div class="dt"><a class="dload" href="/zip/2">Download</a></div></div></li>
<li data-num="1"><div class="chbox"><div class="eph-num"><a href="chapter-1/">
<span class="chapternum">Chapter 1</span><span class="chapterdate">March 1, 2026</span></a></div>
</div></li></ul></div>""",
    "mmrcms": """<ul class="chapters">
<li class="volume-1"><h5 class="chapter-title-rtl"><a href="chapter-2/">Salt 2</a> : <em></em></h5>
<div class="action"><div class="date-chapter-title-rtl">3 hours ago</div></div></li>
<li class="volume-1"><h5 class="chapter-title-rtl"><a href="chapter-1/">Salt 1</a> : <em>Dawn</em>
</h5><div class="action"><div class="date-chapter-title-rtl">1 Mar. 2026</div></div></li></ul>""",
    "mangabox": """<ul class="row-content-chapter">
<li class="a-h"><a class="chapter-name text-nowrap" href="chapter-2/">Vol.1 Chapter 2</a>
<span class="chapter-view">1,234</span><span class="chapter-time text-nowrap"
 title="Mar 10,2026 09:00">3 hours ago</span></li>
<li class="a-h"><a class="chapter-name text-nowrap" href="chapter-1/">Vol.1 Chapter 1</a>
<span class="chapter-view">99</span><span class="chapter-time text-nowrap"
 title="Mar 01,2026 00:00">Mar 01,26</span></li></ul>""",
    "foolslide": """<div class="list"><div class="group"><div class="title">Volume 1</div>
<div class="element"><div class="title"><a href="chapter-2/" title="2">Chapter 2: Dusk</a></div>
<div class="meta_r">by <a href="/team/n/" title="North">North</a>, 2026.03.10</div></div>
<div class="element"><div class="title"><a href="chapter-1/" title="1">Chapter 1</a></div>
<div class="meta_r">by <a href="/team/n/" title="North">North</a>, 2026.03.01</div></div>
</div></div>""",
    "mangareader": """<div id="mangaproperties"><h1>Salt Manga</h1><ul><li>
<a href="chapter-2/">Salt 2</a></li></ul></div><table>
<tr><td><a href="chapter-2/">Salt 2</a></td><td>3 hours ago</td></tr>
<tr><td><a href="chapter-1/">Salt 1</a></td><td>03/01/2026</td></tr></table>""",
}
UNDATED = {"foolslide"}
GROUPED = {"foolslide"}


def read(body: str, **config: object) -> ParsedFeed[Release]:
    feed = platform("html").configure(URL, {"series_title": "Salt", **config})
    return feed.read([f"<html><body>{body}</body></html>".encode()], content_types=[None], now=NOW)


def test_every_theme_has_a_body_here() -> None:
    assert BODIES.keys() == THEMES.keys()


@pytest.mark.parametrize("theme", BODIES)
def test_a_theme_is_recognised_by_its_marks_and_named(theme: str) -> None:
    parsed = read(BODIES[theme])

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
    configured = read(BODIES[theme], theme=theme)

    assert configured.records == read(BODIES[theme]).records
    assert configured.notes == []


@pytest.mark.parametrize("theme", BODIES)
def test_no_theme_matches_the_page_of_another(theme: str) -> None:
    for other in THEMES.keys() - {theme}:
        with pytest.raises(Permanent, match="nothing on the page matches"):
            read(BODIES[theme], theme=other)


def test_a_page_that_fits_no_theme_names_them_and_the_config_to_write() -> None:
    with pytest.raises(Permanent) as failure:
        read("<title>Just a moment...</title><h1>Checking</h1><a href=/>home</a>")

    assert failure.value.code == "no_theme"
    for part in (*THEMES, "Just a moment...", "Checking", '"items": "li.chapter"'):
        assert part in str(failure.value)


def test_the_page_of_a_single_chapter_is_named_in_the_error() -> None:
    with pytest.raises(Permanent, match=r"the page of one chapter.*give the address of the series"):
        read("<h1>Salt 2</h1><div class='reading-content'><img src=1.png></div>")


def test_a_list_that_a_script_fills_is_an_error_and_no_empty_listing() -> None:
    with pytest.raises(Permanent, match=r"nothing on the page matches 'li\.wp-manga-chapter'"):
        read('<div id="manga-chapters-holder" data-id="7"></div>')


def test_a_themes_list_may_have_more_pages_and_may_be_empty_if_configured() -> None:
    body = f'{BODIES["madara"]}<a class=older href="?page=2">older</a>'
    feed = platform("html").configure(URL, {"next": "a.older"})

    following = feed.next_request(body.encode(), url=URL)

    assert following is not None
    assert following.url == f"{URL}?page=2"
    assert platform("html").configure(URL, {}).next_request(body.encode()) is None
    assert read('<div id="manga-chapters-holder"></div>', may_be_empty=True).records == []
