"""`ingest extractions`: begun, listed, stopped, gone on with, read again; or refused by name."""

from __future__ import annotations

import pytest

from ingestion_pipeline.catalogs.ending import COMPLETE
from ingestion_pipeline.pages.content import ContentStore
from ingestion_pipeline.pages.workshop import Workshop
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.store import FixedClock, Store
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
