"""What the changes of a source say about the next: tables, properties, and the moment to look."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from math import sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.sources.scheduling.change_model import (
    DAY,
    HOUR,
    REMEMBERED_DATES,
    WEEK,
    ChangeModel,
    Outlook,
    change_model_from_json,
    changes_found,
    hour_of_week,
    outlook,
    with_changes,
)
from ingestion_pipeline.sources.scheduling.next_check import next_check
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.sources.test_tiers import a_source

START = NOON.timestamp()
PRIOR = 1 / WEEK
PRICE = 30.0


def model_of(*moments: float) -> ChangeModel:
    """Changes at these moments, each known to the second."""
    return with_changes(ChangeModel(), [(START + at, START + at) for at in moments])


def every(gap: float, times: int = 12) -> ChangeModel:
    return model_of(*(gap * number for number in range(times)))


def ahead_of(change_model: ChangeModel, *, age: float) -> Outlook:
    now = (change_model.last_at or START) + age
    return outlook(change_model, now=now, since=START, prior_rate=PRIOR)


def wait_of(change_model: ChangeModel, *, age: float, price: float = PRICE, most: float = 9 * DAY) -> float:
    now = (change_model.last_at or START) + age
    ahead = ahead_of(change_model, age=age)
    return next_check(ahead, now=now, request_cost=price, least=60, most=most).at - now


@pytest.mark.parametrize("gap", [DAY, 3 * DAY, WEEK, 30 * DAY], ids=["day", "3 d", "week", "month"])
def test_the_rate_is_found_from_the_changes(gap: float) -> None:
    assert ahead_of(every(gap, 20), age=0).rate == pytest.approx(1 / gap, rel=0.25)


def test_nobody_knows_a_new_source_and_the_prior_speaks() -> None:
    assert ahead_of(ChangeModel(), age=0).rate == pytest.approx(PRIOR)


def test_what_comes_together_is_one_change() -> None:
    change_model = model_of(0, 60, 120, WEEK, WEEK + 30)

    assert change_model.changes == 1


def test_a_change_between_two_polls_counts_for_every_hour_it_may_have_come_in() -> None:
    change_model = with_changes(ChangeModel(), [(START, START + 3 * HOUR - 1)])

    shares = [round(change_model.hours[hour], 2) for hour in (11, 12, 13, 14, 15)]
    assert shares == [0, 0.33, 0.33, 0.33, 0]
    assert sum(change_model.days) == pytest.approx(1)


def test_the_day_and_the_hour_show_after_some_weeks_and_not_before() -> None:
    week = every(WEEK).week
    assert week is not None
    assert week[hour_of_week(START)] == max(week)
    assert week[hour_of_week(START)] > 20
    assert model_of(0, WEEK).week is None or max(model_of(0, WEEK).week or ()) < max(week)


def test_a_source_without_rhythm_has_no_calendar() -> None:
    irregular = model_of(*(number * 61 * HOUR + number * number * 977 for number in range(30)))

    assert irregular.week is None


def test_the_longer_a_source_is_silent_the_less_is_expected() -> None:
    change_model = every(2 * DAY)
    waits = [wait_of(change_model, age=age * DAY, most=90 * DAY) for age in (8, 30, 120, 365)]

    assert waits == sorted(waits)
    assert waits[-1] > 3 * waits[0]


def test_a_release_that_is_late_is_looked_for_more_closely_than_on_average() -> None:
    change_model = every(WEEK)

    assert wait_of(change_model, age=WEEK + DAY) < wait_of(change_model, age=3 * DAY) / 2


def test_before_a_weekly_release_nobody_asks_and_at_its_hour_everybody_does() -> None:
    change_model = every(WEEK)

    assert wait_of(change_model, age=2.3 * DAY) > 3 * HOUR
    assert wait_of(change_model, age=WEEK - 600) < 20 * 60


@pytest.mark.parametrize("rate", [1 / HOUR, 1 / DAY, 1 / WEEK])
def test_at_a_constant_rate_the_wait_is_the_root_of_twice_the_price_by_the_rate(rate: float) -> None:
    ahead = Outlook(last_at=0.0, per_bin=(rate,) * 19, rate=rate, week=None, quiet_from=0)

    check = next_check(ahead, now=HOUR, request_cost=PRICE, least=1, most=WEEK)

    assert check.at - HOUR == pytest.approx(sqrt(2 * PRICE / rate))
    assert check.spacing == pytest.approx(check.at - HOUR)


@given(gaps=st.lists(st.floats(1, 90 * DAY), max_size=40), age=st.floats(0, 400 * DAY), price=st.floats(0.01, 1e6))
def test_a_check_is_always_within_its_bounds(gaps: list[float], age: float, price: float) -> None:
    at, moments = 0.0, list[float]()
    for gap in gaps:
        at += gap
        moments.append(at)
    wait = wait_of(model_of(*moments), age=age, price=price, most=2 * DAY)

    assert 60 - 1e-3 <= wait <= 2 * DAY + 1e-3


@given(st.lists(st.floats(600, 60 * DAY), max_size=30))
def test_what_is_kept_is_small_and_is_read_as_it_was(gaps: list[float]) -> None:
    change_model = model_of(*(sum(gaps[: number + 1]) for number in range(len(gaps))))
    text = json.dumps(change_model.to_json())

    again = change_model_from_json(json.loads(text))
    assert len(text) < 450
    assert again.changes == pytest.approx(change_model.changes, abs=0.1)
    assert again.last_at == pytest.approx(change_model.last_at, abs=1)


@pytest.mark.parametrize("stored", [None, {}, {"last": 1, "gaps": [1], "days": [], "hours": []}])
def test_what_was_never_kept_or_is_of_another_make_is_nothing(stored: dict[str, object] | None) -> None:
    assert change_model_from_json(stored) == ChangeModel()


AN_HOUR, A_DAY = timedelta(hours=1), timedelta(days=1)
MIDNIGHT = NOON.replace(hour=0)
POLLED = a_source(synced_at=NOON - 9 * A_DAY, last_success_at=NOON - 4 * AN_HOUR)


def observed_changes(*published: datetime, **changes: Any) -> list[tuple[float, float]]:
    return changes_found(replace(POLLED, **changes), published=published, has_news=True, now=NOON)


def between(start: datetime, end: datetime) -> tuple[float, float]:
    return start.timestamp(), end.timestamp()


def test_without_news_there_is_no_change() -> None:
    assert changes_found(POLLED, published=[NOON], has_news=False, now=NOON) == []


@pytest.mark.parametrize(
    ("published", "when"),
    [
        pytest.param((), between(NOON - 4 * AN_HOUR, NOON), id="no date"),
        pytest.param((NOON - AN_HOUR,), between(NOON - AN_HOUR, NOON - AN_HOUR), id="a date in between"),
        pytest.param((NOON - A_DAY,), between(NOON - 4 * AN_HOUR, NOON), id="an old record, come late"),
        pytest.param((NOON + A_DAY,), between(NOON - 4 * AN_HOUR, NOON), id="still to come"),
        pytest.param((MIDNIGHT,), between(NOON - 4 * AN_HOUR, NOON), id="a date without time"),
    ],
)
def test_a_date_is_believed_between_the_polls(published: tuple[datetime, ...], when: tuple[float, float]) -> None:
    assert observed_changes(*published) == [when]


def test_a_first_sync_is_a_history_by_its_own_dates() -> None:
    dates = [NOON - number * A_DAY - AN_HOUR for number in range(100)]

    history = observed_changes(*dates, synced_at=None, last_success_at=None)

    assert len(history) == REMEMBERED_DATES
    assert history == sorted(history)
    assert history[-1] == between(NOON - AN_HOUR, NOON - AN_HOUR)


def test_a_first_sync_without_dates_says_nothing() -> None:
    assert observed_changes(synced_at=None, last_success_at=None) == []
