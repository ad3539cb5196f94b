"""The states of pages, extractions and datasets, and the constants that depend on them."""

from collections.abc import Collection
from enum import StrEnum

from sqlalchemy import ColumnElement, Connection, FromClause, func, select

from ingestion_pipeline.store.tables import extractions
from ingestion_pipeline.tasks.errors import WorkError


class PageStatus(StrEnum):
    """The state of a page: waiting, being fetched, downloaded, then extracted or failed."""

    WAITING = "WAITING"
    IN_PROGRESS = "IN_PROGRESS"
    DOWNLOADED = "DOWNLOADED"
    SUCCESS = "SUCCESS"
    EXTRACTED_NO_DATA = "EXTRACTED_NO_DATA"
    ERROR = "ERROR"

    @property
    def is_open(self) -> bool:
        """Whether the page has still to be fetched."""
        return self in {PageStatus.WAITING, PageStatus.IN_PROGRESS}


class ExtractionStatus(StrEnum):
    """The state of an extraction: waiting for its root page, running, or ended (three ways)."""

    WAITING = "WAITING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETE = "COMPLETE"
    STALE = "STALE"
    CANCELLED = "CANCELLED"


class ExtractionKind(StrEnum):
    """Where an extraction gets its pages: from the web, from an API, or from stored snapshots."""

    CRAWL = "crawl"
    API = "api"
    RERUN = "rerun"


class DatasetStatus(StrEnum):
    """The state of a dataset: being built, published, held back by the gates, or unfinished."""

    BUILDING = "building"
    PUBLISHED = "published"
    QUARANTINED = "quarantined"
    INCOMPLETE = "incomplete"


# Failure codes of pages that were fetched, but lost what the published dataset has of them.
RECORDS_MISSING = "records_missing"  # no records, and it looks unlike its siblings
RECORDS_MISSING_ONCE = "records_missing_once"  # it looks like its siblings: next crawl decides
LINKS_MISSING = "links_missing"  # a list that led to pages, and leads to none
MISSING_CODES = (RECORDS_MISSING, RECORDS_MISSING_ONCE, LINKS_MISSING)
NO_LINKS = "no_links"  # a fetched list page without links, as the end of a list may be

EXPLORED = "/explored"  # key suffix of a step that exploring made, once for each generation
RECORD_PAGES = ("DETAIL", "API_REQUEST")  # types of pages that state records
READ_PAGES = (*RECORD_PAGES, "EXPLORATORY")  # types of pages that records are extracted from

FETCH_PAGE = "fetch_page"  # the task that fetches a page
EXTRACT_PAGE = "extract_page"  # the task that extracts records from a downloaded page
EXTRACTION_TASKS = (FETCH_PAGE, EXTRACT_PAGE)
# Kinds of notices: an extraction has finished, a recipe was detected.
NOTICES = (EXTRACTION_NOTICE, RECIPE_NOTICE) = ("extraction", "recipe")

OPEN_PAGES = [status.value for status in PageStatus if status.is_open]
# Pages that keep an extraction from being complete: not fetched, or fetched and not extracted.
UNFINISHED_PAGES = [*OPEN_PAGES, PageStatus.DOWNLOADED.value]
CRAWLING_STATES = [ExtractionStatus.WAITING.value, ExtractionStatus.IN_PROGRESS.value]


def lock_extraction_rows(connection: Connection, ids: Collection[int]) -> None:
    """Lock these extractions, so that no other transaction adds to, finishes or reopens them."""
    if not ids:
        return
    locked = select(extractions.c.id).where(extractions.c.id.in_(list(ids)))
    connection.execute(locked.order_by(extractions.c.id).with_for_update()).all()


def failure_reason(error: WorkError) -> dict[str, str]:
    """Return why a page failed, for programs and for people."""
    return {"class": error.error_class.value, "code": error.code, "message": error.text}


def failure_code(page: FromClause) -> ColumnElement[str]:
    """Select why the page failed, as a code; empty if it did not."""
    return func.coalesce(page.c.failure["code"].as_string(), "")
