"""When a source is checked next: tiers, backoff, breaker, staleness; change model and request cost in the budget."""

from collections import Counter
from datetime import datetime, timedelta
from heapq import heapify, heapreplace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from benchmarks.polling.comparison import compare
from benchmarks.polling.families import FAMILIES, synthetic
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.sources import registry
from ingestion_pipeline.sources.scheduling import tiers
from ingestion_pipeline.sources.scheduling import tiers as polling_budget
from ingestion_pipeline.sources.scheduling.change_model import ChangeModel, with_changes
from ingestion_pipeline.sources.scheduling.tiers import (
    PollingBudget,
    SchedulingInputs,
    Spending,
    after_strike,
    after_success,
    current_budget,
    expectation,
    initial_request_cost,
    is_stale,
    prior_rate,
    tier_for,
)
from ingestion_pipeline.sources.source import Kind, Source, SourceStatus, Tier
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import sources
from ingestion_pipeline_tests.builders import NOON, a_checked_source, a_definition

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
DEFAULTS = load_settings({})
EXACT = load_settings({"INGESTION_POLLING__JITTER_SHARE": "0"})


@pytest.mark.parametrize(("followers", "tier"), [(100, Tier.COLD), (101, Tier.HOT)])
def test_a_source_with_more_than_a_hundred_followers_is_hot(followers: int, tier: Tier) -> None:
    year_ago = NOON - 365 * DAY

    assert tier_for(year_ago, now=NOON, settings=DEFAULTS, followers=followers) is tier


def succeeded(source: Source, *, last_new_at: datetime | None = None, settings: Settings = EXACT) -> tiers.PollState:
    return after_success(source, last_new_at=last_new_at, now=NOON, settings=settings, random=Random(7))


def failed(source: Source, *, settings: Settings = EXACT, now: datetime = NOON) -> tiers.PollState:
    return after_strike(source, now=now, settings=settings, random=Random(7))


@pytest.mark.parametrize(
    ("age", "tier"),
    [
        pytest.param(-HOUR, Tier.HOT, id="from the future"),
        pytest.param(0 * DAY, Tier.HOT, id="just now"),
        pytest.param(DAY, Tier.HOT, id="a day"),
        pytest.param(DAY + MINUTE, Tier.WARM, id="over a day"),
        pytest.param(8 * DAY, Tier.WARM, id="a day and a week"),
        pytest.param(8 * DAY + MINUTE, Tier.COLD, id="over a day and a week"),
        pytest.param(3_650 * DAY, Tier.COLD, id="ten years"),
    ],
)
def test_a_tier_follows_the_age_of_the_last_new_record(age: timedelta, tier: Tier) -> None:
    assert tier_for(NOON - age, now=NOON, settings=DEFAULTS) is tier


def test_a_healthy_source_without_new_records_cools_down() -> None:
    polled_a_moment_ago = a_checked_source(tier=Tier.HOT, last_success_at=NOON, last_checked_at=NOON)

    assert succeeded(polled_a_moment_ago, last_new_at=NOON - 2 * DAY).tier is Tier.WARM
    assert succeeded(polled_a_moment_ago, last_new_at=NOON - 9 * DAY).tier is Tier.COLD


def test_a_source_without_any_record_is_as_old_as_its_registration() -> None:
    assert succeeded(a_checked_source(created_at=NOON - HOUR)).tier is Tier.HOT
    assert succeeded(a_checked_source(created_at=NOON - 2 * DAY)).tier is Tier.WARM


@pytest.mark.parametrize(
    ("kind", "hot", "warm", "cold"),
    [
        (Kind.SERIES, 15 * MINUTE, 4 * HOUR, DAY),
        (Kind.JOB_BOARD, HOUR, 6 * HOUR, DAY),
        (Kind.CATALOG, DAY, 7 * DAY, 30 * DAY),
        (Kind.WEBSITE, DAY, 7 * DAY, 30 * DAY),
        (Kind.COMPANY, 7 * DAY, 30 * DAY, 90 * DAY),
    ],
)
def test_every_kind_and_tier_has_its_interval(kind: Kind, hot: timedelta, warm: timedelta, cold: timedelta) -> None:
    ages = {hot: HOUR, warm: 2 * DAY, cold: 20 * DAY}

    for interval, age in ages.items():
        state = succeeded(a_checked_source(kind=kind), last_new_at=NOON - age)
        assert state.next_check_at == NOON + interval


