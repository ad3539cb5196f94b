"""Fixtures of catalogs: a running clock, and harnesses of a crawl and of rows."""

from datetime import datetime

import pytest

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.catalog_extractions import CatalogHarness, LiveCatalog, catalog_harness
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import RunningClock


@pytest.fixture
def clock(now: datetime) -> RunningClock:
    """Time moves, so that retries come due during a crawl."""
    return RunningClock(now)


@pytest.fixture
def live(ctx: RunContext, web: FakeWeb) -> LiveCatalog:
    return LiveCatalog(ctx, web)


@pytest.fixture
def catalog(store: Store, settings: Settings, now: datetime) -> CatalogHarness:
    """A catalog without an extraction, under default settings but for a quiet time of five minutes."""
    extraction = settings.extraction.model_copy(update={"quiet_seconds": 300})
    return catalog_harness(store, settings.model_copy(update={"extraction": extraction}), now)
