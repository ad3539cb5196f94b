"""Tiers, intervals, the circuit breaker and the request budget: when a source is checked next.

A tier follows the last *new record*, not the last poll: a healthy source without new records cools
down (HOT for a day, WARM for a week, then COLD), unless it has many followers. A source with a
pinned tier is checked at that tier's interval. Any other is checked when a change is expected
(`change_model.py`) and is worth a request of the budget, whose cost follows from the measurements; a source
without a history uses the rates of its kind and platform.

A source whose file says `tier: auto`, or nothing, has no pinned tier.

A failed poll (all its attempts used up, one strike) delays the next check; five in a row open the
breaker: one probe after 24 hours, and only a success closes it. A job board is disabled instead, until
somebody enables it. A rate limit is never a strike and is not handled here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from math import sqrt
from random import Random
from typing import Any

from sqlalchemy import Connection, func, select

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.scheduling.change_model import (
    DAY,
    ChangeModel,
    NextCheck,
    Outlook,
    change_model_from_json,
    next_check,
    next_fresh_check,
    outlook,
)
from ingestion_pipeline.sources.source import Kind, Source, SourceStatus, Tier
from ingestion_pipeline.store.statements import insert_into
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
ONE_DAY = timedelta(days=1)
MAINTAINED_EVERY = timedelta(minutes=5)
AVERAGED_DAYS = 90.0  # longer than bulk uploads and quiet months, which a cost must not follow
REPAID_IN = 1 / 3  # of the averaged time, checks promised and not made, or made and not promised, are settled
LEAST_REPAID_DAYS = 7.0
MOST_REPAID = 0.5  # share of the checks a day that this adds or takes at most: an outage is not made up for at once
ENOUGH = 20  # estimates of a platform that suffice for a prior


@dataclass(frozen=True, slots=True)
class PollingBudget:
    """The current costs of requests and the usual rates of change."""

    values: Mapping[str, float]
    settings: Settings

    def request_cost(self, kind: Kind) -> float:
        """Return the seconds of expected delay that justify one request."""
        return self.values.get(f"request_cost:{kind.value}") or initial_request_cost(kind, self.settings)

    def spending(self, kind: Kind) -> "Spending":
        """Return what was promised and planned so far."""
        return Spending(**{name: self.values.get(f"{name}:{kind.value}", 0.0) for name in _SPENDING})

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What the tiers promised and the sources planned, a source and day on average; and the difference so far.

    `effort` is planned checks times the root of the request cost: the checks that a cost of 1 would
    lead to. It stays the same when the cost changes, so the cost follows without trial and error.
    """

    promised: float = 0.0
    effort: float = 0.0
    owed: float = 0.0  # checks a source: promised and not planned so far
    days: float = 0.0  # that the averages cover

    def after(self, elapsed: timedelta, *, promised: float, planned: float, cost: float) -> "Spending":
        """Return the averages with a further time, in which so much was promised and planned."""
        days = elapsed / ONE_DAY
        covered = min(self.days + days, AVERAGED_DAYS)
        share = days / covered if covered else 1.0
        return Spending(
            promised=self.promised + share * (promised - self.promised),
            effort=self.effort + share * (planned * sqrt(cost) - self.effort),
            owed=self.owed + days * (promised - planned),
            days=covered,
        )

    def request_cost(self) -> float:
        """Return the cost at which the usual effort makes the checks promised, and those owed in time."""
        most = MOST_REPAID * self.promised
        owed = min(max(self.owed / max(REPAID_IN * self.days, LEAST_REPAID_DAYS), -most), most)
        return (self.effort / (self.promised + owed)) ** 2


_SPENDING = tuple(field.name for field in fields(Spending))


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
        promised = count * DAY / settings.interval_seconds(kind, tier) * settings.polling.budget_share
        before = by_kind.get(Kind(kind), (0, 0.0, 0.0))
        by_kind[Kind(kind)] = before[0] + count, before[1] + planned, before[2] + promised
    moments, current = _last_times(connection), current_budget(connection, settings)
    values: dict[str, float] = {}
    for kind, (count, planned, promised) in by_kind.items():
        elapsed = min(now - moments.get(f"request_cost:{kind.value}", now - MAINTAINED_EVERY), ONE_DAY)
        cost = current.request_cost(kind)
        spending = current.spending(kind).after(elapsed, promised=promised / count, planned=planned / count, cost=cost)
        values |= {f"{name}:{kind.value}": value for name, value in asdict(spending).items()}
        values[f"request_cost:{kind.value}"] = spending.request_cost() if spending.effort > 0 else cost
    return values


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