def test_a_success_closes_the_breaker_and_resets_the_failures() -> None:
    source = a_checked_source(status=SourceStatus.OPEN, status_reason="breaker", failure_count=7)

    state = succeeded(source, last_new_at=NOON)

    assert state == tiers.PollState(
        tier=Tier.HOT, status=SourceStatus.ACTIVE, status_reason=None, failure_count=0, next_check_at=NOON + 15 * MINUTE
    )


def test_a_pinned_tier_stays_whatever_happens() -> None:
    quiet = a_checked_source(tier=Tier.HOT, tier_pinned=True, failure_count=4)

    assert succeeded(quiet, last_new_at=NOON - 90 * DAY).tier is Tier.HOT
    assert failed(quiet).tier is Tier.HOT


@pytest.mark.parametrize(
    ("tier", "strikes", "wait"),
    [
        (Tier.HOT, 0, 15 * MINUTE),
        (Tier.HOT, 1, 30 * MINUTE),
        (Tier.HOT, 2, HOUR),
        (Tier.HOT, 3, 2 * HOUR),
        (Tier.WARM, 0, 4 * HOUR),
        (Tier.WARM, 1, 8 * HOUR),
        (Tier.WARM, 2, 16 * HOUR),
        (Tier.WARM, 3, DAY),
        (Tier.COLD, 0, DAY),
        (Tier.COLD, 3, DAY),
    ],
)
def test_each_failed_poll_doubles_the_wait_up_to_a_day(tier: Tier, strikes: int, wait: timedelta) -> None:
    state = failed(a_checked_source(tier=tier, failure_count=strikes))

    assert state == tiers.PollState(
        tier=tier, status=SourceStatus.ACTIVE, status_reason=None, failure_count=strikes + 1, next_check_at=NOON + wait
    )


def test_the_fifth_failed_poll_opens_the_breaker_and_not_the_fourth() -> None:
    source, statuses = a_checked_source(tier=Tier.HOT), list[SourceStatus]()
    for _ in range(5):
        state = failed(source)
        statuses.append(state.status)
        source = a_checked_source(tier=state.tier, status=state.status, failure_count=state.failure_count)

    assert statuses == [SourceStatus.ACTIVE] * 4 + [SourceStatus.OPEN]
    assert source.tier is Tier.COLD


def test_four_failures_a_success_and_four_more_do_not_open_the_breaker() -> None:
    recovered = succeeded(a_checked_source(failure_count=4), last_new_at=NOON)

    state = failed(a_checked_source(failure_count=recovered.failure_count + 3))

    assert (state.status, state.failure_count) == (SourceStatus.ACTIVE, 4)


def test_an_open_breaker_waits_a_day_for_its_probe_and_a_failed_probe_waits_another() -> None:
    opened = failed(a_checked_source(failure_count=4))
    source = a_checked_source(status=SourceStatus.OPEN, failure_count=5, tier=Tier.COLD)

    rearmed = failed(source, now=opened.next_check_at)

    assert opened.next_check_at == NOON + DAY
    assert opened.status_reason is not None
    assert "5 failed polls" in opened.status_reason
    assert (rearmed.status, rearmed.failure_count) == (SourceStatus.OPEN, 6)
    assert rearmed.next_check_at == NOON + 2 * DAY


def test_a_job_board_is_disabled_at_five_and_says_how_to_end_it() -> None:
    board = a_checked_source(kind=Kind.JOB_BOARD, failure_count=4)

    state = failed(board)

    assert state.status is SourceStatus.DISABLED
    assert state.status_reason is not None
    assert "`ingest sources enable`" in state.status_reason


@given(seed=st.integers(), share=st.floats(0, 0.5), strikes=st.integers(0, 3))
def test_jitter_moves_a_check_by_no_more_than_its_share(seed: int, share: float, strikes: int) -> None:
    settings = load_settings({"INGESTION_POLLING__JITTER_SHARE": f"{share:.6f}"})
    share = settings.polling.jitter_share
    source, random = a_checked_source(tier=Tier.HOT, failure_count=strikes), Random(seed)

    good = after_success(source, last_new_at=NOON, now=NOON, settings=settings, random=random)
    bad = after_strike(source, now=NOON, settings=settings, random=random)

    slack = timedelta(microseconds=1)
    for state, interval in ((good, 15 * MINUTE), (bad, 15 * MINUTE * 2**strikes)):
        wait = state.next_check_at - NOON
        assert interval * (1 - share) - slack <= wait <= interval * (1 + share) + slack


