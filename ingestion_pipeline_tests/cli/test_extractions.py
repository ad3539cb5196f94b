"""`ingest extractions`, and sources that are catalogues."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import update

from ingestion_pipeline.catalogs.datasets.finishing import COMPLETE
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.registry import check_definition
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.sources.files import read_file
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import extractions, pages
from ingestion_pipeline_tests.catalog_extractions import LINKS, CatalogHarness
from ingestion_pipeline_tests.cli.conftest import Ingest


@pytest.fixture
def catalog(home_store: Store, ingest: Ingest) -> CatalogHarness:
    settings = load_settings(ingest.environment)
    content = ContentStore(settings.home / "content")
    ctx = RunContext(store=home_store, settings=settings, content=content, systems={})
    harness = CatalogHarness(ctx=ctx, clock=FixedClock(home_store.now()))
    harness.add_source()
    return harness


def test_an_extraction_is_started_listed_cancelled_and_resumed(ingest: Ingest, catalog: CatalogHarness) -> None:
    started = ingest.output("extractions", "start", "catalog:shop")
    [row] = ingest.json("extractions", "list")
    cancelled = ingest.output("extractions", "cancel", str(row["id"]), "--reason", "too dear")
    resumed = ingest.json("extractions", "resume", str(row["id"]))

    assert f"catalog:shop: extraction {row['id']} started" in started
    assert (row["status"], row["kind"]) == ("WAITING", "crawl")
    assert f"`ingest extractions resume {row['id']}`" in cancelled
    assert resumed == {"extraction": row["id"], "to_fetch": 1, "to_read": 0}
    assert "IN_PROGRESS" in ingest.output("extractions", "list")


@pytest.mark.parametrize("action", ["publish", "accept"])
def test_a_quarantined_dataset_is_listed_and_published(action: str, ingest: Ingest, catalog: CatalogHarness) -> None:
    for count in (8, 1):
        _read_items(catalog, count)

    output = ingest.output("extractions", "list")
    message = ingest.output("extractions", action, "2")

    assert "v2 quarantined" in output
    assert "1 items, previously 8" in " ".join(output.split())
    assert message == "version 2 of extraction 2 is published\n"


@pytest.mark.slow
def test_status_shows_data_problems_of_a_source_whose_polls_succeed(ingest: Ingest, catalog: CatalogHarness) -> None:
    def status_output() -> str:
        return " ".join(ingest.output("status").split())

    _read_items(catalog, 8)
    assert "held back" not in status_output()

    id_ = _read_items(catalog, 1)
    assert "quarantined: version 2 is held back" in status_output()

    ingest.output("extractions", "publish", str(id_))
    catalog.update_row(extractions, id_, summary={"missing": 3})
    assert "3 pages that should state records gave none" in status_output()


@pytest.mark.slow
def test_no_command_is_suggested_for_a_superseded_extraction(ingest: Ingest, catalog: CatalogHarness) -> None:
    _read_items(catalog, 8)
    quarantined = _read_items(catalog, 1)
    assert f"`ingest extractions publish {quarantined}`" in _list_output(ingest)

    published = _read_items(catalog, 9)
    catalog.update_row(extractions, published, summary={"kept": 2})
    rows = _list_output(ingest)
    assert f"; extraction {published} is newer" in rows
    assert f"publish {quarantined}`" not in rows
    assert f"`ingest extractions retry {published}` fetches them again" in rows

    last = _read_items(catalog, 9)
    rows = _list_output(ingest)
    assert f"2 items kept from earlier pages that now failed; extraction {last} is newer" in rows
    assert f"retry {published}`" not in rows

    ingest.output("extractions", "rerun", str(last))
    catalog.finish(last + 1, COMPLETE)
    assert f"extraction {last + 1} is newer" not in _list_output(ingest)


def _read_items(catalog: CatalogHarness, count: int) -> int:
    """Let a crawl find so many items and end; return its id."""
    return catalog.crawl({"/c/1": [f"c{n}" for n in range(count)]})


def _list_output(ingest: Ingest) -> str:
    return " ".join(ingest.output("extractions", "list").split())


def test_a_rerun_is_predicted_and_then_started(ingest: Ingest, catalog: CatalogHarness) -> None:
    id_ = catalog.crawl({"/c/1": ["a"]})

    predicted = ingest.json("extractions", "rerun", str(id_), "--dry-run")
    prediction = ingest.json("extractions", "rerun", str(id_))

    assert (predicted["pages"], predicted["calls"], predicted["cost_usd"]) == (1, 0, "0")
    assert prediction == {"extraction_id": id_ + 1, "pages": 1, "newer": None}


def test_a_rerun_of_an_older_crawl_says_which_dataset_stays_published(ingest: Ingest, catalog: CatalogHarness) -> None:
    for _ in range(2):
        catalog.crawl({"/c/1": ["a"]})

    output = ingest.output("extractions", "rerun", "1")

    assert "held back, since version 2 is of a later crawl" in output
    assert "`ingest extractions publish 3` publishes it anyway" in output
    ingest.output("extractions", "cancel", "3")
    assert "published if it passes the quality gates" in ingest.output("extractions", "rerun", "1", "--publish")


def test_pages_are_listed_with_the_reason_for_failure_or_no_data(ingest: Ingest, catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({"/c/1": "SUCCESS", "/c/2": "ERROR", "/c/3": "EXTRACTED_NO_DATA"})
    failure = {"class": "no_data", "code": "no_data", "message": "rules found no course"}
    catalog.update_row(pages, catalog.page_row(id_, "/c/3").id, failure=failure)

    output = ingest.output("extractions", "pages", str(id_))
    empty = ingest.json("extractions", "pages", str(id_), "--status", "EXTRACTED_NO_DATA")

    assert "it answered 404" in output
    assert [(page["url"][-4:], page["failure"]["message"]) for page in empty] == [("/c/3", "rules found no course")]
    assert "1 page without data: rules found no course" in ingest.output("extractions", "list")
    assert "is DOWNLOADED" in ingest.output("extractions", "pages", str(id_), "--status", "DOWNLOADED")


def test_waiting_pages_are_counted_below_the_table_with_their_reason(ingest: Ingest, catalog: CatalogHarness) -> None:
    catalog.start_extraction({"/c/1": "DOWNLOADED", "/c/2": "DOWNLOADED", "/c/3": "ERROR"})
    failure = {"class": "resource", "code": "no_model", "message": "no model configured"}
    with catalog.ctx.store.begin() as connection:
        connection.execute(update(pages).values(failure=failure))

    output = ingest.output("extractions", "list")

    assert "1 catalog:shop  2 pages waiting: no model configured" in output


def test_status_states_when_a_running_extraction_is_published(ingest: Ingest, catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction(dict.fromkeys((f"/c/{number}" for number in range(5)), "WAITING"))

    shown = ingest.json("status")
    text = " ".join(ingest.output("status").split())

    [expected] = shown["extractions"]
    wait = datetime.fromisoformat(expected["last_page_at"]) - datetime.fromisoformat(shown["now"])
    assert (expected["extraction_id"], expected["pages_left"]) == (id_, 5)
    assert wait == timedelta(seconds=5 * 3)  # crawl.delay_seconds
    assert "5 of 6 pages left, the last one in 15s at the host's pace; published within a minute of it" in " ".join(
        text.split()
    )


def test_a_source_that_is_no_catalogue_has_no_extraction(ingest: Ingest) -> None:
    feed = "https://a.test/feed"
    ingest.output("sources", "add", feed, "--id", "series:tides", "--kind", "series")

    message = ingest.refused("extractions", "start", "series:tides")

    assert "only catalogues are extracted; `ingest sources list --kind catalog`" in message


@pytest.mark.parametrize("action", ["resume", "retry", "rerun"])
def test_an_action_on_a_disabled_source_is_refused_until_it_is_enabled(
    ingest: Ingest, catalog: CatalogHarness, action: str
) -> None:
    id_ = catalog.start_extraction({"/c/1": "WAITING", "/c/2": "ERROR", "/c/3": "EXTRACTED_NO_DATA"})
    ingest.output("extractions", "cancel", str(id_))
    ingest.output("sources", "disable", "catalog:shop")

    message = ingest.refused("extractions", action, str(id_))

    assert "`ingest sources enable catalog:shop`" in message
    assert catalog.status(id_) == "CANCELLED"
    ingest.output("sources", "enable", "catalog:shop")
    ingest.output("extractions", action, str(id_))


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


@pytest.mark.parametrize(
    ("pattern", "problem_text"),
    [
        pytest.param("(a+", "no RE2 pattern", id="invalid"),
        pytest.param("/c/(?!x)", "no RE2 pattern at character 4", id="needs backtracking"),
        pytest.param("(x{1000}){1000}", "no RE2 pattern", id="grows without bound"),
    ],
)
def test_a_file_with_a_bad_or_slow_pattern_is_refused_with_its_source_and_line(
    tmp_path: Path, pattern: str, problem_text: str
) -> None:
    entry = {"id": "catalog:x", "kind": "catalog", "platform": "page", "url": "https://a.test/"}
    recipe = {"page_type": "DETAIL_LINKS", "link_pattern": pattern}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"sources": [{**entry, "config": {"recipe": recipe}}]}))

    [problem] = read_file(file, check=check_definition).problems

    assert (problem.field, problem.line) == ("config", 2)
    assert "catalog:x" in problem.message
    assert f"recipe.link_pattern: {pattern!r} is {problem_text}" in problem.message


def test_the_catalogues_of_the_docs_and_the_example_are_valid(tmp_path: Path) -> None:
    example = read_file(ROOT / "sources" / "example.yaml", check=check_definition)
    page = (ROOT / "docs" / "systems" / "catalogs.md").read_text().partition("\n## From a URL to a file\n")[2]
    file = tmp_path / "shown.yaml"
    file.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    documented = read_file(file, check=check_definition)

    assert (example.problems, documented.problems) == ((), ())
    assert {definition.id for definition in example.definitions} >= {"catalog:example", "catalog:example-by-hand"}
    assert [definition.id for definition in documented.definitions] == ["catalog:my-college"]