_SYSTEM_PREFIXES = ("disabled, ", "disabled after ")  # of reasons that no operator gave
BREAKER_FAILURES = 5  # failed polls in a row that open the breaker
PROBE_AFTER = timedelta(days=1)
HOT_FOR = timedelta(days=1)  # after a new record
WARM_FOR = timedelta(days=7)  # after that
STALE_FACTOR = 3  # stale after this many missed intervals
# Kinds without a change model: an analysis of a website or a company is repeated, not watched.
REPEATED = frozenset({Kind.WEBSITE, Kind.COMPANY})
# Kinds whose current state is what counts, not each change: they are checked less than three times a change.
KEPT_FRESH = frozenset({Kind.CATALOG, Kind.WEBSITE, Kind.COMPANY})


@dataclass(frozen=True, slots=True, kw_only=True)
class PollState:
    """The state of a source after a poll, written to its row with the poll's results."""

    tier: Tier
    status: SourceStatus
    status_reason: str | None
    failure_count: int
    next_check_at: datetime
    urgency: Tier | None = None
    changes_per_day: float | None = None
    checks_per_day: float | None = None

    @property
    def priority(self) -> int:
        """Return the priority of its poll: its tier's, or that of its urgency if higher."""
        return min(self.tier.priority, (self.urgency or self.tier).priority)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingInputs:
    """The change model of a source, and the current cost of a request."""

    change_model: ChangeModel
    request_cost: float
    prior_rate: float


def after_success(
    source: Source,
    *,
    last_new_at: datetime | None,
    now: datetime,
    settings: Settings,
    random: Random,
    followers: int = 0,
    inputs: SchedulingInputs | None = None,
) -> PollState:
    """Return the state after a success: failures reset, breaker closed, tier recomputed."""
    newest = last_new_at or source.created_at
    tier = source.tier if source.tier_pinned else tier_for(newest, now=now, settings=settings, followers=followers)
    state = PollState(
        tier=tier,
        status=SourceStatus.ACTIVE,
        status_reason=None,
        failure_count=0,
        next_check_at=now + _jittered(_tier_wait(source, tier, settings), settings, random),
    )
    if inputs is None or not is_adaptive(source, inputs.change_model, settings):
        return state
    return _at_expected_change(source, state, inputs, now, settings, random, followers=followers)


def _tier_wait(source: Source, tier: Tier, settings: Settings) -> timedelta:
    """Return the tier's interval by the source's weight and objective; of a pinned tier it is exact."""
    wait = interval(source.kind, tier, settings)
    if source.tier_pinned:
        return wait
    limits = settings.polling
    least, most = (interval(source.kind, of_tier, settings) for of_tier in (Tier.HOT, Tier.COLD))
    weighed = wait / sqrt(source.weight)
    return _within_objective(
        source, min(max(weighed, least * limits.shortest_share), most * limits.longest_share), settings
    )


def _within_objective(source: Source, wait: timedelta, settings: Settings) -> timedelta:
    """Return the wait; at most, jitter included, the delay that the source's declaration allows."""
    if source.max_delay_seconds is None:
        return wait
    return min(wait, timedelta(seconds=source.max_delay_seconds) / (1 + settings.polling.jitter_share))


def is_adaptive(source: Source, model: ChangeModel, settings: Settings) -> bool:
    """Return whether its change model decides when it is checked, not its tier alone."""
    limits = settings.polling
    is_free = limits.adaptive and source.kind not in REPEATED and not source.tier_pinned
    return is_free and model.changes >= limits.adaptive_gaps


