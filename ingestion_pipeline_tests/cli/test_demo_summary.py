"""The summary of a demo run: catalogues, datasets, model and unusual pages."""

import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Table, insert

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.demo.commands import DEMO_SETTINGS, bundled_model, demo_prices, demo_settings, model_settings
from ingestion_pipeline.demo.report import DownloadedPage, crawl_state, dataset_rows, unusual_pages
from ingestion_pipeline.demo.site import DemoSite, demo_profile
from ingestion_pipeline.settings import load_settings, variables
from ingestion_pipeline.settings.groups import price_table
from ingestion_pipeline.sources import SourceStatus
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import crawl_steps, datasets, extractions, pages
from ingestion_pipeline_tests.builders import NOON, a_source
from ingestion_pipeline_tests.catalog_extractions import a_catalog


def test_a_disabled_catalogue_is_not_reported_as_complete() -> None:
    assert crawl_state(a_source(status=SourceStatus.DISABLED)) == "disabled"


def test_a_failed_crawl_is_not_reported_as_complete() -> None:
    assert crawl_state(a_source(last_error_class="transient")) == "failed"
    assert crawl_state(a_source()) == "complete"


READ, UNREAD = "catalog:read", "catalog:unread"


def add(connection: Connection, table: Table, **values: Any) -> int:
    row = insert(table).values(created_at=NOON, **values).returning(table.c.id)
    return connection.execute(row).scalar_one()


def extract(connection: Connection, source: str, *item_counts: int | None) -> int:
    """Add an extraction with one page per count; a page without a count was not extracted."""
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
    dataset = add(connection, datasets, reader_hash="r", status="published", **about, **values)
    connection.execute(extractions.update().where(extractions.c.id == extraction).values(dataset_id=dataset))


@pytest.fixture
def connection(store: Store) -> Any:
    with store.begin() as connection:
        register(connection, [a_catalog(name="read"), a_catalog(name="unread")], now=NOON)
        yield connection


@pytest.mark.both_databases
def test_the_last_extraction_of_each_source_is_shown_with_its_dataset(connection: Connection) -> None:
    publish(connection, READ, extract(connection, READ, 1), version=1, item_count=1)
    last = extract(connection, READ, 8, 6, 0, None)
    publish(connection, READ, last, version=2, item_count=14, flagged_count=1)
    extract(connection, UNREAD)

    rows = dataset_rows(connection, [UNREAD, READ, "catalog:none"])

    assert [[*row.values()] for row in rows] == [
        [UNREAD, "COMPLETE", None, None, 0, None, None],
        [READ, "COMPLETE", 14, 1, 3, 2, "published"],
    ]


def test_a_run_with_the_bundled_model_has_one_with_a_price_and_without_a_key() -> None:
    with bundled_model() as model:
        settings = load_settings(model_settings(model) | demo_prices())

    prices = price_table(settings.models.prices)
    assert settings.openai_base_url == f"http://127.0.0.1:{model.port}/v1"
    assert settings.openai_api_key.get_secret_value() == "demo"
    assert {settings.model_cheap, settings.model_strong} < set(prices)


def test_every_setting_of_the_demo_exists() -> None:
    assert DEMO_SETTINGS.keys() <= variables().keys()


def test_a_demo_run_restores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    monkeypatch.setenv("INGESTION_CRAWL__DELAY_SECONDS", "7")
    before = dict(os.environ)

    with demo_settings({"OPENAI_API_KEY": "demo", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}):
        during = dict(os.environ)

    assert (during["OPENAI_API_KEY"], during["INGESTION_CRAWL__DELAY_SECONDS"]) == ("demo", "7")
    assert during["INGESTION_HOSTS__DELAY_SECONDS"] == "0"
    assert dict(os.environ) == before


ODD_PAGE = "http://catalog.demo.test/ships"
PLAIN: dict[str, Any] = {"url": ODD_PAGE, "final_url": ODD_PAGE, "elapsed_ms": 9, "encoding": "utf-8"}


@pytest.mark.parametrize(
    ("changes", "expected_kind", "message"),
    [
        ({"final_url": "http://b.test/"}, "redirect", f"{ODD_PAGE} leads to http://b.test/"),
        ({"elapsed_ms": 700}, "slow page", f"{ODD_PAGE} took 0.7 seconds"),
        ({"encoding": "cp932"}, "charset", f"{ODD_PAGE} is encoded in Shift_JIS"),
    ],
)
def test_unusual_pages_are_listed_with_the_reason(changes: dict[str, Any], expected_kind: str, message: str) -> None:
    [[kind, details]] = unusual_pages([DownloadedPage(**PLAIN), DownloadedPage(**PLAIN | changes)])

    assert kind == expected_kind
    assert message in str(details)


def test_the_running_site_brings_the_demos_profile_unless_the_operator_has_one(home: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("skills: {Python: 10}\n")
    variables = {"INGESTION_HOME": str(home), "INGESTION_MATCH__PROFILE": str(tmp_path / "none.yaml")}

    with DemoSite(home):
        with open_run_context(variables) as ctx:
            assert ctx.settings.match.profile == str(demo_profile())
        with open_run_context(variables | {"INGESTION_MATCH__PROFILE": str(mine)}) as ctx:
            assert ctx.settings.match.profile == str(mine)
