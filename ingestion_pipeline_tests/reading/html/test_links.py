"""Links of a page, further pages of its list, and what its head states."""

import json
from html import escape
from pathlib import Path
from string import ascii_letters, digits
from urllib.parse import urljoin

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from ingestion_pipeline.reading.html.cleaning import parse_html
from ingestion_pipeline.reading.html.links import (
    ADDRESS_SELECTOR,
    Clue,
    PageAddresses,
    Refresh,
    absolute_link,
    absolute_links,
    base_of,
    canonical_or_none,
    feeds_of,
    following_pages,
    language_of,
    linked_page,
    links_from,
    next_page,
    page_addresses,
    page_links,
    title_of,
)
from ingestion_pipeline.reading.text.plain_text import decode
from ingestion_pipeline.urls import BadUrl, canonical_url
from ingestion_pipeline_tests.reading.tables import table
from ingestion_pipeline_tests.samples import sample

URL = "https://a.test/shop/list?page=1"


@pytest.mark.parametrize(("link", "address"), table(__file__, "test_a_link_is_resolved_to_an_absolute_url"))
def test_a_link_is_resolved_to_an_absolute_url(link: str, address: str) -> None:
    assert absolute_link(URL, link) == address
    assert linked_page(URL, link) == address.partition("#")[0]


@pytest.mark.parametrize(
    "link",
    [
        *("javascript:void(0)", "JavaScript:x", "mailto:a@b.test", "data:text/html,x", "tel:1"),
        *("ftp://b.test/x", "file:///etc/passwd", "blob:https://a.test/1"),
        *("http://[bad", "//[bad", "http://℀.test/x", "/" + "x" * 2_000),
        *("#", "#top", "", None),
    ],
)
def test_a_link_that_a_browser_would_not_fetch_has_no_url(link: str | None) -> None:
    assert absolute_link(URL, link) is None


@pytest.mark.parametrize("base", ["", None])
def test_a_relative_link_without_a_base_has_no_url(base: str | None) -> None:
    assert absolute_link(base, "/7") is None
    assert absolute_link(base, "//b.test/7") is None


def test_a_fragment_is_preserved_only_if_it_distinguishes_two_links() -> None:
    links = [(URL, "/7#read"), (URL, "/8#a"), (URL, "/8#b"), (URL, "#top")]

    assert list(absolute_links(links).values()) == [
        "https://a.test/7",
        "https://a.test/8#a",
        "https://a.test/8#b",
        None,
    ]


def test_each_linked_page_is_listed_once_in_page_order() -> None:
    tree = parse_html(
        "<a href=/b>1</a><a href='/a?utm_source=x&id=1'>2</a><a href=/b#top>3</a>"
        "<a href='https://A.test:443/b'>4</a><map><area href=/c></map><a href='javascript:x'>5</a>"
        "<a name=x>6</a><a href='/a?id=1'>7</a><a href='http://[bad'>8</a>"
    )

    assert page_links(tree, URL) == {
        "https://a.test/b": "https://a.test/b",
        "https://a.test/a?id=1": "https://a.test/a?utm_source=x&id=1",
        "https://a.test/c": "https://a.test/c",
    }


def test_without_its_own_url_a_page_has_absolute_links_only() -> None:
    tree = parse_html("<a href=/x>1</a><a href=https://b.test/y>2</a><a href=//b.test/z>3</a>")

    assert list(page_links(tree, None)) == ["https://b.test/y"]


@pytest.mark.parametrize(
    ("html", "base"),
    [
        ("<base href='/b/'>", "https://a.test/b/"),
        ("<base href='//c.test/'>", "https://c.test/"),
        ("<base target=x><base href='/b/'><base href='/c/'>", "https://a.test/b/"),
        ("<base href='javascript:x'>", URL),
        ("<base href=''>", URL),
        ("", URL),
    ],
)
def test_the_base_is_the_first_valid_one(html: str, base: str) -> None:
    assert base_of(parse_html(html), URL) == base


