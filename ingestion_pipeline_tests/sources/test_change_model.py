"""The change model: rates and weekly profiles learned from a source's changes, and the next check they lead to."""

import json
import time
import timeit
from dataclasses import replace
from datetime import datetime, timedelta
from math import exp, sqrt
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.sources.scheduling.change_model import (
    BINS,
    DAY,
    HOUR,
    REMEMBERED_DATES,
    WEEK,
    ChangeModel,
    Outlook,
    change_model_from_json,
    changes_found,
    hour_of_week,
    next_check,
    next_fresh_check,
    outlook,
    with_changes,
)
from ingestion_pipeline_tests.builders import NOON, a_checked_source

START = NOON.timestamp()
PRIOR = 1 / WEEK
REQUEST_COST = 30.0


def model_of(*moments: float) -> ChangeModel:
    """Return a model of changes at these moments, each known to the second."""
    return with_changes(ChangeModel(), [(START + at, START + at) for at in moments])


def regular_model(gap: float, times: int = 12) -> ChangeModel:
    return model_of(*(gap * number for number in range(times)))


def outlook_of(change_model: ChangeModel, *, age: float) -> Outlook:
    now = (change_model.last_at or START) + age
    return outlook(change_model, now=now, since=START, prior_rate=PRIOR)


def wait_of(
    change_model: ChangeModel, *, age: float, request_cost: float = REQUEST_COST, max_wait: float = 9 * DAY
) -> float:
    now = (change_model.last_at or START) + age
    ahead = outlook_of(change_model, age=age)
    return next_check(ahead, now=now, request_cost=request_cost, least=60, most=max_wait).at - now


@pytest.mark.parametrize("gap", [DAY, 3 * DAY, WEEK, 30 * DAY], ids=["day", "3 d", "week", "month"])
def test_the_rate_is_estimated_from_the_changes(gap: float) -> None:
    assert outlook_of(regular_model(gap, 20), age=0).rate == pytest.approx(1 / gap, rel=0.25)


def test_a_new_source_has_the_prior_rate() -> None:
    assert outlook_of(ChangeModel(), age=0).rate == pytest.approx(PRIOR)


def test_records_that_appear_together_are_one_change() -> None:
    change_model = model_of(0, 60, 120, WEEK, WEEK + 30)

    assert change_model.changes == 1


def test_a_change_between_two_polls_is_spread_over_every_possible_hour() -> None:
    change_model = with_changes(ChangeModel(), [(START, START + 3 * HOUR - 1)])

    shares = [round(change_model.hours[hour], 2) for hour in (11, 12, 13, 14, 15)]
    assert shares == [0, 0.33, 0.33, 0.33, 0]
    assert sum(change_model.days) == pytest.approx(1)


def test_day_and_hour_are_learned_after_some_weeks_and_not_before() -> None:
    week = regular_model(WEEK).week
    assert week[hour_of_week(START)] == max(week)
    assert week[hour_of_week(START)] > 20
    assert max(model_of(0, WEEK).week) < max(week)
    assert outlook_of(regular_model(WEEK), age=0).week_share > 0.9


def test_an_irregular_source_has_no_weekly_profile() -> None:
    irregular = model_of(*(number * 61 * HOUR + number * number * 977 for number in range(30)))

    assert outlook_of(irregular, age=0).week_share < 0.01


@pytest.mark.parametrize("changes_a_check", [0.1, 1.0, 3.0])
def test_a_page_is_checked_when_that_gains_most_freshness(changes_a_check: float) -> None:
    # Cho and Garcia-Molina: at the optimal interval T the cost is (1 - (1 + rT) exp(-rT)) / r.
    rate = 1 / DAY
    interval = changes_a_check / rate
    cost = (1 - (1 + changes_a_check) * exp(-changes_a_check)) / rate

    check = next_fresh_check(steady(rate), now=START, request_cost=cost, least=1, most=100 * DAY)

    assert check.at - START == pytest.approx(interval, rel=0.01)


