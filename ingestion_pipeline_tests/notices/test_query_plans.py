"""Pending rows are found by their partial indexes: notices are never deleted, and grow."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, event

from ingestion_pipeline.notices import queries
from ingestion_pipeline.notices.expansion import expand
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.builders import NOON

pytestmark = pytest.mark.both_databases

GROUPING = NOON - NOON


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize(
    ("query", "index"),
    [
        (lambda c: queries.unfinished_delivery(c, "ann"), "ix_notices_pending"),
        (lambda c: queries.pending_notices(c, "ann"), "ix_notices_pending"),
        (lambda c: queries.sealed_message(c, "ann", "d"), "ix_notices_pending"),
        (lambda c: queries.mark_sent(c, "ann", "d", now=NOON), "ix_notices_pending"),
        (lambda c: queries.reopen(c, "ann"), "ix_notices_failed"),
        (lambda c: queries.sent_messages(c, "ann", since=NOON), "ix_notices_recipient_sent_at"),
        (lambda c: expand(c, now=NOON, grouping=GROUPING), "ix_outbox_unhandled"),
        (lambda c: queries.is_work_waiting(c, now=NOON), "ix_outbox_unhandled"),
        (lambda c: queries.is_work_waiting(c, now=NOON), "ix_notices_pending"),
        (lambda c: queries.ensure_tasks(c, now=NOON, grouping=GROUPING), "ix_notices_pending"),
    ],
)
def test_a_statement_uses_its_own_index_only(store: Store, query: Callable[[Connection], object], index: str) -> None:
    statements: list[tuple[str, Any]] = []

    def record(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        statements.append((statement, parameters))

    with store.begin() as connection:
        event.listen(connection, "before_cursor_execute", record)
        query(connection)
        event.remove(connection, "before_cursor_execute", record)
        plan = [
            row[3]
            for statement, parameters in statements
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]

    table = index.split("_")[1]
    table_lines = [line for line in plan if f" {table} " in f"{line} "]
    assert table_lines
    assert all(index in line for line in table_lines)
