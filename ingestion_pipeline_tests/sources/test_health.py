"""The health of a source in each case, and which changes of it are alerted."""

from datetime import timedelta
from typing import Any

import pytest

from ingestion_pipeline.settings.groups import HealthLimits as Limits
from ingestion_pipeline.sources import Kind, SourceStatus, Tier
from ingestion_pipeline.sources.status import (
    NEVER_REPORTED,
    Alert,
    Facts,
    Health,
    HealthState,
    HealthStatus,
    ReportedHealth,
    health_of,
    next_state,
)
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline_tests.builders import NOON

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
DISABLED, OPEN = SourceStatus.DISABLED, SourceStatus.OPEN
PENDING, PROCESSING = TaskStatus.PENDING, TaskStatus.PROCESSING
LIMITS = Limits()


def facts(**changes: Any) -> Facts:
    values: dict[str, Any] = {
        "id": "series:solo",
        "kind": Kind.SERIES,
        "tier": Tier.WARM,
        "status": SourceStatus.ACTIVE,
        "status_reason": None,
        "failure_count": 0,
        "error_class": None,
        "last_outcome": "unchanged",
        "last_success_at": NOON - HOUR,
        "created_at": NOON - 9 * DAY,
        "interval": 4 * HOUR,
        "patience": 12 * HOUR,
        "poll": PENDING,
        "due_at": NOON + HOUR,
        "lease_until": None,
        "held_by": None,
    }
    return Facts(**(values | changes))


def health_status(reported: ReportedHealth = NEVER_REPORTED, **changes: Any) -> HealthStatus:
    return health_of(facts(**changes), reported=reported, now=NOON, limits=LIMITS)


BLOCKED = "disabled, behind a bot wall: ...; `ingest sources enable` ends it"
LONG_AGO = {"last_success_at": NOON - DAY}


@pytest.mark.parametrize(
    ("changes", "health", "reason"),
    [
        ({}, Health.HEALTHY, "succeeded"),
        ({"last_success_at": None}, Health.WAITING, "not read yet"),
        ({"status": SourceStatus.PENDING_VALIDATION}, Health.WAITING, "approval"),
        ({"status": OPEN, "failure_count": 5}, Health.OPEN, "breaker open: 5 failed polls"),
        ({"status": DISABLED, "status_reason": BLOCKED}, Health.DISABLED, "bot wall"),
        ({"status": DISABLED, "status_reason": "disabled after 5 f"}, Health.DISABLED, "after 5"),
        ({"status": DISABLED, "status_reason": "cli:ann: noisy"}, Health.OFF, "noisy"),
        ({"status": DISABLED, "status_reason": "disabled by its declaration"}, Health.OFF, "decl"),
        ({"status": DISABLED}, Health.OFF, "no reason given"),
        ({"failure_count": 1, "error_class": "transient"}, Health.UNSTEADY, "1 failed poll, last"),
        ({"failure_count": 2, "error_class": "transient"}, Health.DEGRADED, "2 failed polls in"),
        ({"failure_count": 1, "error_class": "permanent"}, Health.DEGRADED, "1 failed poll"),
        (
            {"failure_count": 3, "last_success_at": None, "last_outcome": None},
            Health.DEGRADED,
            "3 failed polls in a row, never a success; no outcome",
        ),
        ({"last_outcome": "quarantined: it is empty"}, Health.DEGRADED, "quarantined: it is empty"),
        ({"due_at": NOON - 2 * HOUR}, Health.HEALTHY, "succeeded"),
        ({"due_at": NOON - 3 * HOUR}, Health.LATE, "due for 3 h 0 min and not polled"),
        ({"interval": HOUR, "due_at": NOON - 1.5 * HOUR}, Health.LATE, "1 h 30 min"),
        ({"poll": PROCESSING, "lease_until": NOON + HOUR}, Health.HEALTHY, "succeeded"),
        ({"poll": PROCESSING, "lease_until": NOON - 3 * HOUR}, Health.LATE, "not polled"),
        ({"poll": None}, Health.LATE, "not polled"),
        ({"held_by": "rate_limited"}, Health.HEALTHY, "succeeded"),
        (LONG_AGO | {"held_by": "rate_limited"}, Health.DEGRADED, "its server (rate_limited)"),
        (LONG_AGO | {"held_by": "robots_unavailable"}, Health.DEGRADED, "robots_unavailable"),
        (LONG_AGO | {"held_by": "host_busy"}, Health.HEALTHY, "succeeded"),
        (
            LONG_AGO | {"held_by": "rate_limited", "due_at": NOON - 5 * HOUR},
            Health.LATE,
            "due for 5 h 0 min and not polled (rate_limited)",
        ),
    ],
)
def test_every_case_has_its_health_and_reason(changes: dict[str, Any], health: Health, reason: str) -> None:
    status = health_status(**changes)

    assert status.health is health
    assert reason in status.reason


