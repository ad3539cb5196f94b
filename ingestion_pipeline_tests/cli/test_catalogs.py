"""A catalogue on the command line: declared with its recipe, refused with every problem, shown."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestion_pipeline.registry import check_definition
from ingestion_pipeline.sources.files import read_file
from ingestion_pipeline_tests.catalog_extractions import LINKS
from ingestion_pipeline_tests.cli.conftest import Ingest

ROOT = Path(__file__).parents[2]
LINE = ("sources", "add", "https://a.test/", "--id", "catalog:shop", "--kind", "catalog")


def config(**recipe: Any) -> tuple[str, str]:
    return "--config", json.dumps({"recipe": recipe})


def test_a_catalogue_is_added_with_its_recipe(ingest: Ingest) -> None:
    ingest.output(*LINE, "--platform", "catalog", *config(**LINKS))

    source = ingest.json("sources", "show", "catalog:shop")

    assert (source["platform"], source["config"]["recipe"]) == ("catalog", LINKS)
    assert "pages" not in source
    assert (source["health"], source["health_reason"]) == ("waiting", "not read yet")
    assert source["predicted_cost"] == "not known before pages were visited"


def test_the_entity_and_the_selectors_of_a_catalogue_are_checked(ingest: Ingest) -> None:
    config = {"recipe": LINKS, "selectors": {"course_id": "b[", "colour": "i"}}

    message = ingest.refused(*LINE, "--platform", "catalog", "--config", json.dumps(config))

    assert "selectors.course_id: 'b[' is no CSS selector" in message
    assert "selectors.colour: unknown key" in message
    assert message.count("(catalog:shop)") >= 2
    misspelled = json.dumps({"recipe": LINKS, "entity": "cuorse"})
    assert "there are: competency, course" in ingest.refused(*LINE, "--platform", "catalog", "--config", misspelled)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rendr": True}, "config.rendr: unknown key; there are: recipe, entity"),
        ({"setup": []}, "config.setup: unknown key"),
        ({"render": "yes"}, "config.render: must be true or false, not 'yes'"),
        ({"ignore_robots": "false"}, "config.ignore_robots: must be true or false, not 'false'"),
    ],
)
def test_an_unknown_config_key_is_refused(ingest: Ingest, config: dict[str, Any], message: str) -> None:
    document = json.dumps({"recipe": LINKS} | config)

    assert message in ingest.refused(*LINE, "--platform", "catalog", "--config", document)


def test_a_catalogue_without_a_recipe_waits_for_its_detection_and_says_so(ingest: Ingest) -> None:
    output = ingest.output(*LINE, "--platform", "catalog")

    source = ingest.json("sources", "show", "catalog:shop")

    assert "its recipe is detected" in output
    assert (source["recipe_status"], source["recipe"]) == ("WAITING", None)


def test_a_recipe_is_detected_again_on_request_and_never_replaces_a_manual_one(ingest: Ingest) -> None:
    ingest.output(*LINE, "--platform", "catalog")

    again = ingest.output("sources", "update", "catalog:shop", "--detect")
    ingest.output("sources", "update", "catalog:shop", *config(**LINKS))
    refused = ingest.refused("sources", "update", "catalog:shop", "--detect")

    assert "its recipe will be detected again" in again
    assert "its config has a recipe" in refused


def test_every_problem_of_a_recipe_is_reported_with_source_and_field(ingest: Ingest) -> None:
    invalid_config = config(page_type="DETAIL_LINKS", link_pattern="/c/(?!x)", render="yes")

    message = ingest.refused(*LINE, "--platform", "page", *invalid_config)

    assert "recipe.link_pattern: '/c/(?!x)' is no RE2 pattern at character 4" in message
    assert "recipe.render: must be true or false" in message
    assert message.count("(catalog:shop)") == 2


def test_a_file_with_a_bad_pattern_is_refused_with_its_line(tmp_path: Path) -> None:
    entry = {"id": "catalog:x", "kind": "catalog", "platform": "page", "url": "https://a.test/"}
    recipe = {"page_type": "DETAIL_LINKS", "link_pattern": "(a+"}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"sources": [{**entry, "config": {"recipe": recipe}}]}))

    [problem] = read_file(file, check=check_definition).problems

    assert (problem.field, problem.line) == ("config", 2)
    assert "catalog:x" in problem.message


def test_the_catalogues_of_the_docs_and_the_example_are_valid(tmp_path: Path) -> None:
    example = read_file(ROOT / "sources" / "example.yaml", check=check_definition)
    page = (ROOT / "docs" / "systems" / "catalogs.md").read_text().partition("\n## From a URL to a file\n")[2]
    file = tmp_path / "shown.yaml"
    file.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    documented = read_file(file, check=check_definition)

    assert (example.problems, documented.problems) == ((), ())
    assert {definition.id for definition in example.definitions} >= {"catalog:example", "catalog:example-by-hand"}
    assert [definition.id for definition in documented.definitions] == ["catalog:my-college"]
