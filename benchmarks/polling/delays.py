"""Each rule against ours: on each family, on all of them together, and on recorded releases."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.database import Database
from benchmarks.figure import Skipped
from benchmarks.polling.comparison import Delay, compare
from benchmarks.polling.families import FAMILIES, NO_SAMPLES, History, recorded, synthetic
from benchmarks.table import Line
from ingestion_pipeline.settings import load_settings

GOAL = 0.7  # of the mean delay by tiers, and by Mihon's rule, on the mixed set
NEVER_WORSE = 1.05


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How many sources of each family, and how long they are watched."""

    sources: int = 20
    days: float = 180


def measure(database: Database, sizes: Sizes | None = None) -> Iterator[Line | Skipped]:
    """The database is not asked anything."""
    del database
    sizes = sizes or Sizes()
    mixed: list[History] = []
    for name in FAMILIES:
        histories = synthetic(name, count=sizes.sources, days=sizes.days)
        mixed += histories
        yield from _lines(name, histories, sizes.days, bars={"tiers": NEVER_WORSE})
    yield from _lines("mixed set", mixed, sizes.days, bars={"tiers": GOAL, "mihon": GOAL})
    if not (samples := recorded()):
        yield Skipped("delay, recorded releases", "-", NO_SAMPLES)
    for one, (history, days) in enumerate(samples, start=1):
        yield from _lines(f"recorded releases {one}", [history], days, bars={})


def _lines(name: str, histories: list[History], days: float, *, bars: dict[str, float]) -> Iterator[Line]:
    found = compare(histories, days=days, settings=load_settings({}))
    ours = found.pop("ours")
    for peer, theirs in found.items():
        yield _line(name, peer, ours, theirs, bars.get(peer))


def _line(name: str, peer: str, ours: Delay, theirs: Delay, bar: float | None) -> Line:
    return Line(
        claim=f"minutes late at equal requests, {name}: mean (90th percentile)",
        database="-",
        ours=f"{ours.mean:.1f} ({ours.p90:.0f})",
        peer=f"{peer}: {theirs.mean:.1f} ({theirs.p90:.0f}), {theirs.requests:,} requests",
        ratio=ours.mean / theirs.mean if theirs.mean else None,
        limit=bar,
        is_less_better=True,
        note="" if theirs.mean else "beside nothing late there is no ratio",
    )
