"""Feeds, sitemaps and small XML documents, from untrusted bytes."""

import gzip
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestion_pipeline.reading.structured.feeds import FeedEntry, read_feed
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
from ingestion_pipeline_tests.samples import sample

BOMB = (
    '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY lol0 "lol">'
    + "".join(f'<!ENTITY lol{n} "{f"&lol{n - 1};" * 10}">' for n in range(1, 10))
    + "]><rss><channel><item><title>&lol9;</title></item></channel></rss>"
)


def rss(items: str) -> bytes:
    return f'<rss version="2.0"><channel><title>S</title>{items}</channel></rss>'.encode()


ATOM = b"""<?xml version="1.0"?>
<feed xmlns="http://www.w3.org/2005/Atom"><title>S</title>
  <entry><id>tag:a.test,1</id><title>Chapter 1 &amp;amp; more</title>
    <link href="https://a.test/1"/><published>2026-03-01T21:00:00+09:00</published>
    <author><name>North</name></author><summary>&lt;p&gt;hm&lt;/p&gt;</summary>
    <category term="x" label="Action"/><category term="Drama"/></entry>
</feed>"""


def test_an_entry_is_read_with_all_its_facts() -> None:
    assert read_feed(ATOM).records == [
        FeedEntry(
            id="tag:a.test,1",
            title="Chapter 1 &amp; more",
            url="https://a.test/1",
            published_at=datetime(2026, 3, 1, 12, tzinfo=UTC),
            author="North",
            summary="<p>hm</p>",
            categories=("Action", "Drama"),
        )
    ]


@pytest.mark.parametrize(
    ("name", "count", "title"),
    [
        ("miniflux_encoding_ISO-8859-1.xml", 40, "Red Dead Redemption 2: Hinweise auf PC-Ums"),
        ("miniflux_encoding_WINDOWS-1251.xml", 50, "Цитата #17703"),
        ("miniflux_large_rss.xml", 25, "Using vale with vim"),
        ("miniflux_rdf_UTF8.xml", 60, "OLED-TVs: Vorsichtsmaßnahmen gegen Einbrennen"),
        ("miniflux_small_atom.xml", 20, "Parse podcast categories"),
        ("miniflux_urdu_UTF8.xml", 26, "امریکی عسکری امداد"),
        ("scrapy_feed-sample2.xml", 13, "Abadeh 7500.924 - 67cm Wide"),
    ],
)
def test_real_feeds_have_the_number_of_entries_counted_by_hand(name: str, count: int, title: str) -> None:
    reading = read_feed(sample(f"feeds/{name}").read_bytes())

    assert len(reading.records) == count
    assert (reading.records[0].title or "").startswith(title)
    assert reading.problems == ()


def test_the_error_for_a_page_names_the_feeds_it_links_to() -> None:
    page = (
        b"<!doctype html><html><head><title>News</title>"
        b"<link rel=alternate type='application/rss+xml' href=/feed.xml>"
        b"<link rel=alternate type='text/html' href=/de></head></html>"
    )

    with pytest.raises(Permanent, match=r"an HTML page titled 'News': it names /feed\.xml; give"):
        read_feed(page)


