"""Task kinds of companies, boards and listings, and the states of their records."""

from datetime import datetime
from enum import StrEnum

from ingestion_pipeline.sources.source import shard_of
from ingestion_pipeline.tasks.task import NewTask
from ingestion_pipeline.urls import BadUrl, canonical_url, host_of

# Kinds of tasks. SCRAPE_SOURCE is the permanent `poll` task of a board: its key is the source's id,
# and the one that a discovery makes is the discovery's child.
COMPANY = "company"
SOURCE_DISCOVERY = "source_discovery"
SCRAPE = "scrape"
JOB = "job"


class CompanyStatus(StrEnum):
    """The progress of a company's record."""

    PENDING = "pending"
    ANALYZING = "analyzing"
    ACTIVE = "active"
    FAILED = "failed"


class Completeness(StrEnum):
    """How complete the data of a company or a listing is."""

    THIN = "thin"
    MINIMAL = "minimal"
    GOOD = "good"


class ListingStatus(StrEnum):
    """Whether a board still lists it."""

    OPEN = "open"
    CLOSED = "closed"


class ListingDecision(StrEnum):
    """The result of a listing's evaluation; null before it."""

    FILTERED = "filtered"
    SKIPPED = "skipped"
    MATCHED = "matched"


class Priority(StrEnum):
    """The priority of a match."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Confidence(StrEnum):
    """The confidence that a board can be parsed: by pattern and probe, by pattern, by neither."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


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
    """Return the listing's evaluation task, keyed by the listing's own URL, else by its id."""
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
