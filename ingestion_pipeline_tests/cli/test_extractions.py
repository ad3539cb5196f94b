"""`ingest extractions`: begun, listed, stopped, gone on with, read again; or refused by name."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from ingestion_pipeline.catalogs.completing.ending import COMPLETE
from ingestion_pipeline.pages.content import ContentStore
from ingestion_pipeline.pages.workshop import Workshop
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import pages
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.extracting import Extracting


@pytest.fixture
def some(database: Store, ingest: Ingest) -> Extracting:
    settings = load_settings(ingest.environment)
    content = ContentStore(settings.home / "content")
    shop = Workshop(store=database, settings=settings, content=content, systems={})
    made = Extracting(shop=shop, clock=FixedClock(database.now()))
    made.source()
    return made


def test_an_extraction_is_begun_listed_cancelled_and_resumed(
    ingest: Ingest, some: Extracting
) -> None:
    started = ingest.done("extractions", "start", "catalog:shop")
    [row] = ingest.json("extractions", "list")
    cancelled = ingest.done("extractions", "cancel", str(row["id"]), "--reason", "too dear")
    resumed = ingest.json("extractions", "resume", str(row["id"]))

    assert f"catalog:shop: extraction {row['id']} started" in started
    assert (row["status"], row["kind"]) == ("WAITING", "crawl")
    assert f"`ingest extractions resume {row['id']}`" in cancelled
    assert resumed == {"extraction": row["id"], "to_fetch": 1, "to_read": 0}
    assert "IN_PROGRESS" in ingest.done("extractions", "list")


def test_a_dataset_that_is_held_back_is_seen_and_published(
    ingest: Ingest, some: Extracting
) -> None:
    for count in (8, 1):
        id_ = some.begin({"/c/1": "SUCCESS"})
        some.read(id_, {"/c/1": [f"c{n}" for n in range(count)]})
        some.end(id_, COMPLETE)
        some.clock.advance(seconds=1)

    listed = ingest.done("extractions", "list")
    said = ingest.done("extractions", "publish", "2")

    assert "v2 quarantined" in listed
    assert "1 items, and 8" in " ".join(listed.split())
    assert said == "version 2 of extraction 2 is published\n"


def test_a_rerun_is_predicted_and_then_made(ingest: Ingest, some: Extracting) -> None:
    id_ = some.begin({"/c/1": "SUCCESS"})
    some.read(id_, {"/c/1": ["a"]})
    some.end(id_, COMPLETE)

    predicted = ingest.json("extractions", "rerun", str(id_), "--dry-run")
    made = ingest.json("extractions", "rerun", str(id_))

    assert (predicted["pages"], predicted["calls"], predicted["cost_usd"]) == (1, 0, "0")
    assert made == {"extraction_id": id_ + 1, "pages": 1}


@pytest.mark.parametrize("action", ["cancel", "resume", "retry", "rerun", "publish"])
def test_an_unknown_extraction_is_refused_by_its_id(
    ingest: Ingest, some: Extracting, action: str
) -> None:
    said = ingest.refused("extractions", action, "99")

    assert "there is no extraction 99; `ingest extractions list` shows all" in said


def test_a_page_that_waits_is_counted_under_the_table_with_what_it_waits_for(
    ingest: Ingest, some: Extracting
) -> None:
    some.begin({"/c/1": "DOWNLOADED", "/c/2": "DOWNLOADED", "/c/3": "ERROR"})
    failure = {"class": "resource", "code": "no_model", "message": "no model configured"}
    with some.shop.store.begin() as connection:
        connection.execute(update(pages).values(failure=failure))

    listed = ingest.done("extractions", "list")

    assert "1 catalog:shop  2 pages waiting: no model configured" in listed


def test_what_is_no_catalogue_has_no_extraction(ingest: Ingest) -> None:
    feed = "https://a.test/feed"
    ingest.done("sources", "add", feed, "--id", "series:tides", "--kind", "series")

    said = ingest.refused("extractions", "start", "series:tides")

    assert "only catalogues are extracted; `ingest sources list --kind catalog`" in said


def test_going_on_with_a_disabled_source_names_the_cure(ingest: Ingest, some: Extracting) -> None:
    id_ = some.begin({"/c/1": "WAITING"})
    ingest.done("extractions", "cancel", str(id_))
    ingest.done("sources", "disable", "catalog:shop")

    said = ingest.done("extractions", "resume", str(id_))

    assert "1 page to fetch" in said
    assert "`ingest sources enable catalog:shop`" in said
