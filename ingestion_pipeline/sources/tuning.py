"""What is found by measuring and kept for the next one who asks: a few numbers by name."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, select

from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.tables import tunings


def tuned(connection: Connection) -> dict[str, float]:
    """All of them."""
    query = select(tunings.c.name, tunings.c.value)
    return {name: value for name, value in connection.execute(query)}  # noqa: C416 - rows to a dict


def tune(connection: Connection, values: Mapping[str, float], *, now: datetime) -> None:
    """These are what was measured last; the others stay."""
    for name, value in sorted(values.items()):
        statement = insert_into(connection, tunings).values(name=name, value=value, updated_at=now)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=["name"], set_={"value": value, "updated_at": now}
            )
        )
