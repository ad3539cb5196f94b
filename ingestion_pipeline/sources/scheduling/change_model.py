"""What the changes of a source so far say about the next one. Pure, and of constant cost.

A source's rhythm is three small histograms: how long it was quiet between two changes, on which day
of the week and in which hour of the day they came (UTC). Old changes count less with every new one,
and silence counts against a source as soon as it lasts longer than it used to. A poll that finds
nothing adds nothing: what it says is in the time that has passed since the last change.

A change happened between two polls, nobody knows when; where the records state when they were
published, and that is between the polls, it is believed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, cached_property
from itertools import accumulate
from math import fsum
from typing import Any

from ingestion_pipeline.sources.source import Source

HOUR = 3_600.0
DAY = 24 * HOUR
WEEK = 7 * DAY
MONDAY = 4 * DAY  # the epoch began on a Thursday

# The ages, in hours, where one bin ends and the next begins: finer around a day, a week, two weeks
# and a month, the rhythms that people keep.
_HOURS = (0, 1, 3, 8, 18, 30, 42, 66, 102, 138, 160, 176, 216, 312, 360, 500, 640, 780, 1_500)
_EDGES = tuple(hours * HOUR for hours in _HOURS)
BINS = len(_EDGES)
_LAST = _EDGES[-1] * 2  # where the open last bin ends for the sake of its width
_WIDTHS = tuple(b - a for a, b in zip(_EDGES, (*_EDGES[1:], _LAST), strict=True))

TOGETHER = 600.0  # seconds; what comes within them is one change: a bulk upload
REMEMBERED = 0.95  # what a change counts for when the next one has come: about twenty are known
BELIEF = 0.5  # changes that the prior counts for
BIN_BELIEF = 0.5  # changes that a source's mean rate counts for in each bin
CALENDAR_DOUBT = 1.15  # how much more uneven than chance the calendar must be to be believed
HOURS_OF_WEEK = 168
OVERDUE = 1 / 3  # of what was expected in the bin before is expected in the next, if it is late
OVERDUE_FROM = 0.9  # of the mean gap
FEWEST = 2  # changes that show a day or an hour
FORGOTTEN = 0.3  # of a gap; fewer that lasted so long are none
QUIET_WEIGHT = 0.1  # an hour in which nothing ever came is not believed to be empty


@dataclass(frozen=True)
class ChangeModel:
    """The changes of a source, remembered: gaps by length, days of the week, hours of the day."""

    last_at: float | None = None
    gaps: tuple[float, ...] = (0.0,) * BINS
    days: tuple[float, ...] = (0.0,) * 7
    hours: tuple[float, ...] = (0.0,) * 24

    @cached_property
    def changes(self) -> float:
        """How many gaps are remembered, old ones counting less."""
        return fsum(self.gaps)

    @cached_property
    def seconds(self) -> float:
        """How long those gaps were together."""
        halves = zip(self.gaps, _EDGES, _WIDTHS, strict=True)
        return fsum(count * (edge + width / 2) for count, edge, width in halves)

    @cached_property
    def week(self) -> tuple[float, ...] | None:
        """How much likelier than on average each hour of the week is; None if it does not show."""
        days, hours = _weights(self.days), _weights(_smoothed(self.hours))
        if days is None and hours is None:
            return None
        flat_days, flat_hours = days or (1.0,) * 7, hours or (1.0,) * 24
        return tuple(max(a * b, QUIET_WEIGHT) for a in flat_days for b in flat_hours)

    def to_json(self) -> dict[str, Any]:
        """What is kept of it."""
        return {
            "last": self.last_at and round(self.last_at),
            "gaps": _short(self.gaps),
            "days": _short(self.days),
            "hours": _short(self.hours),
        }


def rhythm_of(kept: Mapping[str, Any] | None) -> ChangeModel:
    """What was kept; nothing, if it is of another make."""
    if not kept:
        return ChangeModel()
    gaps, days, hours = (tuple(map(float, kept[one])) for one in ("gaps", "days", "hours"))
    if len(gaps) != BINS:
        return ChangeModel()
    return ChangeModel(last_at=kept["last"], gaps=gaps, days=days, hours=hours)


def _short(counts: Iterable[float]) -> list[float]:
    return [round(count, 2) or 0 for count in counts]


def learned(rhythm: ChangeModel, changes: Sequence[tuple[float, float]]) -> ChangeModel:
    """The rhythm with further changes, in the order of time.

    Each is (from, to) in seconds of the epoch, between which it happened; equal if that is known.
    """
    for start, end in changes:
        rhythm = _with_change(rhythm, start, end)
    return rhythm


def _with_change(rhythm: ChangeModel, start: float, end: float) -> ChangeModel:
    at, last = (start + end) / 2, rhythm.last_at
    if last is not None and at - last < TOGETHER:
        return rhythm if at <= last else replace(rhythm, last_at=at)
    gaps = rhythm.gaps
    if last is not None:
        place = bisect_right(_EDGES, at - last) - 1
        gaps = tuple(count * REMEMBERED + (one == place) for one, count in enumerate(rhythm.gaps))
    hours = _hours_between(start, end)
    return ChangeModel(
        last_at=at,
        gaps=gaps,
        days=_counted(rhythm.days, [(one // 24 % 7, part) for one, part in hours]),
        hours=_counted(rhythm.hours, [(one % 24, part) for one, part in hours]),
    )


def _counted(counts: tuple[float, ...], shares: Iterable[tuple[int, float]]) -> tuple[float, ...]:
    after = [count * REMEMBERED for count in counts]
    for place, share in shares:
        after[place] += share
    return tuple(after)


def _hours_between(start: float, end: float) -> list[tuple[int, float]]:
    """The hours since a Monday that a change may have happened in, each with its share of it."""
    first, last = int((start - MONDAY) // HOUR), int((end - MONDAY) // HOUR)
    if last - first >= HOURS_OF_WEEK:  # it says nothing about days and hours
        return []
    return [(one, 1 / (last - first + 1)) for one in range(first, last + 1)]


def _smoothed(counts: tuple[float, ...]) -> tuple[float, ...]:
    """Nobody keeps to the hour: a part of each counts for its neighbours."""
    size = len(counts)
    return tuple(
        0.5 * counts[n] + 0.25 * (counts[n - 1] + counts[(n + 1) % size]) for n in range(size)
    )


def _weights(counts: tuple[float, ...]) -> tuple[float, ...] | None:
    """How much likelier than chance each is, drawn towards 1 as far as chance may explain it."""
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
    """What is expected of a source from now on: changes a second, by the time it was quiet."""

    last_at: float
    per_bin: tuple[float, ...]
    rate: float  # changes a second, all in all
    week: tuple[float, ...] | None
    quiet_from: float  # no gap was ever longer than this age


def bin_of(age: float) -> int:
    """The bin of an age."""
    return max(bisect_right(_EDGES, age) - 1, 0)


def outlook(rhythm: ChangeModel, *, now: float, since: float, prior_rate: float) -> Outlook:
    """What the rhythm, the prior and the silence since the last change say together.

    `since` is when a source without any change was first looked at.
    """
    last_at = rhythm.last_at if rhythm.last_at is not None else since
    age = max(now - last_at, 0.0)
    believed = BELIEF / prior_rate
    rate = (rhythm.changes + BELIEF) / (rhythm.seconds + age + believed)
    later = list(accumulate(reversed(rhythm.gaps)))[::-1]  # gaps that lasted at least into the bin
    waited = _waited(age)
    seen = zip(_WIDTHS, rhythm.gaps, later, waited, strict=True)
    exposed = [width * (lasting - count / 2) + now_in for width, count, lasting, now_in in seen]
    per_bin: list[float] = []
    quiet_from, silence = 0.0, 0.0
    for place, (edge, count) in enumerate(zip(_EDGES, rhythm.gaps, strict=True)):
        seconds = exposed[place]
        if later[place] < FORGOTTEN:  # beyond every gap that is remembered: silence adds up
            silence += waited[place]
            seconds = max(seconds, silence)
        else:
            quiet_from = edge + _WIDTHS[place]
        expected = (count + BIN_BELIEF) / (seconds + BIN_BELIEF / rate)
        if per_bin and edge * rate > OVERDUE_FROM:  # what did not come in its time may come now
            expected = max(expected, per_bin[-1] * OVERDUE)
        per_bin.append(expected)
    return Outlook(
        last_at=last_at,
        per_bin=tuple(per_bin),
        rate=rate,
        week=rhythm.week,
        quiet_from=quiet_from,
    )


def _waited(age: float) -> list[float]:
    """The seconds of the silence so far that fell into each bin."""
    place = bin_of(age)
    return [*_WIDTHS[:place], age - _EDGES[place], *(0.0,) * (BINS - place - 1)]


def next_edge(age: float) -> float:
    """The age at which the next bin begins; infinite in the last."""
    place = bisect_right(_EDGES, age)
    return _EDGES[place] if place < BINS else float("inf")


def hour_of_week(at: float) -> int:
    """0 is Monday's first hour, UTC."""
    return int((at - MONDAY) // HOUR) % HOURS_OF_WEEK


@cache
def bin_bounds(place: int) -> tuple[float, float]:
    """The ages between which a bin lies."""
    return _EDGES[place], _EDGES[place] + _WIDTHS[place]


ONE_DAY = timedelta(days=1)
REMEMBERED_DATES = 60  # of a backlog; older ones would count for nothing by the last

Change = tuple[float, float]


def changes_found(
    source: Source, *, published: Sequence[datetime], has_news: bool, now: datetime
) -> list[Change]:
    """Each change as the seconds between which it happened, in the order of time.

    Of a first sync only what states its date is known. Later on a date is believed if it lies
    between the last good poll and this one; another clock, or an old record that came late, says
    nothing about when it was there to be found.
    """
    if not has_news:
        return []
    since = source.last_success_at if source.synced_at is not None else None
    known = [one for at in sorted(published) if (one := _between(at, since, now)) is not None]
    if known or since is None:
        return known[-REMEMBERED_DATES:]
    return [(since.timestamp(), now.timestamp())]


def _between(at: datetime, since: datetime | None, now: datetime) -> Change | None:
    """A date without a time of day may mean any hour of its day."""
    is_date = (at.hour, at.minute, at.second) == (0, 0, 0)
    start, end = at, at + ONE_DAY - timedelta(seconds=1) if is_date else at
    if since is not None:
        start = max(start, since)
    end = min(end, now)
    return (start.timestamp(), end.timestamp()) if start <= end else None
