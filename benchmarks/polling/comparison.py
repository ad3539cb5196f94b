"""Every rule at the number of requests that the tiers make: mean and 90th percentile of the delay.

A rule has one knob, the same for all its sources, which is adjusted until its requests are as many as
the tiers'. The difference that remains, at most two in a hundred, is corrected in proportion (a rule
that polls twice as often is half as late), and `requests` reports what was made. `installation` is ours without a knob:
all sources together at the request cost that the product's own budget leads to, uncorrected.

Two rules know more than any other can: `rates known` each source's number of changes beforehand, and
`process known` the process that generated it. At equal requests that one is the bound.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from benchmarks.polling.families import DAY, START, History
from benchmarks.polling.replay import WARM_UP, replay, replay_installation
from benchmarks.polling.rules import Every, KnownProcess, Mihon, RateOnly, Rule, product
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.scheduling.simulation import Replayed
from ingestion_pipeline.sources.scheduling.tiers import initial_request_cost
from ingestion_pipeline.sources.source import Kind

NEAR = 0.02
MOST_TRIES = 6
INSTALLATION = "installation"
PROCESS = "process known"
ALL = ("uniform", "mihon", "rate only", "ours", INSTALLATION, "rates known", PROCESS)
Knob = Callable[[History, float], Rule]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """In minutes, and the requests that it took."""

    mean: float
    p90: float
    requests: int


def compare(
    histories: Sequence[History], *, days: float, settings: Settings, rules: Sequence[str] = ALL, near: float = NEAR
) -> dict[str, Delay]:
    """Return the delay of each rule, by name; the tiers' comes first and sets the number of requests."""
    tiers = replay(histories, lambda history: product(settings, history.start), days=days)
    results = {"tiers": _delay(tiers, tiers.requests)}
    knobs = _knobs(histories, tiers.requests, days, settings)
    for name in rules:
        if name == INSTALLATION:
            together = replay_installation(histories, days=days, settings=settings)
            results[name] = _delay(together, together.requests)
        elif name != PROCESS or all(history.rate for history in histories):
            results[name] = _fitted(histories, *knobs[name], budget=tiers.requests, days=days, near=near)
    return results


def _knobs(
    histories: Sequence[History], requests: int, days: float, settings: Settings
) -> Mapping[str, tuple[Knob, float, float]]:
    """Return each rule, the first value of its knob, and by which power of it requests become fewer."""
    lengths = [min(history.end, START + days * DAY) - history.start for history in histories]
    mean_wait = sum(lengths) * (1 - WARM_UP) / requests
    cost = initial_request_cost(Kind.SERIES, settings)

    def gap(history: History) -> float:
        return (min(history.end, START + days * DAY) - history.start) / max(len(history.changes), 1)

    return {
        "uniform": (lambda _, wait: Every(wait), mean_wait, 1.0),
        "mihon": (lambda history, scale: Mihon(scale, history.start), 0.02, 1.0),
        "rate only": (lambda history, cost: RateOnly(cost, history.start), cost, 0.5),
        "ours": (lambda history, cost: product(settings, history.start, cost), cost, 0.5),
        "rates known": (lambda history, cost: Every(sqrt(2 * cost * gap(history))), cost, 0.5),
        PROCESS: (lambda history, cost: KnownProcess(cost, history), cost, 0.5),
    }


def _fitted(
    histories: Sequence[History], knob: Knob, value: float, power: float, *, budget: int, days: float, near: float
) -> Delay:
    result = replay(histories, lambda history: knob(history, value), days=days)
    for _ in range(MOST_TRIES - 1):
        ratio = result.requests / budget
        if abs(ratio - 1) <= near:
            break
        value *= ratio ** (1 / power)
        result = replay(histories, lambda history, at=value: knob(history, at), days=days)
    return _delay(result, budget)


def _delay(result: Replayed, budget: int) -> Delay:
    share = result.requests / budget
    return Delay(mean=result.mean / 60 * share, p90=result.p90 / 60 * share, requests=result.requests)
