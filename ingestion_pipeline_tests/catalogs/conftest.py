"""A web on loopback, and a workshop that crawls it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import GoingClock, a_run_context, settings_of


@pytest.fixture
def clock(now: datetime) -> GoingClock:
    """Time goes on: retries of a walk come due while it walks."""
    return GoingClock(now)


@pytest.fixture
def web() -> Iterator[FakeWeb]:
    with FakeWeb() as web:
        yield web


@pytest.fixture
def ctx(store: Store, database_url: str, tmp_path: Path) -> RunContext:
    return a_run_context(store, settings_of(tmp_path / "home", database_url))
