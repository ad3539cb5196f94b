"""The states of pages and extractions."""

from __future__ import annotations

from enum import StrEnum


class PageStatus(StrEnum):
    """A page waits, is visited, is there; then it has been followed or read, or has failed."""

    WAITING = "WAITING"
    IN_PROGRESS = "IN_PROGRESS"
    DOWNLOADED = "DOWNLOADED"
    SUCCESS = "SUCCESS"
    EXTRACTED_NO_DATA = "EXTRACTED_NO_DATA"
    ERROR = "ERROR"

    @property
    def is_open(self) -> bool:
        """Whether it has still to be visited."""
        return self in {PageStatus.WAITING, PageStatus.IN_PROGRESS}


class ExtractionStatus(StrEnum):
    """An extraction waits for its root, goes on, and ends complete, stale or cancelled."""

    WAITING = "WAITING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETE = "COMPLETE"
    STALE = "STALE"
    CANCELLED = "CANCELLED"


OPEN_PAGES = [one.value for one in PageStatus if one.is_open]
CRAWLING_STATES = [ExtractionStatus.WAITING.value, ExtractionStatus.IN_PROGRESS.value]
