import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.reading.html.cleaning import body_html, parse_html
from ingestion_pipeline.reading.html.links import page_links
from ingestion_pipeline.reading.html.markdown import visible_page

URL = "https://a.test/shop/list"

SEEN = "<a href=/seen>seen</a>"


@pytest.mark.parametrize(
    "hidden",
    [
        "<div hidden><p><a href=/hidden>x</a></p></div>",
        "<a hidden href=/hidden>x</a>",
        "<nav aria-hidden=true><svg><g></g></svg><a href=/hidden>x</a></nav>",
        "<svg><a href=/hidden><path d=x /></a></svg>",
        "<math><iframe>x<a href=/hidden></a></iframe></math>",
        "<noscript><a href=/hidden>x</a></noscript>",
        "<dialog><a href=/hidden>x</a></dialog>",
        "<map name=m><area href=/hidden></map>",
        "<area href=/hidden>",
        "<style>.menu { display: none }</style><ul class=menu><li><a href=/hidden>x</a></ul>",
    ],
)
def test_hidden_links_come_after_visible_ones(hidden: str) -> None:
    page = visible_page(f"<body>{hidden}{SEEN}", url=URL)

    assert page.links == ("https://a.test/seen", "https://a.test/hidden")
    assert page.text == "seen"


def test_hidden_links_are_found_among_many_icons() -> None:
    icons = "<svg><path d=x /></svg>" * 100
    page = visible_page(f"<body>{icons}<p hidden><a href=/hidden>x</a></p>{SEEN}", url=URL)

    assert page.links == ("https://a.test/seen", "https://a.test/hidden")


def test_a_fully_hidden_page_still_has_links() -> None:
    page = visible_page(f"<div hidden>{SEEN}<p>text</p></div>", url=URL)

    assert page.links == ("https://a.test/seen",)
    assert "text" in page.text


def test_markup_inside_text_is_not_a_link() -> None:
    html = f"{SEEN}<textarea><a href=/no>x</a></textarea><!-- <a href=/no> --><plaintext>{SEEN}"

    assert visible_page(html + "<a href=/no>", url=URL).links == ("https://a.test/seen",)


@pytest.mark.parametrize("note", ["<!-- note -->", "<!-- note --><!-- > -->", "<!---->"])
def test_a_comment_in_a_tag_hides_nothing(note: str) -> None:
    """Inside a tag it is not a comment but odd attributes: all text up to the next comment was once lost."""
    page = visible_page(f"<p {note}>one</p>{SEEN}<!-- two --> three", url=URL)

    assert page.links == ("https://a.test/seen",)
    assert "seen" in page.text
    assert "two" not in page.text
    assert "three" in page.text


def test_comment_syntax_in_plain_text_is_text() -> None:
    assert "3 < 4" in visible_page("<p>one</p><plaintext>3 < 4 <!-- 5", url=URL).text


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "<!-- x -->"])
def test_many_comments_in_tags_are_read_as_fast_as_other_pages(end: str) -> None:
    """Each was once searched for up to the end of the page: 8,000 of them took seconds."""
    html = "".join(f"<p <!--{number}>t</p>" for number in range(20_000)) + end
    tree = parse_html(html)
    started = time.thread_time()

    assert b"<!--19999" in body_html(tree)

    assert time.thread_time() - started < 2


PARTS = st.sampled_from(
    [
        *("<div hidden>", "</div>", "<svg>", "</svg>", "<noscript>", "</noscript>", "<p>", "</p>"),
        *("<map>", "<area href=/m>", "<template>", "</template>", "<select>", "<table>", "<td>"),
        *("<textarea>", "</textarea>", "<!--", "-->", "<title>", "</title>", "<iframe>", "<math>"),
        *("<span style='display:none'>", "</span>", "<a hidden href=/h>", "<plaintext>", "<body>"),
        *("<a href='/x?a=1&b=\"2\"'>", "<a href=../y#z>", "</a>", "<a id=' href='>", "text", "<b>"),
        *("<base href=/b/>", "<style>.c{display:none}</style>", "<a class=c href=c>"),
    ]
)


@pytest.mark.slow
@given(st.lists(PARTS, max_size=14).map("".join))
def test_every_link_of_a_page_is_found_once(html: str) -> None:
    links = visible_page(html, url=URL).links

    assert sorted(links) == sorted(page_links(parse_html(html), URL))
    assert visible_page(html, url=URL, utf8=html.encode()).links == links
