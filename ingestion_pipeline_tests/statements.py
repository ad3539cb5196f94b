"""The statements that are sent to a database, and their plans."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event


@contextmanager
def recorded_statements(target: Connection | Engine | type[Engine]) -> Iterator[list[tuple[str, Any]]]:
    """Record the statements that are sent meanwhile, with their parameters."""
    statements: list[tuple[str, Any]] = []

    def record(*call: Any) -> None:
        statements.append((call[2], call[3]))

    event.listen(target, "before_cursor_execute", record)
    yield statements
    event.remove(target, "before_cursor_execute", record)


def query_plans(connection: Connection, ask: Callable[[Connection], object]) -> str:
    """Return the plans of the statements that `ask` sends, a line for each step."""
    with recorded_statements(connection.engine) as statements:  # after what the store makes of them
        ask(connection)
    explain = "EXPLAIN QUERY PLAN" if connection.dialect.name == "sqlite" else "EXPLAIN"
    return "\n".join(
        str(row[-1])
        for statement, parameters in statements
        if not statement.startswith("BEGIN")
        for row in connection.exec_driver_sql(f"{explain} {statement}", parameters)
    )
