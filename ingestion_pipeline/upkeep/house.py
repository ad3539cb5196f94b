"""What concerns the whole house: money for models, failed runs, a daemon that gives no sign.

Each is told once: a budget at 80 and at 100 percent of its month, the failures of a job once in an
hour, a silence when it is over. Their names in the outbox see to it, whoever looks and how often.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlalchemy import Connection, exists, func, select

from ingestion_pipeline.notices.subjects import (
    BUDGET,
    DAEMON_SILENT,
    RUN_FAILURES,
    write_notice,
)
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.tables import ACTIVE, audit_log, model_spending, pulses, tasks

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
