"""How far a claimed task has come, kept while it runs: whoever goes on with it begins there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, update

from ingestion_pipeline.store.tables import tasks
from ingestion_pipeline.work.claims import LostClaim
from ingestion_pipeline.work.task import Task, TaskStatus


def set_progress(
    connection: Connection, task: Task, *, stage: str, state: Mapping[str, Any]
) -> None:
    """The task's row says so; `LostClaim` if it is another worker's now."""
    changed = connection.execute(
        update(tasks)
        .where(
            tasks.c.id == task.id,
            tasks.c.fence == task.fence,
            tasks.c.status == TaskStatus.PROCESSING.value,
        )
        .values(stage=stage, state=dict(state))
    ).rowcount
    if not changed:
        raise LostClaim(f"task {task.id} is another worker's now; nothing is kept")
