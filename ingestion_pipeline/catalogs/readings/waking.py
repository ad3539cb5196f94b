"""Pages that only a model can read wait for one; once there is one, they wait no longer."""

from __future__ import annotations

from sqlalchemy import select, update

from ingestion_pipeline.catalogs.states import EXTRACT_PAGE
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.store.tables import FRONTIER, tasks
from ingestion_pipeline.work.task import TaskStatus

NO_MODEL = "no_model"


def wake_for_models(shop: RunContext) -> int:
    """What waits for want of a model is due, if one is configured by now; how many pages."""
    if not shop.settings.has_model:
        return 0
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        waiting = (
            select(tasks.c.id)
            .where(
                FRONTIER,
                tasks.c.kind == EXTRACT_PAGE,
                tasks.c.status == TaskStatus.PENDING.value,
                tasks.c.error_code == NO_MODEL,
                tasks.c.not_before > now,
            )
            .with_for_update(skip_locked=True)  # what somebody has is being dealt with
            .cte("waiting")
        )
        is_waiting = tasks.c.id.in_(select(waiting.c.id))
        return connection.execute(update(tasks).where(is_waiting).values(not_before=now)).rowcount
