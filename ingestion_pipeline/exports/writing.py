"""A file is whole or not there: it is written beside its place, synced, and moved into it."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from ingestion_pipeline.pages.durably import sync_each

ABANDONED_SECONDS = 3_600  # whoever still writes has written within this time


@contextmanager
def replacing(target: Path) -> Generator[Path]:
    """A file to write to; it takes the target's place at the end, and none of it stays otherwise.

    What a killed process left beside the target is taken away by the next that writes it.
    """
    _remove_abandoned(target)
    part = target.with_name(f".{target.name}.{uuid4().hex}.part")
    part.touch(mode=0o600, exist_ok=False)  # as the database: for its owner alone
    try:
        yield part
        sync_each([str(part)])
        part.replace(target)
        sync_each([str(target.parent)])
    finally:
        part.unlink(missing_ok=True)


def private_folder(folder: Path) -> Path:
    """Return the folder, created for its owner alone, with all above it, where it was not there."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    return folder


def _remove_abandoned(target: Path) -> None:
    prefix = f".{target.name}."
    with os.scandir(target.parent) as entries:
        parts = [
            one for one in entries if one.name.startswith(prefix) and one.name.endswith(".part")
        ]
    for one in parts:
        with suppress(OSError):  # another process was first
            if time.time() - one.stat().st_mtime > ABANDONED_SECONDS:
                Path(one.path).unlink()
