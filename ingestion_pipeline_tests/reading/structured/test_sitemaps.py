import gzip
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.reading.structured.sitemaps import (
    MAX_DEPTH,
    MAX_ENTRIES,
    MAX_INDEX_DEPTH,
    Sitemap,
    SitemapEntry,
    read_sitemap,
    read_xml,
)
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError

URL = "https://a.test/sitemap.xml"
NAMESPACE = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
SITEMAP = f"""<?xml version="1.0" encoding="UTF-8"?><!-- made by us -->
<urlset {NAMESPACE} xmlns:image="http://www.google.com/schemas/sitemap-image/1.1">
<url><image:image><image:loc>https://a.test/i.png</image:loc></image:image>
  <loc> https://a.test/a?x=1&amp;y=2 </loc><lastmod>2026-03-01T10:00:00+02:00</lastmod></url>
<url><lastmod>2026-02</lastmod><loc><![CDATA[https://a.test/b]]></loc></url>
<url><loc>/c</loc><lastmod>soon</lastmod></url>
<url><loc>https://a.test/b</loc></url>
<url><loc>mailto:a@b.test</loc></url>
</urlset>"""


def parse(body: str | bytes, *, depth: int = 0) -> Sitemap:
    return read_sitemap(body.encode() if isinstance(body, str) else body, url=URL, depth=depth)


def test_a_sitemap_lists_each_page_once_with_its_last_change() -> None:
    sitemap = parse(SITEMAP)

    assert not sitemap.is_index
    assert sitemap.entries == (
        SitemapEntry(url="https://a.test/a?x=1&y=2", last_modified=datetime(2026, 3, 1, 8, tzinfo=UTC)),
        SitemapEntry(url="https://a.test/b", last_modified=datetime(2026, 2, 1, tzinfo=UTC)),
        SitemapEntry(url="https://a.test/c", last_modified=None),
    )
    assert ["mailto" in problem.message for problem in sitemap.problems] == [True]


def test_gzip_prefixed_names_and_plain_text_are_parsed_alike() -> None:
    prefixed = "<s:urlset xmlns:s='x'><s:url><s:loc>https://a.test/b</s:loc></s:url></s:urlset>"
    entry = SitemapEntry(url="https://a.test/b", last_modified=None)

    assert parse(gzip.compress(SITEMAP.encode())) == parse(SITEMAP)
    assert parse(prefixed).entries == (entry,)
    assert parse("\ufeffhttps://a.test/b\r\nhttps://a.test/b\n").entries == (entry,)


def test_a_gzip_file_of_several_members_is_read_to_its_end() -> None:
    half = len(SITEMAP) // 2
    members = [gzip.compress(part.encode()) for part in (SITEMAP[:half], "", SITEMAP[half:])]

    assert parse(b"".join(members)) == parse(SITEMAP)
    assert parse(b"".join(members) + b"\0" * 100) == parse(SITEMAP)
    with pytest.raises(Transient):
        parse(b"".join(members)[:-20])


def test_commented_out_entries_are_ignored() -> None:
    old = "<!-- <url><loc>/old</loc></url> -->"
    odd = "<url><loc><![CDATA[/a<!--b]]></loc></url><url><loc>/c</loc><!-- <loc>/x</loc> --></url>"

    sitemap = parse(f"<urlset>{old}<url>{old}<loc>/new</loc></url>{odd}</urlset><!-- by us")

    assert [entry.url for entry in sitemap.entries] == [
        "https://a.test/new",
        "https://a.test/a<!--b",
        "https://a.test/c",
    ]
    assert sitemap.problems == ()


def test_element_names_are_case_insensitive() -> None:
    shouted = "<URLSET><URL><LOC>/a</LOC><LASTMOD>2026-02</LASTMOD></URL></URLSET>"

    assert parse(shouted) == parse(shouted.lower())
    assert len(parse(shouted).entries) == 1


def test_an_index_leads_to_sitemaps_up_to_a_depth() -> None:
    index = f"<sitemapindex {NAMESPACE}><sitemap><loc>https://a.test/1.xml.gz</loc></sitemap></sitemapindex>"

    assert parse(index).is_index
    assert parse(index, depth=MAX_INDEX_DEPTH - 1).entries[0].url == "https://a.test/1.xml.gz"
    with pytest.raises(Permanent) as refused:
        parse(index, depth=MAX_INDEX_DEPTH)
    assert refused.value.code == "sitemap_too_deep"


def test_a_truncated_sitemap_is_parsed_as_far_as_it_goes_and_marked_incomplete() -> None:
    sitemap = parse(SITEMAP[: SITEMAP.index("<url><loc>/c")])

    assert len(sitemap.entries) == 2
    assert any("never closed" in problem.message for problem in sitemap.problems)


def test_an_empty_sitemap_is_not_a_failure() -> None:
    assert parse(f"<urlset {NAMESPACE}></urlset>") == Sitemap(is_index=False, entries=())


LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><urlset><url><loc>&b;</loc></url></urlset>'
FILE = '<?xml version="1.0"?><!DOCTYPE x SYSTEM "file:///etc/passwd"><urlset/>'


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(LAUGHS, "xml_entity", id="laughs"),
        pytest.param(FILE, "xml_entity", id="file"),
        pytest.param("<a>" * 1_000_000, "not_a_sitemap", id="deep"),
        pytest.param("<html><body>404</body></html>", "not_a_sitemap", id="html"),
        pytest.param("<rss><channel/></rss>", "not_a_sitemap", id="feed"),
        pytest.param("", "not_a_sitemap", id="empty"),
        pytest.param("/etc/passwd", "not_a_sitemap", id="path"),
        pytest.param("<!-- " * 100_000, "not_a_sitemap", id="comments"),
        pytest.param(b"\x1f\x8bnot gzip", "not_a_sitemap", id="not-gzip"),
    ],
)
def test_a_body_that_is_not_a_sitemap_is_refused_at_once(body: str | bytes, code: str) -> None:
    started = time.thread_time()

    with pytest.raises(Permanent) as refused:
        parse(body)

    assert refused.value.code == code
    assert time.thread_time() - started < 0.1


@pytest.mark.slow
def test_a_bomb_stops_at_the_cap_and_a_truncated_stream_is_retried() -> None:
    with pytest.raises(Permanent) as refused:
        parse(gzip.compress(b"\0" * 100_000_000, compresslevel=1))
    assert refused.value.code == "decompression_bomb"

    with pytest.raises(Permanent) as refused:
        parse(gzip.compress(b"\0" * 11_000_000, compresslevel=1) * 2)
    assert refused.value.code == "decompression_bomb"

    with pytest.raises(Permanent) as refused:
        parse(gzip.compress(b"") * 100_000)
    assert refused.value.code == "decompression_bomb"

    with pytest.raises(Transient):
        parse(gzip.compress(SITEMAP.encode())[:-20])


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", ["<url><loc>x", "</url>", "<loc>" * 3, "<url><loc>/a</loc></url>", "<!--", "<!-- -->"]
)
def test_a_hostile_sitemap_is_parsed_quickly(piece: str) -> None:
    body = "<urlset>" + piece * (1_000_000 // len(piece))
    started = time.thread_time()

    try:
        count = len(parse(body).entries)
    except WorkError:
        count = 0

    assert count <= MAX_ENTRIES
    assert time.thread_time() - started < 2


def test_a_document_is_a_tree_of_names_and_texts() -> None:
    root = read_xml(b"<a:jobs xmlns:a='x'><job><id> 7 </id><id>8</id><t><![CDATA[<b>]]></t></job></a:jobs>")

    (job,) = root.each("job")
    assert root.name == "jobs"
    assert (job.text_of("id"), job.text_of("t"), job.text_of("none")) == ("7", "<b>", None)


def test_the_bytes_decide_the_encoding_and_not_the_declaration() -> None:
    stated = '<?xml version="1.0" encoding="utf-16"?><a>ü</a>'

    assert read_xml(stated.encode()).text == "ü"
    assert read_xml(stated.encode("utf-16")).text == "ü"
    assert read_xml(stated.replace("utf-16", "iso-8859-1").encode("latin-1")).text == "ü"


@pytest.mark.parametrize(
    ("body", "error", "code"),
    [
        (b"", Transient, "truncated"),
        (b"<a><b>half", Transient, "truncated"),
        (b"<a><![CDATA[half", Transient, "truncated"),
        (b"hello", Permanent, "not_xml"),
        (b"{}", Permanent, "not_xml"),
        (b"<a></b>", Permanent, "not_xml"),
        (b"<a>&nbsp;</a>", Permanent, "not_xml"),
        (b"<!DOCTYPE a><a/>", Permanent, "xml_entity"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', Permanent, "xml_entity"),
        (b'<!DOCTYPE a SYSTEM "http://127.0.0.1/x.dtd"><a/>', Permanent, "xml_entity"),
        (b"<a>" * (MAX_DEPTH + 1), Permanent, "too_deep"),
        (b"<a>" * 1_000_000, Permanent, "too_deep"),
    ],
    ids=lambda value: value[:40].decode() if isinstance(value, bytes) else "",
)
def test_a_body_that_is_not_xml_is_refused_at_once(body: bytes, error: type[WorkError], code: str) -> None:
    started = time.process_time()

    with pytest.raises(error) as caught:
        read_xml(body)

    assert caught.value.code == code
    assert time.process_time() - started < 0.1


@pytest.mark.slow
@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: f"<a>{text}</a>".encode(errors="replace")))
def test_no_body_ends_in_an_unclassified_error(body: bytes) -> None:
    try:
        assert read_xml(body).name
    except WorkError as error:
        assert error.code in {"truncated", "not_xml", "xml_entity", "too_deep"}  # noqa: PT017  either may be