def test_a_page_that_changes_oftener_than_a_check_is_worth_is_checked_as_seldom_as_allowed() -> None:
    hopeless, hopeful = steady(1 / HOUR), steady(1 / DAY)

    often, seldom = (
        next_fresh_check(ahead, now=START, request_cost=2 * HOUR, least=1, most=30 * DAY).at - START
        for ahead in (hopeless, hopeful)
    )

    assert often == 30 * DAY
    assert seldom < DAY


def steady(rate: float) -> Outlook:
    """Return the outlook of a source without any memory or habit."""
    return Outlook(
        last_at=START,
        even=(rate,) * BINS,
        weekly=(0.0,) * BINS,
        rate=rate,
        week=(1.0,) * 168,
        week_share=0.0,
        quiet_from=0,
    )


def test_of_working_hours_the_nights_get_few_checks() -> None:
    """Eight hours on five days, at a random moment: a quarter of the week must not leave a third to the rest."""
    random, moments = Random(7), list[float]()
    for day in range(60):
        if (NOON + timedelta(days=day)).weekday() < 5:
            moments += sorted(day * DAY + random.uniform(-3, 5) * HOUR for _ in range(2))
    change_model, at, checks = model_of(*moments), START + moments[-1], list[float]()

    end = at + WEEK
    while at < end:
        ahead = outlook(change_model, now=at, since=START, prior_rate=PRIOR)
        at = next_check(ahead, now=at, request_cost=REQUEST_COST, least=60, most=DAY).at
        checks.append(at)
        change_model = replace(change_model, last_at=at)  # as if the source were as lively as ever

    outside = [at for at in checks if not (hour_of_week(at) < 120 and 9 <= hour_of_week(at) % 24 < 17)]
    assert len(outside) < len(checks) / 3


def test_a_pattern_that_has_predicted_nothing_does_not_count() -> None:
    """Changes at random moments: their days and hours are uneven by chance, and expected nothing."""
    random, at, moments = Random(7), 0.0, list[float]()
    for _ in range(60):
        at += random.expovariate(1 / DAY)
        moments.append(at)

    assert outlook_of(model_of(*moments), age=0).week_share < 0.05


def test_a_source_that_is_silent_for_much_longer_than_ever_is_expected_to_be_silenced() -> None:
    daily = regular_model(DAY, 40)
    rates = [sum(outlook_of(daily, age=age * DAY).even) for age in (2, 4, 10, 30)]

    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0] / 5


def test_the_wait_grows_the_longer_a_source_does_not_change() -> None:
    change_model = regular_model(2 * DAY)
    intervals = [wait_of(change_model, age=age * DAY, max_wait=90 * DAY) for age in (8, 30, 120, 365)]

    assert intervals == sorted(intervals)
    assert intervals[-1] > 3 * intervals[0]


def test_a_late_release_is_checked_for_more_often_than_on_average() -> None:
    change_model = regular_model(WEEK)

    assert wait_of(change_model, age=WEEK + DAY) < wait_of(change_model, age=3 * DAY) * 3 / 4


def test_a_weekly_source_is_checked_rarely_before_its_release_and_often_at_its_hour() -> None:
    change_model = regular_model(WEEK)

    assert wait_of(change_model, age=2.3 * DAY) > 3 * HOUR
    assert wait_of(change_model, age=WEEK - 600) < 20 * 60


@pytest.mark.parametrize("rate", [1 / HOUR, 1 / DAY, 1 / WEEK])
def test_at_a_constant_rate_the_wait_is_the_root_of_twice_the_request_cost_by_the_rate(rate: float) -> None:
    ahead = Outlook(
        last_at=0.0, even=(rate,) * 19, weekly=(0.0,) * 19, rate=rate, week=(1.0,) * 168, week_share=0, quiet_from=0
    )

    check = next_check(ahead, now=HOUR, request_cost=REQUEST_COST, least=1, most=WEEK)

    assert check.at - HOUR == pytest.approx(sqrt(2 * REQUEST_COST / rate))
    assert check.spacing == pytest.approx(check.at - HOUR)


@pytest.mark.slow
@given(
    gaps=st.lists(st.floats(1, 90 * DAY), max_size=40), age=st.floats(0, 400 * DAY), request_cost=st.floats(0.01, 1e6)
)
def test_a_check_is_always_within_its_bounds(gaps: list[float], age: float, request_cost: float) -> None:
    at, moments = 0.0, list[float]()
    for gap in gaps:
        at += gap
        moments.append(at)
    wait = wait_of(model_of(*moments), age=age, request_cost=request_cost, max_wait=2 * DAY)

    assert 60 - 1e-3 <= wait <= 2 * DAY + 1e-3


