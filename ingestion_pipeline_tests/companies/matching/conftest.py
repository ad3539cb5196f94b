"""A job board whose listings are evaluated against a profile."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.companies.matching.listings import PROFILE, Listings, UndelayedBoards
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import RunningClock, a_run_context, fast_settings


@pytest.fixture
def listings(store: Store, database_url: str, tmp_path: Path, now: datetime, web: FakeWeb) -> Listings:
    """A board without listings and a profile; the clock runs from noon."""
    store.clock = RunningClock(now)
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE)
    settings = fast_settings(tmp_path / "home", database_url, match__profile=str(profile))
    systems: dict[Kind, Any] = {Kind.JOB_BOARD: cast("Any", UndelayedBoards())}
    ctx = replace(a_run_context(store, settings), systems=systems)
    board_listings = Listings(ctx=ctx, profile=profile, port=web.port)
    board_listings.add_board()
    return board_listings
