"""Alerts: health, freshness budgets, model budgets, failed runs and daemon outages, each notified once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, exists, func, select

from ingestion_pipeline.notices.message import BUDGET, DAEMON_DOWN, RUN_FAILURES, write_notice, write_notices
from ingestion_pipeline.operations.freshness import (
    Attainment,
    add_measurement,
    attainments,
    day_of,
    delete_old_days,
    last_measurements,
    lateness,
)
from ingestion_pipeline.operations.source_health import SourceFacts, source_statuses, sources_to_review
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.declarations import duration_text
from ingestion_pipeline.sources.source import FRESHNESS_BUDGET, QUARANTINED
from ingestion_pipeline.sources.status import Alert, HealthState, next_state
from ingestion_pipeline.store.statements import columns_of, insert_into, insert_rows
from ingestion_pipeline.store.tables import ACTIVE, audit_log, model_spending, service_heartbeats, source_health, tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """A source whose health state changes now, and the alert for it, if any."""

    status: SourceFacts
    state: HealthState
    alert: Alert | None

    @property
    def name(self) -> str:
        """Return a unique name of the change: the source and the number of the change."""
        return f"{self.status.facts.id}#{self.status.reported.changes + 1}"


def record_health_changes(connection: Connection, settings: Settings, now: datetime) -> int:
    """Store health changes, write their notices, and return how many sources changed."""
    changes = [
        change
        for status in sources_to_review(connection, settings, now=now)
        if (change := change_of(status)) is not None
    ]
    written = write_changes(connection, changes, now=now)
    _notify(connection, [change for change in changes if change.status.facts.id in written], now=now)
    return len(written)


def change_of(status: SourceFacts) -> HealthChange | None:
    """Return the change of the state, if any."""
    state, alert = next_state(status.reported.state, status.health)
    if state is status.reported.state:
        return None
    return HealthChange(status=status, state=state, alert=alert)


_COLUMNS = columns_of(source_health, ("source_id", "state", "since", "reason", "changes", "success_before"))


def write_changes(connection: Connection, changes: Sequence[HealthChange], *, now: datetime) -> set[str]:
    """Write the changes; return the sources written by us, not by a concurrent caller.

    A second caller finds another count of changes, and writes nothing.
    """
    if not changes:
        return set()
    rows = [
        (
            change.status.facts.id,
            change.state.value,
            now,
            change.status.assessment.reason,
            change.status.reported.changes + 1,
            change.status.facts.last_success_at,
        )
        for change in sorted(changes, key=lambda change: change.status.facts.id)
    ]
    insert = insert_rows(connection, source_health, _COLUMNS, rows, order=["source_id"])
    new = insert.excluded
    statement = insert.on_conflict_do_update(
        index_elements=["source_id"],
        set_={name: new[name] for name in _COLUMNS if name != "source_id"},
        where=source_health.c.changes == new.changes - 1,
    ).returning(source_health.c.source_id)
    return set(connection.execute(statement).scalars())


def _notify(connection: Connection, changes: Sequence[HealthChange], *, now: datetime) -> None:
    by_alert: dict[Alert, dict[str, dict[str, Any]]] = {}
    for change in changes:
        if change.alert is not None:
            by_alert.setdefault(change.alert, {})[change.name] = _payload(change, change.alert)
    for alert, payloads in by_alert.items():
        write_notices(connection, alert.value, payloads, now=now)


_TITLES = {
    Alert.DEGRADED: "{id} is degraded",
    Alert.RECOVERED: "{id} has recovered",
    Alert.OPENED: "{id} is paused: its circuit breaker is open",
    Alert.DISABLED: "{id} is disabled until it is enabled by hand",
}


def _payload(change: HealthChange, alert: Alert) -> dict[str, Any]:
    facts = change.status.facts
    return {
        "source_id": facts.id,
        "title": _TITLES[alert].format(id=facts.id),
        "text": change.status.assessment.reason,
        "health": change.status.health.value,
        "before": change.status.reported.state.value,
        "failures": facts.failure_count,
        "error_class": facts.error_class,
    }


def measure_freshness(connection: Connection, settings: Settings, now: datetime) -> int:
    """Add the time since the last measurement, notify each source whose budget is gone; return how many there are."""
    before = {attained.source_id: attained for attained in attainments(connection, settings, now=now)}
    measured_until = last_measurements(connection, list(before))
    statuses = source_statuses(connection, settings, now=now, ids=list(before))
    for status in statuses:
        attained = before[status.facts.id]
        last, fresh_at = measured_until.get(attained.source_id, (now, status.facts.created_at))
        success = _shown_at(status, fresh_at)
        measured, late = lateness(attained.max_delay, since=last, fresh_at=fresh_at, success=success, now=now)
        is_spent = attained.late_seconds + late >= attained.budget_seconds
        add_measurement(
            connection,
            {
                "source_id": attained.source_id,
                "day": day_of(now),
                "measured_seconds": measured,
                "late_seconds": late,
                "measured_until": now,
                "fresh_at": success,
                "is_spent": is_spent,
            },
        )
        if is_spent and not attained.is_spent:
            _notify_spent(connection, attained, late, now=now)
    delete_old_days(connection, now=now)
    return len(statuses)


def _shown_at(status: SourceFacts, fresh_at: datetime) -> datetime:
    """Return when it last succeeded; a success whose data is held back does not count."""
    facts = status.facts
    is_quarantined = (facts.last_outcome or "").startswith(QUARANTINED)
    if facts.last_success_at is None or facts.held_back is not None or is_quarantined:
        return fresh_at
    return max(facts.last_success_at, fresh_at)


def _notify_spent(connection: Connection, attained: Attainment, late: float, *, now: datetime) -> None:
    hours, allowed = (attained.late_seconds + late) / 3600, attained.budget_seconds / 3600
    payload = {
        "source_id": attained.source_id,
        "title": f"{attained.source_id} has used up its freshness budget",
        "text": f"it was not checked within {duration_text(attained.max_delay)} for {hours:.1f} hours of 30 days;"
        f" {allowed:.1f} are allowed; `ingest sources show {attained.source_id}` shows why",
        "max_delay_seconds": int(attained.max_delay.total_seconds()),
        "late_seconds": round(attained.late_seconds + late),
    }
    write_notice(connection, FRESHNESS_BUDGET, f"{attained.source_id}#{now:%Y-%m-%dT%H:%M}", payload, now=now)


DAEMON = "daemon"
SHARES = (80, 100)  # percent of a budget that are notified
RUN_FAILED = "run.failed"
USED_UP = "model_budget"  # error code of tasks that wait for the next period


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The month's model budget and what was spent; it may be used up a little below the limit."""

    month: str
    limit_usd: Decimal | None
    held_usd: Decimal
    is_used_up: bool = False

    @property
    def percent(self) -> float | None:
        """Return how much of it is spent; None without a limit."""
        if self.limit_usd is None:
            return None
        return float(100 * self.held_usd / self.limit_usd) if self.limit_usd else 100.0