@pytest.mark.parametrize(
    ("body", "looks_like"),
    [
        (b"<!DOCTYPE html><html><title>Oops &#33;</title></html>", "an HTML page titled 'Oops"),
        (b"<html><body>Bad gateway", "an HTML page"),
        (b'{"error": "<rss></rss>"}', "JSON"),
        (b"", "an empty body"),
        (b" \n ", "an empty body"),
        (b"/etc/passwd", "text that begins '/etc/passwd'"),
        (b"http://127.0.0.1/feed", "text that begins"),
        (b"<products><product/></products>", "a document of <products>"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "text that begins"),
        (b"<?xml version='1.0'?>", "text that begins"),
        (b"<!-- never closed <rss></rss>", "a document of <rss>"),
        (b"<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#'/>", "<rdf:RDF>"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_body_that_is_not_a_feed_is_described_in_the_error(body: bytes, looks_like: str) -> None:
    with pytest.raises(Permanent) as failure:
        read_feed(body)

    assert failure.value.code == "not_a_feed"
    assert looks_like in str(failure.value)
    assert "give the address" in str(failure.value)


def test_a_list_of_products_is_not_a_feed() -> None:
    with pytest.raises(Permanent, match="<products>"):
        read_feed(sample("feeds/scrapy_feed-sample1.xml").read_bytes())


def test_a_body_that_is_the_path_of_a_feed_is_not_followed(tmp_path: Path) -> None:
    feed = tmp_path / "feed.xml"
    feed.write_bytes(ATOM)

    with pytest.raises(Permanent, match="text that begins"):
        read_feed(str(feed).encode())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(BOMB, id="billion-laughs"),
        pytest.param('<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]><rss/>', id="xxe"),
        pytest.param('<!DOCTYPE rss SYSTEM "http://127.0.0.1/x.dtd"><rss/>', id="external-dtd"),
        pytest.param('<!-- <x --><!doctype a [<!ENTITY b "c">]><rss/>', id="behind-a-comment"),
        pytest.param('<!DOCTYPE html [<!ENTITY b "c">]><html/>', id="as-html"),
        pytest.param("<!DOCTYPE html><rss/>", id="html-before-rss"),
    ],
)
def test_a_document_type_is_refused_at_once(text: str, encoding: str) -> None:
    started = time.thread_time()

    with pytest.raises(Permanent) as failure:
        read_feed(text.encode(encoding))

    assert failure.value.code == "xml_entity"
    assert time.thread_time() - started < 0.1


def test_a_document_type_inside_a_text_is_only_text() -> None:
    reading = read_feed(rss("<item><title><![CDATA[<!DOCTYPE html> explained]]></title></item>"))

    assert [entry.title for entry in reading.records] == ["<!DOCTYPE html> explained"]


@pytest.mark.parametrize(
    "body",
    [
        b"<rss>" + b"<a>" * 1_000_000 + b"</a>" * 1_000_000 + b"</rss>",
        b"<rss><channel>" + b"<a/>" * 300_000 + b"</channel></rss>",
        b"<rss><channel>" + b"<a " * 300_000 + b"</channel></rss>",
        b"<rss><channel>&" + b"<" * 300_000 + b"</channel></rss>",
    ],
    ids=["deep", "wide", "unclosed", "angles"],
)
def test_a_document_that_is_too_deep_or_too_wide_is_refused_at_once(body: bytes) -> None:
    started = time.process_time()

    with pytest.raises(Permanent) as failure:
        read_feed(body)

    assert failure.value.code == "too_deep"
    assert time.process_time() - started < 0.1


def numbered(form: str, count: int = 20_000) -> str:
    return "".join(form.format(number) for number in range(count))


@pytest.mark.parametrize(
    "items",
    [
        "<item>" + numbered("<category>c{}</category>") + "</item>",
        "<item>" + numbered("<x><dc:subject>c{}</dc:subject></x>") + "</item>",
        "<item>" + numbered("<media:category label='c{}'/>") + "</item>",
        "<item><media:keywords>" + numbered("c{},") + "</media:keywords></item>",
        "<item><media:keywords><![CDATA[" + numbered("c{},") + "]]></media:keywords></item>",
        "<item><itunes:keywords><x></x>" + numbered("c{}&#44;") + "</itunes:keywords></item>",
        numbered("<category>c{}</category>"),
        numbered("<item/><category>c{}</category>"),
        "<item>" + numbered("<category>c{}</category><x:item/>") + "</item>",
        "<item><x " + numbered("a{}='' ") + "/></item>",
    ],
    ids=["own", "inside", "empty", "list", "cdata", "references", "feed", "between", "odd", "tag"],
)
def test_entries_with_quadratic_cost_in_feedparser_are_refused_at_once(items: str) -> None:
    """20,000 categories of one entry took it 6 seconds, 40,000 took 25."""
    started = time.thread_time()

    with pytest.raises(Permanent) as failure:
        read_feed(rss(items))

    assert failure.value.code == "too_deep"
    assert time.thread_time() - started < 0.2


def test_many_entries_may_have_many_categories_in_all() -> None:
    categories = numbered("<category>c{}</category>", 20)
    item = f"<item><description>{'a, ' * 2_000}</description>{categories}</item>"

    reading = read_feed(rss(item * 100))

    assert [len(entry.categories) for entry in reading.records] == [20] * 100


@pytest.mark.slow
def test_too_many_elements_beside_text_full_of_angle_brackets_are_counted() -> None:
    angles = b"<![CDATA[" + b"<" * 300_000 + b"]]>"

    assert read_feed(rss(f"<item><title>{angles.decode()}</title></item>")).records
    with pytest.raises(Permanent, match="more than 200000 tags"):
        read_feed(b"<rss><channel>" + angles + b"<a/>" * 300_000 + b"</channel></rss>")


@pytest.mark.parametrize("missing", [1, 7, 8, 40, 200, len(ATOM) - 60])
def test_a_truncated_feed_is_not_accepted(missing: int) -> None:
    with pytest.raises(Transient) as failure:
        read_feed(ATOM[:-missing])

    assert failure.value.code == "truncated_feed"


@pytest.mark.parametrize(
    "items", ["<item><![CDATA[</channel></rss>", "<item><!-- </channel></rss>"], ids=["cdata", "comment"]
)
def test_an_end_tag_inside_text_closes_nothing(items: str) -> None:
    with pytest.raises(Transient):
        read_feed(rss(items))


@pytest.mark.parametrize(
    ("item", "title"),
    [
        ("<title>A&nbsp;B</title>", "A B"),
        ("<title>A & B</title>", "A & B"),
        ("<title>A</title><description><p>x<br>y</description>", "A"),
    ],
    ids=["entity", "ampersand", "open-tags"],
)
def test_an_ill_formed_feed_is_read_with_a_problem(item: str, title: str) -> None:
    reading = read_feed(rss(f"<item>{item}</item>"))

    assert [entry.title for entry in reading.records] == [title]
    assert [problem.where for problem in reading.problems] == ["feed"]


def test_a_character_that_xml_forbids_costs_only_itself() -> None:
    reading = read_feed(rss("<item><title>A&#xD800;B&#0;C&#9731;</title></item>"))

    assert [entry.title for entry in reading.records] == ["A\ufffdB\ufffdC☃"]


def test_a_feed_that_crashes_feedparser_is_refused_with_its_reason() -> None:
    """A second licence, deeper than the first, makes feedparser 6.0.14 raise KeyError."""
    licence = "<creativecommons:license>x</creativecommons:license>"
    body = rss(f"<item>{licence}<a>{licence}</a></item>")

    with pytest.raises(Permanent, match="KeyError") as failure:
        read_feed(body)

    assert failure.value.code == "unreadable_feed"


@pytest.mark.parametrize(
    "body",
    [rss(""), b'<rss version="2.0"/>', b'<feed xmlns="http://www.w3.org/2005/Atom"/>'],
    ids=["rss", "rss-empty-tag", "atom"],
)
def test_an_empty_feed_has_no_entries(body: bytes) -> None:
    reading = read_feed(body)

    assert (list(reading.records), list(reading.problems)) == ([], [])
    assert not reading.is_complete


@pytest.mark.parametrize("date", ["Mon, 99 Foo 99999 99:99:99", "0000-00-00", "yesterday", ""])
def test_an_invalid_date_is_unknown(date: str) -> None:
    reading = read_feed(rss(f"<item><title>A</title><pubDate>{date}</pubDate></item>"))

    assert [entry.published_at for entry in reading.records] == [None]


ODDITIES = ["<![", "<!", "&#;", "<?x", "]]>", "<item>", "</item>", "<link href='http://['/>", "&#xD800;", "\0"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([*ODDITIES, "<cc:license/>", "<title>", "a"]), max_size=8))
def test_no_body_ends_in_a_traceback(parts: list[str]) -> None:
    try:
        titles = [entry.title for entry in read_feed(rss("".join(parts))).records]
    except WorkError:
        titles = []

    assert not any("\0" in (title or "") for title in titles)


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
