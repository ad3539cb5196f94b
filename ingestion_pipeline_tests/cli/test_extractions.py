"""`ingest extractions`: start, list, cancel, resume, rerun, and refusals."""

import pytest
from sqlalchemy import update

from ingestion_pipeline.catalogs.datasets.finishing import COMPLETE
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import extractions, pages
from ingestion_pipeline_tests.catalog_extractions import CatalogHarness
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
        id_ = catalog.start_extraction({"/c/1": "SUCCESS"})
        catalog.add_items(id_, {"/c/1": [f"c{n}" for n in range(count)]})
        catalog.finish(id_, COMPLETE)
        catalog.clock.advance(seconds=1)

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
    id_ = catalog.start_extraction({"/c/1": "SUCCESS"})
    catalog.add_items(id_, {"/c/1": [f"c{n}" for n in range(count)]})
    catalog.finish(id_, COMPLETE)
    catalog.clock.advance(seconds=1)
    return id_


def _list_output(ingest: Ingest) -> str:
    return " ".join(ingest.output("extractions", "list").split())


def test_a_rerun_is_predicted_and_then_started(ingest: Ingest, catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({"/c/1": "SUCCESS"})
    catalog.add_items(id_, {"/c/1": ["a"]})
    catalog.finish(id_, COMPLETE)

    predicted = ingest.json("extractions", "rerun", str(id_), "--dry-run")
    prediction = ingest.json("extractions", "rerun", str(id_))

    assert (predicted["pages"], predicted["calls"], predicted["cost_usd"]) == (1, 0, "0")
    assert prediction == {"extraction_id": id_ + 1, "pages": 1, "newer": None}


def test_a_rerun_of_an_older_crawl_says_which_dataset_stays_published(ingest: Ingest, catalog: CatalogHarness) -> None:
    for _ in range(2):
        id_ = catalog.start_extraction({"/c/1": "SUCCESS"})
        catalog.add_items(id_, {"/c/1": ["a"]})
        catalog.finish(id_, COMPLETE)
        catalog.clock.advance(seconds=1)

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


@pytest.mark.parametrize("action", ["cancel", "resume", "retry", "rerun", "publish", "accept", "pages"])
def test_an_unknown_extraction_is_refused_by_its_id(ingest: Ingest, catalog: CatalogHarness, action: str) -> None:
    message = ingest.refused("extractions", action, "99")

    assert "there is no extraction 99; `ingest extractions list` shows all" in message


def test_waiting_pages_are_counted_below_the_table_with_their_reason(ingest: Ingest, catalog: CatalogHarness) -> None:
    catalog.start_extraction({"/c/1": "DOWNLOADED", "/c/2": "DOWNLOADED", "/c/3": "ERROR"})
    failure = {"class": "resource", "code": "no_model", "message": "no model configured"}
    with catalog.ctx.store.begin() as connection:
        connection.execute(update(pages).values(failure=failure))

    output = ingest.output("extractions", "list")

    assert "1 catalog:shop  2 pages waiting: no model configured" in output


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
