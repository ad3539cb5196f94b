"""Replay an installation's own change history under its tiers, the change model, and other budgets."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Select

from ingestion_pipeline.registry import kind_specs
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.scheduling.simulation import ChangeHistory, Replayed, at_budget, replay
from ingestion_pipeline.sources.scheduling.tiers import REPEATED, current_budget

FEWEST_CHANGES = 2
MOST_SOURCES = 200  # replayed in about a minute; the most recently changed are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPolicy:
    """What a policy would have spent, and how late it would have found the changes."""

    kind: str
    policy: str
    requests_per_day: float
    mean_delay_minutes: float
    p90_delay_minutes: float
    request_cost_seconds: float | None  # None: the tiers have none


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The sources and changes of a kind that were replayed, and each policy's result."""

    kind: str
    sources: int
    changes: int
    policies: Sequence[SimulatedPolicy]


def simulate_polling(
    connection: Connection, settings: Settings, *, now: datetime, days: float, budget: float | None = None
) -> list[Simulation]:
    """Return a simulation for each kind with a history; `budget` is in requests a day for all its sources."""
    start = now - timedelta(days=days)
    simulations: list[Simulation] = []
    for kind, spec in kind_specs().items():
        histories = [] if spec.changes is None else _histories(connection, settings, spec.changes, start=start, end=now)
        if histories:
            simulations.append(_simulated(kind, histories, settings, start=start, end=now, budget=budget))
    return simulations


def _histories(
    connection: Connection,
    settings: Settings,
    query: Select[Any, Any, Any],
    *,
    start: datetime,
    end: datetime,
) -> list[ChangeHistory]:
    """Return the history of each adaptive source that changed after the start, the liveliest first."""
    changes: defaultdict[str, set[float]] = defaultdict(set)
    dated: set[str] = set()
    for source_id, detected, published in connection.execute(query):
        if published is not None and published < detected and published.time() != MIDNIGHT:
            dated.add(source_id)
            changes[source_id].add(published.timestamp())
        else:
            changes[source_id].add(detected.timestamp())
    last = {name: max(times) for name, times in changes.items() if len(times) >= FEWEST_CHANGES}
    lively = [name for name, at in last.items() if start.timestamp() < at <= end.timestamp()]
    latest = sorted(lively, key=last.__getitem__, reverse=True)[:MOST_SOURCES]
    by_id, prices = sources_by_id(connection, latest), current_budget(connection, settings)
    return [
        ChangeHistory(
            source=source,
            changes=sorted(changes[name]),
            states_dates=name in dated,
            prior_rate=prices.prior_rate(source.kind, source.platform),
        )
        for name, source in by_id.items()
        if source.kind not in REPEATED and not source.tier_pinned
    ]


MIDNIGHT = datetime.min.time()  # a date without a time of day


def _simulated(
    kind: str,
    histories: Sequence[ChangeHistory],
    settings: Settings,
    *,
    start: datetime,
    end: datetime,
    budget: float | None,
) -> Simulation:
    days = (end - start) / timedelta(days=1)
    tiers = replay(histories, settings, start=start, end=end)
    policies = [_policy(kind, "tiers", tiers, None, days)]
    budgets = {
        "change model": tiers.requests,
        "one request more a source and day": tiers.requests + len(histories) * days,
    }
    if budget is not None:
        budgets["the given budget"] = budget * days
    for name, requests in budgets.items():
        result, cost = at_budget(histories, settings, start=start, end=end, requests=requests)
        policies.append(_policy(kind, name, result, cost, days))
    return Simulation(kind=kind, sources=len(histories), changes=len(tiers.delays), policies=policies)


def _policy(kind: str, name: str, result: Replayed, cost: float | None, days: float) -> SimulatedPolicy:
    return SimulatedPolicy(
        kind=kind,
        policy=name,
        requests_per_day=round(result.requests / days, 2),
        mean_delay_minutes=round(result.mean / 60, 1),
        p90_delay_minutes=round(result.p90 / 60, 1),
        request_cost_seconds=None if cost is None else round(cost, 1),
    )
