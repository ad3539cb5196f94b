"""A figure: what our way costs and what a named peer's costs, measured in turn in the same run."""

import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.table import Line

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a number of items took, in wall time and in CPU time of everybody who worked on them."""

    items: int
    wall_seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Items a second of wall time."""
        return self.items / self.wall_seconds

    @property
    def cpu_rate(self) -> float:
        """Items a second of CPU time: other tenants of the machine do not show in it."""
        return self.items / max(self.cpu_seconds, 1 / TICKS_PER_SECOND)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Ours against the peer's; both ratios say how many times as many items ours does."""

    claim: str
    database: str
    peer: str
    ours: Cost
    theirs: Cost
    bar: float | None = None
    goal: float | None = None
    note: str = ""  # why it has no bar

    @property
    def ratio(self) -> float:
        """By wall time."""
        return self.ours.rate / self.theirs.rate

    @property
    def cpu_ratio(self) -> float:
        """By CPU time, the one to trust on a busy machine."""
        return self.ours.cpu_rate / self.theirs.cpu_rate

    def line(self) -> Line:
        """By CPU time; the rates are items a second of it."""
        return Line(
            claim=self.claim,
            database=self.database,
            ours=f"{self.ours.cpu_rate:,.0f}/s",
            peer=f"{self.theirs.cpu_rate:,.0f}/s  {self.peer}",
            ratio=self.cpu_ratio,
            limit=self.bar,
            goal=self.goal,
            note=self.note,
        )


@dataclass(frozen=True)
class Skipped:
    """A figure that could not be measured here, and why."""

    claim: str
    database: str
    reason: str

    def line(self) -> Line:
        """It does not vanish."""
        return Line(claim=self.claim, database=self.database, note=self.reason)


@dataclass(frozen=True, kw_only=True)
class Flat:
    """What a process held at the most, by how much it had to do; the bar is on the growth."""

    claim: str
    database: str
    peaks: Mapping[int, int]  # bytes by number of items
    bar: float = 1.2

    @property
    def growth(self) -> float:
        """How many times as much with the most to do as with the least."""
        return self.peaks[max(self.peaks)] / self.peaks[min(self.peaks)]

    def line(self) -> Line:
        """The most against the least."""
        held = [f"{self.peaks[n] / 1e6:.0f} MB at {n:,}" for n in sorted(self.peaks)]
        return Line(
            claim=self.claim,
            database=self.database,
            ours=f"{self.peaks[max(self.peaks)] / 1e6:.0f} MB",
            peer=", ".join(held),
            ratio=self.growth,
            limit=self.bar,
            is_less_better=True,
        )


class Meter:
    """Measures work done by this process, by children it waits for, and by a database server."""

    def __init__(self, server_pid: int | None = None) -> None:
        self.server_pid = server_pid

    def cost(self, work: Callable[[], int]) -> Cost:
        """What `work` takes for as many items as it says."""
        cpu, started = self.cpu_seconds(), time.perf_counter()
        items = work()
        return Cost(items=items, wall_seconds=time.perf_counter() - started, cpu_seconds=self.cpu_seconds() - cpu)

    def cpu_seconds(self) -> float:
        """So far, of all of them."""
        usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        ours = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        return ours + self.server_seconds()

    def server_seconds(self) -> float:
        """So far, of the server alone; SQLite has none."""
        return _family_seconds(self.server_pid) if self.server_pid else 0.0


def _family_seconds(pid: int) -> float:
    """CPU seconds of a process, its living children, and those of its children that have ended."""
    ticks = sum(_ticks(pid, with_ended_children=True)) if Path(f"/proc/{pid}").exists() else 0
    for child in _children(pid):
        try:
            ticks += sum(_ticks(child, with_ended_children=False))
        except FileNotFoundError:  # it ended just now: its parent's figure has it next time
            continue
    return ticks / TICKS_PER_SECOND


def _children(pid: int) -> Iterator[int]:
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        yield from map(int, listed.read_text().split())


def _ticks(pid: int, *, with_ended_children: bool) -> list[int]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(field) for field in fields[11 : 15 if with_ended_children else 13]]


def middle(costs: list[Cost]) -> Cost:
    """The medians of several measurements of the same work."""
    return Cost(
        items=costs[0].items,
        wall_seconds=statistics.median(one.wall_seconds for one in costs),
        cpu_seconds=statistics.median(one.cpu_seconds for one in costs),
    )
