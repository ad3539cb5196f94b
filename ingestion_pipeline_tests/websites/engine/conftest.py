"""A web on loopback, and a workshop that analyses its sites."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from ingestion_pipeline.demo.model_server import ScriptedModel
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import GoingClock, a_run_context, settings_of
from ingestion_pipeline_tests.websites.asking import says
from ingestion_pipeline_tests.websites.engine.analysing import SMALL, provided


@pytest.fixture
def clock(now: datetime) -> GoingClock:
    """Time goes on: retries come due while a run works."""
    return GoingClock(now)


@pytest.fixture
def web() -> Iterator[FakeWeb]:
    with FakeWeb({"/": SMALL}) as web:
        yield web


@pytest.fixture
def provider() -> Iterator[ScriptedModel]:
    with ScriptedModel(says("Acme Tools, then Globex.")) as model:
        yield model


@pytest.fixture
def ctx(store: Store, database_url: str, tmp_path: Path, provider: ScriptedModel) -> RunContext:
    changes = provided(one=provider.base_url)
    return a_run_context(store, settings_of(tmp_path / "home", database_url, **changes))
