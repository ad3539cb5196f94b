"""A quarantined dataset degrades its source, as a quarantined feed does: one alert, one recovery."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime

import pytest
from sqlalchemy import select, text

from ingestion_pipeline.catalogs import extraction_control
from ingestion_pipeline.catalogs.checks import quarantined
from ingestion_pipeline.operations.alerts import record_health_changes
from ingestion_pipeline.operations.source_health import SourceFacts, changed_states, source_statuses, store_states
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.status import Health
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import datasets, outbox
from ingestion_pipeline_tests.catalog_extractions import CATALOG_ID, CatalogHarness, catalog_harness

pytestmark = pytest.mark.both_databases

ALERT_KINDS = ("source_degraded", "source_recovered")


@pytest.fixture
def catalog(store: Store, settings: Settings, now: datetime) -> CatalogHarness:
    return catalog_harness(store, settings, now)


def crawl(catalog: CatalogHarness, *keys: str) -> int:
    """Crawl and extract these keys, ten minutes later."""
    catalog.clock.advance(minutes=10)
    id_ = catalog.start_extraction({"/c/1": "SUCCESS"})
    catalog.add_items(id_, {"/c/1": keys})
    catalog.finish(id_)
    return id_


def add_quarantined_dataset(catalog: CatalogHarness) -> int:
    """Publish a dataset of ten items and quarantine one of a single item; return its extraction."""
    crawl(catalog, *(f"c{n}" for n in range(10)))
    return crawl(catalog, "c0")


def crawl_unchanged(catalog: CatalogHarness) -> None:
    """Crawl again and find every page unchanged since the published dataset."""
    catalog.clock.advance(minutes=10)
    base = catalog.rows(datasets)[0]
    id_ = catalog.start_extraction({"/c/1": "SUCCESS"}, base_dataset_id=base.id)
    catalog.carry_over(id_, base.extraction_id, "/c/1")
    [action] = catalog.finish(id_)
    assert action.dataset is not None
    assert action.dataset.is_confirmed


def record_health(catalog: CatalogHarness) -> SourceFacts:
    """Evaluate and store the catalogue's health, as `maintain` does."""
    now, settings = catalog.clock.advance(seconds=1), catalog.ctx.settings
    with catalog.ctx.store.begin() as connection:
        [statuses] = source_statuses(connection, settings, now=now)
        record_health_changes(connection, settings, now)
        store_states(connection, changed_states(connection, [statuses], now=now))
    return statuses


def alert_counts(catalog: CatalogHarness) -> Counter[str]:
    with catalog.ctx.store.read() as connection:
        kinds = connection.execute(select(outbox.c.subject_kind)).scalars()
        return Counter(kind for kind in kinds if kind in ALERT_KINDS)


def test_a_quarantined_dataset_degrades_its_source_and_alerts_once(catalog: CatalogHarness) -> None:
    id_ = add_quarantined_dataset(catalog)

    facts = [record_health(catalog) for _ in range(3)][-1]

    assert facts.health is Health.DEGRADED
    assert facts.assessment.reason.startswith("quarantined: version 2 is held back: ")
    assert facts.assessment.reason.endswith(f"; extraction {id_}; the last good data stays")
    assert alert_counts(catalog) == {"source_degraded": 1}
    with catalog.ctx.store.read() as connection:
        query = text("SELECT health, reported_state FROM v_source_health WHERE source_id = :id")
        assert tuple(connection.execute(query, {"id": CATALOG_ID}).one()) == ("degraded", "degraded")


def publish_quarantined(catalog: CatalogHarness) -> None:
    catalog.apply_action(extraction_control.publish, catalog.rows(datasets)[-1].extraction_id)


def crawl_nine_courses(catalog: CatalogHarness) -> None:
    crawl(catalog, *(f"c{n}" for n in range(9)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "end_quarantine", [publish_quarantined, crawl_nine_courses, crawl_unchanged], ids=lambda action: action.__name__
)
def test_a_source_recovers_once_when_its_dataset_is_published_or_the_next_extraction_succeeds(
    catalog: CatalogHarness, end_quarantine: Callable[[CatalogHarness], None]
) -> None:
    add_quarantined_dataset(catalog)
    record_health(catalog)

    end_quarantine(catalog)
    facts = [record_health(catalog) for _ in range(3)][-1]

    assert facts.health is Health.HEALTHY
    assert alert_counts(catalog) == {"source_degraded": 1, "source_recovered": 1}
    with catalog.ctx.store.read() as connection:
        assert quarantined(connection) == []


def test_a_second_quarantined_dataset_sends_no_second_alert(catalog: CatalogHarness) -> None:
    add_quarantined_dataset(catalog)
    record_health(catalog)

    crawl(catalog, "c1")

    assert record_health(catalog).assessment.reason.startswith("quarantined: version 3 is held back")
    assert alert_counts(catalog) == {"source_degraded": 1}
