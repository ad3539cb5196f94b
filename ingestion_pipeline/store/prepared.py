"""Statements that PostgreSQL reads and plans once per connection instead of each time.

The driver (psycopg2) sends every statement as text; to parse and plan it takes a third of the
server's time for a claim of ten tasks. A statement marked by `prepared` is sent by PREPARE the
first time and by EXECUTE from then on; its parameters, results and errors are those of the
statement itself. On SQLite, whose driver keeps compiled statements, the mark says nothing.

The server may settle on one plan for all values: mark only what has one good plan, written so that
the planner cannot miss it. A pooler between us and the server must give a client its own session.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Executable, event

S = TypeVar("S", bound=Executable)

_OPTION = "prepared"
_PREPARED = "prepared_statements"
_PARAMETER = re.compile(r"%\((\w+)\)s|%%")


def prepared(statement: S) -> S:
    """The statement, planned once per connection; its text must be the same for all values."""
    return statement.execution_options(**{_OPTION: True})


def prepare_marked(engine: Engine) -> None:
    """The marks of `prepared` count on this engine."""
    event.listen(engine, "before_cursor_execute", _execute_prepared, retval=True)


def _execute_prepared(
    connection: Connection,
    cursor: Any,  # noqa: ANN401
    statement: str,
    parameters: Any,  # noqa: ANN401
    context: Any,  # noqa: ANN401
    executemany: bool,  # noqa: ARG001, FBT001 - SQLAlchemy's hook
) -> tuple[str, Any]:
    if context is None or _OPTION not in context.execution_options:
        return statement, parameters
    name, prepare, execute = _as_prepared(statement)
    known = connection.info.setdefault(_PREPARED, set())  # as long as the connection to the server
    if name not in known:
        cursor.execute(prepare)  # outlives a transaction that is rolled back
        known.add(name)
    return execute, parameters


@lru_cache(maxsize=256)
def _as_prepared(statement: str) -> tuple[str, str, str]:
    """Its name, the text that prepares it, and the text that runs it with the same parameters."""
    name = f"ingestion_{blake2b(statement.encode(), digest_size=12).hexdigest()}"
    places: dict[str, str] = {}

    def place(found: re.Match[str]) -> str:
        parameter = found[1]
        return places.setdefault(parameter, f"${len(places) + 1}") if parameter else "%"

    text = _PARAMETER.sub(place, statement)
    given = ", ".join(f"%({parameter})s" for parameter in places)
    return name, f"PREPARE {name} AS {text}", f"EXECUTE {name} ({given})"