@pytest.mark.parametrize("choose", [next_check, next_fresh_check])
def test_the_estimate_of_a_poll_takes_less_than_three_tenths_of_a_millisecond(choose: Any) -> None:
    change_model = model_of(*(number * 3 * DAY + number % 3 * HOUR for number in range(60)))
    at = (change_model.last_at or START) + 2 * DAY

    def poll() -> None:
        learned = with_changes(change_model, [(at, at + 5 * HOUR)])
        ahead = outlook(learned, now=at + 5 * HOUR, since=START, prior_rate=PRIOR)
        choose(
            ahead, now=at + 5 * HOUR, request_cost=1e7, least=60, most=60 * DAY if choose is next_fresh_check else DAY
        )

    assert min(timeit.repeat(poll, timer=time.process_time, number=200, repeat=5)) / 200 < 0.3e-3


@given(st.lists(st.floats(600, 60 * DAY), max_size=30))
def test_a_stored_change_model_is_small_and_survives_serialization(gaps: list[float]) -> None:
    change_model = model_of(*(sum(gaps[: number + 1]) for number in range(len(gaps))))
    text = json.dumps(change_model.to_json())

    restored = change_model_from_json(json.loads(text))
    assert len(text) < 400
    assert restored.changes == pytest.approx(change_model.changes, abs=0.1)
    assert restored.last_at == pytest.approx(change_model.last_at, abs=1)


@pytest.mark.parametrize(
    "stored", [None, {}, {"last": 1, "gaps": [1], "days": [], "hours": []}, {"gaps": "1", "scores": ""}]
)
def test_a_missing_or_unknown_stored_model_is_an_empty_model(stored: dict[str, object] | None) -> None:
    assert change_model_from_json(stored) == ChangeModel()


AN_HOUR, A_DAY = timedelta(hours=1), timedelta(days=1)
MIDNIGHT = NOON.replace(hour=0)
POLLED_SOURCE = a_checked_source(synced_at=NOON - 9 * A_DAY, last_success_at=NOON - 4 * AN_HOUR)


def observed_changes(*published: datetime, **changes: Any) -> list[tuple[float, float]]:
    return changes_found(replace(POLLED_SOURCE, **changes), published=published, has_news=True, now=NOON)


def between(start: datetime, end: datetime) -> tuple[float, float]:
    return start.timestamp(), end.timestamp()


def test_a_poll_without_new_records_is_no_change() -> None:
    assert changes_found(POLLED_SOURCE, published=[NOON], has_news=False, now=NOON) == []


@pytest.mark.parametrize(
    ("published", "when"),
    [
        pytest.param((), between(NOON - 4 * AN_HOUR, NOON), id="no date"),
        pytest.param((NOON - AN_HOUR,), between(NOON - AN_HOUR, NOON - AN_HOUR), id="a date in between"),
        pytest.param((NOON - A_DAY,), between(NOON - 4 * AN_HOUR, NOON), id="an old record that appears late"),
        pytest.param((NOON + A_DAY,), between(NOON - 4 * AN_HOUR, NOON), id="in the future"),
        pytest.param((MIDNIGHT,), between(NOON - 4 * AN_HOUR, NOON), id="a date without time"),
    ],
)
def test_a_published_date_is_used_only_between_the_polls(
    published: tuple[datetime, ...], when: tuple[float, float]
) -> None:
    assert observed_changes(*published) == [when]


def test_a_first_sync_gives_a_history_by_its_dates() -> None:
    dates = [NOON - number * A_DAY - AN_HOUR for number in range(100)]

    history = observed_changes(*dates, synced_at=None, last_success_at=None)

    assert len(history) == REMEMBERED_DATES
    assert history == sorted(history)
    assert history[-1] == between(NOON - AN_HOUR, NOON - AN_HOUR)


def test_a_first_sync_without_dates_gives_no_change() -> None:
    assert observed_changes(synced_at=None, last_success_at=None) == []
