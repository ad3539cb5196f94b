"""Items of JSON and HTML lists, and the machine-readable data of a page."""

import json
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.structured.embedded import EmbeddedData, types_of
from ingestion_pipeline.reading.structured.items import (
    MAX_BYTES,
    BadJsonPath,
    BadSelector,
    FieldSelector,
    HtmlReader,
    JsonPath,
    JsonReader,
    checked_css,
)
from ingestion_pipeline.reading.text.plain_text import decode
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError
from ingestion_pipeline_tests.reading.tables import table
from ingestion_pipeline_tests.samples import sample

BODY = b"""{"data": {"list": [
  {"id": 7, "no": 1.10, "links": [{"href": "/7"}], "name": " A\\u0000\\n B "},
  {"id": null, "no": true, "links": [], "name": {"en": "x"}}
]}, "paging": {"next": "/page/2"}}"""


def reader(items: str = "data.list", **fields: str) -> JsonReader:
    paths = {name: [JsonPath.of(path)] for name, path in fields.items()}
    return JsonReader(items=JsonPath.of(items), fields=paths)


def test_fields_are_text_as_written_and_absent_where_the_document_has_none() -> None:
    reading = reader(id="id", number="no", url="links[0].href", title="name").read(BODY).reading

    assert reading.records == [{"id": "7", "number": "1.10", "url": "/7", "title": "A B"}, {"number": "true"}]


@pytest.mark.parametrize("body", [b'["a", "b"]', b'\xef\xbb\xbf["a", "b"]'], ids=["plain", "bom"])
def test_the_document_may_be_the_list_and_an_item_its_own_field(body: bytes) -> None:
    assert reader("", title="").read(body).reading.records == [{"title": "a"}, {"title": "b"}]


def test_the_first_path_with_a_value_counts() -> None:
    paths = [JsonPath.of("none"), JsonPath.of("id")]
    parsed = JsonReader(items=JsonPath.of("data.list"), fields={"id": paths}).read(BODY).reading

    assert parsed.records[0] == {"id": "7"}


def test_an_item_without_a_required_field_is_a_problem_and_the_rest_counts() -> None:
    strict = JsonReader(items=JsonPath.of("data.list"), fields={"id": [JsonPath.of("id")]}, required=["id"])

    reading = strict.read(BODY).reading

    assert [record["id"] for record in reading.records] == ["7"]
    assert [(problem.where, "id" in problem.message) for problem in reading.problems] == [("item 1", True)]


def test_a_list_of_something_else_is_refused_with_what_it_has() -> None:
    strict = JsonReader(items=JsonPath.of("data.list"), fields={"id": [JsonPath.of("uuid")]}, required=["id"])

    with pytest.raises(Permanent, match=r"none of 2 items has id.*'links'") as failure:
        strict.read(BODY)
    assert failure.value.code == "no_fields"


@pytest.mark.parametrize("path", ["data.chapters", "data", "list[0]", "data.list[0].no"])
def test_a_path_that_leads_to_no_list_is_named_with_the_keys_there_are(path: str) -> None:
    with pytest.raises(Permanent) as failure:
        reader(path, title="name").read(BODY)

    assert failure.value.code == "no_items"
    assert repr(path) in str(failure.value)
    assert "['data', 'paging']" in str(failure.value)


def test_an_empty_list_is_an_empty_feed() -> None:
    assert reader("a", title="t").read(b'{"a": []}').reading.records == []


@pytest.mark.parametrize("cut", range(1, len(BODY) - 1, 7))
def test_a_truncated_document_is_retried(cut: int) -> None:
    with pytest.raises(Transient) as failure:
        reader(title="name").read(BODY[:cut])

    assert failure.value.code == "truncated"


@pytest.mark.parametrize(
    "body",
    [b"<html>Bad gateway</html>", b"[1] [2]", b'{"a": 1,, "b": 2}', b"[" * 100_000 + b"]" * 100_000],
    ids=["html", "two", "ill-formed", "deep"],
)
def test_a_body_that_is_not_json_is_a_permanent_failure(body: bytes) -> None:
    with pytest.raises(Permanent) as failure:
        reader(title="name").read(body)

    assert failure.value.code == "not_json"


