from collections.abc import Iterator
from datetime import datetime

import pytest

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline_tests.companies.boards.job_boards import Boards
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import a_run_context, fast_settings


@pytest.fixture
def clock(now: datetime) -> FixedClock:
    """Polls are days apart: the clock moves only when a test advances it."""
    return FixedClock(now)


@pytest.fixture
def boards(store: Store, clock: FixedClock, settings: Settings) -> Iterator[Boards]:
    board_settings = fast_settings(settings.home, settings.database_url)
    with FakeWeb({"/robots.txt": 404}) as web:
        yield Boards(a_run_context(store, board_settings), web, clock)
