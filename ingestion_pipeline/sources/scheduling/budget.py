"""What is found by measuring and kept for the next one who asks: a few numbers by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.scheduling.change_model import DAY
from ingestion_pipeline.sources.source import Kind, SourceStatus, Tier
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import sources, tunings


def tuned(connection: Connection) -> dict[str, float]:
    """All of them."""
    query = select(tunings.c.name, tunings.c.value)
    return {name: value for name, value in connection.execute(query)}  # noqa: C416 - rows to a dict


def tune(connection: Connection, values: Mapping[str, float], *, now: datetime) -> None:
    """These are what was measured last; the others stay."""
    for name, value in sorted(values.items()):
        statement = insert_into(connection, tunings).values(name=name, value=value, updated_at=now)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=["name"], set_={"value": value, "updated_at": now}
            )
        )


PLANS_PER_STEP = 4.0  # a price moves all the way in as long as the plans take to be made anew
LARGEST_STEP = 2.0
ENOUGH = 20  # estimates of a platform that make a prior for the others


@dataclass(frozen=True, slots=True)
class PollingBudget:
    """The prices of requests and the usual rates of change, as they are at this moment."""

    values: Mapping[str, float]
    settings: Settings

    def price(self, kind: Kind) -> float:
        """Seconds of expected delay that a request is worth."""
        return self.values.get(f"price:{kind.value}") or first_price(kind, self.settings)

    def prior_rate(self, kind: Kind, platform: str | None) -> float:
        """Changes a second of a source nobody knows: as its platform's, else as the settings'."""
        per_day = self.values.get(f"rate:{kind.value}:{platform}")
        return per_day / DAY if per_day else prior_rate(kind, self.settings)


def market(connection: Connection, settings: Settings) -> PollingBudget:
    """What is known at this moment."""
    return PollingBudget(tuned(connection) if settings.polling.adaptive else {}, settings)


def prior_rate(kind: Kind, settings: Settings) -> float:
    """Changes a second, by the settings."""
    return 1 / (settings.prior_days(kind.value) * DAY)


def first_price(kind: Kind, settings: Settings) -> float:
    """Before anything is measured: an average source is checked between HOT's and WARM's pace."""
    hot, warm = (settings.interval_seconds(kind.value, one) for one in (Tier.HOT, Tier.WARM))
    return prior_rate(kind, settings) * hot * warm / 2


def adjusted(
    price: float, *, planned: float, budget: float, sources: int, elapsed: timedelta
) -> float:
    """The price that brings the checks a day from what is planned to the budget, step by step."""
    if planned <= 0 or budget <= 0:
        return price
    mean_wait = sources / planned * DAY
    part = min(elapsed.total_seconds() / (PLANS_PER_STEP * mean_wait), 1.0)
    step = (planned / budget) ** (2 * part)
    return price * min(max(step, 1 / LARGEST_STEP), LARGEST_STEP)


def adjust_prices(connection: Connection, settings: Settings, now: datetime) -> int:
    """Prices and usual rates follow what the sources plan; how many there are."""
    values = _prices(connection, settings, now) | _rates(connection)
    tune(connection, values, now=now)
    return len(values)


def _prices(connection: Connection, settings: Settings, now: datetime) -> dict[str, float]:
    query = (
        select(sources.c.kind, sources.c.tier, func.count(), func.sum(sources.c.checks_per_day))
        .where(sources.c.checks_per_day.is_not(None), sources.c.status == SourceStatus.ACTIVE.value)
        .group_by(sources.c.kind, sources.c.tier)
    )
    found: dict[Kind, tuple[int, float, float]] = {}
    for kind, tier, count, planned in connection.execute(query):
        budget = count * DAY / settings.interval_seconds(kind, tier)
        before = found.get(Kind(kind), (0, 0.0, 0.0))
        found[Kind(kind)] = before[0] + count, before[1] + planned, before[2] + budget
    moments = _last_times(connection)
    known = market(connection, settings)
    return {
        f"price:{kind.value}": adjusted(
            known.price(kind),
            planned=planned,
            budget=budget * settings.polling.budget_share,
            sources=count,
            elapsed=now - moments.get(f"price:{kind.value}", now - timedelta(minutes=5)),
        )
        for kind, (count, planned, budget) in found.items()
    }


def _last_times(connection: Connection) -> dict[str, datetime]:
    query = select(tunings.c.name, tunings.c.updated_at)
    return {name: at for name, at in connection.execute(query)}  # noqa: C416 - rows to a dict


def _rates(connection: Connection) -> dict[str, float]:
    query = (
        select(sources.c.kind, sources.c.platform, func.avg(sources.c.changes_per_day))
        .where(sources.c.changes_per_day.is_not(None))
        .group_by(sources.c.kind, sources.c.platform)
        .having(func.count() >= ENOUGH)
    )
    return {
        f"rate:{kind}:{platform}": float(rate) for kind, platform, rate in connection.execute(query)
    }
