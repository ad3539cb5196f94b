"""A figure: our rate and the peer's, in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    claim: str
    ours: float
    peer: float

    @property
    def ratio(self) -> float:
        return self.ours / self.peer


def rate(work: Callable[[], int]) -> float:
    """Items a second of wall time, as `work` counts them."""
    started = time.perf_counter()
    items = work()
    return items / (time.perf_counter() - started)
