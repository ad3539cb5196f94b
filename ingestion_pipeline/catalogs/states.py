"""The states of pages, extractions and datasets."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from sqlalchemy import Connection, select

from ingestion_pipeline.store.tables import extractions


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


class ExtractionKind(StrEnum):
    """How an extraction comes by its pages: from the web, from an API, from what is stored."""

    CRAWL = "crawl"
    API = "api"
    RERUN = "rerun"


class DatasetStatus(StrEnum):
    """A dataset is built, then shown, held back for its faults, or left unfinished."""

    BUILDING = "building"
    PUBLISHED = "published"
    QUARANTINED = "quarantined"
    INCOMPLETE = "incomplete"


# Why a page that the shown dataset has records of is in ERROR although it was read: it states none.
RECORDS_MISSING = "records_missing"  # and looks unlike its siblings
RECORDS_MISSING_ONCE = "records_missing_once"  # and looks like them: the next crawl decides
LINKS_MISSING = "links_missing"  # of a list: it led to pages, and leads to none
MISSING_CODES = (RECORDS_MISSING, RECORDS_MISSING_ONCE, LINKS_MISSING)
NO_LINKS = "no_links"  # of a list that was got and leads to no page, as the end of one may

EXPLORED = "/explored"  # ends the key of a step that exploring made, once for each generation
RECORD_PAGES = ("DETAIL", "API_REQUEST")  # types of pages that state records
READ_PAGES = (*RECORD_PAGES, "EXPLORATORY")  # types of pages that are read for records

EXTRACT_PAGE = "extract_page"  # the task that reads a downloaded page

OPEN_PAGES = [one.value for one in PageStatus if one.is_open]
# What keeps an extraction from looking complete: not visited, or visited and not read.
UNFINISHED_PAGES = [*OPEN_PAGES, PageStatus.DOWNLOADED.value]
CRAWLING_STATES = [ExtractionStatus.WAITING.value, ExtractionStatus.IN_PROGRESS.value]


def lock_rows(connection: Connection, ids: Collection[int]) -> None:
    """Nobody else adds to these extractions, or ends or opens them, during this transaction."""
    if not ids:
        return
    locked = select(extractions.c.id).where(extractions.c.id.in_(list(ids)))
    connection.execute(locked.order_by(extractions.c.id).with_for_update()).all()
