"""Tiers: when a source is checked next, backoff, the breaker and staleness."""

from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.sources.scheduling import tiers
from ingestion_pipeline.sources.scheduling.tiers import after_strike, after_success, is_stale, tier_for
from ingestion_pipeline.sources.source import Kind, Source, SourceStatus, Tier
from ingestion_pipeline_tests.builders import NOON, a_checked_source

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
