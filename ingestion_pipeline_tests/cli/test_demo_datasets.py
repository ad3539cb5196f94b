"""The table of datasets at the end of a demo run."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, Table, insert

from ingestion_pipeline.cli.demo_catalogs import dataset_rows, print_datasets
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import crawl_steps, datasets, extractions, pages
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.crawlers import a_catalog

READ, UNREAD = "catalog:read", "catalog:unread"


def add(connection: Connection, table: Table, **values: Any) -> int:
    row = insert(table).values(created_at=NOON, **values).returning(table.c.id)
    return connection.execute(row).scalar_one()


def extract(connection: Connection, source: str, *item_counts: int | None) -> int:
    """An extraction with one page for each count; one without a count has not been read."""
    about = {"status": "COMPLETE", "recipe": {}, "tracking_id": "t", "updated_at": NOON}
    extraction = add(connection, extractions, source_id=source, **about)
    about = {"kind": "FETCH_ROOT", "key": "root", "page_type": "DETAIL"}
    step = add(connection, crawl_steps, extraction_id=extraction, **about)
    about = {"extraction_id": extraction, "step_id": step, "host": "a.test", "status": "SUCCESS"}
    for nth, count in enumerate(item_counts):
        named = {"url": f"http://a.test/{nth}", "key": f"a.test/{nth}", "page_type": "DETAIL"}
        add(connection, pages, item_count=count, **about, **named)
    return extraction


def publish(connection: Connection, source: str, extraction: int, **values: Any) -> None:
    about = {"source_id": source, "extraction_id": extraction, "entity_type": "course"}
    dataset = add(connection, datasets, read_as="r", status="published", **about, **values)
    connection.execute(extractions.update().where(extractions.c.id == extraction).values(dataset_id=dataset))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest) -> str:
    """Both, as everywhere but in this folder, whose commands have a file."""
    return request.param


@pytest.fixture
def connection(store: Store) -> Any:
    with store.begin() as connection:
        register(connection, [a_catalog(name="read"), a_catalog(name="unread")], now=NOON)
        yield connection


def test_the_last_extraction_of_each_source_is_shown_with_its_dataset(connection: Connection) -> None:
    publish(connection, READ, extract(connection, READ, 1), version=1, item_count=1)
    last = extract(connection, READ, 8, 6, 0, None)
    publish(connection, READ, last, version=2, item_count=14, flagged_count=1)
    extract(connection, UNREAD)

    rows = dataset_rows(connection, [UNREAD, READ, "catalog:none"])

    assert rows == [[UNREAD, "COMPLETE", "-", "-", 0, "-", "-"], [READ, "COMPLETE", 14, 1, 3, 2, "published"]]


def test_before_the_first_dataset_there_is_no_table(connection: Connection, capsys: pytest.CaptureFixture[str]) -> None:
    extraction = extract(connection, READ, None)
    print_datasets(connection, [READ])
    assert capsys.readouterr().out == ""

    publish(connection, READ, extraction, version=1, item_count=0)
    print_datasets(connection, [READ])
    assert capsys.readouterr().out.split("\n")[3].split() == ([READ, "COMPLETE", "0", "0", "0", "1", "published"])
