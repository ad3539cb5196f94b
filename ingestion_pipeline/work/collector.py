"""Python's garbage collector, in a process that works through batches."""

from __future__ import annotations

import gc
from functools import cache

# Its own rule, 700, makes it look for cycles several times a page; work leaves next to none behind.
YOUNG_OBJECTS = 20_000


@cache
def spare_collector() -> None:
    """What is loaded by now is not looked through again, and what is new more seldom.

    Once in a process, when its first worker begins: a twentieth of the time of a crawl.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
