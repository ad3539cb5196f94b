"""A job as its board lists it; what the board does not state is None, never a placeholder."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, time, timedelta
from enum import StrEnum
from typing import Any

from ingestion_pipeline.companies.salary import Salary, salary_as_dict
from ingestion_pipeline.reading.text.decoding import clean_text, without_references
from ingestion_pipeline.urls import without_secrets


class Remote(StrEnum):
    """Where the work is done."""

    REMOTE = "remote"
    HYBRID = "hybrid"
    ON_SITE = "on_site"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One posting; `description` is Markdown, times are UTC, `external_id` is the platform's own.

    `employment_type` and `department` are in the board's words, `company_website` as it links. A
    relative date ("3 days ago") changes with every poll: only the first one counts.
    """

    external_id: str | None
    title: str
    url: str | None
    location: str | None = None
    posted_at: datetime | None = None
    description: str | None = None
    company: str | None = None
    department: str | None = None
    employment_type: str | None = None
    remote: Remote | None = None
    salary: Salary | None = None
    other_locations: tuple[str, ...] = ()
    valid_until: datetime | None = None
    company_website: str | None = None
    posted_is_relative: bool = False

    def __post_init__(self) -> None:
        """Resolve character references in names, and remove secrets from URLs."""
        for name in ("title", "location", "company", "department", "employment_type"):
            if (text := getattr(self, name)) is not None and "&" in text:
                object.__setattr__(self, name, clean_text(without_references(text)) or text)
        for name in ("url", "company_website", "external_id"):
            if (address := getattr(self, name)) is not None and "://" in address:
                object.__setattr__(self, name, without_secrets(address))
        places = tuple(without_references(place) for place in self.other_locations)
        object.__setattr__(self, "other_locations", places)


def is_expired(valid_until: datetime | None, *, now: datetime) -> bool:
    """Return whether the deadline has passed; a date without a time lasts until its end."""
    if valid_until is None:
        return False
    is_date = valid_until.time() == time.min
    return valid_until < now - timedelta(days=1 if is_date else 0)  # 9999-12-31 has no day after


def listing_as_dict(listing: Listing) -> Mapping[str, Any]:
    """Return the listing as plain values, times as ISO text."""
    return {name: _plain(getattr(listing, name)) for name in _STATED}


_STATED = [field.name for field in fields(Listing) if field.name != "posted_is_relative"]


def _plain(value: object) -> object:
    match value:
        case datetime():
            return value.isoformat()
        case Remote():
            return value.value
        case Salary():
            return salary_as_dict(value)
        case tuple():
            return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  of texts
        case _:
            return value
