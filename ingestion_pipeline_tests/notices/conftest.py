from __future__ import annotations

from collections.abc import Iterator

import pytest

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.notices.telling import Telling


@pytest.fixture
def web() -> Iterator[FakeWeb]:
    with FakeWeb() as running:
        yield running


@pytest.fixture
def telling(store: Store, clock: FixedClock, settings: Settings, web: FakeWeb) -> Telling:
    return Telling(store, clock, settings, web)
