"""`ingest changes`, and the changes that `ingest explain` shows."""

import json
import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, text, update

from ingestion_pipeline.cli.session import CAUSES
from ingestion_pipeline.exports.change_history import ChangeFilter, changes_of
from ingestion_pipeline.series.series_changes import withdraw
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.changes import Cause
from ingestion_pipeline.store.tables import changes, chapters, sources
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.cli.test_series import sync

LATER = NOON + timedelta(days=1)


@pytest.fixture(autouse=True)
def rows(home_store: Store) -> None:
    """`solo` with 1 and 2, and 3 since it is synced; a day later an operator withdraws 3."""
    sync(home_store, "series:solo", "solo", [1, 2])
    with home_store.begin() as connection:
        connection.execute(update(sources).values(synced_at=NOON))
    sync(home_store, "series:solo", "solo", [1, 2, 3])
    with home_store.begin() as connection:
        withdraw(connection, "solo", "3", actor="test", now=LATER)


def listed(ingest: Ingest, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ingest.output("changes", *options, "--json").splitlines()]


def test_changes_are_filtered_by_time_table_source_and_cause(ingest: Ingest) -> None:
    options = ("--since", NOON.isoformat(), "--table", "chapters", "--source", "series:solo")

    [change] = listed(ingest, *options, "--cause", "source_changed")

    assert (change["table_name"], change["op"], change["before"]) == ("chapters", "insert", None)
    assert change["after"]["number"] == 3
    assert {row["cause"] for row in listed(ingest, "--since", LATER.isoformat())} == {"operator"}


def test_the_option_takes_every_cause() -> None:
    assert tuple(cause.value for cause in Cause) == CAUSES


def test_changes_are_listed_for_people(ingest: Ingest) -> None:
    output = ingest.output("changes", "--table", "chapters", "--cause", "operator")

    assert "chapters:3" in output
    assert "rejected_at: - ->" in " ".join(output.split())
    assert ingest.output("changes", "--cause", "retention") == "no changes\n"


def test_explain_shows_the_changes_of_the_row(ingest: Ingest, home_store: Store) -> None:
    with home_store.read() as connection:
        row_id = connection.execute(select(chapters.c.id).where(chapters.c.key == "3")).scalar_one()

    history = ingest.json("explain", f"chapters:{row_id}")["history"]

    assert [(change["op"], change["cause"]) for change in history] == [
        ("insert", "source_changed"),
        ("update", "operator"),
    ]
    assert "update (operator" in ingest.output("explain", f"chapters:{row_id}")


def test_changes_since_a_time_are_found_by_the_index(home_store: Store) -> None:
    with home_store.read() as connection:
        driver: Any = connection.connection.dbapi_connection
        statements: list[str] = []
        driver.set_trace_callback(statements.append)
        list(changes_of(connection, ChangeFilter(since=NOON)))
        driver.set_trace_callback(None)
        plan = connection.execute(text(f"EXPLAIN QUERY PLAN {statements[-1]}")).all()

    assert "ix_changes_occurred_at" in str(plan)
    assert "TEMP B-TREE" not in str(plan)


MILLION = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000000)
INSERT INTO changes (table_name, row_key, source_id, op, before, after, cause, occurred_at)
SELECT 'chapters', n, 'series:' || (n % 500), 'update', '{"title": "a"}', '{"title": "b"}', 'source_changed',
    strftime('%Y-%m-%d %H:%M:%f000+00:00', '2026-11-01', (n * 2) || ' seconds') FROM numbers
"""


@pytest.mark.soak
def test_the_last_hour_of_a_million_changes_is_read_in_200_milliseconds(ingest: Ingest, home_store: Store) -> None:
    with home_store.begin() as connection:
        connection.execute(text(MILLION))
        last = connection.execute(select(func.max(changes.c.occurred_at))).scalar_one()
    hour_before = last - timedelta(hours=1)

    with home_store.read() as connection:
        began = time.perf_counter()
        read = list(changes_of(connection, ChangeFilter(since=hour_before)))
        took = time.perf_counter() - began

    assert (len(read), took < 0.2) == (1801, True), took
    assert len(listed(ingest, "--since", hour_before.isoformat())) == 1801
