from random import Random

import pytest

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline_tests.series.series_harness import SeriesHarness


@pytest.fixture
def harness(store: Store, clock: FixedClock, settings: Settings, random: Random) -> SeriesHarness:
    """An empty store; a module may override it with one that sources have filled."""
    return SeriesHarness(store, clock, settings, random)
