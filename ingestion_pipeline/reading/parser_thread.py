"""One thread for what keeps the interpreter busy, beside the event loop.

Pages that are read in many threads take the interpreter from each other all the time, and none is
read sooner: that took a tenth to a third more CPU time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

P = ParamSpec("P")
T = TypeVar("T")

_desks: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor] = WeakKeyDictionary()


async def in_parser_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `asyncio.to_thread`, but in the one thread that the running loop has for this."""
    loop = asyncio.get_running_loop()
    desk = _desks.get(loop)
    if desk is None:
        desk = _desks[loop] = ThreadPoolExecutor(max_workers=1, thread_name_prefix="desk")
    in_context = copy_context().run
    return await loop.run_in_executor(desk, partial(in_context, work, *args, **kwargs))