@given(seed=st.integers())
def test_jitter_never_allows_a_probe_within_a_day(seed: int) -> None:
    source = a_checked_source(status=SourceStatus.OPEN, failure_count=5)

    state = after_strike(source, now=NOON, settings=DEFAULTS, random=Random(seed))

    assert DAY <= state.next_check_at - NOON <= DAY * 1.1


def test_sources_that_were_checked_together_drift_apart() -> None:
    random = Random(7)
    checks = {
        after_success(a_checked_source(), last_new_at=NOON, now=NOON, settings=DEFAULTS, random=random).next_check_at
        for _ in range(100)
    }

    assert len(checks) == 100
    assert max(checks) - min(checks) > 2 * MINUTE  # of the three that 10 % of 15 minutes allow


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"last_success_at": NOON - 12 * HOUR}, False, id="three intervals"),
        pytest.param({"last_success_at": NOON - 12 * HOUR - MINUTE}, True, id="and a minute"),
        pytest.param({"last_success_at": NOON - HOUR, "tier": Tier.HOT}, True, id="hot"),
        pytest.param({"last_success_at": NOON - DAY, "tier": Tier.COLD}, False, id="cold"),
        pytest.param({"last_success_at": None}, True, id="never succeeded, old"),
        pytest.param({"last_success_at": None, "created_at": NOON}, False, id="just added"),
        pytest.param({"last_success_at": NOON - 9 * DAY, "status": SourceStatus.OPEN}, True, id="open"),
        pytest.param({"last_success_at": NOON - 9 * DAY, "status": SourceStatus.DISABLED}, False, id="off"),
    ],
)
def test_a_source_is_stale_when_three_checks_should_have_succeeded(changes: dict[str, Any], expected: bool) -> None:
    assert is_stale(a_checked_source(**changes), now=NOON, settings=DEFAULTS) is expected


def weekly(changes: int = 12, last: timedelta = 2 * DAY) -> ChangeModel:
    """Return a model of a change a week, the last one so long ago."""
    moments = [(NOON - last - number * 7 * DAY).timestamp() for number in reversed(range(changes))]
    return with_changes(ChangeModel(), [(at, at) for at in moments])


def state_after_success(
    change_model: ChangeModel, *, settings: Settings = EXACT, followers: int = 0, **changes: Any
) -> tiers.PollState:
    inputs = SchedulingInputs(
        change_model=change_model,
        request_cost=initial_request_cost(Kind.SERIES, settings),
        prior_rate=prior_rate(Kind.SERIES),
    )
    return after_success(
        a_checked_source(**changes),
        last_new_at=NOON - 2 * DAY,
        now=NOON,
        settings=settings,
        random=Random(7),
        followers=followers,
        inputs=inputs,
    )


def test_a_pinned_tier_is_checked_at_its_interval_whatever_is_expected() -> None:
    for tier, interval in ((Tier.HOT, 15 * MINUTE), (Tier.COLD, DAY)):
        state = state_after_success(weekly(), tier=tier, tier_pinned=True)

        assert state.next_check_at == NOON + interval
        assert state.checks_per_day is None


def test_an_adaptive_source_is_checked_when_a_change_is_expected() -> None:
    by_tier = after_success(a_checked_source(), last_new_at=NOON - 2 * DAY, now=NOON, settings=EXACT, random=Random(7))
    soon, late = state_after_success(weekly(last=7 * DAY - HOUR / 4)), state_after_success(weekly(last=60 * HOUR))

    assert soon.next_check_at - NOON < HOUR < late.next_check_at - NOON
    assert (soon.tier, late.tier) == (by_tier.tier, by_tier.tier)
    assert (soon.priority, late.priority) == (Tier.HOT.priority, Tier.WARM.priority)
    assert soon.changes_per_day == pytest.approx(1 / 7, rel=0.3)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {"change_model": weekly(1), "settings": load_settings({"INGESTION_POLLING__ADAPTIVE_GAPS": "1"})},
            id="one change where two are required",
        ),
        pytest.param({"kind": Kind.WEBSITE}, id="a kind that is not adaptive"),
        pytest.param({"settings": load_settings({"INGESTION_POLLING__ADAPTIVE": "false"})}, id="disabled"),
    ],
)
def test_the_tier_decides_where_no_change_can_be_expected(changes: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"change_model": weekly()} | changes
    state = state_after_success(arguments.pop("change_model"), **arguments)

    assert (state.urgency, state.checks_per_day) == (None, None)


