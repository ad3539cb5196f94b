import json
from pathlib import Path

import pytest
from selectolax.lexbor import LexborHTMLParser

from ingestion_pipeline.reading.html.cleaning import parse_html
from ingestion_pipeline.reading.html.links import (
    ADDRESS_SELECTOR,
    PageAddresses,
    Refresh,
    feeds_of,
    language_of,
    page_addresses,
    title_of,
)
from ingestion_pipeline.reading.text.plain_text import decode
from ingestion_pipeline_tests.samples import sample

URL = "https://a.test/shop/list"
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
    assert addresses(parse_html(html), URL).canonical_url == canonical


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
    assert addresses(parse_html(html), URL).refresh == refresh


def test_feeds_are_found_in_the_head() -> None:
    tree = parse_html(
        "<link rel=alternate type='application/rss+xml; charset=utf-8' href=/feed title=' News '>"
        "<link rel=alternate type=application/atom+xml href=/atom>"
        "<link rel=alternate type=application/rss+xml href=/feed>"
        "<link rel=alternate hreflang=de type=text/html href=/de><link rel=stylesheet href=/s>"
    )

    assert [(feed.url, feed.title) for feed in feeds_of(tree, URL)] == [
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