def test_a_source_is_healthy_again_only_after_a_newer_success() -> None:
    reported = ReportedHealth(state=HealthState.DISABLED, since=NOON - HOUR, changes=1, success_before=NOON - DAY)

    assert health_status(reported, last_success_at=NOON - DAY).health is Health.WAITING
    assert health_status(reported, last_success_at=NOON - DAY + HOUR).health is Health.HEALTHY


def test_a_source_that_just_recovered_is_tolerated_longer() -> None:
    reported = ReportedHealth(state=HealthState.WELL, since=NOON - HOUR, changes=2)
    failing = {"error_class": "permanent"}

    healths = [health_status(reported, failure_count=count, **failing).health for count in (1, 3, 4)]
    later = health_status(
        ReportedHealth(state=HealthState.WELL, since=NOON - DAY, changes=2), failure_count=1, **failing
    )

    assert healths == [Health.UNSTEADY, Health.UNSTEADY, Health.DEGRADED]
    assert later.health is Health.DEGRADED


@pytest.mark.parametrize(
    ("state", "health", "next_health_state", "alert"),
    [
        (HealthState.WELL, Health.HEALTHY, HealthState.WELL, None),
        (HealthState.WELL, Health.LATE, HealthState.WELL, None),
        (HealthState.WELL, Health.UNSTEADY, HealthState.WELL, None),
        (HealthState.WELL, Health.WAITING, HealthState.WELL, None),
        (HealthState.WELL, Health.DEGRADED, HealthState.DEGRADED, Alert.DEGRADED),
        (HealthState.DEGRADED, Health.DEGRADED, HealthState.DEGRADED, None),
        (HealthState.DEGRADED, Health.LATE, HealthState.DEGRADED, None),
        (HealthState.DEGRADED, Health.OPEN, HealthState.OPEN, Alert.OPENED),
        (HealthState.OPEN, Health.OPEN, HealthState.OPEN, None),
        (HealthState.OPEN, Health.HEALTHY, HealthState.WELL, Alert.RECOVERED),
        (HealthState.OPEN, Health.WAITING, HealthState.UNDECIDED, None),
        (HealthState.UNDECIDED, Health.WAITING, HealthState.UNDECIDED, None),
        (HealthState.UNDECIDED, Health.UNSTEADY, HealthState.UNDECIDED, None),
        (HealthState.UNDECIDED, Health.HEALTHY, HealthState.WELL, Alert.RECOVERED),
        (HealthState.UNDECIDED, Health.DISABLED, HealthState.DISABLED, Alert.DISABLED),
        (HealthState.DISABLED, Health.DISABLED, HealthState.DISABLED, None),
        (HealthState.DEGRADED, Health.OFF, HealthState.WELL, None),
    ],
)
def test_changes_are_alerted_and_states_are_not(
    state: HealthState, health: Health, next_health_state: HealthState, alert: Alert | None
) -> None:
    assert next_state(state, health) == (next_health_state, alert)


def test_a_flapping_source_is_alerted_once() -> None:
    reported, alerts = NEVER_REPORTED, []
    for hour in range(24):  # fails permanently every other time
        now = NOON + hour * HOUR
        failures = (hour + 1) % 2
        success = now - HOUR * failures
        observed = facts(failure_count=failures, error_class="permanent", last_success_at=success)
        health = health_of(observed, reported=reported, now=now, limits=LIMITS).health
        state, alert = next_state(reported.state, health)
        if state is not reported.state:
            reported = ReportedHealth(state=state, since=now, changes=reported.changes + 1, success_before=success)
        alerts += [alert] if alert else []

    assert alerts == [Alert.DEGRADED, Alert.RECOVERED]
