"""Polls of sources in the test's database, and the web that they fetch from."""

import pytest

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pages.politeness.polls import Polls


@pytest.fixture
def polls(ctx: RunContext, web: FakeWeb) -> Polls:
    return Polls(ctx, web)
