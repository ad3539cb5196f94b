"""Embedded data of pages: compared with extruct, and broken on purpose."""

import json
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ingestion_pipeline.reading.structured.embedded import EmbeddedData, read_embedded, types_of
from ingestion_pipeline.reading.text.plain_text import decode
from ingestion_pipeline_tests.samples import sample

FOLDER = "html_tricky/structured_data"
NOT_READ = {
    "misc__Portfolio_Niels_Lubberman": "RDFa: no catalogue, board or chapter site speaks it",
    "misc__microformat_test": "microformats: class names that many a style sheet uses by chance",
}
AS_META = ("misc__dublincore_test", "misc__expanded_OG_support_test", "misc__opengraph_test")


def embedded(name: str) -> EmbeddedData:
    return read_embedded(decode(sample(f"{FOLDER}/{name}.html").read_bytes()))


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

    data = read_embedded(html)

    assert [thing["name"] for thing in data.things("Course")] == ["A", "B", "C"]
    assert len(list(data.things())) == 5
    assert types_of({"@type": "http://schema.org/Course"}) == {"Course"}


@pytest.mark.parametrize(
    "script",
    [
        '{"@type": "Course", "name": "A"}',
        '<!--\n{"@type": "Course", "name": "A"}\n-->',
        '//<![CDATA[\n{"@type": "Course", "name": "A"}\n//]]>',
        '/* <![CDATA[ */{"@type": "Course", "name": "A"}/* ]]> */',
        '\ufeff {"@type": "Course", "name": "A"};',
        '{"@type": "Course", "name": "A",}',
        '[{"@type": "Course", "name": "A",},]',
        '{"@type": "Course", "name": "A", "text": "two\nlines\tand a tab"}',
        '{"@type": "Course", "name": "A", "text": "he said "no" twice", "n": 1}',
        '{"@type": "Course", "name": "A", "text": "it\\\'s"}',
        "{'@type': 'Course', 'name': 'A'}",
        '{"@type": "Course", /* the name */ "name": "A" // done\n}',
        '{"@type": "Course", "name": "A", "inside": [1, {"x": 2',
        '{"@type": "Course", "name": "A", "price": undefined, "n": NaN, "m": .5}',
        "{&quot;@type&quot;: &quot;Course&quot;, &quot;name&quot;: &quot;A&quot;}",
        '{"@type": "Course" "name": "A"}',
    ],
)
def test_broken_json_that_can_be_repaired_is_parsed(script: str) -> None:
    data = read_embedded(f"<script type='application/ld+json'>{script}</script>")

    assert [thing.get("name") for thing in data.things("Course")] == ["A"], data.problems


@pytest.mark.parametrize("script", ["hello", "{", "{{}}", '{"a": function() {}}', "[" * 5_000])
def test_a_script_that_cannot_be_parsed_is_a_problem_beside_the_others(script: str) -> None:
    valid_script = '<script type="application/ld+json">{"@type": "Course"}</script>'

    data = read_embedded(f"<script type='application/ld+json'>{script}</script>{valid_script}")

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
    assert [(state.name, state.data) for state in read_embedded(html).states] == [(name, data)]


def test_program_code_is_not_state() -> None:
    html = "<script>var f = function() { return {a: 1}; }; x = {}; y = [a, b]; z = {g() {}};</script>"

    assert read_embedded(html).states == ()


def test_the_jobs_of_a_widget_are_in_its_script() -> None:
    states = read_embedded(sample("jobs/html/jobylon_mcdonalds_se.html").read_text()).states

    jobs = [state.data for state in states if state.name == "JBL.embed_v2['jobs']"]
    assert [len(data) for data in jobs if isinstance(data, list)] == [125]


def test_circular_items_terminate() -> None:
    html = (
        "<div itemscope itemref=b id=a itemtype=T></div>"
        "<div id=b itemprop=x itemscope itemref=c></div>"
        "<div id=c itemprop=y itemscope itemref=b></div>"
    )

    assert len(read_embedded(html).microdata) == 1


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
        read_embedded(f"<script type='application/ld+json'>{script}</script><script>a={script}")

    assert time.thread_time() - started < 5


def test_a_long_script_of_quotes_is_parsed_quickly() -> None:
    started = time.thread_time()

    for text in ('{"a": "' + 'b" ' * 100_000, "x = {" * 40_000, '{"a":' * 40_000):
        read_embedded(f"<script type='application/ld+json'>{text}</script><script>{text}</script>")

    assert time.thread_time() - started < 5
