"""Sources whose data is not as it should be: one rule for asset checks and for health.

Their newest dataset is held back by the quality gates, or shows records of an earlier crawl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, ScalarSelect, Select, and_, exists, func, or_, select

from ingestion_pipeline.catalogs.states import DatasetStatus, ExtractionKind
from ingestion_pipeline.sources.health import Finding
from ingestion_pipeline.store.tables import datasets, extractions

PUBLISHED, QUARANTINED = DatasetStatus.PUBLISHED.value, DatasetStatus.QUARANTINED.value


def quarantined(connection: Connection) -> list[Finding]:
    """Return each source with a held-back version, and why; its last good version is shown."""
    columns = ("source_id", "version", "extraction_id", "findings")
    query = held_back(*columns).order_by(datasets.c.source_id)
    return [
        Finding(subject=row.source_id, message=held_reason(row.version, row.extraction_id, row.findings))
        for row in connection.execute(query)
    ]


def held_reason(version: int, extraction_id: int, findings: Sequence[Mapping[str, str]] | None) -> str:
    """Explain which version of a source is held back, and what the gates found."""
    messages = "; ".join([finding["message"] for finding in findings or []])
    return f"version {version} is held back: {messages}; extraction {extraction_id}"


def held_back(*columns: str) -> Select[Any]:
    """Select datasets that are held back until somebody accepts them or an extraction does better.

    An extraction that finds the published version unchanged has done better, though it made none. A
    source has at most one.
    """
    after = datasets.alias("after")
    is_newer = and_(after.c.version > datasets.c.version, after.c.status.in_([PUBLISHED, QUARANTINED]))
    is_confirmed = and_(after.c.status == PUBLISHED, after.c.confirmed_at >= datasets.c.created_at)
    is_over = exists().where(after.c.source_id == datasets.c.source_id, or_(is_newer, is_confirmed))
    return select(*(datasets.c[name] for name in columns)).where(datasets.c.status == QUARANTINED, ~is_over)


def missing_pages(connection: Connection) -> list[Finding]:
    """Return each source whose last extraction lacked pages that stated records, and how many."""
    query = with_missing_pages().order_by(extractions.c.source_id)
    return [
        Finding(subject=row.source_id, message=missing_reason(row.extraction_id, row.missing))
        for row in connection.execute(query)
    ]


def missing_reason(extraction_id: int, count: int) -> str:
    """Explain how many pages an extraction lacks, and which command lists them."""
    pages = "1 page" if count == 1 else f"{count} pages"
    return (
        f"{pages} that should state records gave none, and their earlier records are kept;"
        f" `ingest extractions pages {extraction_id}` shows why"
    )


def with_missing_pages() -> Select[Any, Any, Any]:
    """Select the last ended extraction of each source, if pages are missing from it.

    While a new one is running the last one counts; a rerun says nothing about the source.
    """
    other = extractions.alias("other")
    last = select(func.max(other.c.id)).where(
        other.c.source_id == extractions.c.source_id,
        other.c.finished_at.is_not(None),
        other.c.kind != ExtractionKind.RERUN.value,
    )
    count = extractions.c.summary["missing"].as_integer()
    return select(extractions.c.source_id, extractions.c.id.label("extraction_id"), count.label("missing")).where(
        count > 0, extractions.c.id == last.scalar_subquery()
    )


def last_shown_at(source_id: ColumnElement[str]) -> ScalarSelect[datetime]:
    """Select when a version of this source was last published, by extraction or operator."""
    query = select(func.max(datasets.c.published_at)).where(
        datasets.c.source_id == source_id, datasets.c.status == PUBLISHED
    )
    return query.scalar_subquery()
