"""Lists of extractions and their pages for people, and checks for unfinished or unproved ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, func, select

from ingestion_pipeline.catalogs.states import UNFINISHED_PAGES, DatasetStatus, ExtractionStatus, PageStatus
from ingestion_pipeline.sources.health import Finding
from ingestion_pipeline.store.tables import crawl_steps, datasets, extractions, pages

LISTED = 200
NO_DATA = PageStatus.EXTRACTED_NO_DATA.value


def list_pages(
    connection: Connection, extraction_id: int, *, status: str | None = None, limit: int = LISTED
) -> list[dict[str, Any]]:
    """Return the extraction's pages in the order of discovery: state, items, and any failure."""
    columns = ("id", "url", "status", "page_type", "item_count", "extraction_method", "failure", "visited_at")
    query = (
        select(*(pages.c[name] for name in columns), crawl_steps.c.key.label("step"))
        .join(crawl_steps, crawl_steps.c.id == pages.c.step_id)
        .where(pages.c.extraction_id == extraction_id)
        .order_by(pages.c.id)
        .limit(limit)
    )
    if status is not None:
        query = query.where(pages.c.status == status)
    return [dict(row) for row in connection.execute(query).mappings()]


def list_extractions(
    connection: Connection, *, source_id: str | None = None, status: str | None = None, limit: int = LISTED
) -> list[dict[str, Any]]:
    """Return the extractions, newest first, each with its dataset."""
    query = (
        select(
            extractions,
            datasets.c.version.label("dataset_version"),
            datasets.c.status.label("dataset_status"),
            datasets.c.item_count.label("items"),
            datasets.c.flagged_count.label("flagged"),
            datasets.c.findings,
        )
        .outerjoin(datasets, datasets.c.id == extractions.c.dataset_id)
        .order_by(extractions.c.id.desc())
        .limit(limit)
    )
    if source_id is not None:
        query = query.where(extractions.c.source_id == source_id)
    if status is not None:
        query = query.where(extractions.c.status == status)
    hidden = {"recipe", "tracking_id"}
    rows = [
        {key: value for key, value in row.items() if key not in hidden} for row in connection.execute(query).mappings()
    ]
    active_ids = [row["id"] for row in rows if row["finished_at"] is None]
    waiting = _reasons(connection, active_ids, UNFINISHED_PAGES)
    empty = _reasons(connection, [row["id"] for row in rows], [NO_DATA])
    return [row | {"waiting": waiting.get(row["id"], []), "no_data": empty.get(row["id"], [])} for row in rows]


def _reasons(connection: Connection, ids: Sequence[int], statuses: Sequence[str]) -> dict[int, list[dict[str, Any]]]:
    """Return why pages of these are in such a state, and how many; one reason for each code."""
    code, message = pages.c.failure["code"].as_string(), pages.c.failure["message"].as_string()
    query = (
        select(pages.c.extraction_id, func.count().label("pages"), func.max(message).label("why"))
        .where(pages.c.extraction_id.in_(ids), pages.c.failure.is_not(None))
        .where(pages.c.status.in_(statuses))
        .group_by(pages.c.extraction_id, code)
        .order_by(pages.c.extraction_id, code)
    )
    reasons: dict[int, list[dict[str, Any]]] = {}
    for row in connection.execute(query):
        reasons.setdefault(row.extraction_id, []).append({"pages": row.pages, "why": row.why})
    return reasons


def unfinished(connection: Connection) -> list[Finding]:
    """Return sources whose last extraction ended without being complete."""
    place = func.row_number().over(partition_by=extractions.c.source_id, order_by=extractions.c.id.desc())
    ranked = select(extractions, place.label("place")).subquery()
    ended = [ExtractionStatus.STALE.value, ExtractionStatus.CANCELLED.value]
    query = select(ranked).where(ranked.c.place == 1, ranked.c.status.in_(ended))
    return [
        Finding(subject=row.source_id, message=f"extraction {row.id} is {row.status}: {_why(row.failure)}")
        for row in connection.execute(query.order_by(ranked.c.source_id))
    ]


def _why(failure: dict[str, str] | None) -> str:
    return "" if failure is None else failure["message"]


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