def test_bases_are_found_as_w3lib_finds_them() -> None:
    rows = json.loads(sample("html_tricky/w3lib_html_vectors.json").read_text())
    rows = [row for row in rows if row["function"] == "get_base_url"]

    for row in rows:
        html, url = [*row["args"], None][:2]
        assert (base_of(parse_html(html), url) or "") == row["expected"], html
    assert len(rows) == 6


PARTS = st.text(alphabet=ascii_letters + digits + "-._~/?&=%#:@!$'()*+,;[]|\\ éA", max_size=25)


@given(st.sampled_from(["http", "https", "HTTP"]), PARTS, PARTS)
@example("http", "0 ", "")
def test_the_fast_path_to_the_canonical_form_matches_the_slow_one(scheme: str, host: str, path: str) -> None:
    address = f"{scheme}://{host}/{path}"
    try:
        expected = canonical_url(address)
    except BadUrl:
        expected = None

    assert canonical_or_none(address) == expected


BASES = st.sampled_from([URL, "HTTP://A.test:80/x", "https://a.test:8080", "http://[", None])


@given(PARTS, BASES)
def test_the_fast_path_for_links_of_the_same_host_matches_the_slow_one(path: str, base: str | None) -> None:
    href = f"/{path}"
    address = linked_page(base, href)
    canonical = canonical_or_none(address) if address else None

    links = links_from(parse_html(f'<a href="{escape(href)}">x</a>'), base)

    assert links == ({canonical: address} if canonical else {})


QUERIES = st.lists(st.sampled_from(["a=1", "b", "A=", "utm_x=1", "fbclid=2", "sid=a1b2c3", "", "c=d=e", "a=0"]))


@given(QUERIES)
def test_the_fast_path_detects_a_sorted_query(pairs: list[str]) -> None:
    address = "https://a.test/x?" + "&".join(pairs)

    assert canonical_or_none(address) == canonical_url(address)


@given(st.text(max_size=40), st.sampled_from([None, URL, "https://b.test", "nonsense", "http://["]))
def test_no_link_raises(link: str, base: str | None) -> None:
    url = absolute_link(base, link)

    assert url is None or url.lower().startswith(("http://", "https://"))


STEPS = st.lists(
    st.sampled_from(["../", "./", "/", "a", "b.html", "?", "x=1", "&", "..", ".", "-", ";", "c/"]), max_size=6
)


@given(STEPS.map("".join), STEPS.map("".join))
def test_the_fast_path_for_relative_links_matches_the_library(link: str, path: str) -> None:
    base = f"http://a.test:81/{path}"
    assume(link.strip() and not link.startswith("/"))

    assert linked_page(base, link) == urljoin(base, link)


LIST_URL = "https://a.test/courses?page=1"


def further_pages(html: str, url: str = LIST_URL) -> list[tuple[str, Clue, int | None, str | None]]:
    pages = following_pages(parse_html(html), url)
    return [(page.url.removeprefix("https://a.test"), page.clue, page.number, page.pattern) for page in pages]


def test_the_surest_clue_comes_first_and_each_page_once() -> None:
    html = (
        "<link rel=next href='?page=2'><div class=pagination><a href='?page=1'>1</a>"
        "<a href='?page=2'>2</a><a href='?page=3'>3</a><a href='?page=2'>Next »</a></div>"
    )
    pattern = "https://a.test/courses?page={page_num}"

    assert further_pages(html) == [
        ("/courses?page=2", Clue.REL_NEXT, 2, pattern),
        ("/courses?page=3", Clue.NUMBERED, 3, pattern),
    ]


def test_an_offset_is_not_a_page_number() -> None:
    html = "<ul class=pager><li><a href='/list?offset=50&sort=a'>2</a></ul>"

    assert further_pages(html) == [
        ("/list?offset=50&sort=a", Clue.NUMBERED, 2, "https://a.test/list?offset={offset}&sort=a")
    ]