def test_the_next_page_is_the_value_at_the_path_or_none() -> None:
    following = JsonReader(items=JsonPath.of(""), fields={}, next=JsonPath.of("paging.next"))

    assert following.next_url(BODY, url="https://a.test/x") == "https://a.test/page/2"
    assert following.next_url(b'{"paging": {"next": null}}', url="https://a.test/x") is None
    assert reader().next_url(BODY, url="https://a.test/x") is None


@pytest.mark.parametrize("path", ["a..b", ".a", "a.", "a[]", "a[x]", "a]", "[", "a[0]b", "a" * 501])
def test_a_path_that_cannot_be_followed_is_refused(path: str) -> None:
    with pytest.raises(BadJsonPath, match="is no path"):
        JsonPath.of(path)


@pytest.mark.slow
@given(
    document=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("ab"), inner),
    )
)
def test_no_document_ends_in_an_unclassified_error(document: object) -> None:
    try:
        reading = reader("a", title="b", url="[0].a").read(json.dumps(document).encode()).reading
    except WorkError:
        return
    assert all(isinstance(text, str) for record in reading.records for text in record.values())


URL = "https://a.test/list"
HTML_BODY = b"""<!doctype html><html><head><title>Salt</title></head><body>
<ul><li data-id=7><a href="/7">Chapter <b>7</b><script>track("x")</script></a> <i> new </i></li>
<li data-id=6><a href="/6"> </a><a href="/6b">Chapter 6</a></li></ul>
<a class=next href="?page=2">older</a></body></html>"""


def html_reader(items: str = "li", *, may_be_empty: bool = False, **fields: str) -> HtmlReader:
    selectors = {name: [FieldSelector.of(text)] for name, text in fields.items()}
    return HtmlReader(items=items, fields=selectors, may_be_empty=may_be_empty, next="a.next")


def test_a_field_is_the_text_of_the_first_nonempty_match_without_scripts() -> None:
    reading = html_reader(label="a", note="i").read(HTML_BODY).reading

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
    assert html_reader(field=selector).read(HTML_BODY).reading.records[0] == {"field": expected}


def test_the_next_page_is_the_link_that_the_selector_finds() -> None:
    assert html_reader().next_url(HTML_BODY, url=URL) == "https://a.test/list?page=2"
    assert html_reader().read(HTML_BODY, url=URL).next_url == "https://a.test/list?page=2"
    assert html_reader().next_url(b"<p>the end</p>", url=URL) is None


def test_links_are_relative_to_the_pages_base_if_it_has_one() -> None:
    based = b"<base href='//b.test/x/'>" + HTML_BODY

    assert html_reader().read(based, url=URL).base_url == "https://b.test/x/"
    assert html_reader().next_url(based, url=URL) == "https://b.test/x/?page=2"
    assert html_reader().read(b"<base href='data:x'>" + HTML_BODY, url=URL).base_url == URL
    assert html_reader().read(b"<base href='data:x'>" + based, url=URL).base_url == "https://b.test/x/"


@pytest.mark.parametrize("css", ["li[", "a::nonsense", "", "li,,", "a:has(", "p" * 501])
def test_a_bad_selector_is_refused_by_its_text(css: str) -> None:
    with pytest.raises(BadSelector) as failure:
        checked_css(css)

    assert repr(css[:500]) in str(failure.value)


def test_a_page_without_items_is_an_error_unless_the_feed_may_be_empty() -> None:
    page = b"<html><title>Just a moment...</title></html>"

    with pytest.raises(Permanent, match=r"'li'.*Just a moment") as failure:
        html_reader(label="a").read(page)

    assert failure.value.code == "no_items"
    assert html_reader(may_be_empty=True, label="a").read(page).reading.records == []


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
        html_reader(may_be_empty=True, label="a").read(body)

    assert failure.value.code == code


def test_an_empty_body_is_retried() -> None:
    with pytest.raises(Transient, match="empty"):
        html_reader(may_be_empty=True).read(b" \r\n")


@pytest.mark.parametrize("part", table(__file__, "test_a_long_page_is_not_a_deep_one"))
def test_a_long_page_is_not_a_deep_one(part: str) -> None:
    body = "<li>first</li>" + part * 3_100

    assert html_reader(label="").read(body.encode()).reading.records[0] == {"label": "first"}


