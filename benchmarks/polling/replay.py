"""Replay a rule on histories: how many requests it makes, and how late it finds the changes."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from datetime import timedelta
from heapq import heapify, heapreplace

from benchmarks.polling.families import DAY, START, History
from benchmarks.polling.rules import Rule, product
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.scheduling.simulation import Replayed
from ingestion_pipeline.sources.scheduling.tiers import PollState, Spending, initial_request_cost
from ingestion_pipeline.sources.source import Kind

WARM_UP = 0.3  # of the time of each source: the learning part; only the rest is scored


MakeRule = Callable[[History], Rule]


class _Replay:
    """One source under its rule."""

    def __init__(self, history: History, rule: Rule, days: float) -> None:
        self._history, self.rule = history, rule
        self.end = min(START + days * DAY, history.end)
        self._counted_from = history.start + WARM_UP * (self.end - history.start)
        self._place, self._since = 0, history.start

    def poll(self, now: float, result: Replayed) -> float:
        """Poll, count, and return the time of the next poll."""
        until = bisect_right(self._history.changes, now, self._place)
        new = self._history.changes[self._place : until]
        self._place = until
        if now >= self._counted_from:
            result.requests += 1
            result.delays += [now - at for at in new if at >= self._counted_from]
        detected = new if self._history.states_dates or not new else [now]
        since, self._since = self._since, now
        return self.rule.next(detected, since=since, now=now)


def replay(histories: Sequence[History], make: MakeRule, *, days: float) -> Replayed:
    """Replay every history, each with a rule of its own."""
    result = Replayed()
    for history in histories:
        source, now = _Replay(history, make(history), days), history.start
        while now < source.end:
            now = source.poll(now, result)
    return result


ADJUSTED_EVERY = timedelta(minutes=5)  # as maintenance does


def replay_installation(histories: Sequence[History], *, days: float, settings: Settings) -> Replayed:
    """Replay all sources together as the product runs them: at the request cost that its budget leads to."""
    result, spending = Replayed(), Spending()
    cost = initial_request_cost(Kind.SERIES, settings)
    rules = [product(settings, history.start, cost) for history in histories]
    running = [_Replay(history, rule, days) for history, rule in zip(histories, rules, strict=True)]
    queue = [(history.start, number) for number, history in enumerate(histories)]
    heapify(queue)
    adjusted = min(queue)[0] + ADJUSTED_EVERY.total_seconds()
    while queue[0][0] < float("inf"):
        now, number = queue[0]
        while adjusted <= now:
            states = [rules[place].state for at, place in queue if at < float("inf")]
            spending = _after(spending, [state for state in states if state is not None], cost, settings)
            cost = spending.request_cost() if spending.effort else cost
            adjusted += ADJUSTED_EVERY.total_seconds()
        rules[number].request_cost = cost
        following = running[number].poll(now, result)
        heapreplace(queue, (following if following < running[number].end else float("inf"), number))
    return result


def _after(spending: Spending, states: Sequence[PollState], cost: float, settings: Settings) -> Spending:
    """Return what was spent five minutes later, by the states of the sources that were polled."""
    if not states:
        return spending
    promised = sum(DAY / settings.interval_seconds("series", state.tier) for state in states) / len(states)
    planned = sum(state.checks_per_day or 0.0 for state in states) / len(states)
    return spending.after(ADJUSTED_EVERY, promised=promised, planned=planned, cost=cost)