@pytest.mark.parametrize("change_model", [ChangeModel(), weekly(1)], ids=["nothing known", "one change"])
def test_a_source_without_history_is_checked_by_the_prior_rate(change_model: ChangeModel) -> None:
    state = state_after_success(change_model, created_at=NOON - DAY)

    assert state.changes_per_day == pytest.approx(1 / 7, rel=0.4)
    assert 15 * MINUTE < state.next_check_at - NOON < 3 * HOUR


def test_a_source_without_any_change_is_checked_less_and_less() -> None:
    intervals = [
        state_after_success(ChangeModel(), created_at=NOON - age * DAY).next_check_at - NOON
        for age in (0, 7, 30, 90, 365)
    ]

    assert intervals == sorted(intervals)
    assert intervals[-1] > 4 * intervals[0]


def test_a_source_with_many_followers_waits_no_longer_than_a_hot_one() -> None:
    assert state_after_success(weekly(), followers=101).next_check_at <= NOON + 15 * MINUTE


def wait_of(change_model: ChangeModel, **arguments: Any) -> timedelta:
    return state_after_success(change_model, **arguments).next_check_at - NOON


def test_a_change_counts_once_and_once_for_each_follower() -> None:
    steady = changes_every(DAY)

    alone, followed = wait_of(steady), wait_of(steady, followers=3)

    assert followed / alone == pytest.approx(1 / 2, rel=0.05)  # the root of 1 + 3


def test_the_weight_of_the_operator_counts_like_followers() -> None:
    steady = changes_every(DAY)

    assert wait_of(steady, config={"weight": 4}) == wait_of(steady, followers=3)
    assert wait_of(steady, config={"weight": 0.25}) / wait_of(steady) == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(("weight", "share"), [(1, 1), (4, 1 / 2), (1 / 4, 2)])
def test_an_analysis_is_repeated_by_the_root_of_its_weight(weight: float, share: float) -> None:
    website = a_checked_source(kind=Kind.WEBSITE, config={"weight": weight})

    assert succeeded(website, last_new_at=NOON - 3 * DAY).next_check_at - NOON == 7 * DAY * share


@pytest.mark.parametrize("kind", [Kind.SERIES, Kind.CATALOG, Kind.WEBSITE])
def test_no_check_comes_later_than_the_delay_that_the_declaration_allows(kind: Kind) -> None:
    source = a_checked_source(kind=kind, created_at=NOON - 200 * DAY, max_delay_seconds=7_200)

    waits = [
        after_success(
            source,
            last_new_at=NOON - 100 * DAY,
            now=NOON,
            settings=DEFAULTS,
            random=Random(seed),
            inputs=SchedulingInputs(
                change_model=changes_every(30 * DAY), request_cost=1e6, prior_rate=prior_rate(kind)
            ),
        ).next_check_at
        - NOON
        for seed in range(20)
    ]

    assert max(waits) <= 2 * HOUR
    assert min(waits) > HOUR


def changes_every(gap: timedelta, changes: int = 40) -> ChangeModel:
    """Return a model of changes without any memory, the last one just now."""
    random = Random(3)
    moments = [NOON.timestamp()]
    for _ in range(changes):
        moments.insert(0, moments[0] - random.expovariate(1 / gap.total_seconds()))
    return with_changes(ChangeModel(), [(at, at) for at in moments])


def test_a_source_is_not_stale_while_it_is_checked_as_seldom_as_planned() -> None:
    rare = {"tier": Tier.HOT, "last_success_at": NOON - 5 * HOUR, "checks_per_day": 4.0}

    assert is_stale(a_checked_source(**rare), now=NOON, settings=DEFAULTS) is False
    assert is_stale(a_checked_source(**rare | {"checks_per_day": None}), now=NOON, settings=DEFAULTS)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_is_detected_later_than_by_tiers_at_the_same_cost(family: str) -> None:
    """The limit is 5 %; each is far better (benchmarks/polling)."""
    histories = synthetic(family, count=3, days=80)
    result = compare(histories, days=80, settings=DEFAULTS, rules=("ours",), near=0.15)

    assert result["ours"].mean <= 1.05 * result["tiers"].mean


