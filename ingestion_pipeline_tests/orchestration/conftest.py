"""A house, the demo site in it, and a Dagster instance that forgets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline_tests.orchestration.house import House


@pytest.fixture
def house(tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    """The house that the environment names."""
    made = House.build(tmp_path, sqlite_template)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def site(house: House) -> Iterator[DemoSite]:
    with DemoSite(house.home) as running:
        yield running


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made
