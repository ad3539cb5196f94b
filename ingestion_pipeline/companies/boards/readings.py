"""A board as read, between extraction and ingestion: listings as JSON."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from decimal import Decimal
from typing import Any

import orjson

from ingestion_pipeline.companies.listing import Listing, Remote, listing_as_dict
from ingestion_pipeline.companies.salary import Salary
from ingestion_pipeline.reading.reading import Problem, Reading
from ingestion_pipeline.work.errors import storable

_TEXTS = ("external_id", "title", "url", "location", "description", "company", "department")
MARK = b'"posted_is_relative"'  # once in every listing


def reading_to_bytes(reading: Reading[Listing]) -> bytes:
    """The reading for the content store."""
    return orjson.dumps(
        {
            "is_complete": reading.is_complete,
            "problems": [asdict(problem) for problem in reading.problems],
            "notes": list(reading.notes),
            "listings": [_as_dict(listing) for listing in reading.records],
        }
    )


def reading_from_bytes(stored: bytes) -> Reading[Listing]:
    """The reading that `reading_to_bytes` wrote."""
    document: dict[str, Any] = orjson.loads(stored)
    return Reading(
        records=[_from_dict(fields) for fields in document["listings"]],
        problems=[Problem(**fields) for fields in document["problems"]],
        is_complete=document["is_complete"],
        notes=document["notes"],
    )


def _as_dict(listing: Listing) -> dict[str, Any]:
    fields = dict(listing_as_dict(listing))
    fields |= {name: storable(fields[name]) for name in _TEXTS if fields[name] is not None}
    return fields | {"posted_is_relative": listing.posted_is_relative}


def _from_dict(fields: dict[str, Any]) -> Listing:
    values: dict[str, Any] = {
        **fields,
        "posted_at": _moment(fields["posted_at"]),
        "valid_until": _moment(fields["valid_until"]),
        "remote": Remote(fields["remote"]) if fields["remote"] else None,
        "salary": _salary(fields["salary"]),
        "other_locations": tuple(fields["other_locations"]),
    }
    return Listing(**values)


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _salary(fields: dict[str, Any] | None) -> Salary | None:
    if fields is None:
        return None
    amounts = {name: Decimal(fields[name]) if fields[name] else None for name in _AMOUNTS}
    return Salary(**amounts, currency=fields["currency"], period=fields["period"])


_AMOUNTS = ("minimum", "maximum")
