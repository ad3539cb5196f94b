"""The ledger: one row for each request to a model, written before it is sent; its budgets, and cached answers.

A row is `reserved`, then `settled` or `failed`; a worker that dies in between leaves its reserve counted. One counter
per extraction, source and day, and month is checked and raised with it. While reserves fill a budget, a call waits.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from functools import partial
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, false, func, insert, or_, select, true, update
from sqlalchemy.sql.selectable import CTE

from ingestion_pipeline.reading.llm.question import OverBudget, Usage
from ingestion_pipeline.settings import Price, Settings, limit_usd, price_table
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.statements import insert_into
from ingestion_pipeline.store.tables import model_answers, model_batch_lines, model_calls
from ingestion_pipeline.store.tables import model_spending as spending
from ingestion_pipeline.store.types import ExactDecimal
from ingestion_pipeline.tasks.errors import Resource

P = ParamSpec("P")
T = TypeVar("T")
PLACES = 9  # as prices are rounded: sums stay exact where SQLite adds them as doubles


@dataclass(frozen=True, slots=True, kw_only=True)
class Billing:
    """Who pays for a call: recorded in the ledger, and charged to these budgets.

    `provider` is one of several that are compared: it has a budget of its own for the month. With `may_wait` half
    the price is worth a day's wait: the question may be sent in a batch.
    """

    call_site: str
    source_id: str | None = None
    page_id: int | None = None
    extraction_id: int | None = None
    provider: str | None = None
    provider_budget_usd: Decimal | None = None
    may_wait: bool = False


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


def scopes_of(billing: Billing, settings: Settings, *, now: datetime) -> tuple[Scope, ...]:
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


def reserve_counters(
    connection: Connection, requested: Sequence[Scope], amount: Decimal, *, now: datetime
) -> Overrun | None:
    """Raise every counter by `amount`, or none; return the first that has no room for it."""
    # In one order everywhere, so that two calls never wait for each other.
    keys = sorted(scope.key for scope in requested)
    rows = [{"scope": key, "held_usd": Decimal(0), "updated_at": now} for key in keys]
    connection.execute(insert_into(connection, spending).values(rows).on_conflict_do_nothing(index_elements=["scope"]))
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


def correct_counters(connection: Connection, requested: Sequence[Scope], amount: Decimal, *, now: datetime) -> None:
    """Change every counter by `amount`, whatever the limits: the cost has occurred."""
    if amount:
        _raise(connection, _locked(requested), amount, true(), now)


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
BATCH_SHARE = Decimal("0.5")  # of the price, as providers of batches publish it
BYTES_PER_TOKEN = 3  # English has four and more, other scripts come near three
_DATED = re.compile(r"-20[0-9]{2}-?[0-9]{2}-?[0-9]{2}$")

_warned: set[str] = set()


def estimated_usage(*, input_bytes: int, output_tokens: int) -> Usage:
    """Return the tokens of a call of this size, without a tokenizer; rather too many."""
    tokens = -(-input_bytes // BYTES_PER_TOKEN)
    return Usage(input_tokens=tokens, output_tokens=output_tokens, is_estimated=True)


def counted_usage(counted: Usage | None, text: str, estimate: Usage) -> Usage:
    """Return the tokens that the server counted; for one that does not count, an estimate of the text."""
    if counted is not None:
        return counted
    written = estimated_usage(input_bytes=len(text.encode()), output_tokens=0).input_tokens
    return replace(estimate, output_tokens=max(written, 1))


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


def cost_usd(usage: Usage, price: Price, *, in_batch: bool = False) -> Decimal:
    """Return dollars for the tokens, to the billionth."""
    cached = min(usage.cached_input_tokens, usage.input_tokens)
    total = (
        (usage.input_tokens - cached) * price.input_usd
        + cached * price.cached_input_usd
        + usage.output_tokens * price.output_usd
    )
    share = BATCH_SHARE if in_batch else 1
    return (total * share / 1_000_000).quantize(NANO, ROUND_HALF_UP)


CACHE = "cache"
CACHED = "cached"  # a row for an answer from the cache
UNSENT = "unsent"  # a row for what a shadow would ask
FIRST_OUTPUT_TOKENS = 1_000  # expected of an answer before one of its kind was seen
LATEST_SHARE = 0.2  # of an answer in what is expected of the next
WAIT_SECONDS = 0.25  # between two checks of a budget that is full of reserves
RESERVED_WAIT = timedelta(seconds=10)  # of a task whose call got no turn
IN_FLIGHT_SLACK_SECONDS = 30  # after its deadline a call that is still reserved has lost its worker

StoreAnswer = Callable[[Connection], None]  # writes an answer with the cost that was paid for it
Precondition = Callable[[Connection], None]  # raises in the reserving transaction if nothing is to be sent


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCall:
    """A request about to be sent, unless `precondition` raises: its task is lost, or its answer is stored by now."""

    billing: Billing
    provider: str
    model: str
    format: str
    cache_key: str
    prompt_version: str
    estimate: Usage
    precondition: Precondition | None = None
    in_batch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """A row that waits to be settled, and the counters that hold its reserve."""

    call_id: int
    kind: tuple[str, str]
    estimate: Usage
    price: Price | None
    amount: Decimal
    scopes: tuple[Scope, ...]
    in_batch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A call that fits its budget as soon as others are settled for less than they reserve.

    `is_long` if those are calls of batches, which take up to a day.
    """

    scope: Scope
    open_usd: Decimal
    is_long: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """The costs of one call site with one model."""

    call_site: str
    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal
    open_usd: Decimal


