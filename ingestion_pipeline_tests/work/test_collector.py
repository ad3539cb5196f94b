"""A worker's process is not slowed by a collector that finds nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

IN_A_PROCESS = """
import gc, sys
from ingestion_pipeline.store import open_store
from ingestion_pipeline.work.collector import YOUNG_OBJECTS
from ingestion_pipeline.work.worker import Worker

store = open_store(f"sqlite:///{sys.argv[1]}/worker.db")
assert gc.get_freeze_count() == 0
Worker(store, lease_seconds=60)
frozen = gc.get_freeze_count()
assert frozen > 10_000, frozen
assert gc.get_threshold()[0] == YOUNG_OBJECTS

class Ring: ...
for _ in range(2 * YOUNG_OBJECTS):
    ring = Ring()
    ring.itself = ring
assert sum(isinstance(one, Ring) for one in gc.get_objects()) < 1.5 * YOUNG_OBJECTS
Worker(store, lease_seconds=60)
assert gc.get_freeze_count() <= frozen
"""


def test_what_is_loaded_is_left_alone_once_and_cycles_still_go(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", IN_A_PROCESS, str(tmp_path)], check=True, timeout=60)