def test_numbers_in_paths_and_labels_are_recognized() -> None:
    html = "<a href='/jobs/page/2' aria-label='Page 2'>two</a><a href='/jobs/page/3'>3</a>"
    pattern = "https://a.test/jobs/page/{page_num}"

    assert further_pages(html) == [
        ("/jobs/page/2", Clue.NUMBERED, 2, pattern),
        ("/jobs/page/3", Clue.NUMBERED, 3, pattern),
    ]


def test_a_next_button_without_words_counts_in_a_pager_only() -> None:
    assert further_pages("<nav class='pagination'><a href=/older>›</a></nav>") == [  # noqa: RUF001
        ("/older", Clue.NEXT_TEXT, None, None)
    ]
    assert further_pages("<p><a href=/older>»</a></p>") == []


def test_urls_alone_count_when_several_agree() -> None:
    several = "<a href='/l?p=2'>Fall</a><a href='/l?p=3'>Spring</a>"

    assert [page[1:3] for page in further_pages(several)] == [(Clue.QUERY, 2), (Clue.QUERY, 3)]
    assert further_pages("<a href='/l?p=2'>Fall</a>") == []


def test_a_calendar_another_host_and_the_page_itself_are_not_further_pages() -> None:
    html = (
        "<table class=calendar><td><a href='/day/2'>2</a><td><a href='/day/3'>3</a></table>"
        "<div class=pagination><a href='https://b.test/?page=2'>2</a><a href='?page=1'>1</a></div>"
        "<a href='/x'>Next steps</a>"
    )

    assert further_pages(html) == []


HEAD_URL = "https://a.test/shop/list"
PAGE_HEADS = json.loads(Path(__file__).with_name("expected").joinpath("page_heads.json").read_text())


def addresses(tree: LexborHTMLParser, url: str) -> PageAddresses:
    return page_addresses(tree.css(ADDRESS_SELECTOR), url)


@pytest.mark.parametrize(
    ("html", "title"),
    [
        ("<title> Fees &amp;\n Terms </title>", "Fees & Terms"),
        ("<svg><title>Logo</title></svg><p>x", None),
        ("<title></title><meta property='og:title' content='Shared'>", "Shared"),
        ("<title>One</title><title>Two</title>", "One"),
        ("<p>x", None),
    ],
)
def test_the_title_is_what_a_browser_shows(html: str, title: str | None) -> None:
    assert title_of(parse_html(html)) == title


@pytest.mark.parametrize(
    ("html", "language"),
    [
        ("<html lang=EN>", "en"),
        ("<html lang=pt_br>", "pt-BR"),
        ("<html lang=zh-hant-tw>", "zh-Hant-TW"),
        ("<html lang='{{lang}}'><meta http-equiv=Content-Language content='de, en'>", "de"),
        ("<html xml:lang=fr>", "fr"),
        ("<meta property='og:locale' content='es_ES'>", "es-ES"),
        ("<html lang=''>", None),
    ],
)
def test_the_language_is_the_first_valid_one(html: str, language: str | None) -> None:
    assert language_of(parse_html(html)) == language


def link(href: str) -> str:
    return f"<link rel='Canonical' href='{href}'>"


@pytest.mark.parametrize(
    ("html", "canonical"),
    [
        (link("/x?utm_source=a&b=1"), "https://a.test/x?b=1"),
        (link("x") + "<base href='/b/'>", "https://a.test/b/x"),
        (link("") + link("{{ page.url }}") + link("/y"), "https://a.test/y"),
        (link("/a") + link("/b"), "https://a.test/a"),
        (link("https://b.test/x"), "https://b.test/x"),
        (link("https://example.com/x"), None),
        (link("http://localhost:3000/x"), None),
        (link("https://a.test/undefined"), None),
        (link("javascript:void(0)"), None),
        (link("https://a.test/"), None),
        ("<link rel='alternate canonical' href='/x'>", "https://a.test/x"),
        ("<link rel='next' href='/x'>", None),
    ],
)
def test_the_canonical_url_is_the_first_valid_one(html: str, canonical: str | None) -> None:
    assert addresses(parse_html(html), HEAD_URL).canonical_url == canonical


