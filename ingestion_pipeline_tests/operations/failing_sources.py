"""Source rows by the thousand, some of them failing in five ways."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, update

from ingestion_pipeline.sources import Definition, Kind
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store.tables import sources, tasks
from ingestion_pipeline_tests.builders import a_definition

DAY = timedelta(days=1)


def source_definitions(count: int) -> list[Definition]:
    """Return sources of a hundred hosts; every fourth is a job board."""
    return [
        a_definition(id=f"series:n{n:05}", url=f"https://h{n % 100}.test/{n}", series=f"n{n:05}")
        if n % 4
        else a_definition(
            id=f"job_board:n{n:05}",
            kind=Kind.JOB_BOARD,
            url=f"https://h{n % 100}.test/{n}",
            platform="json",
            series=None,
        )
        for n in range(count)
    ]


def failure_values(now: datetime) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return the column values of source and poll task for each of the five failures."""
    reason = "disabled, behind a bot wall: a.test asks for a puzzle; `ingest sources enable` ends it"
    long_ago = {"last_success_at": now - 9 * DAY}
    paused = {"error_class": "resource", "error_code": "rate_limited", "error": "a pause"}
    return {
        "down": ({"status": "open", "failure_count": 5, "last_error_class": "transient"}, {}),
        "gone": ({"failure_count": 1, "last_error_class": "permanent", "last_outcome": "failed: 404"}, {}),
        "wall": (
            {"status": "disabled", "status_reason": reason, "last_error_class": "permanent"},
            {"status": "SKIPPED"},
        ),
        "shape": ({"failure_count": 3, "last_error_class": "permanent"}, {}),
        "limited": (long_ago, paused | {"not_before": now + timedelta(minutes=5)}),
    }


def add_healthy_sources(connection: Connection, count: int, *, now: datetime) -> list[str]:
    """Add that many healthy sources; return their ids."""
    definitions = source_definitions(count)
    register(connection, definitions, now=now - 30 * DAY)
    healthy = {"last_success_at": now, "last_checked_at": now, "last_outcome": "unchanged"}
    later = now + timedelta(minutes=10)
    connection.execute(update(sources).values(healthy | {"next_check_at": later}))
    connection.execute(update(tasks).values(not_before=later))
    return [definition.id for definition in definitions]


def break_sources(connection: Connection, ids: list[str], *, per_failure: int, now: datetime) -> dict[str, list[str]]:
    """The first `each` times five of these fail, so many in each way; which, by way."""
    ids_by_failure: dict[str, list[str]] = {}
    chosen: Iterator[str] = iter(ids)
    for failure, (row, poll) in failure_values(now).items():
        ids_by_failure[failure] = [next(chosen) for _ in range(per_failure)]
        connection.execute(update(sources).where(sources.c.id.in_(ids_by_failure[failure])).values(row))
        if poll:
            is_theirs = tasks.c.source_id.in_(ids_by_failure[failure])
            connection.execute(update(tasks).where(is_theirs).values(poll))
    return ids_by_failure


def repair_sources(connection: Connection, ids: list[str], *, now: datetime) -> None:
    """Set the columns as after a successful poll, and after an operator enabled the source."""
    well = {"status": "active", "status_reason": None, "failure_count": 0, "last_success_at": now}
    row = well | {"last_error_class": None, "last_outcome": "unchanged"}
    connection.execute(update(sources).where(sources.c.id.in_(ids)).values(row))
    poll = {"status": "PENDING", "error_class": None, "error_code": None, "error": None}
    due = {"not_before": now + timedelta(minutes=10)}
    connection.execute(update(tasks).where(tasks.c.source_id.in_(ids)).values(poll | due))
