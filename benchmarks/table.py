"""What is printed and written down: a line for each claim, met or not, or why it is unknown."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

HEAD = ("claim", "ours", "peer", "limit", "ratio", "goal", "met")
WIDTHS = (66, 12, 50, 7, 7, 7, 0)
GIBIBYTE = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Line:
    """A claim: what ours and the peer did, and their ratio with what it must and should be.

    Without a ratio it was not measured, and `note` says why. Without a limit it is only told, and
    `note` may say why it has none.
    """

    claim: str
    database: str
    ours: str = ""
    peer: str = ""
    ratio: float | None = None
    limit: float | None = None
    goal: float | None = None
    is_less_better: bool = False
    note: str = ""

    @property
    def met(self) -> str:
        """`goal`, `yes` or `no`; the note where nothing is promised; why where it is unknown."""
        if self.ratio is None:
            return f"not measured: {self.note}"
        if self.limit is None:
            return self.note
        if not self._reaches(self.limit):
            return "no"
        return "goal" if self.goal is not None and self._reaches(self.goal) else "yes"

    def line(self) -> "Line":
        """Itself: a benchmark may yield lines, or whatever makes one."""
        return self

    def _reaches(self, mark: float) -> bool:
        assert self.ratio is not None
        return self.ratio <= mark if self.is_less_better else self.ratio >= mark


class Measured(Protocol):
    """What a benchmark yields."""

    def line(self) -> Line:
        """Its place in the table."""
        ...


def row(line: Line) -> str:
    """The line as it is printed; a limit from above has its sign."""
    sign = "<" if line.is_less_better else ""
    marks = (_number(line.limit, sign), _number(line.ratio), _number(line.goal, sign))
    return _cells((f"{line.claim} ({line.database})", line.ours, line.peer, *marks, line.met))


def head() -> str:
    """Above the lines."""
    return _cells(HEAD)


def summary(lines: Sequence[Line]) -> str:
    """How many promises were kept, broken and not looked at."""
    kept = [line.met for line in lines]
    unknown = sum(one.startswith("not measured") for one in kept)
    met = sum(one in {"yes", "goal"} for one in kept)
    return f"{met} met, {kept.count('no')} not met, {unknown} not measured"


def as_json(lines: Sequence[Line], *, now: datetime, quick: bool, seconds: float) -> str:
    """The table for programs, with what it was measured on."""
    measured: dict[str, Any] = {
        "measured_at": now.isoformat(timespec="seconds"),
        "quick": quick,
        "seconds": round(seconds),
        "machine": _machine(),
        "lines": [asdict(line) | {"met": line.met} for line in lines],
    }
    return json.dumps(measured, indent=2, ensure_ascii=False) + "\n"


def place_of_json() -> Path:
    """Beside everything else that the program keeps, or under `build`."""
    home = os.environ.get("INGESTION_HOME")
    return Path(home or "build") / "benchmarks" / "last.json"


def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIBIBYTE
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "python": platform.python_version(),
        "load": [round(one, 1) for one in os.getloadavg()],
    }


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{sign}{value:.2f}"


def _cells(cells: Sequence[str]) -> str:
    """Texts to the left, numbers to the right."""
    is_number = [False, True, False, True, True, True, False]
    placed = [
        f"{cell:>{width}}" if right else f"{cell:<{width}}"
        for cell, width, right in zip(cells, WIDTHS, is_number, strict=True)
    ]
    return "  ".join(placed).rstrip()