async def finish_in_thread(act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Act in a thread; a caller that is cancelled meanwhile is cancelled once it is done.

    `asyncio.to_thread` drops what still waits for a thread: an answer that was paid for would be lost.
    """
    acting = asyncio.get_running_loop().run_in_executor(None, partial(act, *args, **kwargs))
    try:
        return await asyncio.shield(acting)
    except asyncio.CancelledError:
        await asyncio.wait([acting])  # while the claim that the answer belongs to is still held
        raise


class Ledger:
    """Records calls in the store under the budgets and prices of the settings."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._prices = price_table(settings.models.prices)
        self._output_tokens: dict[tuple[str, str], float] = {}  # by call site and model

    async def reserve_in_turn(self, call: NewCall, *, seconds: float) -> Reserved | OverBudget:
        """Reserve as `reserve` does; raise `Resource` also if reserves in flight are not settled within `seconds`."""
        ends = time.monotonic() + seconds
        reserved = await self._reserve(call)
        while isinstance(reserved, InFlight):
            if reserved.is_long or time.monotonic() + WAIT_SECONDS >= ends:
                wait = timedelta(seconds=self._settings.models.batch_seconds) if reserved.is_long else RESERVED_WAIT
                raise Resource(
                    f"calls in flight hold the rest of the model budget for {reserved.scope.name}:"
                    f" {reserved.open_usd} dollars",
                    until=await asyncio.to_thread(self._store.now) + wait,
                    code="model_reserved",
                )
            await asyncio.sleep(WAIT_SECONDS)
            reserved = await self._reserve(call)
        return reserved

    async def _reserve(self, call: NewCall) -> Reserved | OverBudget | InFlight:
        """Reserve in a thread; what is reserved for a task that is cancelled is given back."""
        reserving = asyncio.get_running_loop().run_in_executor(None, self.reserve, call)
        try:
            return await asyncio.shield(reserving)
        except asyncio.CancelledError:
            reserved = await reserving
            if isinstance(reserved, Reserved):
                fail = partial(self.fail, may_be_charged=False, latency_ms=0)
                await asyncio.to_thread(fail, reserved, "cancelled")
            raise

    @asynccontextmanager
    async def settling_if_cancelled(self, reserved: Reserved) -> AsyncGenerator[None]:
        """Send the request inside: if it is cancelled, nobody waits for its reserve."""
        began = time.monotonic()
        try:
            yield
        except asyncio.CancelledError:
            latency_ms = round((time.monotonic() - began) * 1000)
            await finish_in_thread(
                partial(self.fail, may_be_charged=True, latency_ms=latency_ms), reserved, "cancelled"
            )
            raise

    def reserve(self, call: NewCall) -> Reserved | OverBudget | InFlight:
        """Count the call's expected cost, or say why not; raise `Resource` if a period's money is used up."""
        with self._store.begin() as connection:
            return self.reserve_in(connection, call, now=self._store.clock.now(connection))

    def reserve_in(self, connection: Connection, call: NewCall, *, now: datetime) -> Reserved | OverBudget | InFlight:
        """Reserve as `reserve` does, in the caller's transaction."""
        price = price_of(call.model, self._prices)
        kind = (call.billing.call_site, call.model)
        # What answers of this kind have taken lately; `call.estimate` is the most.
        tokens = round(self._output_tokens.get(kind, FIRST_OUTPUT_TOKENS))
        estimate = replace(call.estimate, output_tokens=min(call.estimate.output_tokens, tokens))
        amount = Decimal(0) if price is None else cost_usd(estimate, price, in_batch=call.in_batch)
        if call.precondition is not None:
            call.precondition(connection)
        scopes = scopes_of(call.billing, self._settings, now=now)
        overrun = reserve_counters(connection, scopes, amount, now=now)
        if overrun is not None:
            in_flight = self._in_flight(connection, call, overrun, amount, now)
            return in_flight or _refusal(call.billing, overrun, amount)
        call_id = _insert(connection, call, "reserved", now, reserved_usd=None if price is None else amount)
        return Reserved(
            call_id=call_id,
            kind=kind,
            estimate=estimate,
            price=price,
            amount=amount,
            scopes=scopes,
            in_batch=call.in_batch,
        )

    def _in_flight(
        self, connection: Connection, call: NewCall, overrun: Overrun, amount: Decimal, now: datetime
    ) -> InFlight | None:
        """Return that reserves of running calls are what fills the counter; None if its money is used up."""
        models, website = self._settings.models, self._settings.website
        longest = max(models.deadline_seconds, website.answer_seconds) + IN_FLIGHT_SLACK_SECONDS
        is_recent = model_calls.c.created_at >= now - timedelta(seconds=longest)
        recent_usd, in_batches_usd = _open_usd(connection, call, overrun.scope, is_recent)
        limit = overrun.scope.limit_usd or 0
        open_usd = recent_usd + in_batches_usd
        if overrun.held_usd - open_usd + amount > limit:
            return None
        is_long = overrun.held_usd - recent_usd + amount > limit
        return InFlight(scope=overrun.scope, open_usd=open_usd, is_long=is_long)

    def reserved_before(self, connection: Connection, call_id: int, estimate: Usage) -> Reserved:
        """Return the reserve of a line of a batch, which another process may have made."""
        row = connection.execute(select(model_calls).where(model_calls.c.id == call_id)).one()
        billing = Billing(call_site=row.call_site, source_id=row.source_id, extraction_id=row.extraction_id)
        return Reserved(
            call_id=call_id,
            kind=(row.call_site, row.model),
            estimate=estimate,
            price=price_of(row.model, self._prices),
            amount=row.reserved_usd or Decimal(0),
            scopes=scopes_of(billing, self._settings, now=row.created_at),
            in_batch=True,
        )

    def settle(
        self,
        reserved: Reserved,
        usage: Usage,
        outcome: str,
        *,
        latency_ms: int,
        store_answer: StoreAnswer | None = None,
    ) -> None:
        """Replace the reserve by what was used; the answer is stored in the same transaction."""
        with self._store.begin() as connection:
            if store_answer is not None:
                store_answer(connection)
            self.settle_in(connection, reserved, usage, outcome, latency_ms=latency_ms)

    def settle_in(
        self, connection: Connection, reserved: Reserved, usage: Usage, outcome: str, *, latency_ms: int | None
    ) -> None:
        """Replace the reserve by what was used, in the caller's transaction."""
        tokens = self._output_tokens.get(reserved.kind, usage.output_tokens)
        self._output_tokens[reserved.kind] = tokens + LATEST_SHARE * (usage.output_tokens - tokens)
        self._close(connection, reserved, usage, "settled", outcome, latency_ms)

    def fail(self, reserved: Reserved, outcome: str, *, may_be_charged: bool, latency_ms: int) -> Decimal | None:
        """Record how the call failed, and return its cost: as expected if the server may charge."""
        with self._store.begin() as connection:
            return self.fail_in(connection, reserved, outcome, may_be_charged=may_be_charged, latency_ms=latency_ms)

    def fail_in(
        self, connection: Connection, reserved: Reserved, outcome: str, *, may_be_charged: bool, latency_ms: int | None
    ) -> Decimal | None:
        """Record the failure as `fail` does, in the caller's transaction."""
        usage = reserved.estimate if may_be_charged else Usage()
        return self._close(connection, reserved, usage, "failed", outcome, latency_ms)

    def note_cached(self, call: NewCall) -> None:
        """Record an answer from the cache: nothing was sent, nothing is paid."""
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            _insert(connection, call, "cached", now, cost_usd=Decimal(0), settled_at=now)

    def note_unsent(self, call: NewCall) -> None:
        """Record a call that a shadow does not send, with the cost that is expected of it."""
        price = price_of(call.model, self._prices)
        estimate = replace(call.estimate, output_tokens=min(call.estimate.output_tokens, FIRST_OUTPUT_TOKENS))
        expected = None if price is None else cost_usd(estimate, price)
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            _insert(connection, call, UNSENT, now, reserved_usd=expected, settled_at=now)

    def _close(
        self,
        connection: Connection,
        reserved: Reserved,
        usage: Usage,
        status: str,
        outcome: str,
        latency_ms: int | None,
    ) -> Decimal | None:
        cost = None if reserved.price is None else cost_usd(usage, reserved.price, in_batch=reserved.in_batch)
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
                input_tokens=usage.input_tokens,
                cached_input_tokens=usage.cached_input_tokens,
                output_tokens=usage.output_tokens,
                usage_estimated=usage.is_estimated,
            )
        )
        if cost is not None:
            correct_counters(connection, reserved.scopes, cost - reserved.amount, now=now)
        return cost


