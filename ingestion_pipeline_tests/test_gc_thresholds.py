"""The garbage collector of our processes: seldom inside, as before outside, and nothing frozen for good by a run."""

import gc
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.gc_thresholds import THRESHOLDS, fewer_collections


def test_the_thresholds_are_restored_after_an_error() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()

    with suppress(ValueError), fewer_collections():
        assert gc.get_threshold() == THRESHOLDS
        raise ValueError("a page")

    assert (gc.get_threshold(), gc.isenabled()) == (before, True)
    assert gc.get_freeze_count() <= frozen


def test_a_disabled_collector_stays_disabled() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)

    try:
        with fewer_collections():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


def test_a_run_collects_less_often_and_freezes_nothing(tmp_path: Path) -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()

    with open_run_context({"INGESTION_HOME": str(tmp_path)}):
        assert gc.get_threshold() == THRESHOLDS

    assert gc.get_threshold() == before
    assert gc.get_freeze_count() <= frozen  # frozen objects that nobody refers to go as others do


@pytest.mark.slow
def test_the_definitions_are_frozen_once_they_are_imported() -> None:
    code = "import gc; from ingestion_pipeline import defs; print(gc.get_freeze_count() > 100_000, gc.get_threshold())"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split(maxsplit=1) == ["True", f"{gc.get_threshold()}\n"]