def month_budget(connection: Connection, settings: Settings, *, now: datetime) -> Budget:
    """Return the current state of the month's budget."""
    month = f"{now.astimezone(UTC):%Y-%m}"
    query = select(model_spending.c.held_usd).where(model_spending.c.scope == f"month:{month}")
    waits = exists().where(ACTIVE, tasks.c.error_code == USED_UP, tasks.c.error.contains("budget for this month"))
    return Budget(
        month=month,
        limit_usd=settings.month_budget,
        held_usd=connection.execute(query).scalar() or Decimal(0),
        is_used_up=settings.month_budget is not None and bool(connection.execute(select(waits)).scalar()),
    )


def reached_shares(budget: Budget) -> Iterator[int]:
    """Yield the shares that it has reached: a call that no longer fits counts as the whole."""
    percent = budget.percent
    if percent is None or not budget.limit_usd:  # a budget of zero is not notified
        return
    yield from (share for share in SHARES if budget.is_used_up or percent >= share)


def notify_budget(connection: Connection, settings: Settings, now: datetime) -> int:
    """Write a notice for each newly reached share of the budget; return how many."""
    budget = month_budget(connection, settings, now=now)
    notified = 0
    for share in reached_shares(budget):
        payload = {
            "title": f"{share} % of the month's budget for models is used",
            "text": f"{budget.held_usd:f} of {budget.limit_usd:f} dollars in {budget.month}"
            + ("; what needs a model waits for the next month" if share == SHARES[-1] else ""),
            "month": budget.month,
            "percent": share,
        }
        notified += write_notice(connection, BUDGET, f"month:{budget.month}:{share}", payload, now=now)
    return notified


def notify_run_failure(connection: Connection, job: str, *, run_id: str, now: datetime) -> bool:
    """Write a notice for the first failed run of a job in an hour, with the previous count."""
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    detail = audit_log.c.detail["job"].as_string()
    query = (
        select(func.count())
        .select_from(audit_log)
        .where(
            audit_log.c.action == RUN_FAILED,
            audit_log.c.at >= hour - timedelta(hours=1),
            audit_log.c.at < hour,
            detail == job,
        )
    )
    before = connection.execute(query).scalar_one()
    earlier = f"; {before} failed in the hour before" if before else ""
    payload = {
        "title": f"a run of {job} failed",
        "text": f"run {run_id}{earlier}; more of this hour are in the audit log and in Dagster",
        "job": job,
        "run_id": run_id,
    }
    subject = f"{job}:{hour:%Y-%m-%dT%H}"
    return write_notice(connection, RUN_FAILURES, subject, payload, now=now)


def last_heartbeat(connection: Connection) -> datetime | None:
    """Return the time of the daemon's last heartbeat; None if there is none."""
    query = select(service_heartbeats.c.at).where(service_heartbeats.c.name == DAEMON)
    return connection.execute(query).scalar_one_or_none()


def record_heartbeat(connection: Connection, settings: Settings, *, now: datetime) -> bool:
    """Record the daemon's heartbeat; notify and return True if it had been silent."""
    before = last_heartbeat(connection)
    statement = insert_into(connection, service_heartbeats).values(name=DAEMON, at=now)
    newer = statement.excluded.at
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["name"], set_={"at": newer}, where=service_heartbeats.c.at < newer
        )
    )
    if before is None or not is_heartbeat_overdue(before, settings, now=now):
        return False
    payload = {
        "title": f"the daemon was silent for {_span(now - before)}",
        "text": f"no tick from {before:%Y-%m-%d %H:%M:%S} to {now:%Y-%m-%d %H:%M:%S} UTC:"
        " no polling, delivery or maintenance meanwhile",
        "silent_from": before.isoformat(),
        "silent_until": now.isoformat(),
    }
    return write_notice(connection, DAEMON_DOWN, before.isoformat(), payload, now=now)


def is_heartbeat_overdue(last_tick: datetime | None, settings: Settings, *, now: datetime) -> bool:
    """Return whether a heartbeat is overdue; a daemon that never ticked is not."""
    limit = timedelta(seconds=settings.health.daemon_silent_seconds)
    return last_tick is not None and now - last_tick > limit


def _span(length: timedelta) -> str:
    minutes = int(length.total_seconds() // 60)
    return f"{minutes // 60} h {minutes % 60:02} min"
