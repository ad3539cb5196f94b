"""Alerts of the whole installation are sent once: budgets, failed runs, a silent daemon."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from ingestion_pipeline.operations.alerts import (
    RUN_FAILED,
    Budget,
    last_heartbeat,
    notify_budget,
    notify_run_failure,
    reached_shares,
    record_heartbeat,
)
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.sources.declarations import recipient_of
from ingestion_pipeline.sources.source import ALERTS, SOURCE_ALERTS
from ingestion_pipeline.sources.status import Alert
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.statements import audit
from ingestion_pipeline.store.tables import model_spending, outbox, tasks
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline_tests.builders import a_new_task

pytestmark = pytest.mark.both_databases


def alert_subjects(store: Store) -> list[str]:
    with store.read() as connection:
        query = select(outbox.c.subject_kind, outbox.c.subject_id).order_by(outbox.c.id)
        return [f"{kind} {subject}" for kind, subject in connection.execute(query)]


def with_model_budget(settings: Settings) -> Settings:
    url = settings.database_url
    variables = {"INGESTION_MODEL_BUDGET_MONTH_USD": "10", "INGESTION_DATABASE_URL": url}
    return load_settings(variables)


@pytest.mark.parametrize(
    ("limit", "held_usd", "is_used_up", "expected"),
    [
        (None, "99", False, []),
        ("10", "7.99", False, []),
        ("10", "8", False, [80]),
        ("10", "9.9", True, [80, 100]),
        ("10", "10", False, [80, 100]),
        ("0", "0", False, []),
    ],
)
def test_a_budget_alerts_at_eighty_and_at_a_hundred_percent(
    limit: str | None, held_usd: str, is_used_up: bool, expected: list[int]
) -> None:
    budget = Budget(
        month="2026-03",
        limit_usd=None if limit is None else Decimal(limit),
        held_usd=Decimal(held_usd),
        is_used_up=is_used_up,
    )

    assert list(reached_shares(budget)) == expected


def test_each_share_of_a_monthly_budget_alerts_once(store: Store, settings: Settings, clock: FixedClock) -> None:
    settings = with_model_budget(settings)

    def spend(month: str, amount: str) -> list[int]:
        with store.begin() as connection:
            row = {"scope": f"month:{month}", "held_usd": Decimal(amount), "updated_at": clock.at}
            connection.execute(insert(model_spending).values(row))
        return notify_twice()

    def notify_twice() -> list[int]:
        counts: list[int] = []
        for _ in range(2):
            with store.begin() as connection:
                counts.append(notify_budget(connection, settings, clock.at))
        return counts

    assert spend("2026-03", "8.5") == [1, 0]
    with store.begin() as connection:  # one more call did not fit, and waits
        insert_tasks(connection, [a_new_task(kind="extract_page")], now=clock.at)
        waits = {"error_code": "model_budget", "error": "the model budget for this month is ..."}
        connection.execute(update(tasks).values(waits))
    assert notify_twice() == [1, 0]
    clock.advance(days=31)
    with store.begin() as connection:
        connection.execute(update(tasks).values(error_code=None, error=None))
    assert spend("2026-04", "3") == [0, 0]
    assert alert_subjects(store) == ["budget month:2026-03:80", "budget month:2026-03:100"]


def test_failures_of_a_job_alert_once_an_hour_with_their_number(store: Store, clock: FixedClock) -> None:
    def fail(job: str, run_id: str) -> bool:
        with store.begin() as connection:
            detail: dict[str, Any] = {"job": job, "freed": 0}
            audit(connection, actor="system", action=RUN_FAILED, subject=f"run:{run_id}", now=clock.at, detail=detail)
            return notify_run_failure(connection, job, run_id=run_id, now=clock.at)

    first = [fail("poll_hot", f"r{n}") for n in range(3)]
    other = fail("maintain", "r9")
    clock.advance(hours=1)
    later = fail("poll_hot", "r4")

    assert (first, other, later) == ([True, False, False], True, True)
    with store.read() as connection:
        texts = list(connection.execute(select(outbox.c.payload).order_by(outbox.c.id)).scalars())
    assert "in the hour before" not in texts[0]["text"]
    assert texts[2]["text"].startswith("run r4; 3 failed in the hour before;")


def test_a_silent_daemon_alerts_once_when_it_is_back(store: Store, settings: Settings, clock: FixedClock) -> None:
    def tick() -> bool:
        with store.begin() as connection:
            return record_heartbeat(connection, settings, now=clock.at)

    def tick_after(**span: float) -> bool:
        clock.advance(**span)
        return tick()

    assert [tick(), tick_after(seconds=30), tick_after(seconds=170)] == [False, False, False]
    gone_at = clock.at
    assert [tick_after(hours=2), tick(), tick_after(seconds=30)] == [True, False, False]
    with store.read() as connection:
        assert last_heartbeat(connection) == clock.at
        [payload] = connection.execute(select(outbox.c.payload)).scalars()
    assert payload["title"] == "the daemon was silent for 2 h 00 min"
    assert payload["silent_from"] == gone_at.isoformat()


def test_a_tick_with_an_older_clock_does_not_move_the_heartbeat_back(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    with store.begin() as connection:
        record_heartbeat(connection, settings, now=clock.at)
        record_heartbeat(connection, settings, now=clock.at - timedelta(minutes=1))

        assert last_heartbeat(connection) == clock.at


def test_the_kind_alerts_expands_to_every_kind_of_alert() -> None:
    raw = {"id": "ops", "address": "notify:", "kinds": ["alerts", "extraction", "budget"]}
    recipient, problems = recipient_of(raw)

    assert problems == []
    assert recipient is not None
    assert recipient.kinds == (*ALERTS, "extraction")
    assert set(Alert) == set(SOURCE_ALERTS) < set(ALERTS)
