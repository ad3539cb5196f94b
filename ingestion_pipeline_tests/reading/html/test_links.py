import json
from html import escape
from string import ascii_letters, digits
from urllib.parse import urljoin

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ingestion_pipeline.reading.html.cleaning import parse_html
from ingestion_pipeline.reading.html.links import (
    absolute_link,
    absolute_links,
    base_of,
    canonical_or_none,
    linked_page,
    links_from,
    page_links,
)
from ingestion_pipeline.urls import BadUrl, canonical_url
from ingestion_pipeline_tests.samples import sample

URL = "https://a.test/shop/list?page=1"


@pytest.mark.parametrize(
    ("link", "address"),
    [
        ("https://b.test/x", "https://b.test/x"),
        ("HTTPS://B.test/x", "https://B.test/x"),
        ("HTTP://b.test/x", "HTTP://b.test/x"),
        ("https://b.test/x?a[]=1", "https://b.test/x?a[]=1"),
        ("https://b.test/é", "https://b.test/é"),
        ("/x", "https://a.test/x"),
        ("//b.test/x", "https://b.test/x"),
        ("/\\b.test/x", "https://b.test/x"),
        ("x", "https://a.test/shop/x"),
        ("../x", "https://a.test/x"),
        ("?page=2", "https://a.test/shop/list?page=2"),
        (" /x\n", "https://a.test/x"),
        ("/a\nb", "https://a.test/ab"),
        ("/x#y", "https://a.test/x#y"),
        ("/x#", "https://a.test/x"),
    ],
)
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
