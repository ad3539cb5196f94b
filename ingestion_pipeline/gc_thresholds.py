"""How often Python's garbage collector runs in our processes: seldom, since most objects we make are dropped or stay.

With its own thresholds it took a fifth of a short command's time, half a millisecond of a crawled page, an eighth of
a first sync and a quarter of the import of Dagster. Nothing else of the package touches the collector.
"""

import atexit
import gc
from collections.abc import Generator
from contextlib import contextmanager

THRESHOLDS = (50_000, 20, 100)  # new objects, and collections of the younger generation, between two collections


@contextmanager
def fewer_collections(*, freeze: bool = False) -> Generator[None]:
    """Collect less often inside; with `freeze` never visit the objects made so far again, such as imported modules."""
    before = gc.get_threshold()
    if before[0]:  # 0: the process has switched it off
        gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if freeze:
            gc.freeze()


def skip_collection_at_exit() -> None:
    """Let the process end without a last collection, which takes as long as a short command."""
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
