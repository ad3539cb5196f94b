"""A catalogue on the command line: declared with its recipe, refused with every problem, shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestion_pipeline.registry import check_definition
from ingestion_pipeline.sources.files import read_file
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.crawlers import LINKS

ROOT = Path(__file__).parents[2]
LINE = ("sources", "add", "https://a.test/", "--id", "catalog:shop", "--kind", "catalog")


def config(**recipe: Any) -> tuple[str, str]:
    return "--config", json.dumps({"recipe": recipe})


def test_a_catalogue_is_added_with_its_recipe(ingest: Ingest) -> None:
    ingest.done(*LINE, "--platform", "catalog", *config(**LINKS))

    shown = ingest.json("sources", "show", "catalog:shop")

    assert (shown["platform"], shown["config"]["recipe"]) == ("catalog", LINKS)
    assert "pages" not in shown
    assert (shown["health"], shown["health_reason"]) == ("waiting", "not read yet")
    assert shown["predicted_cost"] == "not known before pages were visited"


def test_the_entity_and_the_selectors_of_a_catalogue_are_checked(ingest: Ingest) -> None:
    given = {"recipe": LINKS, "selectors": {"course_id": "b[", "colour": "i"}}

    said = ingest.refused(*LINE, "--platform", "catalog", "--config", json.dumps(given))

    assert "selectors.course_id: 'b[' is no CSS selector" in said
    assert "selectors.colour: unknown key" in said
    assert said.count("(catalog:shop)") >= 2
    other = json.dumps({"recipe": LINKS, "entity": "cuorse"})
    assert "there are: competency, course" in ingest.refused(*LINE, "--platform", "catalog", "--config", other)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"rendr": True}, "config.rendr: unknown key; there are: recipe, entity"),
        ({"setup": []}, "config.setup: unknown key"),
        ({"render": "yes"}, "config.render: must be true or false, not 'yes'"),
        ({"ignore_robots": "false"}, "config.ignore_robots: must be true or false, not 'false'"),
    ],
)
def test_a_key_that_nothing_reads_is_refused(ingest: Ingest, config: dict[str, Any], said: str) -> None:
    given = json.dumps({"recipe": LINKS} | config)

    assert said in ingest.refused(*LINE, "--platform", "catalog", "--config", given)


def test_a_catalogue_without_a_recipe_waits_for_its_detection_and_says_so(ingest: Ingest) -> None:
    said = ingest.done(*LINE, "--platform", "catalog")

    shown = ingest.json("sources", "show", "catalog:shop")

    assert "its recipe is detected" in said
    assert (shown["recipe_status"], shown["recipe"]) == ("WAITING", None)


def test_a_recipe_is_detected_anew_if_asked_for_and_never_over_one_by_hand(ingest: Ingest) -> None:
    ingest.done(*LINE, "--platform", "catalog")

    again = ingest.done("sources", "update", "catalog:shop", "--detect")
    ingest.done("sources", "update", "catalog:shop", *config(**LINKS))
    refused = ingest.refused("sources", "update", "catalog:shop", "--detect")

    assert "its recipe will be detected again" in again
    assert "its config has a recipe" in refused


def test_every_problem_of_a_recipe_is_told_with_the_source_and_the_place(ingest: Ingest) -> None:
    bad = config(page_type="DETAIL_LINKS", link_pattern="/c/(?!x)", render="yes")

    said = ingest.refused(*LINE, "--platform", "page", *bad)

    assert "recipe.link_pattern: '/c/(?!x)' is no RE2 pattern at character 4" in said
    assert "recipe.render: must be true or false" in said
    assert said.count("(catalog:shop)") == 2


def test_a_file_with_a_bad_pattern_is_refused_with_its_line(tmp_path: Path) -> None:
    entry = {"id": "catalog:x", "kind": "catalog", "platform": "page", "url": "https://a.test/"}
    recipe = {"page_type": "DETAIL_LINKS", "link_pattern": "(a+"}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"sources": [{**entry, "config": {"recipe": recipe}}]}))

    [problem] = read_file(file, check=check_definition).problems

    assert (problem.field, problem.line) == ("config", 2)
    assert "catalog:x" in problem.message


def test_the_catalogue_of_the_docs_and_of_the_example_can_be_followed(tmp_path: Path) -> None:
    example = read_file(ROOT / "sources" / "example.yaml", check=check_definition)
    page = (ROOT / "docs" / "operating.md").read_text().partition("\n## Catalogues\n")[2]
    file = tmp_path / "shown.yaml"
    file.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    shown = read_file(file, check=check_definition)

    assert (example.problems, shown.problems) == ((), ())
    assert {one.id for one in example.definitions} >= {"catalog:example", "catalog:example-by-hand"}
    assert [one.id for one in shown.definitions] == ["catalog:my-college"]
