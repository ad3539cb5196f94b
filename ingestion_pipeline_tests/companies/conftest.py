"""A running clock for the analyses of companies."""

from datetime import datetime

import pytest

from ingestion_pipeline_tests.polling_runs import RunningClock


@pytest.fixture
def clock(now: datetime) -> RunningClock:
    """The clock runs: retries become due during a run."""
    return RunningClock(now)
