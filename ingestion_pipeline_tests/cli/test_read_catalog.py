"""`ingest read --platform catalog` and `jsonld`: the courses of saved bodies."""

import json
from pathlib import Path

import pytest

from ingestion_pipeline.cli.read import kind_for
from ingestion_pipeline.sources import Kind
from ingestion_pipeline_tests.catalogs.course_pages import SAVED_PAGES
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.samples import sample

AS_CATALOG = ("--platform", "catalog")
FIELDS = [
    *("course_id", "course_name", "course_description", "course_prerequisites"),
    *("course_non_credit", "course_credits_min", "course_credits_max", "course_credits_type"),
    "course_ceu_credits",
]


@pytest.fixture
def ingest() -> Ingest:
    """`ingest read` must work where no database can be."""
    return Ingest({"INGESTION_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"})


def test_a_course_has_the_fields_of_its_type_and_its_evidence(ingest: Ingest) -> None:
    page = str(SAVED_PAGES / "plain_table.html")

    result = ingest("read", page, *AS_CATALOG, "--kind", "catalog", "--entity", "course", "--json")

    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["problems"] == []
    first = answer["records"][0]
    assert list(first) == [*FIELDS, "evidence", "extraction_method", "confidence"]
    assert [first[name] for name in FIELDS] == [
        *("HIS 101", "World to 1500"),
        "Empires, faiths and trade from the first cities to the ocean voyages.",
        *(None, None, None, 3, None, None),
    ]
    assert first["evidence"]["course_id"]["status"] == "exact"
    assert first["extraction_method"] == "layout"


def test_the_text_output_is_a_table_with_the_extraction_method(ingest: Ingest) -> None:
    result = ingest("read", str(SAVED_PAGES / "courseleaf_titles.html"), *AS_CATALOG)

    assert "Plants & People" in result.stdout
    assert "4 records, 0 problems" in result.stdout
    assert "read by courseleaf" in result.stderr


def test_an_empty_result_page_is_no_failure(ingest: Ingest) -> None:
    result = ingest("read", str(SAVED_PAGES / "none_empty_results.html"), *AS_CATALOG, "--json")

    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"records": [], "problems": []}


@pytest.mark.parametrize(
    ("body", "code"), [(b"", "empty_body"), (b'{"data": [', "not_json"), (b"<div>" * 5_000, "too_deep")]
)
def test_an_unreadable_body_fails_with_a_problem(ingest: Ingest, body: bytes, code: str) -> None:
    result = ingest("read", "-", *AS_CATALOG, "--json", stdin=body)

    assert result.exit_code == 1
    assert [problem["code"] for problem in json.loads(result.stdout)["problems"]] == [code]


def test_json_ld_is_a_platform_of_its_own(ingest: Ingest) -> None:
    result = ingest("read", str(SAVED_PAGES / "json_ld.html"), "--platform", "jsonld", "--json")
    silent = ingest("read", str(SAVED_PAGES / "plain_table.html"), "--platform", "jsonld", "--json")

    assert [record["course_id"] for record in json.loads(result.stdout)["records"]] == ["LAW 501", "LAW 640"]
    assert json.loads(silent.stdout)["records"] == []
    assert silent.exit_code == 0


def test_bad_input_is_refused_with_the_cure(ingest: Ingest) -> None:
    page = str(SAVED_PAGES / "json_ld.html")
    assert "course" in ingest.refused("read", page, *AS_CATALOG, "--entity", "banana")
    bad_selectors = ("--config", '{"selectors": {"course_id": "b["}}')
    assert "is no CSS selector" in ingest.refused("read", page, *AS_CATALOG, *bad_selectors)
    assert "no config" in ingest.refused("read", "-", *AS_CATALOG, "--config", '{"a": 1}')
    assert "http://" in ingest.refused("read", "-", *AS_CATALOG, "--url", "ftp://a.test")
    assert "catalog" in ingest.refused("read", "-", *AS_CATALOG, "--kind", "series")


def test_selectors_read_a_saved_page(ingest: Ingest) -> None:
    names = {"course_id": "b", "course_name": "i", "course_description": "p"}
    config = json.dumps({"selectors": names | {"record": "section"}})
    page = b"<section><b>X 1</b> <i>Logic</i> <p>What follows from what.</p></section>"

    result = ingest("read", "-", *AS_CATALOG, "--config", config, "--json", stdin=page)

    assert [record["course_name"] for record in json.loads(result.stdout)["records"]] == ["Logic"]


def test_the_default_kind_of_a_catalogue_platform_is_catalog() -> None:
    assert kind_for("catalog", None) is Kind.CATALOG
    assert kind_for("jsonld", None) is Kind.CATALOG


@pytest.mark.slow
def test_every_course_sample_gives_json(ingest: Ingest) -> None:
    for page in sorted(sample("courses").rglob("*.html")):
        result = ingest("read", str(page), *AS_CATALOG, "--json")
        assert result.exit_code == 0, page.name
        assert isinstance(json.loads(result.stdout)["records"], list)


BIRD = """
name: bird
about: a bird
key: [ring]
fields: [{name: ring, kind: text, required: true}]
embedded: {types: [Bird], fields: {ring: [identifier]}}
"""


def test_a_custom_type_is_extracted_from_a_saved_page(tmp_path: Path) -> None:
    (tmp_path / "entities").mkdir()
    (tmp_path / "entities" / "bird.yaml").write_text(BIRD)
    json_ld = json.dumps({"@type": "Bird", "identifier": "R-1"})
    page = tmp_path / "page.html"
    page.write_text(f"<h1>R-1</h1><script type='application/ld+json'>{json_ld}</script>")
    ingest = Ingest({"INGESTION_SOURCES": str(tmp_path)})

    output = ingest.output("read", str(page), *AS_CATALOG, "--entity", "bird")

    assert "R-1" in output
    assert "1 records, 0 problems" in output
