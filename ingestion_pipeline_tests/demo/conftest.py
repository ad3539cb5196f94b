from collections.abc import Iterator
from pathlib import Path

import pytest

from ingestion_pipeline.demo.site import DemoSite


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DemoSite]:
    with DemoSite(tmp_path) as site:
        yield site
