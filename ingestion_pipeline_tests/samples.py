"""Real bodies, kept outside the repository: a test that needs one is skipped where it is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def sample(path: str) -> Path:
    root = Path(os.environ.get("INGESTION_SAMPLES") or REPOSITORY.parent / "shared" / "samples")
    result = root / path
    if not result.exists():
        pytest.skip(f"no sample {path} in {root}; set INGESTION_SAMPLES")
    return result
