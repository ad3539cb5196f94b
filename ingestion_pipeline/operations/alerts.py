"""State changes are told, states are not: each in one transaction with its outbox row, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, Integer, String, Text, exists, func, select, true

from ingestion_pipeline.notices.message import (
    BUDGET,
    DAEMON_SILENT,
    RUN_FAILURES,
    write_notice,
    write_notices,
)
from ingestion_pipeline.operations.health import SourceFacts, notable
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.health import Alert, HealthState, next_state
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import (
    ACTIVE,
    audit_log,
    model_spending,
    pulses,
    source_health,
    tasks,
)
from ingestion_pipeline.store.types import UtcDateTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A source whose state is another one from now on, and what is told of it, if anything."""

    standing: SourceFacts
    state: HealthState
    alert: Alert | None

    @property
    def name(self) -> str:
        """What no other change is called, whoever sees it: the source and its how manieth."""
        return f"{self.standing.facts.id}#{self.standing.told.changes + 1}"


def note_health(connection: Connection, settings: Settings, now: datetime) -> int:
    """What changed since the last look is stored and told; how many sources that was."""
    changes = [
        change
        for one in notable(connection, settings, now=now)
        if (change := change_of(one)) is not None
    ]
    written = write_changes(connection, changes, now=now)
    _tell(connection, [one for one in changes if one.standing.facts.id in written], now=now)
    return len(written)


def change_of(one: SourceFacts) -> Change | None:
    """What becomes of the state, if anything."""
    state, alert = next_state(one.told.state, one.health)
    if state is one.told.state:
        return None
    return Change(standing=one, state=state, alert=alert)


_GIVEN = {
    "source_id": String(120),
    "state": String(12),
    "since": UtcDateTime(),
    "reason": Text(),
    "changes": Integer(),
    "success_before": UtcDateTime(),
}


def write_changes(connection: Connection, changes: Sequence[Change], *, now: datetime) -> set[str]:
    """Those that are ours: who comes second finds another count of changes, and writes nothing."""
    if not changes:
        return set()
    rows = [
        (
            one.standing.facts.id,
            one.state.value,
            now,
            one.standing.verdict.reason,
            one.standing.told.changes + 1,
            one.standing.facts.last_success_at,
        )
        for one in sorted(changes, key=lambda one: one.standing.facts.id)
    ]
    given = row_source(connection, _GIVEN, rows, "given")
    # SQLite takes an ON of the conflict for one of a join, unless a condition stands before it.
    insert = insert_into(connection, source_health).from_select(
        list(_GIVEN), select(*given.c).where(true()).order_by(given.c.source_id)
    )
    new = insert.excluded
    statement = insert.on_conflict_do_update(
        index_elements=["source_id"],
        set_={name: new[name] for name in _GIVEN if name != "source_id"},
        where=source_health.c.changes == new.changes - 1,
    ).returning(source_health.c.source_id)
    return set(connection.execute(statement).scalars())


def _tell(connection: Connection, changes: Sequence[Change], *, now: datetime) -> None:
    by_alert: dict[Alert, dict[str, dict[str, Any]]] = {}
    for one in changes:
        if one.alert is not None:
            by_alert.setdefault(one.alert, {})[one.name] = _payload(one, one.alert)
    for alert, payloads in by_alert.items():
        write_notices(connection, alert.value, payloads, now=now)


_TITLES = {
    Alert.DEGRADED: "{id} is degraded",
    Alert.RECOVERED: "{id} has recovered",
    Alert.OPENED: "{id} is left alone: its breaker is open",
    Alert.DISABLED: "{id} is disabled until somebody enables it",
}


def _payload(one: Change, alert: Alert) -> dict[str, Any]:
    facts = one.standing.facts
    return {
        "source_id": facts.id,
        "title": _TITLES[alert].format(id=facts.id),
        "text": one.standing.verdict.reason,
        "health": one.standing.health.value,
        "before": one.standing.told.state.value,
        "failures": facts.failure_count,
        "error_class": facts.error_class,
    }


