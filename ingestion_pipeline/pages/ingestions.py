"""The polls that had something to say: by which run, configuration and bodies; `ingest explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from uuid import uuid4

from sqlalchemy import Connection, insert

from ingestion_pipeline.pages.batch_item import BatchItem, pages_of
from ingestion_pipeline.pages.snapshots import keep_snapshots
from ingestion_pipeline.pages.system import Ingested, Placed, PolledReading
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.store.tables import ingestions

_BITS = 62  # fits a BIGINT; two of ten million are equal once in a hundred thousand times


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestionRow:
    """A row of `ingestions`."""

    id: int
    source_id: str
    config_version: int
    run_id: str | None
    reader: str
    snapshots: list[int]
    outcome: str
    tracking_id: str
    fetched_at: datetime
    ingested_at: datetime


def new_ingestion_id() -> int:
    """An id that no other ingestion has; drawn, so that a poll that says nothing costs no row.

    (If two should be equal after all, the transaction fails and its listings follow one by one.)
    """
    return uuid4().int >> (128 - _BITS)


def polled(item: BatchItem, reading: bytes) -> PolledReading:
    """What was read of the item, under an id of its own."""
    return PolledReading(
        task=item.task, source=item.source, reading=reading, ingestion_id=new_ingestion_id()
    )


def short_reader(reader: str) -> str:
    """Platform and version; the configuration behind them has its own place."""
    return ":".join(reader.split(":", 2)[:2])


def keep_lineage(
    connection: Connection,
    shop: RunContext,
    items: Sequence[BatchItem],
    polls: Mapping[str, tuple[int, Ingested]],
    *,
    now: datetime,
) -> None:
    """What was read has its snapshots, and each poll the row that its records name."""
    if not items:
        return
    kept = iter(keep_snapshots(connection, pages_of(items), now=now, run_id=shop.run_id))
    rows = [
        IngestionRow(
            id=polls[item.source.id][0],
            source_id=item.source.id,
            config_version=item.source.config_version,
            run_id=shop.run_id,
            reader=short_reader(item.reader),
            snapshots=[next(kept) for _ in item.pages],
            outcome=polls[item.source.id][1].outcome,
            tracking_id=item.task.tracking_id,
            fetched_at=item.fetched_at,
            ingested_at=now,
        )
        for item in items
    ]
    connection.execute(insert(ingestions), [asdict(one) for one in rows])
    placed = [
        Placed(source_id=one.source_id, ingestion_id=one.id, snapshot_id=one.snapshots[0])
        for one in rows
        if len(one.snapshots) == 1
    ]
    if placed:
        shop.systems[items[0].source.kind].place(connection, placed)
