"""Budgets: one counter per extraction, source and day, and month; checked and raised together.

A counter holds settled costs and open reserves, so a crash between the two leaves the reserve
counted, and the cost of a check does not grow with the number of calls.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, false, func, or_, select, true, update
from sqlalchemy.sql.selectable import CTE

from ingestion_pipeline.reading.llm.question import Usage
from ingestion_pipeline.settings import Price, Settings, limit_usd
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import model_spending as spending

PLACES = 9  # as prices are rounded: sums stay exact where SQLite adds them as doubles


@dataclass(frozen=True, slots=True, kw_only=True)
class Billing:
    """Who pays for a call: recorded in the ledger, and charged to these budgets.

    `provider` is one of several that are compared: it has a budget of its own for the month.
    """

    call_site: str
    source_id: str | None = None
    page_id: int | None = None
    extraction_id: int | None = None
    provider: str | None = None
    provider_budget_usd: Decimal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """One counter with its limit; `until` is when the next period begins, None if none does."""

    key: str
    name: str
    limit_usd: Decimal | None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrun:
    """The counter that has no room for the amount, and what it holds."""

    scope: Scope
    held_usd: Decimal


def scopes(billing: Billing, settings: Settings, *, now: datetime) -> tuple[Scope, ...]:
    """Return the counters of a call, the extraction's first if it has one."""
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    next_month = (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
    result: list[Scope] = []

    def add(key: str, name: str, limit: Decimal | None, until: datetime | None) -> None:
        result.append(Scope(key=key, name=name, limit_usd=limit, until=until))

    if (extraction := billing.extraction_id) is not None:
        add(f"extraction:{extraction}", f"extraction {extraction}", settings.extraction_budget, None)
    if (source := billing.source_id) is not None:
        limit = limit_usd(settings.models.source_day_usd)
        add(f"day:{midnight:%Y-%m-%d}:{source}", f"source {source} today", limit, midnight + timedelta(days=1))
    if (provider := billing.provider) is not None:
        name = f"provider {provider} this month"
        add(f"provider:{midnight:%Y-%m}:{provider}", name, billing.provider_budget_usd, next_month)
    add(f"month:{midnight:%Y-%m}", "this month", settings.month_budget, next_month)
    return tuple(result)


def reserve(connection: Connection, requested: Sequence[Scope], amount: Decimal, *, now: datetime) -> Overrun | None:
    """Raise every counter by `amount`, or none; return the first that has no room for it."""
    _create(connection, requested, now)
    locked = _locked(requested)
    too_much = [
        and_(locked.c.scope == scope.key, locked.c.held_usd > scope.limit_usd - amount)
        for scope in requested
        if scope.limit_usd is not None
    ]
    fits = ~exists(select(locked.c.scope).where(or_(false(), *too_much)))
    if _raise(connection, locked, amount, fits, now):
        return None
    held = {row.scope: row.held_usd for row in connection.execute(_counters(requested))}
    limited = [(scope, scope.limit_usd) for scope in requested if scope.limit_usd is not None]
    full = next(scope for scope, limit in limited if held[scope.key] > limit - amount)
    return Overrun(scope=full, held_usd=held[full.key])


def correct(connection: Connection, requested: Sequence[Scope], amount: Decimal, *, now: datetime) -> None:
    """Change every counter by `amount`, whatever the limits: the cost has occurred."""
    if amount:
        _raise(connection, _locked(requested), amount, true(), now)


def _create(connection: Connection, requested: Sequence[Scope], now: datetime) -> None:
    # In one order everywhere, so that two calls never wait for each other.
    rows = [
        {"scope": key, "held_usd": Decimal(0), "updated_at": now} for key in sorted(scope.key for scope in requested)
    ]
    statement = insert_into(connection, spending).values(rows)
    connection.execute(statement.on_conflict_do_nothing(index_elements=["scope"]))


def _counters(requested: Sequence[Scope]) -> Select[Any, Any]:
    keys = [scope.key for scope in requested]
    return select(spending.c.scope, spending.c.held_usd).where(spending.c.scope.in_(keys))


def _locked(requested: Sequence[Scope]) -> CTE:
    return _counters(requested).order_by(spending.c.scope).with_for_update().cte("locked")


def _raise(connection: Connection, locked: CTE, amount: Decimal, fits: ColumnElement[bool], now: datetime) -> bool:
    """Raise the counters; return whether they were: one statement locks, checks and writes."""
    statement = (
        update(spending)
        .where(spending.c.scope.in_(select(locked.c.scope)), fits)
        .values(held_usd=func.round(spending.c.held_usd + amount, PLACES), updated_at=now)
        .returning(spending.c.scope)
    )
    return bool(connection.execute(statement).all())


log = logging.getLogger(__name__)

NANO = Decimal("0.000000001")  # the cheapest cached token costs five of these
MILLION = 1_000_000
BYTES_PER_TOKEN = 3  # English has four and more, other scripts come near three
_DATED = re.compile(r"-20[0-9]{2}-?[0-9]{2}-?[0-9]{2}$")

_warned: set[str] = set()


def estimated_usage(*, input_bytes: int, output_tokens: int) -> Usage:
    """Return the tokens of a call of this size, without a tokenizer; rather too many."""
    tokens = -(-input_bytes // BYTES_PER_TOKEN)
    return Usage(input_tokens=tokens, output_tokens=output_tokens, is_estimated=True)


def known_price(model: str, prices: Mapping[str, Price]) -> Price | None:
    """Return the model's price; a dated release has that of the name before its date."""
    return prices.get(model) or prices.get(_DATED.sub("", model))


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """Return the model's price; None if there is none, with one warning."""
    price = known_price(model, prices)
    if price is None and model not in _warned:
        _warned.add(model)
        log.warning(
            "model without price model=%s: its tokens are counted, its cost is not, and no budget limits it;"
            " set models.prices to %s=input/cached input/output (`ingest settings set models.prices ...`)",
            model,
            model,
        )
    return price


def cost_usd(usage: Usage, price: Price) -> Decimal:
    """Return dollars for the tokens, to the billionth."""
    cached = min(usage.cached_input_tokens, usage.input_tokens)
    total = (
        (usage.input_tokens - cached) * price.input_usd
        + cached * price.cached_input_usd
        + usage.output_tokens * price.output_usd
    )
    return (total / MILLION).quantize(NANO, ROUND_HALF_UP)
