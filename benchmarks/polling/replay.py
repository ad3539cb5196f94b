"""A rule let loose on histories: how many requests it made, and how late it found what changed."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.polling.families import DAY, START, History
from benchmarks.polling.rules import Rule

WARM_UP = 0.3  # of the time; what happens in it is learned from and not counted


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it."""

    requests: int
    delays: Sequence[float]

    @property
    def mean(self) -> float:
        return sum(self.delays) / max(len(self.delays), 1)

    @property
    def p90(self) -> float:
        ordered = sorted(self.delays)
        return ordered[int(len(ordered) * 0.9)] if ordered else 0.0


MakeRule = Callable[[History], Rule]


def replay(histories: Sequence[History], make: MakeRule, *, days: float) -> Replayed:
    """Every history, each with a rule of its own."""
    requests, delays = 0, list[float]()
    for history in histories:
        asked, late = _replay_one(history, make(history), days=days)
        requests += asked
        delays += late
    return Replayed(requests, delays)


def _replay_one(history: History, rule: Rule, *, days: float) -> tuple[int, list[float]]:
    end, counted_from = START + days * DAY, START + WARM_UP * days * DAY
    changes, place = history.changes, 0
    requests, delays = 0, list[float]()
    since = now = START
    while now < end:
        until = bisect_right(changes, now, place)
        new = changes[place:until]
        place = until
        if now >= counted_from:
            requests += 1
            delays += [now - at for at in new if at >= counted_from]
        found = new if history.states_dates or not new else [now]
        since, now = now, rule.next(found, since=since, now=now)
    return requests, delays