def book_calls(source: Connection, target: Connection, *, before: Mapping[str, Decimal]) -> None:
    """Copy the calls and answers of another store, and what its counters rose by since `before`.

    Its pages and extractions do not exist here.
    """
    nowhere = {"page_id": None, "extraction_id": None}
    calls = [dict(row) | nowhere for row in source.execute(select(model_calls)).mappings()]
    if calls:
        target.execute(insert(model_calls), [{name: call[name] for name in call if name != "id"} for call in calls])
    for answer in source.execute(select(model_answers)).mappings():
        statement = insert_into(target, model_answers).values(**answer)
        target.execute(statement.on_conflict_do_nothing(index_elements=["cache_key"]))
    for counter in source.execute(select(spending).order_by(spending.c.scope)):
        rise = counter.held_usd - before.get(counter.scope, Decimal(0))
        if rise and not counter.scope.startswith("extraction:"):
            row = {"scope": counter.scope, "held_usd": Decimal(0), "updated_at": counter.updated_at}
            target.execute(insert_into(target, spending).values(**row).on_conflict_do_nothing(index_elements=["scope"]))
            scope = Scope(key=counter.scope, name=counter.scope, limit_usd=None)
            correct_counters(target, [scope], rise, now=counter.updated_at)


def costs(connection: Connection, *, extraction_id: int) -> Sequence[CostLine]:
    """Return what an extraction has cost, by call site and model; `open_usd` is not settled yet."""
    return costs_of(connection, [extraction_id]).get(extraction_id, [])


