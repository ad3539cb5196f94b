"""Sources whose newest dataset the quality gates hold back: one rule for checks and for health."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    ScalarSelect,
    Select,
    and_,
    exists,
    func,
    or_,
    select,
)

from ingestion_pipeline.catalogs.states import DatasetStatus
from ingestion_pipeline.sources.findings import Finding
from ingestion_pipeline.store.tables import datasets

PUBLISHED, QUARANTINED = DatasetStatus.PUBLISHED.value, DatasetStatus.QUARANTINED.value


def quarantined(connection: Connection) -> list[Finding]:
    """Each such source, and why; what is shown of it is the last good version."""
    columns = ("source_id", "version", "extraction_id", "findings")
    query = held_back(*columns).order_by(datasets.c.source_id)
    return [
        Finding(
            subject=row.source_id, message=held_reason(row.version, row.extraction_id, row.findings)
        )
        for row in connection.execute(query)
    ]


def held_reason(
    version: int, extraction_id: int, findings: Sequence[Mapping[str, str]] | None
) -> str:
    """Which version of a source is held back, and what the gates found."""
    said = "; ".join([one["message"] for one in findings or []])
    return f"version {version} is held back: {said}; extraction {extraction_id}"


def held_back(*columns: str) -> Select[Any]:
    """Datasets that are held back until somebody accepts them or an extraction does better.

    One that finds the published version unchanged has done better, though it made none. Of a source
    there is one at the most.
    """
    after = datasets.alias("after")
    is_newer = and_(
        after.c.version > datasets.c.version, after.c.status.in_([PUBLISHED, QUARANTINED])
    )
    is_confirmed = and_(after.c.status == PUBLISHED, after.c.confirmed_at >= datasets.c.created_at)
    is_over = exists().where(after.c.source_id == datasets.c.source_id, or_(is_newer, is_confirmed))
    return select(*(datasets.c[name] for name in columns)).where(
        datasets.c.status == QUARANTINED, ~is_over
    )


def last_shown_at(source_id: ColumnElement[str]) -> ScalarSelect[datetime]:
    """When a version of this source was last published, by its extraction or by an operator."""
    query = select(func.max(datasets.c.published_at)).where(
        datasets.c.source_id == source_id, datasets.c.status == PUBLISHED
    )
    return query.scalar_subquery()
