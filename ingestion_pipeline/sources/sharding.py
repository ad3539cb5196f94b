"""How much a run takes, and how many runs what is due is parted into. Pure.

A run should last about a minute: long enough that its start does not count, short enough that the
others get their turn. How many sources that is, the last runs have shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingestion_pipeline.settings.polling import Polling

FIRST_PACE = 20.0  # sources a second, before one was measured: half of what a small machine does
FEWEST = 50  # sources of a run; fewer are not worth its start
MEMORY = 0.7  # of the pace that was known, when another is measured
PACE = "pace:"
MEASURED_FROM = 20  # sources; a run of fewer measures its own start


def run_size(pace: float | None, limits: Polling) -> int:
    """How many sources a run gets through in its time, at the pace of the last ones."""
    return max(ceil((pace or FIRST_PACE) * limits.run_seconds), FEWEST)


def known_pace(tunings: Mapping[str, float], tier: str | None) -> float | None:
    """The pace of the tier's last runs; without a tier, or before it had one, the best of all."""
    own = None if tier is None else tunings.get(pace_name(tier))
    paces = (value for name, value in tunings.items() if name.startswith(PACE))
    return max(paces, default=None) if own is None else own


def claim_size(pace: float | None, limits: Polling) -> int:
    """How many a run holds at a time: no more than it gets through in its time."""
    return min(run_size(pace, limits), limits.batch_size)


def shard_count(due: int, *, pace: float | None, limits: Polling) -> int:
    """How many runs share what is due: as many as keep each to its time, within the settings."""
    wanted = ceil(due / run_size(pace, limits))
    return min(max(wanted, limits.shards), max(limits.most_shards, limits.shards))


def shards_of(due: Mapping[int, int], shards: int) -> list[int]:
    """The shards that have work, of the due sources counted by the hash of their host."""
    return sorted({hashed % shards for hashed in due})


def measured_pace(before: float | None, *, polls: int, seconds: float) -> float | None:
    """The pace with what a run has shown; too little of it shows nothing."""
    if polls < MEASURED_FROM or seconds <= 0:
        return before
    now = polls / seconds
    return now if before is None else MEMORY * before + (1 - MEMORY) * now


def pace_name(tier: str) -> str:
    """Under which a tier's pace is kept."""
    return f"{PACE}{tier}"
