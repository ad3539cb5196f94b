"""A loopback web and a run context that analyses companies on it."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import RunningClock, a_run_context, fast_settings


@pytest.fixture
def clock(now: datetime) -> RunningClock:
    """The clock runs: retries become due during a run."""
    return RunningClock(now)


@pytest.fixture
def web() -> Iterator[FakeWeb]:
    with FakeWeb() as web:
        yield web


@pytest.fixture
def ctx(store: Store, database_url: str, tmp_path: Path) -> RunContext:
    return a_run_context(store, fast_settings(tmp_path / "home", database_url))
