"""Tier, change_model and price together: who is checked when, and that it costs what the tiers would."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from heapq import heapify, heapreplace
from random import Random
from typing import Any

import pytest
from sqlalchemy import update

from benchmarks.polling.comparison import compare
from benchmarks.polling.families import FAMILIES, synthetic
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.sources import registry
from ingestion_pipeline.sources.scheduling import budget as polling_budget
from ingestion_pipeline.sources.scheduling import tiers
from ingestion_pipeline.sources.scheduling.budget import (
    PollingBudget,
    adjusted_request_cost,
    current_budget,
    initial_request_cost,
    prior_rate,
)
from ingestion_pipeline.sources.scheduling.change_model import ChangeModel, with_changes
from ingestion_pipeline.sources.scheduling.explanation import expectation
from ingestion_pipeline.sources.scheduling.tiers import SchedulingInputs, after_success, is_stale
from ingestion_pipeline.sources.source import Kind, Tier
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import sources
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.sources.test_tiers import DEFAULTS, EXACT, a_source

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def weekly(changes: int = 12, last: timedelta = 2 * DAY) -> ChangeModel:
    """A change a week, the last one so long ago."""
    moments = [(NOON - last - number * 7 * DAY).timestamp() for number in reversed(range(changes))]
    return with_changes(ChangeModel(), [(at, at) for at in moments])


def checked(
    change_model: ChangeModel, *, settings: Settings = EXACT, readers: int = 0, **changes: Any
) -> tiers.PollState:
    habits = SchedulingInputs(
        change_model=change_model,
        request_cost=initial_request_cost(Kind.SERIES, settings),
        prior_rate=prior_rate(Kind.SERIES, settings),
    )
    return after_success(
        a_source(**changes),
        last_new_at=NOON - 2 * DAY,
        now=NOON,
        settings=settings,
        random=Random(7),
        followers=readers,
        inputs=habits,
    )


def test_a_pinned_tier_is_checked_at_its_interval_whatever_is_expected() -> None:
    for tier, interval in ((Tier.HOT, 15 * MINUTE), (Tier.COLD, DAY)):
        standing = checked(weekly(), tier=tier, tier_pinned=True)

        assert standing.next_check_at == NOON + interval
        assert standing.checks_per_day is None


def test_a_source_that_finds_its_own_time_is_checked_when_a_change_is_expected() -> None:
    tiers = after_success(a_source(), last_new_at=NOON - 2 * DAY, now=NOON, settings=EXACT, random=Random(7))
    soon, late = checked(weekly(last=7 * DAY - HOUR / 4)), checked(weekly(last=60 * HOUR))

    assert soon.next_check_at - NOON < HOUR < late.next_check_at - NOON
    assert (soon.tier, late.tier) == (tiers.tier, tiers.tier)
    assert (soon.priority, late.priority) == (Tier.HOT.priority, Tier.WARM.priority)
    assert soon.changes_per_day == pytest.approx(1 / 7, rel=0.3)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {"change_model": weekly(1), "settings": load_settings({"INGESTION_POLLING__ADAPTIVE_GAPS": "1"})},
            id="one change where two are asked for",
        ),
        pytest.param({"kind": Kind.WEBSITE}, id="a kind that is not watched"),
        pytest.param({"settings": load_settings({"INGESTION_POLLING__ADAPTIVE": "false"})}, id="switched off"),
    ],
)
def test_the_tier_decides_where_nothing_can_be_expected(changes: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"change_model": weekly()} | changes
    standing = checked(arguments.pop("change_model"), **arguments)

    assert (standing.urgency, standing.checks_per_day) == (None, None)


@pytest.mark.parametrize("change_model", [ChangeModel(), weekly(1)], ids=["nothing known", "one change"])
def test_a_source_that_nobody_knows_is_checked_as_its_prior_has_it(change_model: ChangeModel) -> None:
    standing = checked(change_model, created_at=NOON - DAY)

    assert standing.changes_per_day == pytest.approx(1 / 7, rel=0.4)
    assert 15 * MINUTE < standing.next_check_at - NOON < 3 * HOUR


def test_a_source_that_nobody_knows_and_that_stays_silent_is_checked_less_and_less() -> None:
    waits = [checked(ChangeModel(), created_at=NOON - age * DAY).next_check_at - NOON for age in (0, 7, 30, 90, 365)]

    assert waits == sorted(waits)
    assert waits[-1] > 4 * waits[0]


def test_what_many_follow_waits_no_longer_than_as_hot() -> None:
    assert checked(weekly(), readers=101).next_check_at <= NOON + 15 * MINUTE


def test_a_source_is_not_stale_while_it_is_checked_as_seldom_as_planned() -> None:
    rare = {"tier": Tier.HOT, "last_success_at": NOON - 5 * HOUR, "checks_per_day": 4.0}

    assert is_stale(a_source(**rare), now=NOON, settings=DEFAULTS) is False
    assert is_stale(a_source(**rare | {"checks_per_day": None}), now=NOON, settings=DEFAULTS)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_is_found_later_than_by_tiers_at_as_many_requests(family: str) -> None:
    """The promise is five in a hundred; each is far better (benchmarks/polling)."""
    histories = synthetic(family, count=3, days=80)
    result = compare(histories, days=80, settings=DEFAULTS, rules=("ours",), near=0.15)

    assert result["ours"].mean <= 1.05 * result["tiers"].mean


@pytest.mark.parametrize(("planned", "goes"), [(200.0, 1), (100.0, 0), (50.0, -1), (0.0, 0)], ids=str)
def test_a_price_follows_what_is_planned(planned: float, goes: int) -> None:
    after = adjusted_request_cost(10.0, planned=planned, budget=100.0, sources=10, elapsed=HOUR)

    assert (after > 10) - (after < 10) == goes


def test_a_price_moves_all_the_way_once_every_source_has_planned_anew() -> None:
    """The checks go by the root of the price: a tenth too many of them is a fifth of the price."""
    after = adjusted_request_cost(10.0, planned=110.0, budget=100.0, sources=10, elapsed=DAY)

    assert after == pytest.approx(12.1)


def test_prices_bring_the_checks_to_the_budget_and_stay_there() -> None:
    """Each source plans as the price has it, and plans anew only when it is checked."""
    rates, price_now, wait = ([1 / (number * 86_400) for number in range(1, 41)], 500.0, list[float]())
    due = [0.0] * len(rates)
    wait = [86_400.0] * len(rates)
    for minute in range(0, 30 * 24 * 60, 30):
        for number, rate in enumerate(rates):
            if due[number] <= minute * 60:
                wait[number] = (2 * price_now / rate) ** 0.5
                due[number] = minute * 60 + wait[number]
        planned = sum(86_400 / number for number in wait)
        price_now = adjusted_request_cost(
            price_now, planned=planned, budget=800.0, sources=len(rates), elapsed=HOUR / 2
        )

    assert sum(86_400 / number for number in wait) == pytest.approx(800, rel=0.03)


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

    def price_after(planned: float) -> float:
        with store.begin() as connection:
            registry.register(connection, definitions, now=NOON)
            for definition, tier in zip(definitions, tiers, strict=True):
                row = {"tier": tier, "checks_per_day": planned / len(tiers)}
                mine = sources.c.id == definition.id
                connection.execute(update(sources).where(mine).values(row))
            polling_budget.adjust_request_costs(connection, settings, NOON)
            price_now = current_budget(connection, settings).request_cost(Kind.SERIES)
            connection.rollback()
        return price_now

    assert price_after(budget) == pytest.approx(first)
    assert price_after(budget * 1.1) > first * 1.0001
    assert price_after(budget / 1.1) < first / 1.0001


def test_the_price_of_a_kind_is_kept_and_a_platforms_rate_is_the_prior_of_its_others(store: Store) -> None:
    definitions = [a_definition(id=f"series:{number}", platform="rss") for number in range(20)]
    with store.begin() as connection:
        registry.register(connection, definitions, now=NOON)
        connection.execute(update(sources).values(changes_per_day=2.0, checks_per_day=96.0, tier="warm"))
        polling_budget.adjust_request_costs(connection, DEFAULTS, NOON)
        now = current_budget(connection, DEFAULTS)

    assert now.request_cost(Kind.SERIES) > initial_request_cost(Kind.SERIES, DEFAULTS)  # six a day is the budget
    assert now.prior_rate(Kind.SERIES, "rss") == pytest.approx(2 / 86_400)
    assert now.prior_rate(Kind.SERIES, "json") == prior_rate(Kind.SERIES, DEFAULTS)
    assert now.request_cost(Kind.CATALOG) == initial_request_cost(Kind.CATALOG, DEFAULTS)


def simulated(days: float, per_tier: dict[Tier, int]) -> tuple[Counter[int], Counter[Tier]]:
    """Polls by minute and by tier: pinned sources, each first polled at some moment of its own."""
    random, minutes, tiers = Random(7), Counter[int](), Counter[Tier]()
    interval = {each_tier: timedelta(seconds=DEFAULTS.interval_seconds("series", each_tier)) for each_tier in Tier}
    queue = [
        (NOON + random.random() * interval[tier], n, tier) for tier, count in per_tier.items() for n in range(count)
    ]
    heapify(queue)
    source = {tier: a_source(tier=tier, tier_pinned=True) for tier in per_tier}
    while queue[0][0] < NOON + days * DAY:
        at, n, tier = queue[0]
        minutes[int((at - NOON) / MINUTE)] += 1
        tiers[tier] += 1
        standing = after_success(source[tier], last_new_at=at, now=at, settings=DEFAULTS, random=random)
        heapreplace(queue, (standing.next_check_at, n, tier))
    return minutes, tiers


@pytest.mark.parametrize(
    ("days", "scale"), [(2, 1), pytest.param(30, 2, marks=pytest.mark.soak)], ids=["days", "month"]
)
def test_every_tier_is_polled_as_often_as_promised_and_never_as_a_herd(days: float, scale: int) -> None:
    per_tier = {Tier.HOT: 450 * scale, Tier.WARM: 600 * scale, Tier.COLD: 800 * scale}

    minutes, tiers = simulated(days, per_tier)

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
def test_why_a_source_is_checked_when_it_is_can_be_said(changes: dict[str, Any], message: str) -> None:
    source = a_source(**{"change_model": weekly().to_json()} | changes)
    facts = expectation(source, PollingBudget({}, DEFAULTS), now=NOON)

    assert message in facts["checked_when"]
    assert (facts["change_confidence"] > 0.5) == (source.change_model is not None)
