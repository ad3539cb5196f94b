"""A loopback web, a scripted provider, and a run context that analyses websites."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from ingestion_pipeline.demo.model_server import ScriptedModel
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import RunningClock, a_run_context, fast_settings
from ingestion_pipeline_tests.websites.provider_answers import always_text
from ingestion_pipeline_tests.websites.website_runs import SMALL_PAGE, provider_settings


@pytest.fixture
def clock(now: datetime) -> RunningClock:
    """The clock runs: retries become due during a run."""
    return RunningClock(now)


@pytest.fixture
def web() -> Iterator[FakeWeb]:
    with FakeWeb({"/": SMALL_PAGE}) as web:
        yield web


@pytest.fixture
def provider() -> Iterator[ScriptedModel]:
    with ScriptedModel(always_text("Acme Tools, then Globex.")) as model:
        yield model


@pytest.fixture
def ctx(store: Store, database_url: str, tmp_path: Path, provider: ScriptedModel) -> RunContext:
    changes = provider_settings(one=provider.base_url)
    return a_run_context(store, fast_settings(tmp_path / "home", database_url, **changes))
