"""Parses a saved body with a job platform's adapter, without network or database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingestion_pipeline.companies.listing import listing_as_dict
from ingestion_pipeline.companies.platforms import platform as platform_named
from ingestion_pipeline.reading.structured.items import SavedBody, SavedBodyResult
from ingestion_pipeline.sources.source import Kind


def read_saved(
    platform: str,
    kind: Kind,  # noqa: ARG001 - every system takes it: one may read several kinds
    saved: SavedBody,
    config: Mapping[str, Any],
) -> SavedBodyResult:
    """Return the body's listings and problems; raise ValueError for a bad config."""
    board = platform_named(platform).configure(saved.url, config)
    return SavedBodyResult.of(
        lambda: board.read([saved.body], content_types=[None], now=saved.fetched_at), listing_as_dict
    )