@pytest.mark.parametrize(("planned", "direction"), [(200.0, 1), (100.0, 0), (50.0, -1)], ids=str)
def test_the_request_cost_follows_the_planned_checks(planned: float, direction: int) -> None:
    cost = Spending().after(HOUR, promised=100.0, planned=planned, cost=10.0).request_cost()

    assert (cost > 10.1) - (cost < 9.9) == direction


def test_the_request_cost_is_right_at_once_for_planned_checks_that_stay() -> None:
    """Checks follow the root of the cost: a tenth too many of them is a fifth of the cost."""
    cost = Spending().after(5 * MINUTE, promised=100.0, planned=110.0, cost=10.0).request_cost()

    assert cost == pytest.approx(12.1, rel=0.01)


def test_a_source_that_turns_hot_does_not_move_the_cost_for_the_others() -> None:
    """A sum of the moment would be twenty times as much, and the cost four hundred times lower."""
    quiet = Spending(promised=5.0, effort=5.0 * 10**0.5, days=90.0)

    after_a_day = quiet.after(DAY, promised=5.0 + 90 / 5, planned=5.0, cost=10.0)

    assert 0.6 * 10 < after_a_day.request_cost() < 10


def test_checks_that_were_promised_and_not_planned_are_made_later() -> None:
    """Half of them in the first month; their cost is then lower until all are made."""
    spending, cost = Spending(), 40.0
    for _ in range(30):
        spending = spending.after(DAY, promised=10.0, planned=5.0, cost=cost)
    made = 30 * 5.0
    for _ in range(90):
        cost = spending.request_cost()
        planned = 5.0 * (40.0 / cost) ** 0.5
        spending, made = spending.after(DAY, promised=10.0, planned=planned, cost=cost), made + planned

    assert made == pytest.approx(120 * 10.0, rel=0.02)


def test_the_request_cost_converges_to_the_budget() -> None:
    """Each source is planned by the request cost, and again only when it is checked."""
    rates, cost, spending = [1 / (number * 86_400) for number in range(1, 41)], 500.0, Spending()
    due, wait = [0.0] * len(rates), [86_400.0] * len(rates)
    for minute in range(0, 60 * 24 * 60, 30):
        for number, rate in enumerate(rates):
            if due[number] <= minute * 60:
                wait[number] = (2 * cost / rate) ** 0.5
                due[number] = minute * 60 + wait[number]
        planned = sum(86_400 / number for number in wait)
        spending = spending.after(HOUR / 2, promised=800.0 / 40, planned=planned / 40, cost=cost)
        cost = spending.request_cost()

    assert sum(86_400 / number for number in wait) == pytest.approx(800, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 5])
def test_a_small_installation_makes_the_requests_that_its_tiers_promise(count: int) -> None:
    histories = synthetic("office", count=count, days=120, seed=11)
    result = compare(histories, days=120, settings=DEFAULTS, rules=("installation",))

    assert result["installation"].requests == pytest.approx(result["tiers"].requests, rel=0.05)


@pytest.mark.parametrize(
    ("tiers", "share", "budget"),
    [
        pytest.param(["hot", "hot", "warm"], "1", 2 * 96 + 6, id="two hot, one warm"),
        pytest.param(["warm", "warm", "cold"], "1", 2 * 6 + 1, id="two warm, one cold"),
        pytest.param(["warm", "warm", "cold"], "0.5", 6.5, id="half of that"),
    ],
)
def test_the_budget_is_what_the_tiers_of_the_sources_would_spend(
    store: Store, tiers: list[str], share: str, budget: float
) -> None:
    settings = load_settings({"INGESTION_POLLING__BUDGET_SHARE": share})
    definitions = [a_definition(id=f"series:{number}") for number in range(len(tiers))]
    first = initial_request_cost(Kind.SERIES, settings)

    def cost_after(planned: float) -> float:
        with store.begin() as connection:
            registry.register(connection, definitions, now=NOON)
            for definition, tier in zip(definitions, tiers, strict=True):
                row = {"tier": tier, "checks_per_day": planned / len(tiers)}
                is_source = sources.c.id == definition.id
                connection.execute(update(sources).where(is_source).values(row))
            polling_budget.adjust_request_costs(connection, settings, NOON)
            cost = current_budget(connection, settings).request_cost(Kind.SERIES)
            connection.rollback()
        return cost

    assert cost_after(budget) == pytest.approx(first)
    assert cost_after(budget * 1.1) > first * 1.0001
    assert cost_after(budget / 1.1) < first / 1.0001