def test_a_truncated_page_is_parsed_as_far_as_it_goes_and_marked_incomplete() -> None:
    reading = html_reader(label="a").read(HTML_BODY[: HTML_BODY.index(b"<a class=next")]).reading

    assert len(reading.records) == 2
    assert [problem.where for problem in reading.problems] == ["page"]


@pytest.mark.slow
@given(body=st.binary(max_size=300) | st.text("<>/!-ab li=\"'&;\0", max_size=300).map(str.encode))
def test_no_body_ends_in_an_unclassified_error(body: bytes) -> None:
    try:
        reading = html_reader(label="a", url="a@href").read(body).reading
    except WorkError:
        return
    assert all(text for record in reading.records for text in record.values())


FOLDER = "html_tricky/structured_data"
NOT_READ = {
    "misc__Portfolio_Niels_Lubberman": "RDFa: no catalogue, board or chapter site speaks it",
    "misc__microformat_test": "microformats: class names that many a style sheet uses by chance",
}
AS_META = ("misc__dublincore_test", "misc__expanded_OG_support_test", "misc__opengraph_test")


def embedded(name: str) -> EmbeddedData:
    return Document(decode(sample(f"{FOLDER}/{name}.html").read_bytes())).embedded


def expected(name: str) -> Any:
    reference = json.loads(sample(f"{FOLDER}/{name}.expected.json").read_text())
    return reference["json-ld"] if isinstance(reference, dict) else reference


def as_json_ld(value: Any) -> Any:
    """Convert extruct's microdata to the form of JSON-LD."""
    if isinstance(value, list):
        return [as_json_ld(child) for child in value]
    if not isinstance(value, dict):
        return value
    if not isinstance(value.get("properties"), dict):
        return {key: as_json_ld(child) for key, child in value.items()}
    named = {"@type": value["type"]} | ({"@id": value["id"]} if "id" in value else {})
    return named | as_json_ld(value["properties"])


def pairs() -> list[str]:
    root = Path(__file__).resolve().parents[2].parent / "shared" / "samples" / FOLDER
    return sorted(path.stem for path in root.glob("*.html")) or ["schema.org__product"]


@pytest.mark.parametrize("name", [name for name in pairs() if name not in {*NOT_READ, *AS_META}])
def test_json_ld_and_microdata_match_extruct(name: str) -> None:
    data = embedded(name)

    expected_value = as_json_ld(expected(name))
    assert expected_value in ([*data.json_ld], [*data.microdata])
    assert not data.problems


@pytest.mark.parametrize("name", [*NOT_READ, *AS_META])
def test_the_known_differences_from_extruct_still_differ_and_crash_nothing(name: str) -> None:
    data = embedded(name)

    assert not data.json_ld
    assert not data.microdata


def test_open_graph_and_dublin_core_are_meta() -> None:
    properties = expected("misc__opengraph_test")[0]["properties"]
    core = expected("misc__dublincore_test")[0]

    assert {tuple(name) for name in properties} <= set(embedded("misc__opengraph_test").meta)
    message = dict(embedded("misc__dublincore_test").meta)
    named = [name for name in [*core["elements"], *core["terms"]] if "name" in name]
    assert {name["name"]: name["content"] for name in named} == message
    assert embedded("misc__opengraph_test").meta_content("og:nothing", "og:type") == "article"


def test_objects_are_found_at_any_depth_and_by_their_short_type_names() -> None:
    graph = {
        "@context": "https://schema.org",
        "@graph": [
            {"@type": "WebPage", "mainEntity": {"@type": ["schema:Course", "X"], "name": "A"}},
            {"@type": "ItemList", "itemListElement": [{"item": {"@type": "Course", "name": "B"}}]},
        ],
    }
    html = f"<script type='application/ld+json; charset=utf-8'>{json.dumps(graph)}</script>"
    html += "<div itemscope itemtype='http://schema.org/Course'><b itemprop=name>C</b></div>"

    data = Document(html).embedded

    assert [thing["name"] for thing in data.things("Course")] == ["A", "B", "C"]
    assert len(list(data.things())) == 5
    assert types_of({"@type": "http://schema.org/Course"}) == {"Course"}