def costs_of(connection: Connection, extraction_ids: Collection[int]) -> dict[int, list[CostLine]]:
    """Return what each of these extractions has cost; none for one without model calls."""
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
    lines: dict[int, list[CostLine]] = {}
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
        lines.setdefault(row.extraction_id, []).append(line)
    return lines


def saved_calls(connection: Connection, extraction_ids: Collection[int]) -> dict[int, int]:
    """Return how many questions of each extraction were answered from the cache."""
    calls = model_calls.c
    query = (
        select(calls.extraction_id, func.count().label("calls"))
        .where(calls.extraction_id.in_(list(extraction_ids)), calls.status == CACHED)
        .group_by(calls.extraction_id)
    )
    return {row.extraction_id: row.calls for row in connection.execute(query)}


def _total(amounts: ColumnElement[Decimal]) -> ColumnElement[Decimal]:
    # SQLite adds doubles: rounded as every price is, the sum is exact again.
    return func.round(amounts, PLACES, type_=ExactDecimal())


# Reserved until the batch ends; what else is reserved for longer than a deadline has lost its worker.
IN_A_BATCH = model_calls.c.id.in_(
    select(model_batch_lines.c.call_id).where(
        model_batch_lines.c.call_id.is_not(None), model_batch_lines.c.outcome.is_(None)
    )
)


