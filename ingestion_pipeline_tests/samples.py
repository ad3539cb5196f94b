"""Real bodies, stored outside the repository: a test that needs an absent one is skipped."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def sample(path: str) -> Path:
    root = Path(os.environ.get("INGESTION_SAMPLES") or REPOSITORY.parent / "shared" / "samples")
    file = root / path
    if not file.exists():
        pytest.skip(f"no sample {path} in {root}; set INGESTION_SAMPLES")
    return file
