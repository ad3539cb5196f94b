"""A disk on which a file costs what it costs: whoever deletes many makes the next ones dear.

ext4 without a journal, as on many virtual machines, gives no inode out again for a minute or more
after its file was deleted, and looks at each of them before it makes a file in the same region:
after ten thousand deletions that took 0.8 ms of CPU a file, once they were forgotten 0.03. Whoever
writes files pays for it, a peer that writes none does not. So nothing is deleted while crawlers are
measured, and what others deleted is waited for.
"""

import atexit
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from uuid import uuid4

QUIET_SECONDS = 0.00008  # of CPU a file: more than twice what it takes on a disk left alone
PAUSE_SECONDS = 5.0
PLACES, FILES = 12, 40  # folders that are tried, each in a region of its own, and files in each


@cache
def kept_folder() -> Path:
    """Where crawlers write; it goes when the program ends, and nothing of it before."""
    folder = tempfile.TemporaryDirectory(prefix="benchmarks-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def wait_for_quiet(
    cpu_seconds_a_file: Callable[[], float], *, patience_seconds: float, pause: Callable[[float], None] = time.sleep
) -> bool:
    """Return when a file costs no more than it should, or after so long: then False."""
    waited_seconds = 0.0
    while (cost := cpu_seconds_a_file()) > QUIET_SECONDS:
        if waited_seconds >= patience_seconds:
            _tell(f"the disk is not quiet: {1_000 * cost:.2f} ms of CPU a file")
            return False
        _tell(f"waiting for the disk: {1_000 * cost:.2f} ms of CPU a file")
        pause(PAUSE_SECONDS)
        waited_seconds += PAUSE_SECONDS
    return True


def dearest_file(folder: Path) -> float:
    """The CPU seconds that a file takes in `folder`, where it takes the most."""
    return max(_cpu_seconds_a_file(folder) for _ in range(PLACES))


def _cpu_seconds_a_file(folder: Path) -> float:
    """Tried in a folder of its own, which stays: to delete it is what disturbs."""
    made = folder / f"tried-{uuid4().hex}"
    made.mkdir()
    started = time.process_time()
    for number in range(FILES):
        os.close(os.open(made / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return (time.process_time() - started) / FILES


def _tell(said: str) -> None:
    print(f"  {said}", file=sys.stderr, flush=True)