def _open_usd(
    connection: Connection, call: NewCall, scope: Scope, is_recent: ColumnElement[bool]
) -> tuple[Decimal, Decimal]:
    """Return what requests and what lines of batches reserve of this counter until they are settled."""
    calls, billing = model_calls.c, call.billing
    of_scope: dict[str, ColumnElement[bool]] = {
        "extraction": calls.extraction_id == billing.extraction_id,
        "day": calls.source_id == billing.source_id,
        "provider": and_(calls.provider == call.provider, calls.model == call.model),
        "month": true(),
    }
    query = select(
        _total(func.sum(calls.reserved_usd).filter(is_recent & ~IN_A_BATCH)),
        _total(func.sum(calls.reserved_usd).filter(IN_A_BATCH)),
    ).where(calls.status == "reserved", or_(is_recent, IN_A_BATCH), of_scope[scope.key.partition(":")[0]])
    recent, in_batches = connection.execute(query).one()
    return recent or Decimal(0), in_batches or Decimal(0)


def _refusal(billing: Billing, overrun: Overrun, amount: Decimal) -> OverBudget:
    scope = overrun.scope
    limit = scope.limit_usd or Decimal(0)
    if scope.until is not None:
        raise Resource(
            f"the model budget for {scope.name} is used up: {overrun.held_usd} of {limit} dollars,"
            f" and one more call may take {amount}; it resumes at {scope.until:%Y-%m-%d %H:%M} UTC",
            until=scope.until,
            code="model_budget",
        )
    return OverBudget(
        extraction_id=billing.extraction_id or 0, limit_usd=limit, held_usd=overrun.held_usd, wanted_usd=amount
    )


def _insert(connection: Connection, call: NewCall, status: str, now: datetime, **more: object) -> int:
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
    return connection.execute(insert(model_calls).values(row).returning(model_calls.c.id)).scalar_one()


def cached_answers(connection: Connection, keys: Sequence[str]) -> dict[str, dict[str, object]]:
    """Return the cached answers of those keys, as the models gave them."""
    query = select(model_answers.c.cache_key, model_answers.c.answer)
    rows = connection.execute(query.where(model_answers.c.cache_key.in_(keys)))
    return {row.cache_key: row.answer for row in rows}


def cache_answer(
    connection: Connection, key: str, answer: Mapping[str, object], *, model: str, prompt_version: str, now: datetime
) -> None:
    """Store the answer; of two at the same time the first stays."""
    statement = insert_into(connection, model_answers).values(
        cache_key=key, model=model, prompt_version=prompt_version, answer=dict(answer), created_at=now
    )
    connection.execute(statement.on_conflict_do_nothing(index_elements=["cache_key"]))
