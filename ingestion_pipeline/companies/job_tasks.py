"""The task that judges a listing: one at a time, whoever asks for it."""

from __future__ import annotations

from datetime import datetime

from ingestion_pipeline.companies.states import JOB
from ingestion_pipeline.sources.source import shard_of
from ingestion_pipeline.urls import BadUrl, canonical_url, host_of
from ingestion_pipeline.work.task import NewTask


def job_task(
    listing_id: int,
    url: str | None,
    source_id: str,
    *,
    now: datetime,
    board_url: str | None = None,
    is_first_sync: bool = False,
    is_unreported: bool = False,
    tracking_id: str | None = None,
) -> NewTask:
    """Known by the listing's own address; one that has none is a place on its board's page."""
    address = _address(url) or (board_url and f"{canonical_url(board_url)}#listing-{listing_id}")
    return NewTask(
        kind=JOB,
        dedupe_key=_address(url) or f"listing:{listing_id}",
        not_before=now,
        shard=shard_of(host_of(address)) if address else 0,
        source_id=source_id,
        url=address,
        payload={"listing_id": listing_id, "is_first_sync": is_first_sync}
        | ({"is_unreported": True} if is_unreported else {}),
        tracking_id=tracking_id,
    )


def _address(url: str | None) -> str | None:
    try:
        return canonical_url(url) if url else None
    except BadUrl:
        return None
