"""A changed listing between its fetch and its rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import RowMapping

from ingestion_pipeline.pages.poll_results import PageRef
from ingestion_pipeline.sources import Source
from ingestion_pipeline.work.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """A changed listing of a batch: still claimed, its pages and later its reading stored."""

    batch_id: str
    task: Task
    source: Source
    content_hash: str
    reader: str
    pages: tuple[PageRef, ...]
    reading: str | None
    fetched_at: datetime


def batch_item(row: RowMapping, task: Task, source: Source) -> BatchItem:
    """The item that a row states."""
    return BatchItem(
        batch_id=row["batch_id"],
        task=task,
        source=source,
        content_hash=row["fetched"]["content_hash"],
        reader=row["fetched"]["reader"],
        pages=tuple(PageRef(**page) for page in row["fetched"]["pages"]),
        reading=row["reading"],
        fetched_at=row["fetched_at"],
    )


def pages_of(items: Iterable[BatchItem]) -> list[tuple[str, PageRef]]:
    """Their pages in order, each with its source."""
    return [(item.source.id, page) for item in items for page in item.pages]
