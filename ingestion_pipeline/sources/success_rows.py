"""The source rows of polls that got through: what each says, by one statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Boolean,
    Connection,
    Float,
    Integer,
    String,
    Text,
    case,
    func,
    literal,
    null,
    update,
)

from ingestion_pipeline.sources import polling
from ingestion_pipeline.sources.change_rate import ChangeModel, learned, rhythm_of
from ingestion_pipeline.sources.evidence import changes_found
from ingestion_pipeline.sources.source import Source, SourceStatus
from ingestion_pipeline.store.rows import row_source
from ingestion_pipeline.store.tables import sources
from ingestion_pipeline.store.types import Json, UtcDateTime
from ingestion_pipeline.work.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class PollSuccess:
    """A poll that got through.

    With `is_read` its listing was read and believed in this transaction, with `changed` it also led
    to a row that is new or different; `updated` and `withdrawn` say how many.
    """

    task: Task
    source: Source
    outcome: str
    etag: str | None
    last_modified: str | None
    is_read: bool = False
    changed: bool = False
    updated: int = 0
    withdrawn: int = 0
    content_hash: str | None = None
    reader: str | None = None
    newest_at: datetime | None = None
    published: Sequence[datetime] = ()
    needs_full_read: bool = False
    record_count: int | None = None


_SUCCESS_COLUMNS = {
    "id": String(120),
    "tier": String(4),
    "next_check_at": UtcDateTime(),
    "is_read": Boolean(),
    "changed": Boolean(),
    "updated": Integer(),
    "withdrawn": Integer(),
    "last_new_at": UtcDateTime(),
    "outcome": Text(),
    "content_hash": String(64),
    "reader": Text(),
    "etag": Text(),
    "last_modified": Text(),
    "needs_full_read": Boolean(),
    "record_count": Integer(),
    "rhythm": Json,
    "changes_per_day": Float(),
    "checks_per_day": Float(),
}


def rhythm_after(one: PollSuccess, *, now: datetime) -> ChangeModel:
    """What was known of the source's changes, and what this poll found."""
    found = changes_found(
        one.source, published=one.published, has_news=one.newest_at is not None, now=now
    )
    return learned(rhythm_of(one.source.rhythm), found)


def success_row(
    one: PollSuccess, standing: polling.PollState, newest: datetime | None, rhythm: ChangeModel
) -> tuple[Any, ...]:
    """The row of `write_successes` for one poll."""
    kept = one.source
    return (
        kept.id,
        standing.tier.value,
        standing.next_check_at,
        one.is_read,
        one.changed,
        one.updated,
        one.withdrawn,
        newest,
        one.outcome,
        one.content_hash if one.is_read else kept.content_hash,
        one.reader if one.is_read else kept.reader,
        one.etag,
        one.last_modified,
        one.needs_full_read,
        kept.record_count if one.record_count is None else one.record_count,
        rhythm.to_json() if rhythm.last_at is not None else None,
        standing.changes_per_day,
        standing.checks_per_day,
    )


def write_successes(
    connection: Connection, rows: Sequence[tuple[Any, ...]], *, now: datetime
) -> list[str]:
    """The sources whose tier an operator pinned while they were polled: their poll must follow."""
    given = row_source(connection, _SUCCESS_COLUMNS, rows, "given")
    changed_at = func.coalesce(_if(given.c.changed, now), sources.c.last_changed_at)
    statement = (
        update(sources)
        .where(sources.c.id == given.c.id)
        .values(
            tier=unless_pinned(given.c.tier),
            status=SourceStatus.ACTIVE.value,
            status_reason=None,
            failure_count=0,
            next_check_at=given.c.next_check_at,
            last_checked_at=now,
            last_success_at=now,
            last_changed_at=changed_at,
            untold_polls=sources.c.untold_polls + 1,
            poll_count=sources.c.poll_count + 1,
            untold_changes=sources.c.untold_changes + case((given.c.changed, 1), else_=0),
            change_count=sources.c.change_count + case((given.c.changed, 1), else_=0),
            untold_updated=sources.c.untold_updated + given.c.updated,
            untold_withdrawn=sources.c.untold_withdrawn + given.c.withdrawn,
            last_new_at=given.c.last_new_at,
            # An empty listing is no sync: the backlog that follows it must not be told either.
            synced_at=func.coalesce(
                sources.c.synced_at, _if(given.c.is_read & (given.c.record_count > 0), now)
            ),
            synced_version=case(
                (given.c.is_read & (given.c.record_count > 0), sources.c.config_version),
                else_=sources.c.synced_version,
            ),
            last_outcome=given.c.outcome,
            last_error_class=None,
            content_hash=given.c.content_hash,
            reader=given.c.reader,
            etag=given.c.etag,
            last_modified=given.c.last_modified,
            needs_full_read=given.c.needs_full_read,
            accepts_drop=sources.c.accepts_drop & ~given.c.is_read,
            record_count=given.c.record_count,
            rhythm=given.c.rhythm,
            changes_per_day=given.c.changes_per_day,
            checks_per_day=given.c.checks_per_day,
            updated_at=now,
        )
        .returning(sources.c.id, sources.c.tier)
    )
    decided = {row[0]: row[1] for row in rows}
    return [id_ for id_, tier in connection.execute(statement) if tier != decided[id_]]


def unless_pinned(tier: Any) -> Any:  # noqa: ANN401 - SQL expressions
    """The tier, unless an operator has pinned one while the poll was running."""
    return case((sources.c.tier_pinned, sources.c.tier), else_=tier)


def _if(condition: Any, moment: datetime) -> Any:  # noqa: ANN401 - SQL expressions
    return case((condition, literal(moment, UtcDateTime())), else_=null())
