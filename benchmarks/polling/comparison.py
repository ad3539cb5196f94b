"""Every rule at the number of requests that the tiers make: mean and 90th percentile of the delay.

A rule has one knob, the same for all its sources, which is turned until its requests are as many as
the tiers'. What is left of a difference, three in a hundred at most, is put right in proportion: a
rule that asks twice as often is half as late.

Two of them know more than anybody can: `change_model known` is ours with the whole history learned before
it begins, `every change known` is the bound that nothing can beat (`bound.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.polling.bound import least_delay
from benchmarks.polling.families import DAY, START, History
from benchmarks.polling.replay import WARM_UP, Replayed, replay
from benchmarks.polling.rules import Every, Mihon, Product, Rule
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.scheduling.change_model import ChangeModel, with_changes
from ingestion_pipeline.sources.scheduling.tiers import initial_request_cost
from ingestion_pipeline.sources.source import Kind

NEAR = 0.03
MOST_TRIES = 6
KNOWN = "every change known"
ALL = ("uniform", "proportional", "mihon", "ours", "change_model known", KNOWN)
Knob = Callable[[History, float], Rule]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """In minutes, at the budget's number of requests."""

    mean: float
    p90: float
    requests: int


def compare(
    histories: Sequence[History], *, days: float, settings: Settings, rules: Sequence[str] = ALL, near: float = NEAR
) -> dict[str, Delay]:
    """The delay of each rule, by name; the tiers' comes first and sets the budget."""
    tiers = replay(histories, lambda _: Product(settings, START), days=days)
    found = {"tiers": _delay(tiers, tiers.requests)}
    knobs = _knobs(tiers.requests / len(histories), days, settings)
    for name in rules:
        if name == KNOWN:
            found[name] = _bound(histories, budget=tiers.requests, days=days)
            continue
        knob, first, power = knobs[name]
        found[name] = _fitted(histories, knob, first, power, budget=tiers.requests, days=days, near=near)
    return found


def _knobs(per_source: float, days: float, settings: Settings) -> Mapping[str, tuple[Knob, float, float]]:
    """Each rule, where its knob stands first, and by which power of it requests become fewer."""
    mean_wait = days * (1 - WARM_UP) * DAY / per_source
    price = initial_request_cost(Kind.SERIES, settings)

    def gap(history: History) -> float:
        return days * DAY / max(len(history.changes), 1)

    return {
        "uniform": (lambda _, scale: Every(mean_wait * scale), 1.0, 1.0),
        "proportional": (lambda one, scale: Every(gap(one) * scale), 0.02, 1.0),
        "mihon": (lambda _, scale: Mihon(scale, START), 0.02, 1.0),
        "ours": (lambda _, knob: Product(settings, START, knob), price, 0.5),
        "change_model known": (lambda one, knob: Product(settings, START, knob, _whole(one)), price, 0.5),
    }


def _bound(histories: Sequence[History], *, budget: int, days: float) -> Delay:
    """Of the changes that count; the requests are those that it needs, at most the budget."""
    since, until = (START + part * days * DAY for part in (WARM_UP, 1))
    changes = [[at for at in one.changes if since <= at < until] for one in histories]
    mean = least_delay(changes, requests=budget) / 60
    return Delay(mean=mean, p90=mean, requests=min(sum(map(len, changes)), budget))


def _whole(history: History) -> ChangeModel:
    return with_changes(ChangeModel(), [(at, at) for at in history.changes])


def _fitted(
    histories: Sequence[History], knob: Knob, value: float, power: float, *, budget: int, days: float, near: float
) -> Delay:
    result = replay(histories, lambda one: knob(one, value), days=days)
    for _ in range(MOST_TRIES - 1):
        ratio = result.requests / budget
        if abs(ratio - 1) <= near:
            break
        value *= ratio ** (1 / power)
        result = replay(histories, lambda one, at=value: knob(one, at), days=days)
    return _delay(result, budget)


def _delay(result: Replayed, budget: int) -> Delay:
    share = result.requests / budget
    return Delay(mean=result.mean / 60 * share, p90=result.p90 / 60 * share, requests=result.requests)
