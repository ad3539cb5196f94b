"""The rules that are compared. Ours and the tiers are the product's own functions, not a copy."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from random import Random
from statistics import median
from typing import Any, Protocol

from benchmarks.polling.families import DAY
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.scheduling.change_model import ChangeModel, with_changes
from ingestion_pipeline.sources.scheduling.tiers import SchedulingInputs, after_success, prior_rate
from ingestion_pipeline.sources.source import Kind, Source, SourceStatus, Tier


class Rule(Protocol):
    """When a source is looked at next; one for each source, it remembers what it was told."""

    def next(self, found: Sequence[float], *, since: float, now: float) -> float:
        """After a poll at `now` that found changes; `since` is when the one before was."""
        ...


def a_source(begun: float) -> Source:
    """A series that finds its own tier."""
    values: dict[str, Any] = dict.fromkeys(Source.__dataclass_fields__) | {
        "id": "series:replayed",
        "kind": Kind.SERIES,
        "tier": Tier.WARM,
        "tier_pinned": False,
        "status": SourceStatus.ACTIVE,
        "failure_count": 0,
        "created_at": datetime.fromtimestamp(begun, UTC),
    }
    return Source(**values)


class Product:
    """The product's rule: by tiers alone, or with a change_model that is learned and a price.

    With a change_model that is `known` it knows the future: the best that this rule could do.
    """

    def __init__(
        self, settings: Settings, begun: float, price: float | None = None, known: ChangeModel | None = None
    ) -> None:
        self._settings, self._price = settings, price
        self._source = a_source(begun)
        self._last_new = self._source.created_at
        self._rhythm, self._learns = known or ChangeModel(), known is None
        self._prior_rate = prior_rate(Kind.SERIES)
        self._random = Random(7)

    def next(self, found: Sequence[float], *, since: float, now: float) -> float:
        """As the poll's success decides it."""
        at = datetime.fromtimestamp(now, UTC)
        if found:
            self._last_new = at
        habits = None if self._price is None else self._habits(found, since, now)
        standing = after_success(
            self._source,
            last_new_at=self._last_new,
            now=at,
            settings=self._settings,
            random=self._random,
            inputs=habits,
        )
        return standing.next_check_at.timestamp()

    def _habits(self, found: Sequence[float], since: float, now: float) -> SchedulingInputs:
        if found and self._learns:
            changes = [(since, now)] if found[0] == now else [(one, one) for one in found]
            self._rhythm = with_changes(self._rhythm, changes)
        elif found:
            self._rhythm = replace(self._rhythm, last_at=found[-1])
        return SchedulingInputs(change_model=self._rhythm, request_cost=self._price or 0.0, prior_rate=self._prior_rate)


class Every:
    """A constant interval, whatever happens."""

    def __init__(self, interval: float) -> None:
        self._interval = interval

    def next(self, found: Sequence[float], *, since: float, now: float) -> float:
        """Whatever was found."""
        del found, since
        return now + self._interval


class Mihon:
    """The median gap in days of the last releases, 1 to 28, doubled after ten missed cycles.

    Times `scale`, to meet the budget: as it stands it asks about once a release.
    """

    def __init__(self, scale: float, begun: float) -> None:
        self._scale, self._begun = scale, begun
        self._dates: list[float] = []
        self._days = 7.0

    def next(self, found: Sequence[float], *, since: float, now: float) -> float:
        """By the dates of releases, where they are told; else by when they were found."""
        del since
        if found:
            self._dates = [*self._dates, *found][-50:]
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