@pytest.mark.parametrize("url", ["https://a.test/", "https://a.test/index.php", "https://a.test/en/"])
def test_a_front_page_may_name_the_root_as_canonical(url: str) -> None:
    assert addresses(parse_html(link("https://a.test/")), url).canonical_url == "https://a.test/"


def meta(content: str) -> str:
    return f'<meta http-equiv="Refresh" content="{content}">'


@pytest.mark.parametrize(
    ("html", "refresh"),
    [
        (meta("0; url=/x"), Refresh(0, "https://a.test/x")),
        (meta("5;URL='https://b.test/x'"), Refresh(5, "https://b.test/x")),
        (meta("1.5, /x"), Refresh(1, "https://a.test/x")),
        (meta("300"), Refresh(300, None)),
        (meta("0; url=javascript:x"), None),
        (meta("soon"), None),
        (f"<noscript>{meta('0; url=/x')}</noscript>", None),
        (f"<body><noscript><p>{meta('0; url=/x')}</noscript>", None),
        (f"<!-- {meta('0; url=/x')} -->", None),
        ("<p>x", None),
    ],
)
def test_a_refresh_is_parsed_with_its_target(html: str, refresh: Refresh | None) -> None:
    assert addresses(parse_html(html), HEAD_URL).refresh == refresh


def test_feeds_are_found_in_the_head() -> None:
    tree = parse_html(
        "<link rel=alternate type='application/rss+xml; charset=utf-8' href=/feed title=' News '>"
        "<link rel=alternate type=application/atom+xml href=/atom>"
        "<link rel=alternate type=application/rss+xml href=/feed>"
        "<link rel=alternate hreflang=de type=text/html href=/de><link rel=stylesheet href=/s>"
    )

    assert [(feed.url, feed.title) for feed in feeds_of(tree, HEAD_URL)] == [
        ("https://a.test/feed", "News"),
        ("https://a.test/atom", None),
    ]


@pytest.mark.parametrize(
    ("name", "title", "canonical"), [(page["name"], page["title"], page["canonical"]) for page in PAGE_HEADS]
)
def test_heads_of_real_pages_are_parsed(name: str, title: str, canonical: str | None) -> None:
    tree = parse_html(decode(sample(f"html_tricky/{name}.html").read_bytes()))

    assert (title_of(tree) or "").startswith(title)
    assert addresses(tree, "https://somewhere.test/page").canonical_url == canonical
    assert addresses(tree, "https://somewhere.test/page").refresh is None


@pytest.mark.parametrize(
    ("url", "links", "following"),
    [
        ("https://a.test/forum?s=1", '<a rel=next href="/forum-2.html">&gt;</a>', "https://a.test/forum-2.html"),
        ("https://a.test/list_7_2.html", '<a href="list_7_3.html">next</a>', "https://a.test/list_7_3.html"),
        ("https://a.test/b/", '<a href="/b/index2.html">next</a>', "https://a.test/b/index2.html"),
        (
            "https://a.test/r-Reviews-Inn.html",
            '<a rel=next href="/r-Reviews-or10-Inn.html">2</a><p class=pager><a href="/r-Reviews-or20-Inn.html">3</a>',
            "https://a.test/r-Reviews-or10-Inn.html",
        ),
        ("https://a.test/list_7_3.html", '<a href="list_7_2.html">next</a>', None),
        ("https://a.test/comic/one", '<a href="/comic/two-2">next</a>', None),
        ("https://a.test/", '<a href="/about-2">next</a><a href="/?p=2">a post</a>', None),
    ],
)
def test_next_leads_to_a_page_of_the_list_and_not_to_any_other_page(
    url: str, links: str, following: str | None
) -> None:
    assert next_page(parse_html(links), url) == following
