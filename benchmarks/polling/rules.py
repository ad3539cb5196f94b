"""The compared rules. Ours and the tiers are the product's own functions, not a copy."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from math import sqrt
from statistics import median
from typing import Any, Protocol

from benchmarks.polling.families import DAY, History
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.scheduling.simulation import SimulatedSource
from ingestion_pipeline.sources.scheduling.tiers import prior_rate
from ingestion_pipeline.sources.source import Kind, Source, SourceStatus, Tier


class Rule(Protocol):
    """When a source is checked next; one for each source, with what it learned."""

    def next(self, detected: Sequence[float], *, since: float, now: float) -> float:
        """Return the time of the next poll, after one at `now` that detected changes; the last was at `since`."""
        ...


def a_source(begun: float) -> Source:
    """Return a series that finds its own tier."""
    values: dict[str, Any] = dict.fromkeys(Source.__dataclass_fields__) | {
        "id": "series:replayed",
        "kind": Kind.SERIES,
        "tier": Tier.WARM,
        "tier_pinned": False,
        "status": SourceStatus.ACTIVE,
        "failure_count": 0,
        "config": {},
        "created_at": datetime.fromtimestamp(begun, UTC),
    }
    return Source(**values)


def product(settings: Settings, begun: float, request_cost: float | None = None) -> SimulatedSource:
    """Return the product's rule: by tiers alone, or with a change model that it learns and a request cost."""
    return SimulatedSource(a_source(begun), settings, prior_rate=prior_rate(Kind.SERIES), request_cost=request_cost)


class Every:
    """A constant interval."""

    def __init__(self, interval: float) -> None:
        self._interval = interval

    def next(self, detected: Sequence[float], *, since: float, now: float) -> float:
        """Return the end of the interval."""
        del detected, since
        return now + self._interval


class RateOnly:
    """The rate of change with a gamma prior, and the root law: what any model must beat."""

    def __init__(self, request_cost: float, begun: float) -> None:
        self._cost, self._last = request_cost, begun
        self._changes, self._seconds = 0.5, 0.5 / prior_rate(Kind.SERIES)

    def next(self, detected: Sequence[float], *, since: float, now: float) -> float:
        """Return when the expected delay is worth a request at the learned rate."""
        del since
        for at in detected:
            self._changes, self._seconds, self._last = self._changes + 1, self._seconds + at - self._last, at
        rate = self._changes / (self._seconds + now - self._last)
        return now + min(max(sqrt(2 * self._cost / rate), LEAST), MOST)


LEAST, MOST = 300.0, 2 * DAY  # the bounds of the product's intervals
STEP = 300.0


class KnownProcess:
    """The optimum of a rule that knows the process of a generated source, though not its next change."""

    def __init__(self, request_cost: float, history: History) -> None:
        self._cost, self._history = request_cost, history
        self._detected: list[float] = []

    def next(self, detected: Sequence[float], *, since: float, now: float) -> float:
        """Return when as many changes are expected to wait as are optimal at the known rate."""
        if detected:
            self._detected += [at for at in self._history.changes if since < at <= now]
        assert self._history.rate is not None
        at, expected = now, 0.0
        while at < now + MOST:
            span = STEP - at % STEP
            rate = self._history.rate(at + span / 2, self._detected)
            worth_a_check = sqrt(2 * self._cost * rate)
            if expected + rate * span >= worth_a_check:
                at += max(worth_a_check - expected, 0.0) / rate
                break
            expected, at = expected + rate * span, at + span
        return max(at, now + LEAST)


class Mihon:
    """The median gap in days of the last releases, 1 to 28, doubled after ten missed cycles.

    Times `scale`, to meet the budget: without it there is about one request a release.
    """

    def __init__(self, scale: float, begun: float) -> None:
        self._scale, self._begun = scale, begun
        self._dates: list[float] = []
        self._days = 7.0

    def next(self, detected: Sequence[float], *, since: float, now: float) -> float:
        """Return the next poll by the dates of releases, or by when they were detected without dates."""
        del since
        if detected:
            self._dates = [*self._dates, *detected][-50:]
            self._days = self._gap()
        last = self._dates[-1] if self._dates else self._begun
        missed = (now - last) / (self._days * DAY)
        days = self._days * 2 if missed > 10 else self._days
        return now + min(days, 28.0) * DAY * self._scale

    def _gap(self) -> float:
        dates = self._dates[-(3 if len(self._dates) <= 8 else 10) :]
        if len(dates) < 3:
            return 7.0
        days = sorted({int(at // DAY) for at in dates})
        gaps = [b - a for a, b in pairwise(days)]
        return min(max(median(gaps), 1.0), 28.0) if gaps else 1.0
