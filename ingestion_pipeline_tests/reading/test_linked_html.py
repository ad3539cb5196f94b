from __future__ import annotations

from html import escape

from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.reading.html.cleaning import body_html
from ingestion_pipeline.reading.html.links import links_from
from ingestion_pipeline.reading.html.markdown import LinkedHtml, LinkTarget, _Memory
from ingestion_pipeline.reading.html.parsing import parse_html

URL = "https://a.test/shop/list?page=1"

WORDS = '/ // .. . a b.html ? # ; = : http: https:// c.test mailto: \\ %20 é [ utm_x=1 & B \xa0 " <'
PIECES = st.sampled_from([*WORDS.split(" "), " ", "\n", "\t"])
PLACES = "x/y.html x/y?q=/z/ x;p/y x/../y/z y z.html"
FROM = st.sampled_from(
    [
        *(f"http://a.test/{place}" for place in PLACES.split(" ")),
        *("https://A.test:443/x/", "http://a.test", "http://[", None),
    ]
)


def linked(html: str, base: str | None) -> LinkedHtml:
    return LinkedHtml(body_html(parse_html(html)), base)


@given(st.lists(st.lists(PIECES, max_size=5).map("".join), max_size=8), FROM, FROM)
def test_a_remembered_link_leads_where_it_would_lead_from_this_page(
    hrefs: list[str], base: str | None, other: str | None
) -> None:
    html = "".join(f'<a href="{escape(href)}">x</a>' for href in hrefs)
    linked(html, other)  # another page of the site, or of its folder, has them as well

    result = tuple(links_from(parse_html(html), base))

    assert linked(html, base).pages() == result
    assert linked("", base).pages(hrefs) == result


def test_a_page_at_the_root_says_nothing_of_links_in_a_folder() -> None:
    """The root's folder has the name of the site: its links were taken for those of all pages."""
    html = "<a href=foo>x</a>"

    assert linked(html, "http://root.test/x").pages() == ("http://root.test/foo",)
    assert linked(html, "http://root.test/dir/page").pages() == ("http://root.test/dir/foo",)
    assert linked(html, "http://root.test/y").pages() == ("http://root.test/foo",)


def test_a_link_is_found_wherever_its_address_stands_in_the_tag() -> None:
    html = "<a id=1 href=/a>x</a><a href=/b class=c>x</a><a>x</a><abbr href=/no>x</abbr><A HREF=/c>"

    assert linked(html, URL).pages() == tuple(f"https://a.test/{name}" for name in "abc")


def test_no_other_attribute_is_taken_for_an_address() -> None:
    html = "<a data-href=/no xlink:href=/no>x</a><a title='see href=' =x y\"z href=/yes>x</a>"

    assert linked(html, URL).pages() == ("https://a.test/yes",)


def test_a_place_on_a_page_is_told_to_a_reader_and_is_no_page_of_its_own() -> None:
    body = linked("<a href=/x#part-2>x</a><a href=/x#y.z>x</a><a href='#top'>x</a>", URL)

    assert body.targets == [
        LinkTarget("https://a.test/x", b' href="https://a.test/x#part-2"'),
        LinkTarget("https://a.test/x", b' href="https://a.test/x#y.z"'),
        LinkTarget(None, b' href="#top"'),
    ]


def test_what_is_remembered_is_bounded() -> None:
    memory = _Memory(3)
    for name in (b"a", b"b", b"c"):
        memory.keep("https://a.test/", name, LinkTarget(name.decode(), b""))

    assert memory.of("https://a.test/") == {b"c": LinkTarget("c", b"")}


def test_sites_without_links_are_forgotten_as_well() -> None:
    memory = _Memory(2)
    first = memory.of("https://a.test/")
    for name in ("b", "c"):
        memory.of(f"https://{name}.test/")

    assert memory.of("https://a.test/") is not first
