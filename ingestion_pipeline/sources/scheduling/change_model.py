"""The change model of a source: what its past changes say about the next, and when to check. Pure.

The model is three small histograms: the length of the gaps between changes, the day of the week and
the hour of the day of each change (UTC). Old changes count less with every new one, and a quiet
time lowers the expected rate as soon as it lasts longer than usual. A poll that finds nothing adds
nothing: its information is in the time that has passed since the last change.

A change happened between two polls, at an unknown time; a publication date that the records state
is accepted if it lies between the polls.

The next check is as soon as the expected delay is worth a request.
A change that happens now and is found later is delayed by that time. The expected delay grows until
the next check: by the expected changes, times the time they have been waiting. A request has a cost
in seconds of such delay; where the expected delay reaches it, the source is checked. That spends
every request where it saves most: at a constant rate of change the interval is the square root of
twice the cost divided by the rate, and it is short before a release that is due.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, cached_property
from itertools import accumulate
from math import fsum, sqrt
from typing import Any

from ingestion_pipeline.sources.source import Source

HOUR = 3_600.0
DAY = 24 * HOUR
WEEK = 7 * DAY
MONDAY = 4 * DAY  # the epoch began on a Thursday

# The ages, in hours, where one bin ends and the next begins: finer around a day, a week, two weeks
# and a month, the intervals at which people publish.
_HOURS = (0, 1, 3, 8, 18, 30, 42, 66, 102, 138, 160, 176, 216, 312, 360, 500, 640, 780, 1_500)
_EDGES = tuple(hours * HOUR for hours in _HOURS)
BINS = len(_EDGES)
_LAST = _EDGES[-1] * 2  # the assumed end of the open last bin
_WIDTHS = tuple(b - a for a, b in zip(_EDGES, (*_EDGES[1:], _LAST), strict=True))

TOGETHER = 600.0  # seconds; what comes within them is one change: a bulk upload
REMEMBERED = 0.95  # weight of older changes after each new one: about twenty count
BELIEF = 0.5  # weight of the prior, in changes
BIN_BELIEF = 0.5  # weight of a source's mean rate in each bin, in changes
CALENDAR_DOUBT = 1.15  # how much more uneven than chance the calendar must be to count
HOURS_OF_WEEK = 168
OVERDUE = 1 / 3  # share of the previous bin's expectation that carries over, if a change is late
OVERDUE_FROM = 0.9  # of the mean gap
FEWEST = 2  # fewest changes for a pattern of days or hours
FORGOTTEN = 0.3  # weight of gaps below which none is remembered
QUIET_WEIGHT = 0.1  # least weight of an hour, also if no change was ever seen in it


@dataclass(frozen=True)
class ChangeModel:
    """The remembered changes of a source: gaps by length, days of the week, hours of the day."""

    last_at: float | None = None
    gaps: tuple[float, ...] = (0.0,) * BINS
    days: tuple[float, ...] = (0.0,) * 7
    hours: tuple[float, ...] = (0.0,) * 24

    @cached_property
    def changes(self) -> float:
        """Return how many gaps are remembered, old ones counting less."""
        return fsum(self.gaps)

    @cached_property
    def seconds(self) -> float:
        """Return the total length of those gaps."""
        halves = zip(self.gaps, _EDGES, _WIDTHS, strict=True)
        return fsum(count * (edge + width / 2) for count, edge, width in halves)

    @cached_property
    def week(self) -> tuple[float, ...] | None:
        """Return the relative likelihood of each hour of the week; None if there is no pattern."""
        days, hours = _weights(self.days), _weights(_smoothed(self.hours))
        if days is None and hours is None:
            return None
        flat_days, flat_hours = days or (1.0,) * 7, hours or (1.0,) * 24
        return tuple(max(a * b, QUIET_WEIGHT) for a in flat_days for b in flat_hours)

    def to_json(self) -> dict[str, Any]:
        """Return the model as it is stored."""
        return {
            "last": self.last_at and round(self.last_at),
            "gaps": _short(self.gaps),
            "days": _short(self.days),
            "hours": _short(self.hours),
        }


def change_model_from_json(stored: Mapping[str, Any] | None) -> ChangeModel:
    """Return the stored model; an empty one if it has another format."""
    if not stored:
        return ChangeModel()
    gaps, days, hours = (tuple(map(float, stored[name])) for name in ("gaps", "days", "hours"))
    if len(gaps) != BINS:
        return ChangeModel()
    return ChangeModel(last_at=stored["last"], gaps=gaps, days=days, hours=hours)


def _short(counts: Iterable[float]) -> list[float]:
    return [round(count, 2) or 0 for count in counts]


def with_changes(model: ChangeModel, changes: Sequence[tuple[float, float]]) -> ChangeModel:
    """Return the model with further changes in order, each (from, to) in seconds of the epoch, when it happened."""
    for start, end in changes:
        model = _with_change(model, start, end)
    return model


def _with_change(model: ChangeModel, start: float, end: float) -> ChangeModel:
    at, last = (start + end) / 2, model.last_at
    if last is not None and at - last < TOGETHER:
        return model if at <= last else replace(model, last_at=at)
    gaps = model.gaps
    if last is not None:
        place = bisect_right(_EDGES, at - last) - 1
        gaps = tuple(count * REMEMBERED + (index == place) for index, count in enumerate(model.gaps))
    hours = _hours_between(start, end)
    return ChangeModel(
        last_at=at,
        gaps=gaps,
        days=_counted(model.days, [(hour // 24 % 7, part) for hour, part in hours]),
        hours=_counted(model.hours, [(hour % 24, part) for hour, part in hours]),
    )


def _counted(counts: tuple[float, ...], shares: Iterable[tuple[int, float]]) -> tuple[float, ...]:
    after = [count * REMEMBERED for count in counts]
    for place, share in shares:
        after[place] += share
    return tuple(after)


def _hours_between(start: float, end: float) -> list[tuple[int, float]]:
    """Return the hours, since a Monday, in which a change may have happened, with its share."""
    first, last = int((start - MONDAY) // HOUR), int((end - MONDAY) // HOUR)
    if last - first >= HOURS_OF_WEEK:  # too wide to say anything about days and hours
        return []
    return [(hour, 1 / (last - first + 1)) for hour in range(first, last + 1)]


def _smoothed(counts: tuple[float, ...]) -> tuple[float, ...]:
    """Return the counts with a part of each moved to its neighbours: nobody keeps to the hour."""
    size = len(counts)
    return tuple(0.5 * counts[n] + 0.25 * (counts[n - 1] + counts[(n + 1) % size]) for n in range(size))


def _weights(counts: tuple[float, ...]) -> tuple[float, ...] | None:
    """Return how much likelier than chance each is, shrunk to 1 as far as chance explains it."""
    total = fsum(counts)
    if total < FEWEST:
        return None
    size = len(counts)
    mean = total / size
    unevenness = fsum((count - mean) ** 2 for count in counts) / mean
    belief = 1 - CALENDAR_DOUBT * (size - 1) / unevenness if unevenness else 0
    if belief <= 0:
        return None
    return tuple(1 + belief * (count / mean - 1) for count in counts)


@dataclass(frozen=True, slots=True)
class Outlook:
    """The expected changes of a source: changes a second, by the length of the quiet time."""

    last_at: float
    per_bin: tuple[float, ...]
    rate: float  # changes a second, on average
    week: tuple[float, ...] | None
    quiet_from: float  # no gap was ever longer than this age


def bin_of(age: float) -> int:
    """Return the bin of an age."""
    return max(bisect_right(_EDGES, age) - 1, 0)


def outlook(model: ChangeModel, *, now: float, since: float, prior_rate: float) -> Outlook:
    """Combine model, prior and quiet time into an outlook; `since` is the first poll, if nothing ever changed."""
    last_at = model.last_at if model.last_at is not None else since
    age = max(now - last_at, 0.0)
    prior_seconds = BELIEF / prior_rate
    rate = (model.changes + BELIEF) / (model.seconds + age + prior_seconds)
    later = list(accumulate(reversed(model.gaps)))[::-1]  # gaps that lasted at least into the bin
    waited = _waited(age)
    seen = zip(_WIDTHS, model.gaps, later, waited, strict=True)
    exposed = [width * (lasting - count / 2) + now_in for width, count, lasting, now_in in seen]
    per_bin: list[float] = []
    quiet_from, quiet_seconds = 0.0, 0.0
    for place, (edge, count) in enumerate(zip(_EDGES, model.gaps, strict=True)):
        seconds = exposed[place]
        if later[place] < FORGOTTEN:  # beyond every remembered gap: quiet time adds up
            quiet_seconds += waited[place]
            seconds = max(seconds, quiet_seconds)
        else:
            quiet_from = edge + _WIDTHS[place]
        expected = (count + BIN_BELIEF) / (seconds + BIN_BELIEF / rate)
        if per_bin and edge * rate > OVERDUE_FROM:  # an overdue change may still come
            expected = max(expected, per_bin[-1] * OVERDUE)
        per_bin.append(expected)
    return Outlook(last_at=last_at, per_bin=tuple(per_bin), rate=rate, week=model.week, quiet_from=quiet_from)


def _waited(age: float) -> list[float]:
    """Return the seconds of the quiet time so far that fell into each bin."""
    place = bin_of(age)
    return [*_WIDTHS[:place], age - _EDGES[place], *(0.0,) * (BINS - place - 1)]


def next_edge(age: float) -> float:
    """Return the age at which the next bin begins; infinite in the last."""
    place = bisect_right(_EDGES, age)
    return _EDGES[place] if place < BINS else float("inf")


def hour_of_week(at: float) -> int:
    """Return the hour of the week; 0 is Monday's first hour, UTC."""
    return int((at - MONDAY) // HOUR) % HOURS_OF_WEEK


@cache
def bin_bounds(place: int) -> tuple[float, float]:
    """Return the ages between which a bin lies."""
    return _EDGES[place], _EDGES[place] + _WIDTHS[place]


ONE_DAY = timedelta(days=1)
REMEMBERED_DATES = 60  # of a backlog; older ones would weigh nothing after the last

Change = tuple[float, float]


def changes_found(source: Source, *, published: Sequence[datetime], has_news: bool, now: datetime) -> list[Change]:
    """Return each change as the seconds between which it happened, in the order of time.

    Of a first sync only dated records count. Later a date is accepted if it lies between the last
    good poll and this one; another clock, or an old record that came late, says nothing about when
    it could have been found.
    """
    if not has_news:
        return []
    since = source.last_success_at if source.synced_at is not None else None
    dated = [change for at in sorted(published) if (change := _between(at, since, now)) is not None]
    if dated or since is None:
        return dated[-REMEMBERED_DATES:]
    return [(since.timestamp(), now.timestamp())]


def _between(at: datetime, since: datetime | None, now: datetime) -> Change | None:
    """Return the interval of a date; without a time of day it may mean any hour of its day."""
    is_date = (at.hour, at.minute, at.second) == (0, 0, 0)
    start, end = at, at + ONE_DAY - timedelta(seconds=1) if is_date else at
    if since is not None:
        start = max(start, since)
    end = min(end, now)
    return (start.timestamp(), end.timestamp()) if start <= end else None


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
