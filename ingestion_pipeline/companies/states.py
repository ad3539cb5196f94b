"""The kinds of work on companies, boards and listings, and the states of their records."""

from __future__ import annotations

from enum import StrEnum

# Kinds of tasks. SCRAPE_SOURCE is the permanent `poll` task of a board: its key is the source's id,
# and the one that a discovery makes is the discovery's child.
COMPANY = "company"
SOURCE_DISCOVERY = "source_discovery"
SCRAPE = "scrape"
JOB = "job"


class CompanyStatus(StrEnum):
    """How far a company's record is."""

    PENDING = "pending"
    ANALYZING = "analyzing"
    ACTIVE = "active"
    FAILED = "failed"


class ListingStatus(StrEnum):
    """Whether a board still lists it."""

    OPEN = "open"
    CLOSED = "closed"


class ListingDecision(StrEnum):
    """What a listing came to; before it was judged it has none."""

    FILTERED = "filtered"
    SKIPPED = "skipped"
    MATCHED = "matched"


class Priority(StrEnum):
    """How soon a match is worth a look."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Confidence(StrEnum):
    """How sure it is that we can read a board: by pattern and probe, by pattern, by neither."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
