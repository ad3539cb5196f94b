"""What waits is found by the indexes of what waits: notices are kept for ever, and grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, event

from ingestion_pipeline.notices import rows, tasks
from ingestion_pipeline.notices.expansion import expand
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.builders import NOON

GROUPING = NOON - NOON


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize(
    ("ask", "index"),
    [
        (lambda c: rows.unfinished_delivery(c, "ann"), "ix_notices_pending"),
        (lambda c: rows.pending_notices(c, "ann"), "ix_notices_pending"),
        (lambda c: rows.sealed_message(c, "ann", "d"), "ix_notices_pending"),
        (lambda c: rows.mark_sent(c, "ann", "d", now=NOON), "ix_notices_pending"),
        (lambda c: rows.reopen(c, "ann"), "ix_notices_failed"),
        (lambda c: rows.sent_messages(c, "ann", since=NOON), "ix_notices_recipient_sent_at"),
        (lambda c: expand(c, now=NOON, grouping=GROUPING), "ix_outbox_unhandled"),
        (lambda c: tasks.is_work_waiting(c, now=NOON), "ix_outbox_unhandled"),
        (lambda c: tasks.is_work_waiting(c, now=NOON), "ix_notices_pending"),
        (lambda c: tasks.ensure_tasks(c, now=NOON, grouping=GROUPING), "ix_notices_pending"),
    ],
)
def test_a_statement_walks_through_its_own_index_alone(
    store: Store, ask: Callable[[Connection], object], index: str
) -> None:
    asked: list[tuple[str, Any]] = []

    def listen(_: Any, __: Any, statement: str, given: Any, *___: Any) -> None:
        asked.append((statement, given))

    with store.begin() as connection:
        event.listen(connection, "before_cursor_execute", listen)
        ask(connection)
        event.remove(connection, "before_cursor_execute", listen)
        plan = [
            row[3]
            for statement, given in asked
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", given)
        ]

    table = index.split("_")[1]
    walked = [line for line in plan if f" {table} " in f"{line} "]
    assert walked
    assert all(index in line for line in walked)
