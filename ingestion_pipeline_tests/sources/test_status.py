"""The status of sources and polls with its reason; the health in each case, and which changes of it are alerted."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import update

from ingestion_pipeline.settings.groups import HealthLimits as Limits
from ingestion_pipeline.sources import Kind, Source, SourceStatus, Tier
from ingestion_pipeline.sources.poll_tasks import make_due
from ingestion_pipeline.sources.registry import BY_FILE, REMOVED, disable, register
from ingestion_pipeline.sources.status import (
    NEVER_REPORTED,
    Alert,
    Facts,
    Health,
    HealthState,
    HealthStatus,
    ReportedHealth,
    TaskState,
    Watched,
    health_of,
    next_state,
    reason,
    totals,
    watched_source,
    watched_sources,
)
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import sources, tasks
from ingestion_pipeline.tasks.claims import ClaimFilter, claim
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline_tests.builders import NOON, a_definition, a_source

pytestmark = pytest.mark.both_databases

LATER = NOON + timedelta(minutes=15)
EARLIER = NOON - timedelta(minutes=15)


def a_poll(**changes: Any) -> TaskState:
    values: dict[str, Any] = dict.fromkeys(TaskState.__dataclass_fields__) | {
        "status": TaskStatus.PENDING,
        "attempts": 0,
        "not_before": LATER,
        "updated_at": NOON,
    }
    return TaskState(**(values | changes))


def reason_of(source: Source, poll: TaskState | None) -> str:
    return reason(source, poll, now=NOON, max_attempts=3)


REASONS = yaml.safe_load((Path(__file__).parent / "expected" / "status_reasons.yaml").read_text())


@pytest.mark.parametrize("name", REASONS)
def test_every_status_has_a_reason(name: str) -> None:
    source: dict[str, Any] = {"status": SourceStatus.ACTIVE} | REASONS[name].get("source", {})
    poll: dict[str, Any] = {"status": TaskStatus.PENDING} | REASONS[name].get("poll", {})
    statuses = SourceStatus(source.pop("status")), TaskStatus(poll.pop("status"))

    reason = reason_of(a_source(**source, status=statuses[0]), a_poll(**poll, status=statuses[1]))

    assert reason == REASONS[name]["reason"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("cli:ann: too noisy", "disabled by cli:ann: too noisy"),
        (BY_FILE, "disabled by its declaration in a.yaml"),
        (REMOVED, REMOVED),
        ("disabled after 5 failed polls", "disabled after 5 failed polls"),
        (None, "disabled, no reason given"),
    ],
)
def test_a_disabled_source_says_who_disabled_it(message: str | None, expected: str) -> None:
    source = a_source(status=SourceStatus.DISABLED, status_reason=message, origin="a.yaml")

    assert reason_of(source, a_poll(status=TaskStatus.SKIPPED)) == expected


def test_a_source_without_a_poll_task_says_how_to_get_one() -> None:
    assert "`ingest sources enable series:solo` makes one" in reason_of(a_source(), None)


def test_the_next_check_is_the_retry_while_one_waits() -> None:
    source = a_source(next_check_at=EARLIER)

    assert Watched(source=source, poll=a_poll()).next_check_at == LATER
    assert Watched(source=source, poll=None).next_check_at == EARLIER


def test_a_disabled_source_has_no_next_check() -> None:
    source = a_source(status=SourceStatus.DISABLED, next_check_at=LATER)

    assert Watched(source=source, poll=a_poll()).next_check_at is None


def test_every_source_is_found_with_its_poll(store: Store, now: datetime) -> None:
    _register(store, "series:a", "series:b", now=now)

    with store.read() as connection:
        watched = watched_sources(connection)
        second = watched_source(connection, "series:b")
        unknown = watched_source(connection, "series:c")

    assert [entry.source.id for entry in watched] == ["series:a", "series:b"]
    assert all(entry.poll and entry.poll.status is TaskStatus.PENDING for entry in watched)
    assert second == watched[1]
    assert unknown is None


def test_totals_count_what_is_due_running_abandoned_and_retried(store: Store, now: datetime) -> None:
    _register(store, "series:a", "series:b", "series:c", "series:d", "series:e", now=now)
    lease = timedelta(minutes=1)
    with store.begin() as connection:
        for source_id, started_at in (("series:b", now), ("series:c", now - 2 * lease)):
            claim_filter = ClaimFilter(kind="poll", source_ids=[source_id])
            claim(connection, claim_filter, owner="w", now=started_at, lease=lease, limit=1)
        retry = {"attempts": 1, "not_before": now + lease}
        connection.execute(update(tasks).where(tasks.c.source_id == "series:d").values(retry))
        disable(connection, "series:e", actor="me", reason="rest", now=now)

    with store.read() as connection:
        counted = totals(connection, now=now)

    assert counted.sources == {"active": 4, "disabled": 1}
    assert (counted.due, counted.in_progress, counted.abandoned, counted.retrying) == (1, 1, 1, 1)
    assert (counted.dead_letters, counted.outbox) == (0, 0)


def test_a_source_that_is_made_due_is_polled_by_the_next_run(store: Store, now: datetime) -> None:
    _register(store, "series:a", "series:b", now=now)
    tomorrow = now + timedelta(days=1)
    with store.begin() as connection:
        connection.execute(update(tasks).values(not_before=tomorrow))
        connection.execute(update(sources).values(next_check_at=tomorrow))

        assert make_due(connection, ["series:a"], now=now) == 1

    with store.read() as connection:
        due, other = watched_sources(connection)
    assert (due.next_check_at, due.source.next_check_at) == (now, now)
    assert (other.next_check_at, other.source.next_check_at) == (tomorrow, tomorrow)


def test_neither_a_running_nor_a_disabled_source_is_made_due(store: Store, now: datetime) -> None:
    _register(store, "series:a", "series:b", now=now)
    lease = timedelta(minutes=1)
    with store.begin() as connection:
        claim_filter = ClaimFilter(kind="poll", source_ids=["series:a"])
        claim(connection, claim_filter, owner="w", now=now, lease=lease, limit=1)
        disable(connection, "series:b", actor="me", reason="rest", now=now)

        assert make_due(connection, ["series:a", "series:b"], now=now + lease) == 0

        running, disabled = watched_sources(connection)
    assert running.poll is not None
    assert running.poll.status is TaskStatus.PROCESSING
    assert disabled.poll is not None
    assert disabled.poll.status is TaskStatus.SKIPPED


def _register(store: Store, *ids: str, now: datetime) -> None:
    with store.begin() as connection:
        register(connection, [a_definition(id=source_id) for source_id in ids], now=now)


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


HEALTH = yaml.safe_load((Path(__file__).parent / "expected" / "health.yaml").read_text())


@pytest.mark.parametrize(("health", "changes", "reason"), HEALTH["health"])
def test_every_case_has_its_health_and_reason(health: str, changes: dict[str, Any], reason: str) -> None:
    types = {"status": SourceStatus, "poll": TaskStatus, "interval": lambda hours: hours * HOUR}
    typed = {name: types[name](value) if value and name in types else value for name, value in changes.items()}

    status = health_status(**typed)

    assert status.health is Health(health)
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


@pytest.mark.parametrize(("state", "health", "next_health_state", "alert"), HEALTH["alerts"])
def test_changes_are_alerted_and_states_are_not(
    state: str, health: str, next_health_state: str, alert: str | None
) -> None:
    expected = (HealthState(next_health_state), Alert(alert) if alert else None)

    assert next_state(HealthState(state), Health(health)) == expected


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