def _at_expected_change(
    source: Source,
    state: PollState,
    inputs: SchedulingInputs,
    now: datetime,
    settings: Settings,
    random: Random,
    *,
    followers: int,
) -> PollState:
    """Return the state with the check at the expected change; at most HOT's interval if popular.

    A change counts once, and once more for each follower, times the weight that the operator gives the source.
    """
    at, since = now.timestamp(), source.created_at.timestamp()
    ahead = outlook(inputs.change_model, now=at, since=since, prior_rate=inputs.prior_rate)
    hot, warm, cold = (settings.interval_seconds(source.kind.value, tier.value) for tier in Tier)
    limits = settings.polling
    least, most = hot * limits.shortest_share, cold * limits.longest_share
    most = hot if followers > settings.tiers.hot_readers else most
    most = _within_objective(source, timedelta(seconds=most), settings).total_seconds()
    cost = inputs.request_cost / (source.weight * (1 + followers))
    choose = next_fresh_check if source.kind in KEPT_FRESH else next_check
    check = choose(ahead, now=at, request_cost=cost, least=min(least, most), most=most)
    wait = _moved(check, at, min(least, most), limits.jitter_share, random)
    return replace(
        state,
        next_check_at=now + timedelta(seconds=wait),
        urgency=_urgency(check.spacing, hot, warm, cold),
        changes_per_day=ahead.rate * DAY,
        checks_per_day=DAY / wait,
    )


def _moved(check: NextCheck, now: float, least: float, share: float, random: Random) -> float:
    """Return the seconds until the check with jitter: a share of the wait, or of the next one if that is shorter."""
    wait = check.at - now
    slack = share * min(wait, max(check.spacing, least))
    return wait + random.uniform(-slack, slack)


def _urgency(spacing: float, hot: float, warm: float, cold: float) -> Tier:
    """Return the tier whose interval is nearest to the spacing of checks at that time."""
    if spacing * spacing <= hot * warm:
        return Tier.HOT
    return Tier.WARM if spacing * spacing <= warm * cold else Tier.COLD


def after_strike(source: Source, *, now: datetime, settings: Settings, random: Random) -> PollState:
    """Return the state after one more strike; at the limit the breaker opens, or stays open."""
    failures = source.failure_count + 1
    if failures >= BREAKER_FAILURES:
        return _open(source, failures, now=now, settings=settings, random=random)
    wait = interval(source.kind, source.tier, settings) * 2 ** (failures - 1)
    return PollState(
        tier=source.tier,
        status=SourceStatus.ACTIVE,
        status_reason=None,
        failure_count=failures,
        next_check_at=now + _jittered(min(wait, PROBE_AFTER), settings, random),
    )


def after_blocked_page(source: Source, why: str, *, now: datetime, settings: Settings) -> PollState:
    """Return the disabled state without a strike: a block is never evaded, and repeating the request is no use."""
    return PollState(
        tier=source.tier,
        status=SourceStatus.DISABLED,
        status_reason=f"{_SYSTEM_PREFIXES[0]}{why}; `ingest sources enable` ends it",
        failure_count=source.failure_count,
        next_check_at=now + interval(source.kind, source.tier, settings),
    )


def _open(source: Source, failures: int, *, now: datetime, settings: Settings, random: Random) -> PollState:
    is_board = source.kind is Kind.JOB_BOARD
    return PollState(
        tier=source.tier if source.tier_pinned else Tier.COLD,
        status=SourceStatus.DISABLED if is_board else SourceStatus.OPEN,
        status_reason=(
            f"{_SYSTEM_PREFIXES[1]}{failures} failed polls in a row; `ingest sources enable` ends it"
            if is_board
            else f"breaker open after {failures} failed polls in a row; one probe at the next check"
        ),
        failure_count=failures,
        # never earlier than the promise: a probe within 24 hours would be one too many
        next_check_at=now + PROBE_AFTER + PROBE_AFTER * settings.polling.jitter_share * random.random(),
    )


def is_disabled_by_system(reason: str | None) -> bool:
    """Return whether failures or a block disabled it: an operator's reason begins with a name."""
    return reason is not None and reason.startswith(_SYSTEM_PREFIXES)


def tier_for(last_new_at: datetime, *, now: datetime, settings: Settings, followers: int = 0) -> Tier:
    """Return HOT, WARM or COLD by the age of the last new record; HOT if many follow it."""
    age = now - last_new_at
    if age <= HOT_FOR or followers > settings.tiers.hot_readers:
        return Tier.HOT
    return Tier.WARM if age <= HOT_FOR + WARM_FOR else Tier.COLD


