"""Checks of catalogues, for assets and for the health of sources: failed crawls, held-back and unproved data."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, func, or_, select

from ingestion_pipeline.catalogs.states import DatasetStatus, ExtractionKind, ExtractionStatus, PageStatus
from ingestion_pipeline.sources.source import QUARANTINED as HELD_BACK
from ingestion_pipeline.sources.status import Finding
from ingestion_pipeline.store.tables import datasets, extractions, pages
from ingestion_pipeline.terminal import counted

SHELLS = ("empty_shell", "needs_browser", "no_browser")
FETCHED = ("SUCCESS", "EXTRACTED_NO_DATA", "DOWNLOADED")
FLOOR = 3  # fewer failed pages are not reported
PUBLISHED, QUARANTINED = DatasetStatus.PUBLISHED.value, DatasetStatus.QUARANTINED.value


def _is_latest() -> ColumnElement[bool]:
    """Match an extraction that is its source's last one."""
    other = extractions.alias("other")
    newest = select(func.max(other.c.id)).where(other.c.source_id == extractions.c.source_id)
    return extractions.c.id == newest.scalar_subquery()


def failed_pages(connection: Connection, *, failed_share: float) -> list[Finding]:
    """Return catalogues whose last crawl failed on more than this share of the fetched pages."""
    failed = func.count().filter(pages.c.status == PageStatus.ERROR.value)
    query = (
        select(extractions.c.source_id, failed.label("failed"), func.count().label("visited"))
        .join(pages, pages.c.extraction_id == extractions.c.id)
        .where(pages.c.visited_at.is_not(None), _is_latest())
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
        .where(pages.c.status == PageStatus.ERROR.value, code.in_(SHELLS), _is_latest())
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


def unfinished(connection: Connection) -> list[Finding]:
    """Return sources whose last extraction ended without being complete."""
    ended = [ExtractionStatus.STALE.value, ExtractionStatus.CANCELLED.value]
    query = select(extractions).where(extractions.c.status.in_(ended), _is_latest())
    return [
        Finding(
            subject=row.source_id,
            message=f"extraction {row.id} is {row.status}: {row.failure['message'] if row.failure else ''}",
        )
        for row in connection.execute(query.order_by(extractions.c.source_id))
    ]


def unproved(connection: Connection, *, flagged_share: float) -> list[Finding]:
    """Return sources whose newest dataset has too many items with an unproved field."""
    place = func.row_number().over(partition_by=datasets.c.source_id, order_by=datasets.c.version.desc())
    building = DatasetStatus.BUILDING.value
    ranked = select(datasets, place.label("place")).where(datasets.c.status != building).subquery()
    query = select(ranked).where(ranked.c.place == 1).order_by(ranked.c.source_id)
    return [
        Finding(subject=row.source_id, message=f"{row.flagged_count} of {row.item_count} are not proved")
        for row in connection.execute(query)
        if row.item_count and row.flagged_count > flagged_share * row.item_count
    ]


def held_back(connection: Connection) -> dict[str, str]:
    """Return why the last good data of a source stays, by source: held-back versions, else missing pages."""
    reasons = {finding.subject: finding.message for finding in missing_pages(connection)}
    for finding in quarantined(connection):
        reasons[finding.subject] = f"{HELD_BACK}: {finding.message}; the last good data stays"
    return reasons


def quarantined(connection: Connection) -> list[Finding]:
    """Return each source with a held-back version, and why; its last good version is shown."""
    held: list[Finding] = []
    for row in connection.execute(_quarantined_versions().order_by(datasets.c.source_id)):
        findings: list[dict[str, str]] = row.findings or []
        messages = "; ".join([finding["message"] for finding in findings])
        message = f"version {row.version} is held back: {messages}; extraction {row.extraction_id}"
        held.append(Finding(subject=row.source_id, message=message))
    return held


def _quarantined_versions() -> Select[Any, Any, Any, Any]:
    """Select datasets that are held back until somebody accepts them or an extraction does better.

    An extraction that finds the published version unchanged has done better, though it made none. A
    source has at most one.
    """
    after = datasets.alias("after")
    is_newer = and_(after.c.version > datasets.c.version, after.c.status.in_([PUBLISHED, QUARANTINED]))
    is_confirmed = and_(after.c.status == PUBLISHED, after.c.confirmed_at >= datasets.c.created_at)
    is_over = exists().where(after.c.source_id == datasets.c.source_id, or_(is_newer, is_confirmed))
    columns = (datasets.c.source_id, datasets.c.version, datasets.c.extraction_id, datasets.c.findings)
    return select(*columns).where(datasets.c.status == QUARANTINED, ~is_over)


def missing_pages(connection: Connection) -> list[Finding]:
    """Return each source whose last extraction lacked pages that stated records, and how many."""
    query = _with_missing_pages().order_by(extractions.c.source_id)
    lack = "that should state records gave none, and their earlier records are kept"
    return [
        Finding(
            subject=row.source_id,
            message=f"{counted(row.missing, 'page')} {lack}; `ingest extractions pages {row.extraction_id}` shows why",
        )
        for row in connection.execute(query)
    ]


def _with_missing_pages() -> Select[Any, Any, Any]:
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


def accepted_at(connection: Connection, source_ids: Select[str]) -> dict[str, datetime]:
    """Return when a version of each of these sources was last published, by extraction or operator."""
    query = select(datasets.c.source_id, func.max(datasets.c.published_at)).where(
        datasets.c.source_id.in_(source_ids), datasets.c.status == PUBLISHED
    )
    return {source_id: at for source_id, at in connection.execute(query.group_by(datasets.c.source_id)) if at}
