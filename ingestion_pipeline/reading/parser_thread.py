"""One parser thread per event loop, for work that keeps the interpreter busy.

Parsing pages in many threads makes them compete for the interpreter, and none is done sooner: that
took a tenth to a third more CPU time.
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

_executors: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor] = WeakKeyDictionary()


async def in_parser_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` as `asyncio.to_thread` does, but in the one parser thread of the running loop."""
    loop = asyncio.get_running_loop()
    executor = _executors.get(loop)
    if executor is None:
        executor = _executors[loop] = ThreadPoolExecutor(max_workers=1, thread_name_prefix="parser")
    in_context = copy_context().run
    return await loop.run_in_executor(executor, partial(in_context, work, *args, **kwargs))