def is_stale(source: Source, *, now: datetime, settings: Settings) -> bool:
    """Return whether several checks in a row should have succeeded by now and none did."""
    if source.status in {SourceStatus.DISABLED, SourceStatus.PENDING_VALIDATION}:
        return False
    since = source.last_success_at or source.created_at
    expected = interval(source.kind, source.tier, settings)
    if source.checks_per_day:
        expected = max(expected, timedelta(days=1 / source.checks_per_day))
    return now - since > expected * STALE_FACTOR


def interval(kind: Kind, tier: Tier, settings: Settings) -> timedelta:
    """Return how long such a source waits for its next check."""
    return timedelta(seconds=settings.interval_seconds(kind.value, tier.value))


def _jittered(wait: timedelta, settings: Settings, random: Random) -> timedelta:
    share = settings.polling.jitter_share
    return wait * random.uniform(1 - share, 1 + share)


DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
LIKELY = 2.0  # times as likely as on average is mentioned


def expectation(source: Source, budget: PollingBudget, *, now: datetime) -> dict[str, Any]:
    """Return the estimate under stable keys: changes a day, confidence from 0 to 1, the reason."""
    model = change_model_from_json(source.change_model)
    ahead = outlook(
        model,
        now=now.timestamp(),
        since=source.created_at.timestamp(),
        prior_rate=budget.prior_rate(source.kind, source.platform),
    )
    return {
        "expected_changes_per_day": round(ahead.rate * DAY, 4),
        "change_confidence": confidence(model),
        "planned_checks_per_day": source.checks_per_day and round(source.checks_per_day, 2),
        "checked_when": explain_next_check(source, model, ahead, budget, now=now),
    }


def confidence(model: ChangeModel) -> float:
    """Return 0 without any known gap; eight gaps, old ones counting less, give two thirds."""
    return round(1 - 1 / sqrt(1 + model.changes), 2)


def explain_next_check(
    source: Source, model: ChangeModel, ahead: Outlook, budget: PollingBudget, *, now: datetime
) -> str:
    """Return in a sentence why the source is checked when it is."""
    if source.tier_pinned:
        return f"at the interval of {source.tier.upper()}, which is pinned"
    if not is_adaptive(source, model, budget.settings):
        return f"at the interval of {source.tier.upper()}, {_why_not(source, budget)}"
    age = now.timestamp() - ahead.last_at
    parts = [f"a change is expected about every {_span(1 / ahead.rate)}"]
    if not model.changes:
        parts.append(f"as of others like it, for no two of its own are known in {_span(age)}")
        return _with_request_cost(parts, source, budget)
    if likely := _likely(ahead):
        parts.append(f"mostly {likely} UTC")
    if age > ahead.quiet_from:
        parts.append(f"silent for {_span(age)}, longer than ever: checked less and less")
    elif age * ahead.rate > 1:
        parts.append(f"overdue, silent for {_span(age)}: checked more closely")
    return _with_request_cost(parts, source, budget)


def _with_request_cost(parts: Sequence[str], source: Source, budget: PollingBudget) -> str:
    cost = budget.request_cost(source.kind)
    return ", ".join(parts) + f"; a request is worth {cost:.0f} s of expected delay"


def _why_not(source: Source, budget: PollingBudget) -> str:
    if not budget.settings.polling.adaptive:
        return "since polling.adaptive is off"
    if source.kind in REPEATED:
        return "as every source of its kind"
    return "until a few changes of it are known"


def _likely(ahead: Outlook) -> str:
    if ahead.week_share < 1 / 2:
        return ""
    week = ahead.week
    days = [sum(week[24 * index : 24 * index + 24]) / 24 for index in range(7)]
    hours = [sum(week[index::24]) / 7 for index in range(24)]
    named = [DAYS[index] for index, weight in enumerate(days) if weight >= LIKELY]
    at = [f"{index:02}" for index, weight in enumerate(hours) if weight >= LIKELY]
    return " ".join([*named, *(["at " + "-".join((at[0], at[-1])) + " h"] if at else [])])


def _span(seconds: float) -> str:
    if seconds >= 2 * DAY:
        return f"{seconds / DAY:.1f} days"
    return f"{seconds / 3_600:.1f} hours"
