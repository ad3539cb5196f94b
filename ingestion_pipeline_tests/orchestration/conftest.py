"""An installation, its demo site, and an ephemeral Dagster instance."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline_tests.orchestration.installation import Installation


@pytest.fixture
def installation(tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    """Create an installation and point the environment to it."""
    installation = Installation.build(tmp_path, sqlite_template)
    for name, value in installation.environment.items():
        monkeypatch.setenv(name, value)
    yield installation
    if "instance" in vars(installation):
        installation.instance.dispose()


@pytest.fixture
def site(installation: Installation) -> Iterator[DemoSite]:
    with DemoSite(installation.home) as demo_site:
        yield demo_site


@pytest.fixture
def instance(installation: Installation) -> dg.DagsterInstance:
    return installation.instance
