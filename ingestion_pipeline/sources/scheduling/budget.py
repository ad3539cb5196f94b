"""The polling budget: request costs and usual change rates, measured and stored by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.scheduling.change_model import DAY
from ingestion_pipeline.sources.source import Kind, SourceStatus, Tier
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import measurements, sources


def load_measurements(connection: Connection) -> dict[str, float]:
    """Return every measurement by name."""
    query = select(measurements.c.name, measurements.c.value)
    return {name: value for name, value in connection.execute(query)}  # noqa: C416 - rows to a dict


def save_measurements(connection: Connection, values: Mapping[str, float], *, now: datetime) -> None:
    """Store these measurements; others stay unchanged."""
    for name, value in sorted(values.items()):
        statement = insert_into(connection, measurements).values(name=name, value=value, updated_at=now)
        connection.execute(
            statement.on_conflict_do_update(index_elements=["name"], set_={"value": value, "updated_at": now})
        )


# Expected days between two changes of a source without a history, by kind.
PRIOR_DAYS = {Kind.SERIES: 7, Kind.JOB_BOARD: 2, Kind.CATALOG: 30, Kind.WEBSITE: 30, Kind.COMPANY: 90}
OTHER_PRIOR_DAYS = 7  # of kinds of other packages
PLANS_PER_STEP = 4.0  # a cost adjusts fully in the time in which all checks are planned again
LARGEST_STEP = 2.0
ENOUGH = 20  # estimates of a platform that suffice for a prior


@dataclass(frozen=True, slots=True)
class PollingBudget:
    """The current costs of requests and the usual rates of change."""

    values: Mapping[str, float]
    settings: Settings

    def request_cost(self, kind: Kind) -> float:
        """Return the seconds of expected delay that justify one request."""
        return self.values.get(f"request_cost:{kind.value}") or initial_request_cost(kind, self.settings)

    def prior_rate(self, kind: Kind, platform: str | None) -> float:
        """Return changes a second of a new source: its platform's rate, else its kind's."""
        per_day = self.values.get(f"rate:{kind.value}:{platform}")
        return per_day / DAY if per_day else prior_rate(kind)


def current_budget(connection: Connection, settings: Settings) -> PollingBudget:
    """Return the budget of this moment; without adaptive polling, that of the settings."""
    return PollingBudget(load_measurements(connection) if settings.polling.adaptive else {}, settings)


def prior_rate(kind: Kind) -> float:
    """Return the expected changes a second of a source of the kind."""
    return 1 / (PRIOR_DAYS.get(kind, OTHER_PRIOR_DAYS) * DAY)


def initial_request_cost(kind: Kind, settings: Settings) -> float:
    """Return the cost before any measurement: between the pace of HOT and WARM on average."""
    hot, warm = (settings.interval_seconds(kind.value, tier) for tier in (Tier.HOT, Tier.WARM))
    return prior_rate(kind) * hot * warm / 2


def adjusted_request_cost(cost: float, *, planned: float, budget: float, sources: int, elapsed: timedelta) -> float:
    """Return the cost moved one step towards where planned checks a day meet the budget."""
    if planned <= 0 or budget <= 0:
        return cost
    mean_wait = sources / planned * DAY
    part = min(elapsed.total_seconds() / (PLANS_PER_STEP * mean_wait), 1.0)
    step = (planned / budget) ** (2 * part)
    return cost * min(max(step, 1 / LARGEST_STEP), LARGEST_STEP)


def adjust_request_costs(connection: Connection, settings: Settings, now: datetime) -> int:
    """Update request costs and usual rates from what the sources plan; return how many."""
    values = _request_costs(connection, settings, now) | _rates(connection)
    save_measurements(connection, values, now=now)
    return len(values)


def _request_costs(connection: Connection, settings: Settings, now: datetime) -> dict[str, float]:
    query = (
        select(sources.c.kind, sources.c.tier, func.count(), func.sum(sources.c.checks_per_day))
        .where(sources.c.checks_per_day.is_not(None), sources.c.status == SourceStatus.ACTIVE.value)
        .group_by(sources.c.kind, sources.c.tier)
    )
    by_kind: dict[Kind, tuple[int, float, float]] = {}
    for kind, tier, count, planned in connection.execute(query):
        budget = count * DAY / settings.interval_seconds(kind, tier)
        before = by_kind.get(Kind(kind), (0, 0.0, 0.0))
        by_kind[Kind(kind)] = before[0] + count, before[1] + planned, before[2] + budget
    moments = _last_times(connection)
    current = current_budget(connection, settings)
    return {
        f"request_cost:{kind.value}": adjusted_request_cost(
            current.request_cost(kind),
            planned=planned,
            budget=budget * settings.polling.budget_share,
            sources=count,
            elapsed=now - moments.get(f"request_cost:{kind.value}", now - timedelta(minutes=5)),
        )
        for kind, (count, planned, budget) in by_kind.items()
    }


def _last_times(connection: Connection) -> dict[str, datetime]:
    query = select(measurements.c.name, measurements.c.updated_at)
    return {name: at for name, at in connection.execute(query)}  # noqa: C416 - rows to a dict


def _rates(connection: Connection) -> dict[str, float]:
    query = (
        select(sources.c.kind, sources.c.platform, func.avg(sources.c.changes_per_day))
        .where(sources.c.changes_per_day.is_not(None))
        .group_by(sources.c.kind, sources.c.platform)
        .having(func.count() >= ENOUGH)
    )
    return {f"rate:{kind}:{platform}": float(rate) for kind, platform, rate in connection.execute(query)}
