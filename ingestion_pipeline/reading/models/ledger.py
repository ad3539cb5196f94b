"""The ledger: one row for each request to a model, there before it is sent.

A row is `reserved` with an estimate, then `settled` with what was used or `failed` with what that
cost; a worker that dies in between leaves its reserve counted. `cached` rows cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from ingestion_pipeline.reading.models import budgets
from ingestion_pipeline.reading.models.budgets import Billing, Scope
from ingestion_pipeline.reading.models.outcomes import OverBudget, Usage
from ingestion_pipeline.reading.models.prices import cost_usd, price_of
from ingestion_pipeline.settings import Price, Settings, price_table
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import model_calls
from ingestion_pipeline.store.types import ExactDecimal
from ingestion_pipeline.work.errors import Resource

CACHE = "cache"
CACHED = "cached"  # a row for an answer that was kept


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCall:
    """A request about to be sent."""

    billing: Billing
    provider: str
    model: str
    format: str
    cache_key: str
    prompt_version: str
    estimate: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """A row that waits to be settled, and the counters that hold its reserve."""

    call_id: int
    estimate: Usage
    price: Price | None
    amount: Decimal
    scopes: tuple[Scope, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """What one call site has taken from one model."""

    call_site: str
    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal
    open_usd: Decimal


class Ledger:
    """Books calls in the store under the budgets and prices of the settings."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._prices = price_table(settings.models.prices)

    def reserve(self, call: NewCall) -> Reserved | OverBudget:
        """The call may be sent: its estimate is counted; or its extraction has no money left.

        Raises:
            Resource: the source or the month has none left, until the next period.
        """
        price = price_of(call.model, self._prices)
        amount = Decimal(0) if price is None else cost_usd(call.estimate, price)
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            scopes = budgets.scopes(call.billing, self._settings, now=now)
            overrun = budgets.reserve(connection, scopes, amount, now=now)
            if overrun is not None:
                return _refusal(call.billing, overrun, amount)
            reserved_usd = None if price is None else amount
            call_id = _insert(connection, call, "reserved", now, reserved_usd=reserved_usd)
        return Reserved(
            call_id=call_id, estimate=call.estimate, price=price, amount=amount, scopes=scopes
        )

    def settle(self, reserved: Reserved, usage: Usage, outcome: str, *, latency_ms: int) -> None:
        """The row says what was used, and the counters hold that instead of the reserve."""
        self._close(reserved, usage, "settled", outcome, latency_ms)

    def fail(
        self, reserved: Reserved, outcome: str, *, may_be_charged: bool, latency_ms: int
    ) -> None:
        """The row says how it failed; if the server may have worked, the estimate is the cost."""
        usage = reserved.estimate if may_be_charged else Usage()
        self._close(reserved, usage, "failed", outcome, latency_ms)

    def note_cached(self, call: NewCall) -> None:
        """A row for an answer that was kept: nothing was asked, nothing is paid."""
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            _insert(connection, call, "cached", now, cost_usd=Decimal(0), settled_at=now)

    def _close(
        self, reserved: Reserved, usage: Usage, status: str, outcome: str, latency_ms: int
    ) -> None:
        cost = None if reserved.price is None else cost_usd(usage, reserved.price)
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            connection.execute(
                update(model_calls)
                .where(model_calls.c.id == reserved.call_id)
                .values(
                    status=status,
                    outcome=outcome,
                    cost_usd=cost,
                    latency_ms=latency_ms,
                    settled_at=now,
                    **_tokens(usage),
                )
            )
            if cost is not None:
                budgets.correct(connection, reserved.scopes, cost - reserved.amount, now=now)


def costs(connection: Connection, *, extraction_id: int) -> Sequence[CostLine]:
    """What an extraction has cost, by call site and model; `open_usd` is not settled yet."""
    return costs_of(connection, [extraction_id]).get(extraction_id, [])


def costs_of(connection: Connection, extraction_ids: Collection[int]) -> dict[int, list[CostLine]]:
    """What each of these extractions has cost, as `costs`; none for one that asked no model."""
    calls = model_calls.c
    is_open = calls.status == "reserved"
    query = (
        select(
            calls.extraction_id,
            calls.call_site,
            calls.model,
            func.count().label("calls"),
            func.coalesce(func.sum(calls.input_tokens), 0).label("input_tokens"),
            func.coalesce(func.sum(calls.output_tokens), 0).label("output_tokens"),
            _total(func.sum(calls.cost_usd)).label("cost_usd"),
            _total(func.sum(calls.reserved_usd).filter(is_open)).label("open_usd"),
        )
        .where(calls.extraction_id.in_(list(extraction_ids)), calls.status != CACHED)
        .group_by(calls.extraction_id, calls.call_site, calls.model)
        .order_by(calls.call_site, calls.model)
    )
    found: dict[int, list[CostLine]] = {}
    for row in connection.execute(query):
        line = CostLine(
            call_site=row.call_site,
            model=row.model,
            calls=row.calls,
            input_tokens=int(row.input_tokens),
            output_tokens=int(row.output_tokens),
            cost_usd=row.cost_usd or Decimal(0),
            open_usd=row.open_usd or Decimal(0),
        )
        found.setdefault(row.extraction_id, []).append(line)
    return found


def saved_calls(connection: Connection, extraction_ids: Collection[int]) -> dict[int, int]:
    """How many questions of each extraction were answered by what had been kept."""
    calls = model_calls.c
    query = (
        select(calls.extraction_id, func.count().label("calls"))
        .where(calls.extraction_id.in_(list(extraction_ids)), calls.status == CACHED)
        .group_by(calls.extraction_id)
    )
    return {row.extraction_id: row.calls for row in connection.execute(query)}


def _total(amounts: ColumnElement[Decimal]) -> ColumnElement[Decimal]:
    # SQLite adds doubles: rounded as every price is, the sum is exact again.
    return func.round(amounts, budgets.PLACES, type_=ExactDecimal())


def _refusal(billing: Billing, overrun: budgets.Overrun, amount: Decimal) -> OverBudget:
    scope = overrun.scope
    limit = scope.limit_usd or Decimal(0)
    if scope.until is not None:
        raise Resource(
            f"the model budget for {scope.name} is used up: {overrun.held_usd} of {limit} dollars,"
            f" and one more call may take {amount}; it goes on at {scope.until:%Y-%m-%d %H:%M} UTC",
            until=scope.until,
            code="model_budget",
        )
    return OverBudget(
        extraction_id=billing.extraction_id or 0,
        limit_usd=limit,
        held_usd=overrun.held_usd,
        wanted_usd=amount,
    )


def _tokens(usage: Usage) -> dict[str, object]:
    return {
        "input_tokens": usage.input_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "output_tokens": usage.output_tokens,
        "usage_estimated": usage.is_estimated,
    }


def _insert(
    connection: Connection, call: NewCall, status: str, now: datetime, **more: object
) -> int:
    row = {
        "source_id": call.billing.source_id,
        "page_id": call.billing.page_id,
        "extraction_id": call.billing.extraction_id,
        "call_site": call.billing.call_site,
        "provider": call.provider,
        "model": call.model,
        "format": call.format,
        "status": status,
        "outcome": "answered" if status == "cached" else None,
        "cache_key": call.cache_key,
        "prompt_version": call.prompt_version,
        "created_at": now,
        **more,
    }
    return connection.execute(
        insert(model_calls).values(row).returning(model_calls.c.id)
    ).scalar_one()