def test_the_request_cost_is_stored_and_a_platforms_rate_is_its_prior(store: Store) -> None:
    definitions = [a_definition(id=f"series:{number}", platform="rss") for number in range(20)]
    with store.begin() as connection:
        registry.register(connection, definitions, now=NOON)
        connection.execute(update(sources).values(changes_per_day=2.0, checks_per_day=96.0, tier="warm"))
        polling_budget.adjust_request_costs(connection, DEFAULTS, NOON)
        budget = current_budget(connection, DEFAULTS)

    assert budget.request_cost(Kind.SERIES) > initial_request_cost(Kind.SERIES, DEFAULTS)  # the budget is six a day
    assert budget.prior_rate(Kind.SERIES, "rss") == pytest.approx(2 / 86_400)
    assert budget.prior_rate(Kind.SERIES, "json") == prior_rate(Kind.SERIES)
    assert budget.request_cost(Kind.CATALOG) == initial_request_cost(Kind.CATALOG, DEFAULTS)


def simulate_polls(days: float, per_tier: dict[Tier, int]) -> tuple[Counter[int], Counter[Tier]]:
    """Return polls by minute and by tier: pinned sources, each first polled at a random moment."""
    random, minutes, tiers = Random(7), Counter[int](), Counter[Tier]()
    interval = {each_tier: timedelta(seconds=DEFAULTS.interval_seconds("series", each_tier)) for each_tier in Tier}
    queue = [
        (NOON + random.random() * interval[tier], n, tier) for tier, count in per_tier.items() for n in range(count)
    ]
    heapify(queue)
    source = {tier: a_checked_source(tier=tier, tier_pinned=True) for tier in per_tier}
    while queue[0][0] < NOON + days * DAY:
        at, n, tier = queue[0]
        minutes[int((at - NOON) / MINUTE)] += 1
        tiers[tier] += 1
        state = after_success(source[tier], last_new_at=at, now=at, settings=DEFAULTS, random=random)
        heapreplace(queue, (state.next_check_at, n, tier))
    return minutes, tiers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("days", "scale"), [(2, 1), pytest.param(30, 2, marks=pytest.mark.soak)], ids=["days", "month"]
)
def test_every_tier_is_polled_at_its_interval_and_never_in_bursts(days: float, scale: int) -> None:
    per_tier = {Tier.HOT: 450 * scale, Tier.WARM: 600 * scale, Tier.COLD: 800 * scale}

    minutes, tiers = simulate_polls(days, per_tier)

    for tier, count in per_tier.items():
        expected = count * days * 86_400 / DEFAULTS.interval_seconds("series", tier)
        assert tiers[tier] == pytest.approx(expected, rel=0.05)
    assert max(minutes.values()) <= 2 * sum(minutes.values()) / (days * 24 * 60)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"tier_pinned": True}, "WARM, which is pinned", id="pinned"),
        pytest.param({"change_model": None}, "no two of its own are known in", id="unknown"),
        pytest.param({"kind": Kind.WEBSITE}, "as every source of its kind", id="a website"),
        pytest.param({}, "about every 7", id="weekly"),
        pytest.param({}, "mostly Fri at 11-13 h UTC", id="its day and hour"),
        pytest.param({"change_model": weekly(last=10 * DAY).to_json()}, "longer than ever", id="late"),
    ],
)
def test_the_time_of_the_next_check_is_explained(changes: dict[str, Any], message: str) -> None:
    source = a_checked_source(**{"change_model": weekly().to_json()} | changes)
    facts = expectation(source, PollingBudget({}, DEFAULTS), now=NOON)

    assert message in facts["checked_when"]
    assert (facts["change_confidence"] > 0.5) == (source.change_model is not None)
