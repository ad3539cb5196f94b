"""`ingest extractions`: begun, listed, stopped, gone on with, read again; or refused by name."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from ingestion_pipeline.catalogs.datasets.finishing import COMPLETE
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import extractions, pages
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.extracting import Extracting


@pytest.fixture
def some(database: Store, ingest: Ingest) -> Extracting:
    settings = load_settings(ingest.environment)
    content = ContentStore(settings.home / "content")
    ctx = RunContext(store=database, settings=settings, content=content, systems={})
    made = Extracting(ctx=ctx, clock=FixedClock(database.now()))
    made.source()
    return made


def test_an_extraction_is_begun_listed_cancelled_and_resumed(ingest: Ingest, some: Extracting) -> None:
    started = ingest.done("extractions", "start", "catalog:shop")
    [row] = ingest.json("extractions", "list")
    cancelled = ingest.done("extractions", "cancel", str(row["id"]), "--reason", "too dear")
    resumed = ingest.json("extractions", "resume", str(row["id"]))

    assert f"catalog:shop: extraction {row['id']} started" in started
    assert (row["status"], row["kind"]) == ("WAITING", "crawl")
    assert f"`ingest extractions resume {row['id']}`" in cancelled
    assert resumed == {"extraction": row["id"], "to_fetch": 1, "to_read": 0}
    assert "IN_PROGRESS" in ingest.done("extractions", "list")


@pytest.mark.parametrize("word", ["publish", "accept"])
def test_a_dataset_that_is_held_back_is_seen_and_published(word: str, ingest: Ingest, some: Extracting) -> None:
    for count in (8, 1):
        id_ = some.begin({"/c/1": "SUCCESS"})
        some.read(id_, {"/c/1": [f"c{n}" for n in range(count)]})
        some.end(id_, COMPLETE)
        some.clock.advance(seconds=1)

    listed = ingest.done("extractions", "list")
    said = ingest.done("extractions", word, "2")

    assert "v2 quarantined" in listed
    assert "1 items, previously 8" in " ".join(listed.split())
    assert said == "version 2 of extraction 2 is published\n"


def test_status_says_what_is_wrong_with_the_data_of_a_source_whose_polls_succeed(
    ingest: Ingest, some: Extracting
) -> None:
    def shown() -> str:
        return " ".join(ingest.done("status").split())

    _read_items(some, 8)
    assert "held back" not in shown()

    id_ = _read_items(some, 1)
    assert "quarantined: version 2 is held back" in shown()

    ingest.done("extractions", "publish", str(id_))
    some.set(extractions, id_, summary={"missing": 3})
    assert "3 pages that should state records gave none" in shown()


def test_no_command_is_named_for_an_extraction_after_which_another_came(ingest: Ingest, some: Extracting) -> None:
    _read_items(some, 8)
    held = _read_items(some, 1)
    assert f"`ingest extractions publish {held}`" in _listed(ingest)

    kept = _read_items(some, 9)
    some.set(extractions, kept, summary={"kept": 2})
    listed = _listed(ingest)
    assert f"; extraction {kept} is newer" in listed
    assert f"publish {held}`" not in listed
    assert f"`ingest extractions retry {kept}` fetches them again" in listed

    last = _read_items(some, 9)
    listed = _listed(ingest)
    assert f"2 items kept from earlier pages that now failed; extraction {last} is newer" in listed
    assert f"retry {kept}`" not in listed

    ingest.done("extractions", "rerun", str(last))
    some.end(last + 1, COMPLETE)
    assert f"extraction {last + 1} is newer" not in _listed(ingest)


def _read_items(some: Extracting, count: int) -> int:
    """Let a crawl find so many items and end; return its id."""
    id_ = some.begin({"/c/1": "SUCCESS"})
    some.read(id_, {"/c/1": [f"c{n}" for n in range(count)]})
    some.end(id_, COMPLETE)
    some.clock.advance(seconds=1)
    return id_


def _listed(ingest: Ingest) -> str:
    return " ".join(ingest.done("extractions", "list").split())


def test_a_rerun_is_predicted_and_then_made(ingest: Ingest, some: Extracting) -> None:
    id_ = some.begin({"/c/1": "SUCCESS"})
    some.read(id_, {"/c/1": ["a"]})
    some.end(id_, COMPLETE)

    predicted = ingest.json("extractions", "rerun", str(id_), "--dry-run")
    made = ingest.json("extractions", "rerun", str(id_))

    assert (predicted["pages"], predicted["calls"], predicted["cost_usd"]) == (1, 0, "0")
    assert made == {"extraction_id": id_ + 1, "pages": 1, "newer": None}


def test_a_rerun_of_an_older_crawl_says_what_stays_shown_and_how_to_change_that(
    ingest: Ingest, some: Extracting
) -> None:
    for _ in range(2):
        id_ = some.begin({"/c/1": "SUCCESS"})
        some.read(id_, {"/c/1": ["a"]})
        some.end(id_, COMPLETE)
        some.clock.advance(seconds=1)

    said = ingest.done("extractions", "rerun", "1")

    assert "held back, since version 2 is of a later crawl" in said
    assert "`ingest extractions publish 3` publishes it anyway" in said
    ingest.done("extractions", "cancel", "3")
    assert "published if it passes the quality gates" in ingest.done("extractions", "rerun", "1", "--publish")


def test_pages_are_listed_with_why_one_failed_or_gave_no_data(ingest: Ingest, some: Extracting) -> None:
    id_ = some.begin({"/c/1": "SUCCESS", "/c/2": "ERROR", "/c/3": "EXTRACTED_NO_DATA"})
    why = {"class": "no_data", "code": "no_data", "message": "rules found no course"}
    some.set(pages, some.page_of(id_, "/c/3").id, failure=why)

    listed = ingest.done("extractions", "pages", str(id_))
    empty = ingest.json("extractions", "pages", str(id_), "--status", "EXTRACTED_NO_DATA")

    assert "it answered 404" in listed
    assert [(one["url"][-4:], one["failure"]["message"]) for one in empty] == [("/c/3", "rules found no course")]
    assert "1 page without data: rules found no course" in ingest.done("extractions", "list")
    assert "is DOWNLOADED" in ingest.done("extractions", "pages", str(id_), "--status", "DOWNLOADED")


@pytest.mark.parametrize("action", ["cancel", "resume", "retry", "rerun", "publish", "accept", "pages"])
def test_an_unknown_extraction_is_refused_by_its_id(ingest: Ingest, some: Extracting, action: str) -> None:
    said = ingest.refused("extractions", action, "99")

    assert "there is no extraction 99; `ingest extractions list` shows all" in said


def test_a_page_that_waits_is_counted_under_the_table_with_what_it_waits_for(ingest: Ingest, some: Extracting) -> None:
    some.begin({"/c/1": "DOWNLOADED", "/c/2": "DOWNLOADED", "/c/3": "ERROR"})
    failure = {"class": "resource", "code": "no_model", "message": "no model configured"}
    with some.ctx.store.begin() as connection:
        connection.execute(update(pages).values(failure=failure))

    listed = ingest.done("extractions", "list")

    assert "1 catalog:shop  2 pages waiting: no model configured" in listed


def test_what_is_no_catalogue_has_no_extraction(ingest: Ingest) -> None:
    feed = "https://a.test/feed"
    ingest.done("sources", "add", feed, "--id", "series:tides", "--kind", "series")

    said = ingest.refused("extractions", "start", "series:tides")

    assert "only catalogues are extracted; `ingest sources list --kind catalog`" in said


@pytest.mark.parametrize("action", ["resume", "retry", "rerun"])
def test_what_nobody_would_work_on_is_refused_until_its_source_is_enabled(
    ingest: Ingest, some: Extracting, action: str
) -> None:
    id_ = some.begin({"/c/1": "WAITING", "/c/2": "ERROR", "/c/3": "EXTRACTED_NO_DATA"})
    ingest.done("extractions", "cancel", str(id_))
    ingest.done("sources", "disable", "catalog:shop")

    said = ingest.refused("extractions", action, str(id_))

    assert "`ingest sources enable catalog:shop`" in said
    assert some.status(id_) == "CANCELLED"
    ingest.done("sources", "enable", "catalog:shop")
    ingest.done("extractions", action, str(id_))
