"""A web on loopback and a run context that polls it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import a_run_context, fast_settings


@pytest.fixture
def web() -> Iterator[FakeWeb]:
    with FakeWeb() as web:
        yield web


@pytest.fixture
def ctx(store: Store, database_url: str, tmp_path: Path) -> RunContext:
    return a_run_context(store, fast_settings(tmp_path / "home", database_url))
