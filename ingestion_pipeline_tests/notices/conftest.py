import pytest

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.notices.notice_harness import NoticeHarness


@pytest.fixture
def harness(store: Store, clock: FixedClock, settings: Settings, web: FakeWeb) -> NoticeHarness:
    return NoticeHarness(store, clock, settings, web)
