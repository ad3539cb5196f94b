"""How new what a dataset states is: by the crawl that got its pages, not by when they were read."""

from __future__ import annotations

from sqlalchemy import Connection, select

from ingestion_pipeline.catalogs.states import DatasetStatus
from ingestion_pipeline.store.tables import audit_log, datasets, extractions

RERUN = "extraction.rerun"  # in the audit log; with `publish` if an operator wants it shown


def newer_version(connection: Connection, extraction_id: int, entity_type: str) -> int | None:
    """The published version of a later crawl than the one that got these pages; None if none is."""
    crawled = _crawl_of(connection, extraction_id)
    row = connection.execute(
        select(extractions.c.source_id).where(extractions.c.id == extraction_id)
    ).one()
    query = select(datasets.c.version, datasets.c.extraction_id).where(
        datasets.c.source_id == row.source_id,
        datasets.c.entity_type == entity_type,
        datasets.c.status == DatasetStatus.PUBLISHED.value,
    )
    for version, built_by in connection.execute(query.order_by(datasets.c.version.desc())):
        if _crawl_of(connection, built_by) > crawled:
            return version
    return None


def _crawl_of(connection: Connection, extraction_id: int) -> int:
    """The extraction that fetched the pages: its own, or the one that it reads again."""
    origin: int | None = extraction_id
    while origin is not None:
        extraction_id = origin
        query = select(extractions.c.rerun_of).where(extractions.c.id == extraction_id)
        origin = connection.execute(query).scalar_one_or_none()
    return extraction_id


def is_wanted(connection: Connection, extraction_id: int) -> bool:
    """Whether whoever asked for a rerun wants to have it shown, old as its pages may be."""
    query = select(audit_log.c.detail).where(
        audit_log.c.action == RERUN, audit_log.c.subject == f"extraction:{extraction_id}"
    )
    return any(detail.get("publish") for detail in connection.execute(query).scalars())
