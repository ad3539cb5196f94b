"""Checks of crawls that got through: failed pages, empty shells, and pages that disappeared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select

from ingestion_pipeline.catalogs.states import ExtractionStatus, PageStatus
from ingestion_pipeline.sources.health import Finding
from ingestion_pipeline.store.tables import extractions, pages

SHELLS = ("empty_shell", "needs_browser", "no_browser")
FETCHED = ("SUCCESS", "EXTRACTED_NO_DATA", "DOWNLOADED")
FLOOR = 3  # fewer failed pages are not reported


def _latest() -> list[ColumnElement[bool]]:
    """Return the condition that an extraction is its source's last one."""
    other = extractions.alias("other")
    newest = select(func.max(other.c.id)).where(other.c.source_id == extractions.c.source_id)
    return [extractions.c.id == newest.scalar_subquery()]


def failed_pages(connection: Connection, *, failed_share: float) -> list[Finding]:
    """Return catalogues whose last crawl failed on more than this share of the fetched pages."""
    failed = func.count().filter(pages.c.status == PageStatus.ERROR.value)
    query = (
        select(extractions.c.source_id, failed.label("failed"), func.count().label("visited"))
        .join(pages, pages.c.extraction_id == extractions.c.id)
        .where(pages.c.visited_at.is_not(None), *_latest())
        .group_by(extractions.c.source_id)
        .order_by(extractions.c.source_id)
    )
    return [
        Finding(subject=source_id, message=f"{bad} of {visited} pages failed")
        for source_id, bad, visited in connection.execute(query)
        if bad > failed_share * visited and (bad >= FLOOR or bad == visited)
    ]


def empty_shells(connection: Connection) -> list[Finding]:
    """Return catalogues with pages that are empty without a browser."""
    code = pages.c.failure["code"].as_string()
    query = (
        select(extractions.c.source_id, func.count(), func.min(pages.c.url))
        .join(pages, pages.c.extraction_id == extractions.c.id)
        .where(pages.c.status == PageStatus.ERROR.value, code.in_(SHELLS), *_latest())
        .group_by(extractions.c.source_id)
        .order_by(extractions.c.source_id)
    )
    return [
        Finding(subject=source_id, message=f"{count} empty shells, such as {url}")
        for source_id, count, url in connection.execute(query)
    ]


def lost_pages(connection: Connection, *, drop_share: float) -> list[Finding]:
    """Return catalogues whose last complete crawl found far fewer pages than the one before."""
    place = func.row_number().over(partition_by=extractions.c.source_id, order_by=extractions.c.id.desc())
    ranked = (
        select(extractions.c.source_id, extractions.c.page_count, place.label("place"))
        .where(extractions.c.status == ExtractionStatus.COMPLETE.value)
        .subquery()
    )
    query = select(ranked).where(ranked.c.place <= 2).order_by(ranked.c.source_id)  # noqa: PLR2004
    counts: dict[str, dict[int, int]] = {}
    for source_id, page_count, nth in connection.execute(query):
        counts.setdefault(source_id, {})[nth] = page_count
    return [
        Finding(subject=source_id, message=f"{page_counts[1]} pages, previously {page_counts[2]}")
        for source_id, page_counts in counts.items()
        if 2 in page_counts and page_counts[1] < (1 - drop_share) * page_counts[2]  # noqa: PLR2004
    ]


def coverage_query(ids: Sequence[str]) -> Select[Any, int, int]:
    """Select the fetched pages of the last extraction, of all it found."""
    last = (
        select(func.max(extractions.c.id).label("id"), extractions.c.source_id)
        .where(extractions.c.source_id.in_(ids))
        .group_by(extractions.c.source_id)
        .subquery()
    )
    return (
        select(last.c.source_id, func.count().filter(pages.c.status.in_(FETCHED)), func.count())
        .join(pages, pages.c.extraction_id == last.c.id)
        .group_by(last.c.source_id)
    )