DAEMON = "daemon"
SHARES = (80, 100)  # percent of a budget that are told
RUN_FAILED = "run.failed"
USED_UP = "model_budget"  # the code of what waits for the next period


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What models may cost in this month, and what they have; `is_used_up` even a little below."""

    month: str
    limit_usd: Decimal | None
    held_usd: Decimal
    is_used_up: bool = False

    @property
    def percent(self) -> float | None:
        """How much of it is gone; None without a limit."""
        if self.limit_usd is None:
            return None
        return float(100 * self.held_usd / self.limit_usd) if self.limit_usd else 100.0


def month_budget(connection: Connection, settings: Settings, *, now: datetime) -> Budget:
    """The month's budget as it stands."""
    month = f"{now.astimezone(UTC):%Y-%m}"
    query = select(model_spending.c.held_usd).where(model_spending.c.scope == f"month:{month}")
    waits = exists().where(
        ACTIVE, tasks.c.error_code == USED_UP, tasks.c.error.contains("budget for this month")
    )
    return Budget(
        month=month,
        limit_usd=settings.month_budget,
        held_usd=connection.execute(query).scalar() or Decimal(0),
        is_used_up=settings.month_budget is not None
        and bool(connection.execute(select(waits)).scalar()),
    )


def reached(budget: Budget) -> Iterator[int]:
    """The shares that it has reached: a call that no longer fits counts as the whole."""
    percent = budget.percent
    if percent is None or not budget.limit_usd:  # a budget of nothing is no news
        return
    yield from (share for share in SHARES if budget.is_used_up or percent >= share)


def note_budget(connection: Connection, settings: Settings, now: datetime) -> int:
    """Each share of the month's budget is told when it is reached; how many were."""
    budget = month_budget(connection, settings, now=now)
    told = 0
    for share in reached(budget):
        payload = {
            "title": f"{share} % of the month's budget for models is used",
            "text": f"{budget.held_usd:f} of {budget.limit_usd:f} dollars in {budget.month}"
            + ("; what needs a model waits for the next month" if share == SHARES[-1] else ""),
            "month": budget.month,
            "percent": share,
        }
        told += write_notice(connection, BUDGET, f"month:{budget.month}:{share}", payload, now=now)
    return told


def note_run_failure(connection: Connection, job: str, *, run_id: str, now: datetime) -> bool:
    """The first failed run of a job in an hour is told, with how many there were in the last."""
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


def last_pulse(connection: Connection, *, name: str = DAEMON) -> datetime | None:
    """When it last gave a sign of life; None if it never did."""
    query = select(pulses.c.at).where(pulses.c.name == name)
    return connection.execute(query).scalar_one_or_none()


def beat(connection: Connection, settings: Settings, *, now: datetime) -> bool:
    """The daemon is alive now; whether it had been silent, which is told."""
    before = last_pulse(connection)
    statement = insert_into(connection, pulses).values(name=DAEMON, at=now)
    newer = statement.excluded.at
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["name"], set_={"at": newer}, where=pulses.c.at < newer
        )
    )
    if before is None or not is_missing(before, settings, now=now):
        return False
    payload = {
        "title": f"the daemon was silent for {_span(now - before)}",
        "text": f"no tick from {before:%Y-%m-%d %H:%M:%S} to {now:%Y-%m-%d %H:%M:%S} UTC:"
        " nothing was polled, delivered or kept meanwhile",
        "silent_from": before.isoformat(),
        "silent_until": now.isoformat(),
    }
    return write_notice(connection, DAEMON_SILENT, before.isoformat(), payload, now=now)


def is_missing(pulse: datetime | None, settings: Settings, *, now: datetime) -> bool:
    """Whether the daemon should have ticked since; one that never ticked is none."""
    limit = timedelta(seconds=settings.health.daemon_silent_seconds)
    return pulse is not None and now - pulse > limit


def _span(length: timedelta) -> str:
    minutes = int(length.total_seconds() // 60)
    return f"{minutes // 60} h {minutes % 60:02} min"
