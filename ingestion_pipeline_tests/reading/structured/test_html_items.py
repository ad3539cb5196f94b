import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.reading.structured.items import MAX_BYTES, BadSelector, FieldSelector, HtmlReader, checked_css
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError

URL = "https://a.test/list"
BODY = b"""<!doctype html><html><head><title>Salt</title></head><body>
<ul><li data-id=7><a href="/7">Chapter <b>7</b><script>track("x")</script></a> <i> new </i></li>
<li data-id=6><a href="/6"> </a><a href="/6b">Chapter 6</a></li></ul>
<a class=next href="?page=2">older</a></body></html>"""


def reader(items: str = "li", *, may_be_empty: bool = False, **fields: str) -> HtmlReader:
    selectors = {name: [FieldSelector.of(text)] for name, text in fields.items()}
    return HtmlReader(items=items, fields=selectors, may_be_empty=may_be_empty, next="a.next")


def test_a_field_is_the_text_of_the_first_nonempty_match_without_scripts() -> None:
    reading = reader(label="a", note="i").read(BODY).reading

    assert reading.records == [{"label": "Chapter 7", "note": "new"}, {"label": "Chapter 6"}]
    assert not reading.problems


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("a@href", "/7"),
        ("@data-id", "7"),
        ("", "Chapter 7 new"),
        ("a::text", "Chapter"),
        ("a::attr(href)", "/7"),
        ("a[href^='/']@href", "/7"),
        ("a[href*='@'], b", "7"),
    ],
)
def test_a_selector_gives_text_or_an_attribute(selector: str, expected: str) -> None:
    assert reader(field=selector).read(BODY).reading.records[0] == {"field": expected}


def test_the_next_page_is_the_link_that_the_selector_finds() -> None:
    assert reader().next_url(BODY, url=URL) == "https://a.test/list?page=2"
    assert reader().read(BODY, url=URL).next_url == "https://a.test/list?page=2"
    assert reader().next_url(b"<p>the end</p>", url=URL) is None


def test_links_are_relative_to_the_pages_base_if_it_has_one() -> None:
    based = b"<base href='//b.test/x/'>" + BODY

    assert reader().read(based, url=URL).base_url == "https://b.test/x/"
    assert reader().next_url(based, url=URL) == "https://b.test/x/?page=2"
    assert reader().read(b"<base href='data:x'>" + BODY, url=URL).base_url == URL
    assert reader().read(b"<base href='data:x'>" + based, url=URL).base_url == "https://b.test/x/"


@pytest.mark.parametrize("css", ["li[", "a::nonsense", "", "li,,", "a:has(", "p" * 501])
def test_a_bad_selector_is_refused_by_its_text(css: str) -> None:
    with pytest.raises(BadSelector) as failure:
        checked_css(css)

    assert repr(css[:500]) in str(failure.value)


def test_a_page_without_items_is_an_error_unless_the_feed_may_be_empty() -> None:
    page = b"<html><title>Just a moment...</title></html>"

    with pytest.raises(Permanent, match=r"'li'.*Just a moment") as failure:
        reader(label="a").read(page)

    assert failure.value.code == "no_items"
    assert reader(may_be_empty=True, label="a").read(page).reading.records == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"error": "gone"}', "not_html"),
        (b"\x89PNG\r\n\x1a\n\x00\x01", "not_html"),
        (b"<p>" + b" " * MAX_BYTES, "too_large"),
        (b"<DIV x='1'>" * 3_100 + b"</div>" * 3_100, "too_deep"),
        (b"<div>" * 2_100, "too_deep"),
        (b"<b>" * 2_100, "too_deep"),
        (b"<li " + b" ".join(b"a%d" % n for n in range(2_000)) + b">", "too_many_attributes"),
    ],
    ids=["json", "binary", "large", "deep", "deeper than the parser", "inline", "attributes"],
)
def test_a_body_that_cannot_be_a_list_is_refused_even_if_it_may_be_empty(body: bytes, code: str) -> None:
    with pytest.raises(Permanent) as failure:
        reader(may_be_empty=True, label="a").read(body)

    assert failure.value.code == code


def test_an_empty_body_is_retried() -> None:
    with pytest.raises(Transient, match="empty"):
        reader(may_be_empty=True).read(b" \r\n")


@pytest.mark.parametrize(
    "part",
    [
        "<li>x",
        "<br>",
        "<p>x",
        "<tr><td>x",
        "<b></b>",
        "<li><b>x</li>",
        "</div>",
        "<svg><path/></svg>",
        "<!-- <div> -->",
        "<script>'<div>'</script>",
    ],
)
def test_a_long_page_is_not_a_deep_one(part: str) -> None:
    body = "<li>first</li>" + part * 3_100

    assert reader(label="").read(body.encode()).reading.records[0] == {"label": "first"}


def test_a_truncated_page_is_parsed_as_far_as_it_goes_and_marked_incomplete() -> None:
    reading = reader(label="a").read(BODY[: BODY.index(b"<a class=next")]).reading

    assert len(reading.records) == 2
    assert [problem.where for problem in reading.problems] == ["page"]


@pytest.mark.slow
@given(body=st.binary(max_size=300) | st.text("<>/!-ab li=\"'&;\0", max_size=300).map(str.encode))
def test_no_body_ends_in_an_unclassified_error(body: bytes) -> None:
    try:
        reading = reader(label="a", url="a@href").read(body).reading
    except WorkError:
        return
    assert all(text for record in reading.records for text in record.values())
