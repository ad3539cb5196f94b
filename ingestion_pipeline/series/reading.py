"""A series listing as read, between extraction and ingestion: releases as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, cast

from ingestion_pipeline.reading.reading import Problem, Reading
from ingestion_pipeline.series.chapter import release_as_dict, release_from_dict
from ingestion_pipeline.series.release import Release


def reading_to_bytes(reading: Reading[Release]) -> bytes:
    """The reading for the content store."""
    document = {
        "is_complete": reading.is_complete,
        "problems": [asdict(problem) for problem in reading.problems],
        "notes": list(reading.notes),
        "releases": [release_as_dict(release) for release in reading.records],
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(
        errors="surrogatepass"  # as json.loads reads it back; ingestion cleans every text
    )


def reading_from_bytes(stored: bytes) -> Reading[Release]:
    """The reading that `reading_to_bytes` wrote."""
    document = cast("dict[str, Any]", json.loads(stored))
    return Reading(
        records=[release_from_dict(fields) for fields in document["releases"]],
        problems=[Problem(**fields) for fields in document["problems"]],
        is_complete=document["is_complete"],
        notes=document["notes"],
    )