@pytest.mark.parametrize("script", table(__file__, "test_broken_json_that_can_be_repaired_is_parsed"))
def test_broken_json_that_can_be_repaired_is_parsed(script: str) -> None:
    data = Document(f"<script type='application/ld+json'>{script}</script>").embedded

    assert [thing.get("name") for thing in data.things("Course")] == ["A"], data.problems


@pytest.mark.parametrize("script", ["hello", "{", "{{}}", '{"a": function() {}}', "[" * 5_000])
def test_a_script_that_cannot_be_parsed_is_a_problem_beside_the_others(script: str) -> None:
    valid_script = '<script type="application/ld+json">{"@type": "Course"}</script>'

    data = Document(f"<script type='application/ld+json'>{script}</script>{valid_script}").embedded

    assert len(list(data.things("Course"))) == 1
    assert [problem.code for problem in data.problems] in (["bad_json_ld"], [])


@pytest.mark.parametrize(
    ("html", "name", "data"),
    [
        ('<script id="__NEXT_DATA__" type="application/json">{"a": [1]}</script>', "__NEXT_DATA__", {"a": [1]}),
        ('<script>window.__INITIAL_STATE__ = {"a": 1}; run();</script>', "window.__INITIAL_STATE__", {"a": 1}),
        ("<script>var data = {a: 'x', b: [1, 2,],};</script>", "data", {"a": "x", "b": [1, 2]}),
        ("<script>App['jobs'] = [{\"id\": 1}]</script>", "App['jobs']", [{"id": 1}]),
        ("<script>s = JSON.parse('{\"a\": 1}')</script>", "s", {"a": 1}),
        ("<div data-page='{\"a\": 1}'></div>", "data-page", {"a": 1}),
    ],
)
def test_script_state_is_parsed_with_its_name(html: str, name: str, data: object) -> None:
    assert [(state.name, state.data) for state in Document(html).embedded.states] == [(name, data)]


def test_program_code_is_not_state() -> None:
    html = "<script>var f = function() { return {a: 1}; }; x = {}; y = [a, b]; z = {g() {}};</script>"

    assert Document(html).embedded.states == ()


def test_the_jobs_of_a_widget_are_in_its_script() -> None:
    states = Document(sample("jobs/html/jobylon_mcdonalds_se.html").read_text()).embedded.states

    jobs = [state.data for state in states if state.name == "JBL.embed_v2['jobs']"]
    assert [len(data) for data in jobs if isinstance(data, list)] == [125]


def test_circular_items_terminate() -> None:
    html = (
        "<div itemscope itemref=b id=a itemtype=T></div>"
        "<div id=b itemprop=x itemscope itemref=c></div>"
        "<div id=c itemprop=y itemscope itemref=b></div>"
    )

    assert len(Document(html).embedded.microdata) == 1


def corrupted(text: str, random: Random) -> str:
    signs = list(text)
    for _ in range(random.randrange(1, 6)):
        place = random.randrange(len(signs))
        signs[place] = random.choice(["", "{", "}", "[", "]", '"', "'", "\\", ",", "<!--", "\0", "é"])
    return "".join(signs)[: random.randrange(1, len(text))]


def test_150_corrupted_scripts_crash_nothing_and_are_parsed_quickly(random: Random) -> None:
    things = {"@graph": [{"@type": "Course", "name": f"n{n}", "x": [{"y": [n]}]} for n in range(30)]}
    text, started = json.dumps(things), time.thread_time()

    for _ in range(150):
        script = corrupted(text, random)
        Document(f"<script type='application/ld+json'>{script}</script><script>a={script}").preload("embedded")

    assert time.thread_time() - started < 5


def test_a_long_script_of_quotes_is_parsed_quickly() -> None:
    started = time.thread_time()

    for text in ('{"a": "' + 'b" ' * 100_000, "x = {" * 40_000, '{"a":' * 40_000):
        Document(f"<script type='application/ld+json'>{text}</script><script>{text}</script>").preload("embedded")

    assert time.thread_time() - started < 5
