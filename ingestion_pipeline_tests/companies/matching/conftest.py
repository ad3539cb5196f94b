"""A board whose listings wait, on each database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.companies.matching.listings import PROFILE, Listings, Unhurried
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import GoingClock, a_run_context, settings_of


@pytest.fixture
def web() -> Iterator[FakeWeb]:
    with FakeWeb() as web:
        yield web


@pytest.fixture
def some(store: Store, database_url: str, tmp_path: Path, now: datetime, web: FakeWeb) -> Listings:
    """A board without listings, and a profile; the time goes on from noon."""
    store.clock = GoingClock(now)
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE)
    settings = settings_of(tmp_path / "home", database_url, match__profile=str(profile))
    systems: dict[Kind, Any] = {Kind.JOB_BOARD: cast("Any", Unhurried())}
    ctx = replace(a_run_context(store, settings), systems=systems)
    made = Listings(ctx=ctx, profile=profile, port=web.port)
    made.board()
    return made
