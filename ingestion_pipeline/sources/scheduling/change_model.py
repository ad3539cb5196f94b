"""The change model of a source: what its past changes say about the next, and when to check. Pure.

1. The *rate* of change follows from the remembered changes and a prior; a short memory beside the
   long one follows bursts, and a silence lowers both.
2. A *week* of hours, from the days and the hours of the changes, says when they come.
3. The *gaps* between changes say how a change makes the next more or less likely, against what rate
   and week alone expect; after each change the source may also have fallen silent for good.
4. Each combination of these predicts every change before it learns it, and counts by how well it
   predicted so far: a pattern that is chance does not, so none is worse than the rate for long.
5. The next check is as soon as the expected delay is worth a request; where only the current state
   matters, as soon as the time for which it is outdated is.

A change that happens now and is found later is delayed by that time. The expected delay grows until
the next check: by the expected changes, times the time they have been waiting. A request has a cost
in seconds of such delay; where the expected delay reaches it, the source is checked. That spends
every request where it saves most: at a constant rate of change the interval is the square root of
twice the cost divided by the rate, and it is short before a release that is due.

Of a page, a second change does not make it more outdated: there the freshness is what counts (Cho and
Garcia-Molina, Azar et al.). A check gains the chance that the page is outdated by then, times the time
since the last check, less the outdated time that is spent already; it is worth a request as soon as
that reaches the cost. A page that changes oftener than once in the cost cannot be kept fresh, and is
checked as seldom as allowed.

A change happened between two polls, at an unknown time, most likely in a likely hour; a publication
date that the records state is accepted if it lies between the polls. A poll that finds nothing adds
nothing: its information is in the time that has passed since the last change.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from math import exp, expm1, fsum, log, sqrt
from typing import Any

from ingestion_pipeline.sources.source import Source

HOUR = 3_600.0
DAY = 24 * HOUR
WEEK = 7 * DAY
MONDAY = 4 * DAY  # the epoch began on a Thursday
HOURS_OF_WEEK = 168

# The ages, in hours, where one bin ends and the next begins: finer around a day, a week, two weeks
# and a month, the intervals at which people publish.
_HOURS = (0, 1, 3, 8, 18, 30, 42, 66, 102, 138, 160, 176, 216, 312, 360, 500, 640, 780, 1_500)
_EDGES = tuple(hours * HOUR for hours in _HOURS)
BINS = len(_EDGES)
_LAST = _EDGES[-1] * 2  # the assumed end of the open last bin
_WIDTHS = tuple(b - a for a, b in zip(_EDGES, (*_EDGES[1:], _LAST), strict=True))

TOGETHER = 600.0  # seconds; what comes within them is one change: a bulk upload
REMEMBERED = 0.97  # weight of older gaps after each new one: about thirty count
RECENT = 0.7  # the same for the short memory: about three count
CALENDAR = 0.97  # the same for days and hours: about thirty count
PREDICTED = 0.99  # the same for the scores: about a hundred predictions count
BELIEF = 0.5  # weight of a prior, in changes
WEEK_BELIEF = 1.0  # weight of even days, and of even hours, in changes
NEIGHBOURS = 0.15  # share of a change that counts in the hour before, and in the hour after
OVERDUE = 1 / 3  # share of the previous bin's expectation that carries over, if a change is late
OVERDUE_FROM = 0.9  # of the mean gap
FORGOTTEN = 0.1  # weight of gaps below which none is remembered
SILENCED = 0.01  # share of changes after which a source falls silent for good
EXACT = 60.0  # seconds; a change between closer limits has a known time
LEAST_WEEK = 0.01  # weight of the week below which hours make no difference

# The combinations that predict: each of three rates, even or by the week.
_COMBINATIONS = 6
LARGEST_SCORE = 99.0  # of a difference: beyond it a combination counts for nothing
MOST_EXPECTED = 500.0  # keeps the likelihood of a silence above 0


@dataclass(frozen=True)
class ChangeModel:
    """The remembered changes of a source, old ones counting less, and how well they were predicted."""

    last_at: float | None = None
    gaps: tuple[float, ...] = (0.0,) * BINS  # by length
    expected: tuple[float, ...] = (0.0,) * BINS  # changes that rate and week alone expected at that age
    days: tuple[float, ...] = (0.0,) * 7
    hours: tuple[float, ...] = (0.0,) * 24
    seconds: float = 0.0  # total length of the gaps
    recent: tuple[float, float] = (0.0, 0.0)  # changes and seconds of the short memory
    scores: tuple[float, ...] = (0.0,) * _COMBINATIONS  # logarithms, the best is 0

    @cached_property
    def changes(self) -> float:
        """Return how many gaps are remembered, old ones counting less."""
        return fsum(self.gaps)

    @cached_property
    def week(self) -> tuple[float, ...]:
        """Return how much likelier than on average a change is in each hour of the week."""
        days, hours = _weights(self.days), _weights(_smoothed(self.hours))
        return tuple(day * hour for day in days for hour in hours)

    @cached_property
    def _week_sums(self) -> tuple[float, ...]:
        return tuple(accumulate(self.week, initial=0.0))

    def weeks_until(self, at: float) -> float:
        """Return the seconds from the first Monday of the epoch, each hour weighed by the week."""
        weeks, within = divmod(at - MONDAY, WEEK)
        hours, part = divmod(within, HOUR)
        sums = self._week_sums
        return (weeks * sums[-1] + sums[int(hours)]) * HOUR + self.week[int(hours)] * part

    def rate(self, age: float, prior_rate: float) -> float:
        """Return changes a second after a quiet time of this age."""
        return (self.changes + BELIEF) / (self.seconds + age + BELIEF / prior_rate)

    def to_json(self) -> dict[str, Any]:
        """Return the model as it is stored: hundredths, and seconds."""
        return {
            "last": self.last_at and round(self.last_at),
            "gaps": _hundredths(self.gaps),
            "expected": _hundredths(self.expected),
            "days": _hundredths(self.days),
            "hours": _hundredths(self.hours),
            "seconds": round(self.seconds),
            "recent": [round(self.recent[0], 2), round(self.recent[1])],
            "scores": _hundredths(self.scores),
        }


def change_model_from_json(stored: Mapping[str, Any] | None) -> ChangeModel:
    """Return the stored model; an empty one if it has another format."""
    if not stored or "scores" not in stored or len(stored["gaps"].split()) != BINS:
        return ChangeModel()
    counts = {
        name: tuple(int(count) / 100 for count in stored[name].split())
        for name in ("gaps", "expected", "days", "hours", "scores")
    }
    changes, seconds = stored["recent"]
    return ChangeModel(
        last_at=stored["last"], seconds=float(stored["seconds"]), recent=(float(changes), float(seconds)), **counts
    )


def _hundredths(counts: Iterable[float]) -> str:
    """Return the counts as a line of whole numbers: half the bytes of a list."""
    return " ".join(str(round(100 * count)) for count in counts)


def _smoothed(counts: tuple[float, ...]) -> list[float]:
    """Return the counts with a part of each moved to its neighbours: nobody keeps to the hour."""
    size, own = len(counts), 1 - 2 * NEIGHBOURS
    return [own * counts[n] + NEIGHBOURS * (counts[n - 1] + counts[(n + 1) % size]) for n in range(size)]


def _weights(counts: Sequence[float]) -> list[float]:
    """Return how much likelier than on average each is, with a belief that all are alike."""
    size, total = len(counts), fsum(counts) + WEEK_BELIEF
    return [(count * size + WEEK_BELIEF) / total for count in counts]


def with_changes(
    model: ChangeModel, changes: Sequence[tuple[float, float]], *, prior_rate: float = 1 / WEEK
) -> ChangeModel:
    """Return the model with further changes in order, each (from, to) in seconds of the epoch, when it happened."""
    for start, end in changes:
        model = _with_change(model, start, end, prior_rate)
    return model


def _with_change(model: ChangeModel, start: float, end: float, prior_rate: float) -> ChangeModel:
    last, hours = model.last_at, _hours_between(model.week, start, end)
    at = fsum(middle * share for _, middle, share in hours) if hours else (start + end) / 2
    if last is not None and at - last < TOGETHER:
        return model if at <= last else replace(model, last_at=at)
    if last is not None:
        model = _with_gap(model, last, at, start, end, prior_rate)
    if not hours:
        return replace(model, last_at=at)
    return replace(
        model,
        last_at=at,
        days=_counted(model.days, [(hour // 24 % 7, share) for hour, _, share in hours]),
        hours=_counted(model.hours, [(hour % 24, share) for hour, _, share in hours]),
    )


def _with_gap(model: ChangeModel, last: float, at: float, start: float, end: float, prior_rate: float) -> ChangeModel:
    """Return the model with the gap, and with the scores of those who predicted it."""
    gap, length = bin_of(at - last), at - last
    rates = _rates(model, last, last, prior_rate)
    alone = _expected_alone(model, last, at, prior_rate)
    return replace(
        model,
        gaps=tuple(count * REMEMBERED + (place == gap) for place, count in enumerate(model.gaps)),
        expected=tuple(before * REMEMBERED + now for before, now in zip(model.expected, alone, strict=True)),
        seconds=model.seconds * REMEMBERED + length,
        recent=(model.recent[0] * RECENT + 1, model.recent[1] * RECENT + length),
        scores=_scored(model, rates, last, start, end, at),
    )


def _scored(model: ChangeModel, rates: "_Rates", last: float, start: float, end: float, at: float) -> tuple[float, ...]:
    """Return the scores with the logarithm of the likelihood that each gave the change."""
    if end - start > EXACT:
        before = _cumulated(model, rates, last, max(start, last))
        until = _cumulated(model, rates, last, end)
        likelihoods = [log(max(b - a, 1e-9) / (end - start)) - a for a, b in zip(before, until, strict=True)]
    else:
        waited = _cumulated(model, rates, last, at)
        weight, place = model.week[hour_of_week(at)], bin_of(at - last)
        now = (rates.long, rates.long * weight, rates.short, rates.short * weight)
        now = (*now, rates.by_gap[place], rates.by_gap_and_week[place] * weight)
        likelihoods = [log(rate) - expected for rate, expected in zip(now, waited, strict=True)]
    scores = [score * PREDICTED + new for score, new in zip(model.scores, likelihoods, strict=True)]
    best = max(scores)
    return tuple(max(score - best, -LARGEST_SCORE) for score in scores)


def _counted(counts: tuple[float, ...], shares: Iterable[tuple[int, float]]) -> tuple[float, ...]:
    after = [count * CALENDAR for count in counts]
    for place, share in shares:
        after[place] += share
    return tuple(after)


def _hours_between(week: Sequence[float], start: float, end: float) -> list[tuple[int, float, float]]:
    """Return the hours, since a Monday, in which a change may have happened, each with its middle and its share."""
    first, last = int((start - MONDAY) // HOUR), int((end - MONDAY) // HOUR)
    if last - first >= HOURS_OF_WEEK:  # too wide to say anything about days and hours
        return []
    if first == last:
        return [(first, (start + end) / 2, 1.0)]
    parts: list[tuple[int, float, float]] = []
    for hour in range(first, last + 1):
        begin, until = max(start, MONDAY + hour * HOUR), min(end, MONDAY + (hour + 1) * HOUR)
        parts.append((hour, (begin + until) / 2, (until - begin) * week[hour % HOURS_OF_WEEK]))
    total = fsum(part for _, _, part in parts)
    return [(hour, middle, part / total) for hour, middle, part in parts]


@dataclass(frozen=True, slots=True)
class _Rates:
    """The rates of change that are combined: by a long and a short memory, and by the length of the quiet time."""

    long: float
    short: float
    by_gap: tuple[float, ...]
    by_gap_and_week: tuple[float, ...]  # to be weighed by the hour


def _rates(model: ChangeModel, last: float, now: float, prior_rate: float) -> _Rates:
    age = max(now - last, 0.0)
    rate = model.rate(age, prior_rate)
    later = list(accumulate(reversed(model.gaps)))[::-1]  # gaps that lasted at least into the bin
    return _Rates(
        long=rate,
        short=(model.recent[0] + BELIEF) / (model.recent[1] + age + BELIEF / rate),
        by_gap=_by_gap(model, age, rate, later),
        by_gap_and_week=_by_gap_and_week(model, last, now, prior_rate),
    )


def _by_gap(model: ChangeModel, age: float, rate: float, later: Sequence[float]) -> tuple[float, ...]:
    """Return the rate in each bin of the quiet time: changes in it by the seconds spent in it."""
    per_bin: list[float] = []
    quiet_seconds, before = 0.0, 0.0
    for place, (edge, width, count) in enumerate(zip(_EDGES, _WIDTHS, model.gaps, strict=True)):
        waited = min(max(age - edge, 0.0), width)
        seconds = width * (later[place] - count / 2) + waited
        if later[place] < FORGOTTEN:  # beyond every remembered gap: quiet time adds up
            quiet_seconds += waited
            seconds = max(seconds, quiet_seconds)
        expected = (count + BELIEF) / (seconds + BELIEF / rate)
        if edge * rate > OVERDUE_FROM:  # an overdue change may still come
            expected = max(expected, before * OVERDUE)
        per_bin.append(expected)
        before = expected
    return tuple(per_bin)


def _by_gap_and_week(model: ChangeModel, last: float, now: float, prior_rate: float) -> tuple[float, ...]:
    """Return the rate in each bin, as much above or below that of rate and week alone as the gaps were.

    Neighbours without a change are taken together: none of them alone would prove a quiet time.
    """
    rate = model.rate(0.0, prior_rate)
    waiting = map(sum, zip(model.expected, _expected_alone(model, last, now, prior_rate), strict=True))
    per_bin: list[float] = []
    for is_empty, bins in groupby(zip(model.gaps, waiting, strict=True), key=lambda row: row[0] < FORGOTTEN):
        rows = list(bins)
        together = [(fsum(count for count, _ in rows), fsum(expected for _, expected in rows))] * len(rows)
        ratios = together if is_empty else rows
        per_bin += [rate * (count + BELIEF) / (expected + BELIEF) for count, expected in ratios]
    return tuple(per_bin)


def _expected_alone(model: ChangeModel, last: float, until: float, prior_rate: float) -> list[float]:
    """Return the changes that rate and week alone expect in each bin of the quiet time until then."""
    rate = model.rate(0.0, prior_rate)
    return [rate * (end - start) for start, end in _week_bins(model, last, until)] + [0.0] * (
        BINS - 1 - bin_of(until - last)
    )


def _week_bins(model: ChangeModel, last: float, until: float) -> list[tuple[float, float]]:
    """Return each bin of the quiet time until then, in seconds weighed by the week."""
    edges = [last + edge for edge in _EDGES[: bin_of(until - last) + 1]]
    moments = [model.weeks_until(at) for at in (*edges, max(until, last))]
    return list(pairwise(moments))


def _cumulated(model: ChangeModel, rates: _Rates, last: float, until: float) -> list[float]:
    """Return the changes that each combination expects between the last change and then."""
    age = max(until - last, 0.0)
    bins = _week_bins(model, last, until)
    weighed = bins[-1][1] - bins[0][0]
    ends = (*_EDGES[1 : len(bins)], age)
    even = fsum(rate * (end - edge) for rate, edge, end in zip(rates.by_gap, _EDGES, ends, strict=False))
    by_week = fsum(rate * (end - start) for rate, (start, end) in zip(rates.by_gap_and_week, bins, strict=False))
    return [rates.long * age, rates.long * weighed, rates.short * age, rates.short * weighed, even, by_week]


@dataclass(frozen=True, slots=True)
class Outlook:
    """The expected changes of a source: changes a second, by the length of the quiet time and the hour."""

    last_at: float
    even: tuple[float, ...]  # by bin, at every hour
    weekly: tuple[float, ...]  # by bin, to be weighed by the hour
    rate: float  # changes a second, on average
    week: tuple[float, ...]
    week_share: float  # from 0 to 1: how much the week counts
    quiet_from: float  # no gap was ever longer than this age


def bin_of(age: float) -> int:
    """Return the bin of an age."""
    return max(bisect_right(_EDGES, age) - 1, 0)


def outlook(model: ChangeModel, *, now: float, since: float, prior_rate: float) -> Outlook:
    """Combine model, prior and quiet time into an outlook; `since` is the first poll, if nothing ever changed."""
    last = model.last_at if model.last_at is not None else since
    rates = _rates(model, last, now, prior_rate)
    waited = _cumulated(model, rates, last, now)
    prior = [exp(score) for score in model.scores]
    survived = [weight * exp(-min(expected, MOST_EXPECTED)) for weight, expected in zip(prior, waited, strict=True)]
    likelihood = fsum(survived)
    alive = likelihood * (1 - SILENCED) / (likelihood * (1 - SILENCED) + fsum(prior) * SILENCED)
    long, long_week, short, short_week, gap, gap_week = [alive * weight / likelihood for weight in survived]
    age = max(now - last, 0.0)
    even = long * rates.long + short * rates.short + (1 - alive) / (age + DAY)
    weekly = long_week * rates.long + short_week * rates.short
    longest = max((place for place, count in enumerate(model.gaps) if count >= FORGOTTEN), default=None)
    return Outlook(
        last_at=last,
        even=tuple(even + gap * rate for rate in rates.by_gap),
        weekly=tuple(weekly + gap_week * rate for rate in rates.by_gap_and_week),
        rate=model.rate(age, prior_rate),
        week=model.week,
        week_share=(long_week + short_week + gap_week) / alive,
        quiet_from=0.0 if longest is None else _EDGES[longest] + _WIDTHS[longest],
    )


def next_edge(age: float) -> float:
    """Return the age at which the next bin begins; infinite in the last."""
    place = bisect_right(_EDGES, age)
    return _EDGES[place] if place < BINS else float("inf")


def hour_of_week(at: float) -> int:
    """Return the hour of the week; 0 is Monday's first hour, UTC."""
    return int((at - MONDAY) // HOUR) % HOURS_OF_WEEK


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


FRESHNESS_SEARCH = 20  # halvings of a bin: to the minute
HOURS_MATTER = 3 * DAY  # a later check is chosen by the day, not by the hour: months have many hours


@dataclass(frozen=True, slots=True)
class NextCheck:
    """The time of the next check, and the following interval if the rate at that time stayed."""

    at: float
    spacing: float


def next_check(ahead: Outlook, *, now: float, request_cost: float, least: float, most: float) -> NextCheck:
    """Return the moment at which the expected delay reaches the request cost, within the bounds."""
    end = now + most
    at, delay, expected, rate = now, 0.0, 0.0, 0.0
    while at < end:
        rate, until = _rate_at(ahead, at)
        until = min(until, end)
        span = until - at
        grown = delay + expected * span + rate * span * span / 2
        if grown >= request_cost:
            at += _wait(request_cost - delay, expected, rate)
            break
        delay, expected, at = grown, expected + rate * span, until
    return NextCheck(at=max(at, now + least), spacing=sqrt(2 * request_cost / rate) if rate > 0 else most)


def next_fresh_check(ahead: Outlook, *, now: float, request_cost: float, least: float, most: float) -> NextCheck:
    """Return the moment at which a check is worth its cost in outdated time, within the bounds."""
    end = now + most
    at, expected, outdated = now, 0.0, 0.0
    while at < end:
        rate, until = _rate_at(ahead, at, by_hour=at < now + HOURS_MATTER)
        until = min(until, end)
        span = until - at
        if _gain(at - now, expected, outdated, rate, span) >= request_cost:
            low = 0.0
            for _ in range(FRESHNESS_SEARCH):
                middle = (low + span) / 2
                is_enough = _gain(at - now, expected, outdated, rate, middle) >= request_cost
                low, span = (low, middle) if is_enough else (middle, span)
            at += span
            break
        outdated += _outdated(expected, rate, span)
        expected, at = expected + rate * span, until
    return NextCheck(at=max(at, now + least), spacing=max(at - now, least))


def _gain(waited: float, expected: float, outdated: float, rate: float, span: float) -> float:
    """Return what a check gains after a further span, if so much was expected and outdated before it."""
    is_outdated = -expm1(-expected - rate * span)
    return is_outdated * (waited + span) - outdated - _outdated(expected, rate, span)


def _outdated(expected: float, rate: float, span: float) -> float:
    """Return the expected outdated seconds of a span that begins with so many expected changes."""
    still_fresh = exp(-expected) * (-expm1(-rate * span) / rate if rate > 0 else span)
    return span - still_fresh


def _wait(missing: float, expected: float, rate: float) -> float:
    """Return the time t with expected * t + rate * t * t / 2 = missing."""
    if rate <= 0:
        return missing / expected
    return (sqrt(expected * expected + 2 * rate * missing) - expected) / rate


def _rate_at(ahead: Outlook, at: float, *, by_hour: bool = True) -> tuple[float, float]:
    """Return changes a second at a moment, and until when the rate stays so."""
    age = max(at - ahead.last_at, 0.0)
    place = bin_of(age)
    until = ahead.last_at + next_edge(age)
    if not by_hour or ahead.week_share < LEAST_WEEK:
        return ahead.even[place] + ahead.weekly[place], until
    next_hour = at - (at - MONDAY) % HOUR + HOUR
    return ahead.even[place] + ahead.weekly[place] * ahead.week[hour_of_week(at)], min(until, next_hour)
