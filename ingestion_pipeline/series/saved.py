"""What a chapter site's reader makes of a saved body: no network, no database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingestion_pipeline.series.chapter import release_as_dict
from ingestion_pipeline.series.platforms import platform as platform_named
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.work.errors import WorkError


def read_saved(
    platform: str,
    kind: Kind,  # noqa: ARG001 - every system takes it: one may read several kinds
    body: bytes,
    url: str,
    config: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The releases the body states, and what could not be read; a bad config raises ValueError."""
    feed = platform_named(platform).configure(url, config)
    try:
        reading = feed.read([body], content_types=[None])
    except WorkError as error:
        return [], [{"where": "body", "code": error.code, "message": error.text}]
    problems = [
        {"where": one.where, "code": None, "message": one.message} for one in reading.problems
    ]
    return [dict(release_as_dict(release)) for release in reading.records], problems
