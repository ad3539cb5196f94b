"""Whether ingestion lags so far behind that polling waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select

from ingestion_pipeline.store.tables import FRONTIER, batch_items, tasks

# What polls and walks leave to be read or judged; pages that wait to be fetched are none of it.
INGESTING = ("extract_page", "job")


@dataclass(frozen=True, slots=True)
class IngestionBacklog:
    """More waits to be ingested than the settings allow."""

    waiting: int
    limit: int

    def __str__(self) -> str:
        return (
            f"polling is paused: {self.waiting:,} or more readings wait to be ingested"
            f" (polling.backlog_limit {self.limit:,}); it goes on when there are fewer"
        )


def backlog(
    connection: Connection, *, now: datetime, limit: int, kinds: Sequence[str] = INGESTING
) -> IngestionBacklog | None:
    """What holds polling up; None if nothing does. It counts no further than it must.

    What waits for something else, a model or a budget, is not counted: it would wait for ever.
    """
    fetched = select(batch_items.c.task_id).limit(limit + 1).subquery()
    waiting = connection.execute(select(func.count()).select_from(fetched)).scalar_one()
    for kind in kinds:
        if waiting > limit:
            break
        some = select(tasks.c.id).where(FRONTIER, tasks.c.kind == kind, tasks.c.not_before <= now)
        rest = some.limit(limit + 1 - waiting).subquery()
        waiting += connection.execute(select(func.count()).select_from(rest)).scalar_one()
    return IngestionBacklog(waiting, limit) if waiting > limit else None
