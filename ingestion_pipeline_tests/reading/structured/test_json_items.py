import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.reading.structured.items import BadJsonPath, JsonPath, JsonReader
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError

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
