"""When to check next: as soon as the expected delay is worth a request. Pure.

A change that happens now and is found later is delayed by that time. The expected delay grows until
the next check: by the expected changes, times the time they have been waiting. A request has a cost
in seconds of such delay; where the expected delay reaches it, the source is checked. That spends
every request where it saves most: at a constant rate of change the interval is the square root of
twice the cost divided by the rate, and it is short before a release that is due.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import sqrt

from ingestion_pipeline.sources.scheduling.change_model import (
    HOUR,
    MONDAY,
    WEEK,
    Outlook,
    bin_bounds,
    bin_of,
    hour_of_week,
    next_edge,
)

LEAST_MEAN = 0.25  # limits the scaling of a bin without a likely hour to four


@dataclass(frozen=True, slots=True)
class NextCheck:
    """The time of the next check, and the following interval if the rate at that time stayed."""

    at: float
    spacing: float


def next_check(ahead: Outlook, *, now: float, request_cost: float, least: float, most: float) -> NextCheck:
    """Return the moment at which the expected delay reaches the request cost, within the bounds."""
    end = now + most
    at, delay, expected, rate = now, 0.0, 0.0, 0.0
    calendar = _Calendar(ahead)
    while at < end:
        rate, until = calendar.rate(at)
        until = min(until, end)
        span = until - at
        grown = delay + expected * span + rate * span * span / 2
        if grown >= request_cost:
            at += _wait(request_cost - delay, expected, rate)
            break
        delay, expected, at = grown, expected + rate * span, until
    return NextCheck(at=max(at, now + least), spacing=sqrt(2 * request_cost / rate) if rate > 0 else most)


def _wait(missing: float, expected: float, rate: float) -> float:
    """Return the time t with expected * t + rate * t * t / 2 = missing."""
    if rate <= 0:
        return missing / expected
    return (sqrt(expected * expected + 2 * rate * missing) - expected) / rate


class _Calendar:
    """The rate of change at a moment, by the length of the quiet time and the hour of the week."""

    def __init__(self, ahead: Outlook) -> None:
        self._ahead = ahead
        self._week = ahead.week or ()
        self._sums: list[float] = [0.0, *accumulate(ahead.week)] if ahead.week else []
        self._means: dict[int, float] = {}

    def rate(self, at: float) -> tuple[float, float]:
        """Return changes a second, and until when the rate stays so."""
        ahead = self._ahead
        age = max(at - ahead.last_at, 0.0)
        until = ahead.last_at + next_edge(age)
        place = bin_of(age)
        rate = ahead.per_bin[place]
        if not self._week:
            return rate, until
        next_hour = at - (at - MONDAY) % HOUR + HOUR
        weight = self._week[hour_of_week(at)] / self._mean(place)
        return rate * weight, min(until, next_hour)

    def _mean(self, place: int) -> float:
        """Return the mean weight of a bin's hours: its rate is spread over them, not multiplied."""
        if place not in self._means:
            start, end = bin_bounds(place)
            a, b = self._ahead.last_at + start, self._ahead.last_at + end
            self._means[place] = max((self._sum(b) - self._sum(a)) / (b - a), LEAST_MEAN)
        return self._means[place]

    def _sum(self, at: float) -> float:
        weeks, within = divmod(at - MONDAY, WEEK)
        hours, part = divmod(within, HOUR)
        return (weeks * self._sums[-1] + self._sums[int(hours)]) * HOUR + self._week[int(hours)] * part
